// Times a few steps. See study_time.h.
#include "bench/study/study_time.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "bench/case/sensitivity.h"
#include "bench/case/stress.h"
#include "bench/process/case_process.h"
#include "kernels/base/errors.h"

namespace precbench {
namespace {

/// Returns the cost of the probes before a run in steps: for every batch and stress a gradient of BF16 and
/// one of the recipe, and a gradient for each cell of --sensitivity.
double gradients_of(const Case& c) {
  const std::size_t stresses = parse_fidelity_stress(c.fidelity_stress).size();
  return static_cast<double>(c.fidelity_batches) *
         (2.0 * static_cast<double>(1 + stresses) + static_cast<double>(cells_of(c)));
}

/// Returns the cost of the held-out loss after a run, in steps: a forward pass, a third of a step, in the recipe and
/// in BF16, and for --eval-recipes two in BF16 and one for each, with an lm_head of two.
double evaluations_of(const Case& c) {
  if (c.eval_data.empty()) return 0;
  const double step = static_cast<double>(c.batch * c.seq * c.accumulation * c.gpus);
  const auto readings =
      c.eval_recipes.empty() ? 0 : std::count(c.eval_recipes.begin(), c.eval_recipes.end(), ',') + 1;
  const double passes = 2 + (readings > 0 ? 2 + 1.3 * static_cast<double>(readings) : 0);
  return static_cast<double>(c.eval_tokens) / step * passes / 3;
}

struct Timed {
  double process_s = 0, step_s = 0;
};

using OptionalTimed = std::optional<Timed>;

/// Returns null if it takes longer than `patience_s`.
OptionalTimed time_steps(const std::vector<std::string>& child, Case c, const std::string& recipe,
                         std::int64_t steps, double patience_s) {
  c.recipe = recipe;
  c.steps = steps;
  c.warmup = 0;
  c.checkpoint_every = 0;
  c.checkpoint_at.clear();
  const auto begin = std::chrono::steady_clock::now();
  const CaseProcessResult result =
      run_case_process(child, c, all_ranks(static_cast<int>(c.gpus)), patience_s);
  const std::chrono::duration<double> all = std::chrono::steady_clock::now() - begin;
  const auto why = [&](const std::string& text) {
    return InvalidInput(fmt::format("{} {} does not run here: {}", c.model, recipe, text));
  };
  if (result.end == CaseProcessResult::End::timed_out) return std::nullopt;
  if (result.end != CaseProcessResult::End::exited || result.code != 0) throw why(result.last_lines);
  const Record record = nlohmann::ordered_json::parse(result.record).get<Record>();
  if (record.status != Status::ok) throw why(record.error.value_or(name_of(record.status)));
  const double step_s = record.timing->wall_ms.value_or(record.timing->median_ms.value_or(0)) / 1e3;
  return Timed{std::max(0.0, all.count() - static_cast<double>(steps) * step_s), step_s};
}

/// Runs more steps if they are quick; steps of a large model on a CPU take seconds each.
OptionalTimed time_steps(const std::vector<std::string>& child, const Case& c, const std::string& recipe,
                         double patience_s) {
  constexpr std::int64_t kFew = 2, kMany = 8;
  constexpr double kLongEnoughS = 1;
  const OptionalTimed few = time_steps(child, c, recipe, kFew, patience_s);
  if (!few || few->step_s * kMany > kLongEnoughS) return few;
  return time_steps(child, c, recipe, kMany, patience_s);
}

}  // namespace

std::size_t cells_of(Case c) {
  if (c.sensitivity.empty()) return 0;
  c.fork_from.clear();  // it may not exist yet
  return most_cells(validate(c));
}

double StudyPace::seconds(const std::vector<StudyCase>& cases, int at_once, int gpus) const {
  double steps_s = 0;
  for (const auto& [fields, place] : cases) {
    const double step_s = fields.recipe == "bf16" ? bf16_step_s : recipe_step_s;
    const double larger = static_cast<double>(fields.batch) / static_cast<double>(batch);
    steps_s +=
        (static_cast<double>(fields.steps) + gradients_of(fields) + evaluations_of(fields)) * step_s * larger;
  }
  const double startups_s = startup_s * static_cast<double>(cases.size());
  return std::max((startups_s + steps_s) / at_once, gpus > 0 ? steps_s / gpus : 0);
}

std::optional<StudyPace> measure_pace(const std::vector<std::string>& child, const Case& like,
                                      const std::string& recipe, double patience_s) {
  const OptionalTimed bf16 = time_steps(child, like, "bf16", patience_s);
  const OptionalTimed other = bf16 ? time_steps(child, like, recipe, patience_s) : std::nullopt;
  if (!other) return std::nullopt;
  return StudyPace{(bf16->process_s + other->process_s) / 2, bf16->step_s, other->step_s, like.batch};
}

}  // namespace precbench
