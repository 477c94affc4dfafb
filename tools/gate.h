// The regression gate's judgement: the records of a run beside those of a baseline, case by case (equal id),
// metric by metric. No input, no output; check.h has those.
//
// Speed. A run is SLOWER if three things hold. Its step times [min, q3] lie wholly above the baseline's: that
// is not noise. Its median is longer by the tolerance, to within the uncertainty of both medians: that is
// worth a failure. And both still hold in clock cycles (time x SM clock): that is not a GPU that ran at a
// lower clock. If the median is longer by the tolerance but one of the other two fails, the run is NOISY.
//
// Where nothing but the power cap held the run's clock down, at the baseline's limit, the clock follows from what
// the program draws: a NOISY of the third kind may be the program's own doing then, and says so.
//
// An emulated recipe has no speed to judge; on the CPU device neither has a run on another CPU or with other
// threads.
//
// Memory. BIGGER if the measured peak is above the baseline's by more than the tolerance. Allocations do not
// vary.
//
// Loss. The trailing mean (results/statistics.h) after as many steps as both have done. WORSE if it is above
// the baseline's by more than its noise band. As far below is no success but another computation: NOISY, so
// that nothing that changes the numerics passes unseen.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "results/record_file.h"
#include "tools/convergence.h"

namespace precbench {

enum class GateVerdict : std::uint8_t { pass, faster, slower, bigger, worse, noisy, missing };

/// "PASS", "FASTER", ...
const char* name_of(GateVerdict verdict);

/// Exit statuses of the check, those of bad input (2) aside.
inline constexpr int kCheckPassed = 0, kCheckRegression = 1, kCheckInconclusive = 3;
/// What a verdict makes of the whole check: 1 for SLOWER, BIGGER and WORSE, 3 for NOISY and MISSING, else 0.
int exit_status(GateVerdict verdict);

/// Fractions; null: the metric is not judged.
struct GateRules {
  std::optional<double> tokens_per_s = 0.03;
  std::optional<double> memory = 0.02;
  bool loss = true;
  /// Half the noise band, as a part of the baseline's loss. Null ("auto"): kEmaTolerance; where the case has
  /// at least kFewestSeeds seeds on both sides, their mean difference is judged, and the band is at least the
  /// 99% interval that the spread of the differences gives.
  std::optional<double> loss_band;
  /// Also judge what only a change of the computation changes (judge_numerics). For the CPU device; a GPU's
  /// libraries may choose other algorithms.
  bool numerics = false;
};

struct MetricResult {
  std::string metric;  ///< "tokens/s", "peak memory", "final loss", ...; "run" (no unit): nothing to judge
  std::string unit;    ///< of the two values
  GateVerdict verdict = GateVerdict::pass;
  std::optional<double> baseline{}, current{};
  std::optional<double> change{};     ///< current / baseline - 1; of step times for tokens/s: > 0 is slower
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

/// "first loss" and "SQNR" of one case, as far as the baseline has them, within what the CPU's kind may
/// change. WORSE for a higher loss, more quantization noise or another format; NOISY for less of either,
/// which is no repeat.
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
};
/// NOISY where a side has fewer than kFewestSamples (results/statistics.h).
MetricResult judge_speed(const SpeedSample& baseline, const SpeedSample& current, double tolerance);

}  // namespace precbench
