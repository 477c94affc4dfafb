// Whether two records are of the same work: by their definitions, and where one of them has none, of schema 1, by what
// else they say.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "results/record_file.h"

namespace precbench {

using ById = std::map<std::string, const LocatedRecord*>;
/// Throws InvalidInput where one case is of two machines.
ById by_id(const RecordSet& set);

/// The record of the run that answers each of the baseline: that of its id, else the only one of its fields, where no
/// other record of the baseline has those. Of equal fields and another id is a case whose definition was edited, and one
/// of schema 1, whose ids are made in another way. A record that nothing answers is not in it.
using Answers = std::map<const LocatedRecord*, const LocatedRecord*>;
Answers answers(const RecordSet& baseline, const RecordSet& current);

/// The first thing in which two records are not of the same work, whatever their ids and fields say:
/// "definition.recipe.fprop.a.scale_rounding: rceil here, floor in the baseline", or, where the definitions do not
/// tell, "case.seq is 2048 at a:1, but 4096 at b:1". Null where there is none. What the baseline does not know parts
/// nothing.
std::optional<std::string> difference_in_work(const LocatedRecord& baseline, const LocatedRecord& current);

/// The weakest path of the record's GEMMs; null where it does not say.
std::optional<ExecutionPath> path_of(const Record& record);

}  // namespace precbench
