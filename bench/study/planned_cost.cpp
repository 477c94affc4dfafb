// Cost of a study before it runs. See planned_cost.h.
#include "bench/study/planned_cost.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "bench/case/plan.h"
#include "bench/machine/environment.h"
#include "bench/machine/host_memory.h"
#include "bench/predict/predict.h"
#include "bench/process/signals.h"
#include "bench/sweep/disk_space.h"
#include "bench/sweep/progress.h"
#include "kernels/base/errors.h"
#include "kernels/base/near_words.h"
#include "kernels/base/plural.h"
#include "kernels/gpu/device_info.h"
#include "results/record/study_place.h"
#include "results/text/lines.h"
#include "results/text/table.h"

namespace precbench {
namespace {

/// Prints the number of sensitivity cells of each case.
void print_cells(const std::vector<StudyCase>& cases, const Screen& screen) {
  for (const StudyCase& one : cases)
    if (const std::size_t cells = cells_of(one.fields); cells > 0)
      fmt::print(
          "{}",
          paragraph(fmt::format(
                        "sensitivity of {} on {}, trunk {} after {} steps: at most {} cells, {} of {} tokens each",
                        one.fields.recipe, one.fields.model, one.place.trunk, one.place.age, cells,
                        fmt::format("{} {}", one.fields.fidelity_batches,
                                    one.fields.fidelity_batches == 1 ? "batch" : "batches"),
                        one.fields.batch * one.fields.seq * one.fields.accumulation * one.fields.gpus),
                    screen));
}

}  // namespace

Concurrency concurrency_for(const std::vector<Plan>& plans, int wanted) {
  constexpr std::int64_t kMostOnGpu = 3;
  constexpr std::int64_t kContext = std::int64_t{1} << 30;  // bytes of a process outside the arena
  std::int64_t largest = 0;
  for (const Plan& plan : plans) {
    if (plan.ranks > 1 && wanted > 1)
      throw InvalidInput(fmt::format("--at-once: needs cases of one rank, but these have {}", plan.ranks));
    if (plan.ranks > 1 || unsupported_reason(plan)) return {};
    largest = std::max(largest, predict(plan).memory.peak + kContext);
  }
  Concurrency concurrency;
  concurrency.on_gpu = plans.front().on_gpu;
  std::int64_t fit = std::min(openmp_threads(), kMostStopped);
  if (concurrency.on_gpu) {
    if (find_gpus().count == 0) return {};
    concurrency.gpus = find_gpus().count;
    fit = std::min(concurrency.gpus, kMostStopped / static_cast<int>(kMostOnGpu)) *
          std::clamp(gpu_memory(0).free_bytes * 3 / 4 / largest, std::int64_t{1}, kMostOnGpu);
  } else if (const auto left = available_memory()) {
    fit = std::min(fit, *left * 3 / 4 / largest);
  }
  concurrency.at_once = static_cast<int>(std::max(std::int64_t{1}, wanted > 0 ? std::int64_t{wanted} : fit));
  return concurrency;
}

std::vector<PlannedPart> planned_parts(const std::vector<StudyCase>& cases,
                                       const std::optional<StudyPace>& pace, const Concurrency& concurrency) {
  static const std::map<StudyPart, const char*> kWords = {
      {StudyPart::trunk, "trunks, BF16"},
      {StudyPart::fork, "forks"},
      {StudyPart::learning_rate, "ladder of learning rates"},
      {StudyPart::bits, "ladder of mantissa bits"},
      {StudyPart::exponent_bits, "ladder of exponent bits"},
      {StudyPart::batch, "ladder of batches"},
      {StudyPart::sensitivity, "sensitivity, in single steps"}};
  std::vector<PlannedPart> parts;
  const auto add = [&](const std::string& words, const std::vector<StudyCase>& part) {
    PlannedPart planned{words, part.size(), 0, {}};
    for (const StudyCase& one : part) planned.steps += one.fields.steps;
    if (pace)
      planned.seconds = pace->seconds(part, concurrency.at_once, concurrency.on_gpu ? concurrency.gpus : 0);
    parts.push_back(std::move(planned));
  };
  for (const auto& [part, words] : kWords) {
    std::vector<StudyCase> of_part;
    std::copy_if(cases.begin(), cases.end(), std::back_inserter(of_part),
                 [p = part](const StudyCase& one) { return one.place.part == p; });
    if (!of_part.empty()) add(words, of_part);
  }
  add("all", cases);
  return parts;
}

void print_plan(const std::vector<StudyCase>& cases, const std::vector<PlannedPart>& parts,
                const std::string& heading) {
  const Screen screen = plain_screen(STDOUT_FILENO);
  const bool timed = parts.back().seconds.has_value();
  fmt::print("{}", paragraph(heading, screen));
  Table table;
  table.columns = {text_column("part", kKeyRank), number_column("cases"), number_column("steps")};
  if (timed) table.columns.push_back(number_column("about", kKeyRank));
  for (const PlannedPart& part : parts) {
    table.rows.push_back({part.name, std::to_string(part.cases), std::to_string(part.steps)});
    if (timed) table.rows.back().push_back(describe_seconds(*part.seconds));
  }
  fmt::print("{}", render_term(table, screen));
  print_cells(cases, screen);
  std::fflush(stdout);  // before the cases run, which may take days
}

void print_plan_json(const std::vector<PlannedPart>& parts, const Concurrency& concurrency,
                     const std::string& heading) {
  using Json = nlohmann::ordered_json;
  Json json = {{"plan", heading}, {"at_once", concurrency.at_once}, {"parts", Json::array()}};
  for (const PlannedPart& part : parts)
    json["parts"].push_back({{"part", part.name},
                             {"cases", part.cases},
                             {"steps", part.steps},
                             {"seconds", part.seconds ? Json(*part.seconds) : Json()}});
  fmt::print("{}\n", json.dump(2, ' ', true, Json::error_handler_t::replace));
}

std::string plan_heading(const StudySettings& settings, const std::vector<std::string>& models,
                         const std::vector<Plan>& trunks, const Concurrency& concurrency,
                         const std::string& out) {
  double bytes = 0;
  std::vector<std::string> ages;
  for (const std::int64_t age : settings.kept_ages()) ages.push_back(std::to_string(age));
  for (const Plan& trunk : trunks)
    bytes += static_cast<double>(missing_checkpoint_bytes(trunk, Earlier::moved_aside));
  const std::string when =
      settings.steady
          ? fmt::format("{} of BF16, the first from which its loss is steady", joined_with_or(ages))
          : fmt::format("{}", fmt::join(ages, ", "));
  return fmt::format(
      "study of {} on {}: {}, forks of {} steps after {}; {} at a time; checkpoints of {:.2g} GB and rows in {}",
      fmt::join(models, ", "), trunks.front().fields.device, plural(settings.trunks, "trunk"),
      settings.fork_steps, when, count_cases(static_cast<std::size_t>(concurrency.at_once)), bytes / 1e9,
      out);
}

}  // namespace precbench
