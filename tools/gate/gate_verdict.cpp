// Names of verdicts, and their combination for a case and a check.
#include <algorithm>

#include "kernels/base/enum_names.h"
#include "tools/gate/gate.h"

namespace precbench {
namespace {

int gravity(GateVerdict verdict) {
  switch (exit_status(verdict)) {
    case kCheckRegression:
      return 3;
    case kCheckInconclusive:
      return 2;
    default:
      return verdict == GateVerdict::faster ? 1 : 0;
  }
}

/// Returns the exit status that decides: a regression, else what is inconclusive.
int graver(int a, int b) {
  return a == kCheckRegression || b == kCheckRegression ? kCheckRegression : std::max(a, b);
}

}  // namespace

const char* name_of(GateVerdict verdict) {
  static constexpr EnumNames<GateVerdict, 7> kNames{
      {"PASS", "FASTER", "SLOWER", "BIGGER", "WORSE", "NOISY", "MISSING"}};
  return kNames.of(verdict);
}

int exit_status(GateVerdict verdict, Inconclusive as) {
  switch (verdict) {
    case GateVerdict::pass:
    case GateVerdict::faster:
      return kCheckPassed;
    case GateVerdict::slower:
    case GateVerdict::bigger:
    case GateVerdict::worse:
      return kCheckRegression;
    case GateVerdict::noisy:
      if (as == Inconclusive::pass) return kCheckPassed;
      [[fallthrough]];
    case GateVerdict::missing:
      return as == Inconclusive::fail ? kCheckRegression : kCheckInconclusive;
  }
  return kCheckInconclusive;
}

GateVerdict CaseResult::verdict() const {
  GateVerdict gravest = GateVerdict::pass;
  for (const MetricResult& result : metrics)
    if (gravity(result.verdict) > gravity(gravest)) gravest = result.verdict;
  return gravest;
}

int GateResult::exit_status(const CaseResult& one) const {
  // Looks at every metric, because NOISY may pass where MISSING beside it does not.
  int status = kCheckPassed;
  for (const MetricResult& metric : one.metrics)
    status = graver(status, precbench::exit_status(metric.verdict, inconclusive));
  return status;
}

int GateResult::exit_status() const {
  int status = cases.empty() ? kCheckInconclusive : kCheckPassed;
  for (const CaseResult& one : cases) status = graver(status, exit_status(one));
  return status;
}

}  // namespace precbench
