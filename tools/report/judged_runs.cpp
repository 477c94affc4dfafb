// Collects verdicts over seeds and matches them with a study's forks. See judged_runs.h.
#include "tools/report/judged_runs.h"

#include <fmt/format.h>

#include <tuple>

#include "kernels/base/plural.h"
#include "tools/analysis/columns.h"
#include "tools/analysis/held_out_gap.h"
#include "tools/analysis/model_age.h"
#include "tools/text/distinct.h"

namespace precbench {
namespace {

using Json = nlohmann::ordered_json;

/// Returns a definition part without keys that may differ for equal work: a schedule names steps, and
/// longer runs have more.
Json content_of(const DefinitionPart& part) {
  Json content = *part;
  for (const char* key : {"reference", "schedule"}) content.erase(key);
  return content;
}

/// Compares a definition part. Records of schema 1 only have names; built-ins count as unchanged.
bool same_part(const Record& one, const Record& other, DefinitionPart DefinitionRecord::*part,
               const char* key) {
  if (one.definition && other.definition && (*one.definition).*part && (*other.definition).*part)
    return content_of((*one.definition).*part) == content_of((*other.definition).*part);
  return field_text(one.case_fields.value(key, Json())) == field_text(other.case_fields.value(key, Json()));
}

std::string master_of(const Record& record) { return field_text(record.case_fields.value("master", Json())); }

bool same_work(const Record& run, const Record& fork) {
  return master_of(run) == master_of(fork) &&
         modifiers_of(run.case_fields) == modifiers_of(fork.case_fields) &&
         same_part(run, fork, &DefinitionRecord::model, "model") &&
         same_part(run, fork, &DefinitionRecord::recipe, "recipe");
}

/// Returns the precedence of a run among several; the highest is shown.
auto weight(const JudgedRun& run) {
  return std::tuple(run.recipe->verdict == ConvergenceVerdict::diverged, text_of(run.row, "device") == "cuda",
                    run.recipe->steps, run.recipe->seeds);
}

/// Returns the tokens per parameter at the end; null if unknown, as with pretrained initial weights.
std::optional<double> tokens_seen(const RecipeConvergence& recipe) {
  const Record& first = recipe.members.front()->record;
  if (!field_text(first.case_fields.value("init_from", Json())).empty()) return std::nullopt;
  return tokens_per_parameter(first, static_cast<double>(recipe.steps));
}

}  // namespace

std::vector<JudgedRun> judged_runs(const ReportInput& input) {
  std::vector<JudgedRun> all;
  for (const MachineRecords& machine : input.machines)
    for (const Study& study : machine.studies)
      for (const RecipeConvergence& recipe : study.recipes)
        if (recipe.verdict && !recipe.is_bf16)
          all.push_back({&machine, &recipe, &study.recipes[recipe.baseline], row_of(recipe)});
  return all;
}

std::string age_words(const RecipeConvergence& recipe) { return age_words(std::vector{tokens_seen(recipe)}); }

std::string verdict_words(const RecipeConvergence& recipe) {
  if (!recipe.verdict) return "-";
  return name_of(*recipe.verdict) + (recipe.steps > 0 ? " " + age_words(recipe) : "");
}

std::string outcome_text(const JudgedRun& run) {
  const RecipeConvergence& judged = *run.recipe;
  if (!judged.delta) return fmt::format("{}: {}", name_of(*judged.verdict), judged.reason);
  const auto& interval = judged.delta_interval;
  const auto seen = tokens_seen(judged);
  return fmt::format(
      "{}, {:+.4f} nats{} ({}, {}, {} tokens per parameter)", name_of(*judged.verdict), *judged.delta,
      interval ? fmt::format(" [{:+.4f}, {:+.4f}]", interval->low, interval->high) : "",
      plural(judged.seeds, "seed"), plural(judged.steps, "step"), seen ? ratio_words(*seen) : "unknown");
}

std::string held_out_difference_text(const RecipeConvergence& recipe, const RecipeConvergence& bf16) {
  if (recipe.is_bf16) return "-";
  const std::vector<HeldOutPoint> points = held_out_difference(recipe, bf16);
  if (points.empty()) return "-";
  const auto& interval = points.back().interval;
  return fmt::format("{:+.4f}{}", points.back().mean,
                     interval ? fmt::format(" [{:+.4f}, {:+.4f}]", interval->low, interval->high) : "");
}

const JudgedRun* long_run_of(const std::vector<JudgedRun>& runs, const StudyCard& card) {
  const JudgedRun* longest = nullptr;
  for (const JudgedRun& run : runs) {
    const bool diverged = run.recipe->verdict == ConvergenceVerdict::diverged;
    const bool longer = run.recipe->delta && run.recipe->steps > static_cast<std::size_t>(card.fork_steps);
    if ((diverged || longer) && same_work(run.record(), *card.fork) &&
        (!longest || weight(run) > weight(*longest)))
      longest = &run;
  }
  return longest;
}

std::string long_run_differences(const JudgedRun& run, const StudyCard& card) {
  Distinct texts;
  if (run.machine->name != card.machine) texts.add("on " + run.machine->name);
  for (const char* key : {"gpus", "seq", "batch", "accumulation", "optimizer", "lr", "schedule",
                          "weight_decay", "clip", "data"}) {
    const std::string its_own = text_of(run.row, key),
                      theirs = field_text(card.fork->case_fields.value(key, Json()));
    if (!its_own.empty() && !theirs.empty() && its_own != theirs)
      texts.add(fmt::format("{} {}, of the forks {}", key, its_own, theirs));
  }
  return fmt::format("{}", fmt::join(texts.texts, "; "));
}

}  // namespace precbench
