// Verdicts of the regression gate: the records of a run are compared with those of a baseline, case by case
// (equal id; gate_work.h defines what else matches), metric by metric. No input or output; see check.h for
// those.
//
// PASS means that a metric was judged, is within its tolerance and, if it has a spread, that its interval
// ends below twice the tolerance. What cannot be judged is never PASS. Before any metric is judged, a case as
// a whole is
//   MISSING  if it was not measured (but out of memory is BIGGER, diverged is WORSE); if a record
//            contradicts itself (results/record/contradiction.h); if the run has several records of the case
//            and it is unknown which is the newest; or if the two records did different work despite equal
//            ids or fields: another definition (an edited recipe, preset or file), or another value of a
//            case field, FLOPs per token, tokens per step, learning rate, parameters, vocabulary, data
//            entropy or converted layers, or a missing value that the baseline has.
// A metric that one side lacks is MISSING on its own. One that neither has is left out with a note, as are
// quantities that are not judged (gate_notes.h).
//
// Noise between runs (gate_noise.h) enters every verdict on speed and loss. A change is a regression only if
// it is above the tolerance and if neither the repeats in the baseline nor, without repeats, the largest
// plausible noise explains it.
//
// Speed. Three measures of the step time count: the median; the mean, with the slowest step replaced by the
// second slowest, since one hiccup is no trend but two are; and that mean plus the time between samples by
// the host's clock (timing.wall_ms). The interval of the mean is 99.5% wide (Student's t), that of the median
// 95% (McGill's notch). Several records of the baseline are joined. A run is SLOWER if
//   - its step times [min, q3] lie entirely above the baseline's, its median is longer by the tolerance, and
//     the interval of the mean's change lies above zero; or a quarter of its steps take longer than all but
//     one of the baseline's, and the low end of its mean's interval is longer by more than the tolerance;
//   - the same holds in clock cycles (time x SM clock), which excludes a GPU that ran at a lower clock;
//   - noise between runs does not explain it; and
//   - neither record says that the machine was busy (busy_reason).
// Otherwise it is NOISY if one of these holds, if one of the three measures is longer by the tolerance, if
// the interval of its change, with the noise between runs, ends above twice the tolerance, or if the mean of
// all steps, including the slowest and the host's time if both records have it, is longer by more than twice
// the tolerance. FASTER mirrors the rule of the median, unless the run is SLOWER or NOISY.
//
// If only the power cap, at the baseline's limit, lowered the run's clock, the clock depends on the power
// that the program draws. A run that is NOISY because of its clock may then be slowed by the program itself;
// the reason says so.
//
// Imported records (results/record/import_source.h) are judged like measured ones, against imports of the same source, model,
// recipe, GPU and window alone: their method version and the fields of their case differ from all others.
//
// Emulated recipes have no speed to judge. On the CPU device speed is not judged for another CPU model,
// another number of threads, or threads with other CPUs (affinity mask, CPU quota).
//
// Memory. BIGGER if the measured peak exceeds the baseline's by more than the tolerance. Allocations do not
// vary.
//
// Loss. The trailing mean (results/record/statistics.h) after the number of steps that both runs have done,
// and the held-out loss after the last number of steps that both have evaluated, relative to the baseline's.
// With a stated tolerance, or with fewer than kFewestUnits seeds of the case on both sides, each case is
// judged separately: WORSE above the tolerance and the noise, NOISY above the tolerance or if the interval of
// noise ends beyond twice the tolerance. With enough seeds their mean change and its 99% interval (Student's
// t) count: WORSE if the mean is above the tolerance and significantly above zero; NOISY if the mean is
// outside the tolerance or the interval outside twice the tolerance, on either side. A single seed beyond
// twice the tolerance does not pass either: it is WORSE if the other seeds do not explain it, else NOISY. A
// loss as far below is not an improvement but a different computation: NOISY, so that no change of the
// numerics goes unnoticed. Also NOISY are two curves of unequal length if this run's has less than a quarter
// of the baseline's steps, or if one has fewer than kFewestComparedSteps, and curves that are far apart
// before their end (judge_curve).
//
// Formats and updates. A tensor quantized in another format than in the baseline is WORSE, and one that is no
// longer quantized MISSING. A first step that changes fewer parameters than the baseline's is WORSE.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "results/record/record_file.h"
#include "tools/analysis/equivalence.h"

namespace precbench {

enum class GateVerdict : std::uint8_t { pass, faster, slower, bigger, worse, noisy, missing };

/// Returns "PASS", "FASTER", ...
const char* name_of(GateVerdict verdict);

/// Exit statuses of the check, except 2 for bad input.
inline constexpr int kCheckPassed = 0, kCheckRegression = 1, kCheckInconclusive = 3;
/// Treatment of what could not be judged. A case that was not measured never passes.
///   separate  status 3 for NOISY and MISSING
///   pass      NOISY passes, MISSING keeps its status
///   fail      NOISY and MISSING are as red as a regression
enum class Inconclusive : std::uint8_t { separate, pass, fail };
/// Returns the exit status for a verdict: 1 for SLOWER, BIGGER and WORSE, 3 for NOISY and MISSING unless `as`
/// says otherwise, else 0.
int exit_status(GateVerdict verdict, Inconclusive as = Inconclusive::separate);

/// Minimum number of steps to compare curves of unequal length: the six steps of the shortest warm-up plus
/// kFewestSamples samples.
inline constexpr std::size_t kFewestComparedSteps = 11;

/// Tolerances as fractions; null: the metric is not judged.
struct GateRules {
  std::optional<double> tokens_per_s = 0.03;
  std::optional<double> memory = 0.02;
  bool loss = true;
  /// Tolerance of the change in loss. Null ("auto"): kMatchedLoss, with the seeds of a case judged together.
  std::optional<double> loss_tolerance;
  /// Also judge quantities that only a change of the computation affects (judge_numerics). For the CPU
  /// device; a GPU's libraries may choose other algorithms.
  bool numerics = false;
};

struct MetricResult {
  std::string metric;  ///< "tokens/s", "peak memory", "final loss", ...; "run" (no unit): the case as a whole
  std::string unit;    ///< unit of the two values
  GateVerdict verdict = GateVerdict::pass;
  std::optional<double> baseline{}, current{};
  /// current / baseline - 1, the basis of the verdict. For tokens/s it is that of the step time, so > 0 is
  /// slower. The mean over the seeds if they are judged together.
  std::optional<double> change{};
  std::optional<double> tolerance{};  ///< tolerance of the change; a fraction
  std::string reason{};               ///< one line; may be empty for PASS
};

/// Reasons of a metric that is MISSING because one side's record lacks it.
inline constexpr const char* kLackedByRun = "the record of this run lacks it";
inline constexpr const char* kLackedByBaseline =
    "the baseline's record lacks it; --accept --replace takes this run's";

struct CaseResult {
  std::string id;
  nlohmann::ordered_json fields;  ///< case fields
  std::string label;              ///< distinguishing fields of the cases: "mxfp8, seq 2048"
  std::vector<MetricResult> metrics;
  std::optional<double> seconds{};  ///< time that this run's process took for the case; null if unknown
  std::size_t records = 1;          ///< number of records of the case in the baseline
  /// Returns the gravest verdict: regressions, then inconclusive ones, then FASTER, then PASS.
  GateVerdict verdict() const;
};

struct GateResult {
  std::vector<CaseResult> cases;  ///< every measured case of the baseline, in its order
  /// one line each: what was not judged, cases without a baseline, changed software
  std::vector<std::string> notes;
  Inconclusive inconclusive = Inconclusive::separate;

  int exit_status() const;  ///< kCheckInconclusive without a case
  int exit_status(const CaseResult& one) const;
};

/// Judges a run. The baseline may have several records of a case (Repeats::all). Throws InvalidInput with one
/// line if the two must not be compared: different GPU models (or CPU device), method versions or execution
/// paths (native, emulated).
GateResult judge(const RecordSet& baseline, const RecordSet& current, const GateRules& rules);

/// Returns a verdict on tensors quantized in another format or no longer; null if nothing changed.
std::optional<MetricResult> judge_formats(const Record& baseline, const Record& current);

/// Returns the metric "updates": WORSE if the first step changes fewer parameters than the baseline's,
/// MISSING if unknown; null if it changes as many.
std::optional<MetricResult> judge_updates(const Record& baseline, const Record& current);

/// Returns the metric "curve": NOISY if the loss was far above the baseline's in any tenth of the run, or if
/// the gradient norm at the end is another; null if neither. Both records are complete.
std::optional<MetricResult> judge_curve(const Record& baseline, const Record& current);

/// Returns the metrics "first loss" and "SQNR" that the baseline has, within the CPU device's rounding
/// tolerance. WORSE for a higher loss or more quantization noise; NOISY for less of either, since the
/// computation changed.
std::vector<MetricResult> judge_numerics(const Record& baseline, const Record& current);

/// Returns one line that names the difference if the two have different GPU models (or the CPU device) or
/// method versions, which are never compared; null if they have the same. Throws InvalidInput if either mixes
/// several.
std::optional<std::string> difference_in_kind(const RecordSet& baseline, const RecordSet& current);

/// Step times of one side, with SM clock and throttle reasons.
struct SpeedSample {
  std::vector<double> step_ms;
  std::optional<double> sm_clock_mhz;
  StopReason stop_reason = StopReason::target;
  std::vector<std::string> throttle_reasons{};  ///< NVML's, seen at least once; empty: unknown or none
  std::optional<double> power_limit_w{};
  std::optional<double> between_ms{};  ///< between_steps_ms (results/record/host_time.h)
  bool on_cpu = false;                 ///< measured on the CPU device
  bool imported = false;               ///< lines of another program's log
  std::string busy{};  ///< reason to call the machine busy during the run (busy_reason); empty: it was not
};
/// Speeds of a case: its records in the baseline, at least one, in the order of acceptance; and this run's.
struct SpeedCase {
  std::vector<SpeedSample> baseline;
  SpeedSample current;
};
/// Judges the speeds of all cases of a check, which share one rate of false alarms (gate_noise.h). NOISY if a
/// side has fewer than kFewestSamples (results/record/statistics.h). MISSING if the run lacks between_ms and
/// the baseline has it, or if a step time is zero.
std::vector<MetricResult> judge_speeds(const std::vector<SpeedCase>& cases, double tolerance);
/// Judges a check of one case with one record in the baseline.
MetricResult judge_speed(const SpeedSample& baseline, const SpeedSample& current, double tolerance);

/// Returns the reason to think that other processes made a record's steps longer: its step times are noisy, or its
/// threads waited for a CPU or had less CPU time than those of `baseline`; empty without one.
std::string busy_reason(const Record& record, const Record& baseline);

}  // namespace precbench
