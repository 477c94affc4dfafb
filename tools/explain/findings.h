// Lost time of a training step, by cause, with the step that each repair promises.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/explain/expectation.h"
#include "tools/explain/gaps.h"
#include "tools/explain/replay.h"
#include "tools/explain/step_work.h"

namespace precbench {

/// A smaller share of the step is no finding: two traces of one step differ by as much.
inline constexpr double kLeastLoss = 0.02;

/// Calls of one GEMM in the step.
struct GemmRow {
  GemmShape shape;
  bool wgrad = false;
  int calls = 0;
  std::int64_t time = 0;
  double expected = 0;  ///< ns of all calls; 0: not known
};

struct Finding {
  std::string id;        ///< "casts"
  std::string title;     ///< "Casts are not fused"
  std::string evidence;  ///< in numbers, one sentence
  std::string repair;    ///< what to do, one sentence
  double lost = 0;       ///< ns of the step without the profiler
  double predicted = 0;  ///< ns of that step after this repair alone
  /// Tokens per step after the repair over those before, if it changes them: `predicted` is then the time of as many
  /// tokens as now.
  double more_tokens = 1;
};

/// A step with its operations beside what the rates say, and its lost time.
struct Explanation {
  TraceSteps steps;
  Gaps gaps;
  std::int64_t tokens = 0;  ///< of a step, as far as GEMMs tell; 0: unknown
  std::int64_t vocabulary = 0;
  std::vector<GemmRow> gemms;     ///< longest first; last, if any, those of unknown shape
  double unprofiled = 0;          ///< ns of the step without the profiler's overhead on the host, as replayed
  double calibration = 1;         ///< measured over expected time of BF16 GEMMs whose sizes are aligned
  std::vector<Finding> findings;  ///< most lost time first
};

/// Explains the trace's step. `expectation`: of its GPU; null if there are no rates for it, which leaves out findings
/// that need them.
Explanation explain_trace(const TrainingTrace& trace, const Expectation* expectation);

}  // namespace precbench
