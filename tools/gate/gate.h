// The regression gate's judgement: the records of a run beside those of a baseline, case by case (equal id;
// gate_work.h says what else answers a baseline), metric by metric. No input, no output; check.h has those.
//
// PASS says that a metric was judged and is within its tolerance, and, where it has a spread, that the spread leaves
// no room for twice the tolerance. What cannot be judged is never PASS. Before any metric a case as a whole is
//   MISSING  if it was not measured (out of memory is BIGGER, diverged is WORSE), or if the two records are of other
//            work in spite of their one id or their equal fields: another definition (an edited recipe, preset or
//            file), another value of a field of the case, of FLOPs per token, tokens per step, parameters,
//            vocabulary, the data's entropy, converted layers, or no word of what the baseline says there. A metric that
//            the baseline has and the run lacks is MISSING by itself;
//   NOISY    if one of the two records contradicts itself (results/contradiction.h), or if there are several of
//            the case and nobody can say which is the newest. The check refuses a baseline like that.
//
// Speed. Three times of a step count: the median; the mean, where the slowest step counts as the second slowest, as
// one hiccup is no trend but two are; and by the host's clock that mean and what timing.wall_ms has beyond the samples.
// The mean's interval is 99.5% wide (Student's t), the median's 95% (McGill's notch).
// A run is SLOWER if
//   - its step times [min, q3] lie wholly above the baseline's, which is not noise, its median is longer by the
//     tolerance, to within the uncertainty of both medians, and the interval of the mean's change lies above zero; or a
//     quarter of its steps take longer than any but one of the baseline's, and its mean is longer by more than the
//     tolerance at the low end of its interval;
//   - and the same holds in clock cycles (time x SM clock): that is not a GPU that ran at a lower clock.
// Else it is NOISY if one of the three is longer by the tolerance all the same, or the interval of its change ends above
// twice the tolerance, or if the mean of all steps, the slowest included and by the host's clock where both have it, is
// longer by more than twice the tolerance. FASTER mirrors the rule of the median, where nothing is SLOWER or NOISY.
//
// Where nothing but the power cap held the run's clock down, at the baseline's limit, the clock follows from what
// the program draws: a run that is NOISY for its clock may be the program's own doing then, and says so.
//
// An emulated recipe has no speed to judge; on the CPU device neither has a run on another CPU, with other threads, or
// whose threads had other CPUs (affinity mask, CPU quota).
//
// Memory. BIGGER if the measured peak is above the baseline's by more than the tolerance. Allocations do not
// vary.
//
// Loss. The trailing mean (results/statistics.h) after as many steps as both have done, as a change in parts of
// the baseline's. With a stated tolerance, or with fewer than kFewestSeeds seeds of the case on both sides, each case
// stands for itself: WORSE above the tolerance. With as many seeds their mean change and its 99% interval (Student's
// t) count: WORSE if the mean is above the tolerance and the interval above zero; NOISY if the mean is outside the
// tolerance or the interval outside twice the tolerance, on either side. Nor does one seed beyond twice the tolerance
// hide behind the mean: it is WORSE if it is also above where the other seeds put 99% of further ones, else NOISY.
// As far below is no success but another computation: NOISY, so that nothing that changes the numerics passes
// unseen. NOISY is also a curve that tells too little: of two that are not equally long, this run's has less than a
// quarter of the baseline's steps, or one has fewer than kFewestComparedSteps.
//
// What the baseline quantized is WORSE in another format, and MISSING where it is not quantized now. A first step that
// changes fewer parameters than the baseline's is WORSE.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "results/record_file.h"
#include "tools/analysis/convergence.h"

namespace precbench {

enum class GateVerdict : std::uint8_t { pass, faster, slower, bigger, worse, noisy, missing };

/// "PASS", "FASTER", ...
const char* name_of(GateVerdict verdict);

/// Exit statuses of the check, those of bad input (2) aside.
inline constexpr int kCheckPassed = 0, kCheckRegression = 1, kCheckInconclusive = 3;
/// What a verdict makes of the whole check: 1 for SLOWER, BIGGER and WORSE, 3 for NOISY and MISSING, else 0.
int exit_status(GateVerdict verdict);

/// Of two curves that are not equally long at least so many steps must be there to compare: the six of the shortest
/// warm-up and kFewestSamples samples.
inline constexpr std::size_t kFewestComparedSteps = 11;

/// Fractions; null: the metric is not judged.
struct GateRules {
  std::optional<double> tokens_per_s = 0.03;
  std::optional<double> memory = 0.02;
  bool loss = true;
  /// Of the change of the loss. Null ("auto"): kEmaTolerance, and the seeds of a case are judged together.
  std::optional<double> loss_tolerance;
  /// Also judge what only a change of the computation changes (judge_numerics). For the CPU device; a GPU's
  /// libraries may choose other algorithms.
  bool numerics = false;
};

struct MetricResult {
  std::string metric;  ///< "tokens/s", "peak memory", "final loss", ...; "run" (no unit): nothing to judge
  std::string unit;    ///< of the two values
  GateVerdict verdict = GateVerdict::pass;
  std::optional<double> baseline{}, current{};
  /// current / baseline - 1; of step times for tokens/s: > 0 is slower; the mean over the seeds where they are judged
  /// together. What the verdict stands on.
  std::optional<double> change{};
  std::optional<double> tolerance{};  ///< of the change; a fraction
  std::string reason{};               ///< one line; may be empty for PASS
};

struct CaseResult {
  std::string id;
  nlohmann::ordered_json fields;  ///< of the case
  std::string label;              ///< the fields that tell the cases of this check apart: "mxfp8, seq 2048"
  std::vector<MetricResult> metrics;
  /// The gravest: regressions before what is inconclusive, before FASTER, before PASS.
  GateVerdict verdict() const;
};

struct GateResult {
  std::vector<CaseResult> cases;  ///< every measured case of the baseline, in its order
  std::vector<std::string>
      notes;  ///< one line each: what was not judged, cases without a baseline, changed software
  int exit_status() const;  ///< kCheckInconclusive if there is no case
};

/// Throws InvalidInput with one line if the two must not be compared: another GPU model (or the CPU device),
/// method version, or execution path (native, emulated).
GateResult judge(const RecordSet& baseline, const RecordSet& current, const GateRules& rules);

/// What the baseline quantized and the run quantizes in another format or not at all; null where it is the same.
std::optional<MetricResult> judge_formats(const Record& baseline, const Record& current);

/// "updates": WORSE if the first step changes fewer parameters than the baseline's, MISSING where nobody knows now;
/// null where it changes as many.
std::optional<MetricResult> judge_updates(const Record& baseline, const Record& current);

/// "first loss" and "SQNR" of one case, as far as the baseline has them, within what the CPU's kind may
/// change. WORSE for a higher loss or more quantization noise; NOISY for less of either, which is no repeat.
std::vector<MetricResult> judge_numerics(const Record& baseline, const Record& current);

/// In one line, if the two are of different GPU models (the CPU device is none of them) or method versions:
/// never compared. Throws InvalidInput if one of them by itself mixes several.
std::optional<std::string> difference_in_kind(const RecordSet& baseline, const RecordSet& current);

/// Speed alone, of two timings with the SM clocks at which they were taken, and what held these down.
struct SpeedSample {
  std::vector<double> step_ms;
  std::optional<double> sm_clock_mhz;
  StopReason stop_reason = StopReason::target;
  std::vector<std::string> throttle_reasons{};  ///< NVML's, seen at least once; none: unknown, or none
  std::optional<double> power_limit_w{};
  std::optional<double> between_ms{};  ///< between_steps_ms (results/host_time.h)
};
/// NOISY where a side has fewer than kFewestSamples (results/statistics.h). MISSING where the run lacks between_ms and
/// the baseline has it, or a step takes no time.
MetricResult judge_speed(const SpeedSample& baseline, const SpeedSample& current, double tolerance);

}  // namespace precbench
