// Splits log lines into runs. See log_run.h.
#include "tools/import/log_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/base/enum_names.h"
#include "kernels/base/errors.h"

namespace precbench {
namespace {

/// Counts and rates that a run can have; arithmetic with others overflows or divides by zero.
constexpr std::int64_t kMostCounted = std::int64_t{1} << 40;
constexpr double kSmallest = 1e-12, kLargest = 1e18;

bool possible(double value) { return value >= kSmallest && value <= kLargest; }

/// Forgets the numbers of a run that no run can have, as if the log did not say them: damaged lines are the usual cause.
void forget_impossible(LogRun& run) {
  for (auto* count : {&run.facts.parameters, &run.facts.seq, &run.facts.global_batch, &run.facts.local_batch,
                      &run.facts.gpus, &run.facts.tokens_per_step})
    if (*count && (**count < 1 || **count > kMostCounted)) count->reset();
  for (LogSample& sample : run.samples)
    for (OptionalNumber* rate : {&sample.step_s, &sample.tokens_per_s, &sample.tokens_per_s_per_gpu,
                                 &sample.samples_per_s, &sample.tflops, &sample.mfu, &sample.global_batch})
      if (*rate && !possible(**rate)) *rate = std::nullopt;
  if (!run.whole) return;
  if (!possible(run.whole->seconds)) run.whole->seconds = 0;  // unknown
  for (OptionalNumber* total : {&run.whole->tokens, &run.whole->flops})
    if (*total && **total > 0x1p83) *total = std::nullopt;
}

}  // namespace

const char* name_of(MemoryKind kind) {
  static constexpr EnumNames<MemoryKind, 3> kNames{{"allocated", "reserved", "driver"}};
  return kNames.of(kind);
}

LogRun& RunCollector::current() {
  if (runs_.empty()) runs_.emplace_back();
  return runs_.back();
}

void RunCollector::end_run() {
  const LogRun& run = current();
  if (run.samples.empty() && !run.whole) return;
  if (runs_.size() == kMostRuns)
    throw InvalidInput(fmt::format("more than {} runs in one log; split it", kMostRuns));
  runs_.emplace_back();
  last_of_rank_.clear();
}

RunFacts& RunCollector::starting_facts() {
  end_run();
  current().from_start = true;
  return current().facts;
}

bool RunCollector::repeats(const LogSample& sample) const {
  const std::vector<LogSample>& samples = runs_.back().samples;
  if (sample.step == samples.back().step) return true;
  if (sample.rank >= 0) {
    // A line of a slower rank, whose own steps still ascend.
    const auto found = last_of_rank_.find(sample.rank);
    return found == last_of_rank_.end() ? samples.back().rank >= 0 && samples.back().rank != sample.rank
                                        : sample.step > found->second;
  }
  constexpr std::ptrdiff_t kRecent = 8;
  const auto begin = samples.end() - std::min<std::ptrdiff_t>(kRecent, std::ssize(samples));
  return std::any_of(begin, samples.end(), [&](const LogSample& one) {
    return one.step == sample.step && one.loss && one.loss == sample.loss;
  });
}

void RunCollector::add(const LogSample& sample) {
  LogRun* run = &current();
  if (!run->samples.empty() && sample.step <= run->samples.back().step) {
    if (repeats(sample)) {
      if (sample.rank >= 0) last_of_rank_[sample.rank] = sample.step;
      return;
    }
    end_run();
    run = &current();
  }
  if (++samples_ > kMostSamples)
    throw InvalidInput(fmt::format("more than {} lines of steps in one log; split it", kMostSamples));
  if (sample.rank >= 0) last_of_rank_[sample.rank] = sample.step;
  run->samples.push_back(sample);
}

void RunCollector::memory(MemoryKind kind, double bytes) {
  constexpr double kMostBytes = 0x1p53;
  if (!(bytes >= 0 && bytes < kMostBytes)) return;
  LogRun& run = current();
  // The first kind stays: kinds are not comparable.
  if (run.memory && *run.memory != kind) return;
  run.memory = kind;
  run.memory_bytes = std::max(run.memory_bytes, static_cast<std::int64_t>(std::llround(bytes)));
}

std::vector<LogRun> RunCollector::take() {
  std::erase_if(runs_, [](const LogRun& run) { return run.samples.empty() && !run.whole; });
  for (LogRun& run : runs_) forget_impossible(run);
  return std::move(runs_);
}

}  // namespace precbench
