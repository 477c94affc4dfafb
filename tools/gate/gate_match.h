// Matches records of a run with those of the baseline, and decides if a pair can be judged.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tools/gate/gate.h"
#include "tools/gate/gate_work.h"
#include "tools/text/distinct.h"

namespace precbench {

/// Repeats of the baseline's cases: several measured records of one case on one machine.
class BaselineRepeats {
 public:
  /// `all` must outlive this object.
  explicit BaselineRepeats(const RecordSet& all);
  /// Returns the newest record of each case.
  const RecordSet& newest() const { return newest_ ? *newest_ : all_; }
  /// Returns all records of the case of a record of newest(), oldest first; that record alone if there are no
  /// others.
  std::vector<const LocatedRecord*> of(const LocatedRecord& newest) const;

 private:
  const RecordSet& all_;
  std::optional<RecordSet> newest_;                                   ///< null without repeats
  std::map<std::string, std::vector<const LocatedRecord*>> by_case_;  ///< of cases with repeats
};

/// A measured case of the baseline, and the matching record of the run (gate_work.h).
struct Match {
  const LocatedRecord* baseline;
  const LocatedRecord* current;               ///< null if not measured
  std::vector<const LocatedRecord*> repeats;  ///< all records of the case in the baseline, oldest first
  std::optional<MetricResult> unfit;          ///< why no metric can be judged; null if they can

  /// Returns a verdict on the case as a whole, as metric "run".
  static MetricResult whole(GateVerdict verdict, std::string reason);
};

/// Returns one match for each measured case of the baseline, in its order. Notes name cases that only one
/// side has. Throws InvalidInput if a side has one case from two machines, or if a case is native on one side
/// and emulated on the other.
std::vector<Match> match_cases(const BaselineRepeats& baseline, const RecordSet& current, Distinct& notes);

}  // namespace precbench
