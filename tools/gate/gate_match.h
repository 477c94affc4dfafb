// Which record of a run answers which of the baseline, and whether there is anything to judge between the two.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tools/gate/gate.h"
#include "tools/text/distinct.h"

namespace precbench {

/// A measured case of the baseline, and the record of the run with its id.
struct Match {
  const LocatedRecord* baseline;
  const LocatedRecord* current;       ///< null: not measured
  std::optional<MetricResult> unfit;  ///< why no metric of it can be judged; null: all can

  /// For the metric "run", which is none: a verdict on the case as a whole.
  static MetricResult whole(GateVerdict verdict, std::string reason);
};

using ById = std::map<std::string, const LocatedRecord*>;
/// Throws InvalidInput where one case is of two machines.
ById by_id(const RecordSet& set);

/// One for every measured case of the baseline, in its order. Notes name the cases that only one side has. Throws
/// InvalidInput where a side has a case of two machines, or one that is native on one side and emulated on the other.
std::vector<Match> match_cases(const RecordSet& baseline, const RecordSet& current, Distinct& notes);

/// The first thing in which two records are not of the same work, whatever their ids say: "case.seq is 2048 at a:1, but
/// 4096 at b:1". Null where there is none. What the baseline does not know parts nothing.
std::optional<std::string> difference_in_work(const LocatedRecord& baseline, const LocatedRecord& current);

/// The weakest path of the record's GEMMs; null where it does not say.
std::optional<ExecutionPath> path_of(const Record& record);

}  // namespace precbench
