// Which record of a run answers which of the baseline, and whether there is anything to judge between the two.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/gate/gate.h"
#include "tools/gate/gate_work.h"
#include "tools/text/distinct.h"

namespace precbench {

/// A measured case of the baseline, and the record of the run that answers it (gate_work.h).
struct Match {
  const LocatedRecord* baseline;
  const LocatedRecord* current;       ///< null: not measured
  std::optional<MetricResult> unfit;  ///< why no metric of it can be judged; null: all can

  /// For the metric "run", which is none: a verdict on the case as a whole.
  static MetricResult whole(GateVerdict verdict, std::string reason);
};

/// One for every measured case of the baseline, in its order. Notes name the cases that only one side has. Throws
/// InvalidInput where a side has a case of two machines, or one that is native on one side and emulated on the other.
std::vector<Match> match_cases(const RecordSet& baseline, const RecordSet& current, Distinct& notes);

}  // namespace precbench
