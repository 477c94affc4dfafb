// Decides if two records measured the same work: by their definitions or, for records of schema 1, which have
// none, by other data.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "results/record/record_file.h"

namespace precbench {

using ById = std::map<std::string, const LocatedRecord*>;
/// Indexes records by id. Throws InvalidInput if one case is from two machines.
ById by_id(const RecordSet& set);

/// Maps each record of the baseline to the matching one of the run: with the same id, else the only one with
/// the same fields, if no other record of the baseline has them. Equal fields with another id occur if a
/// definition was edited, and in schema 1, which builds ids differently. Unmatched records are left out.
using Answers = std::map<const LocatedRecord*, const LocatedRecord*>;
Answers answers(const RecordSet& baseline, const RecordSet& current);

/// Returns the first difference in the work of two records, whatever their ids and fields:
/// "definition.recipe.fprop.a.scale_rounding: rceil here, floor in the baseline" or, if the definitions do
/// not show it, "case.seq is 2048 at a:1, but 4096 at b:1". Null if there is none. Values unknown to the
/// baseline do not count.
std::optional<std::string> difference_in_work(const LocatedRecord& baseline, const LocatedRecord& current);

/// Returns the weakest execution path of the record's GEMMs; null if unknown.
std::optional<ExecutionPath> path_of(const Record& record);

}  // namespace precbench
