// Matches records of a run with those of the baseline, and decides if a pair can be judged.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/gate/gate.h"
#include "tools/gate/gate_work.h"
#include "tools/text/distinct.h"

namespace precbench {

/// A measured case of the baseline, and the matching record of the run (gate_work.h).
struct Match {
  const LocatedRecord* baseline;
  const LocatedRecord* current;       ///< null if not measured
  std::optional<MetricResult> unfit;  ///< why no metric can be judged; null if they can

  /// Returns a verdict on the case as a whole, as metric "run".
  static MetricResult whole(GateVerdict verdict, std::string reason);
};

/// Returns one match for each measured case of the baseline, in its order. Notes name cases that only one
/// side has. Throws InvalidInput if a side has one case from two machines, or if a case is native on one side
/// and emulated on the other.
std::vector<Match> match_cases(const RecordSet& baseline, const RecordSet& current, Distinct& notes);

}  // namespace precbench
