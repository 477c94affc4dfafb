// Files that a case could not write: the case keeps its row, the user is told, and the exit status is not 0.
#pragma once

#include <string>
#include <vector>

#include "results/record/record.h"

namespace precbench {

/// Returns the warning for a record whose file was not written. `what`: the flag or checkpoint, and why.
std::string lost_file_warning(const std::string& what);

/// Returns the record's warnings that lost_file_warning() made.
std::vector<std::string> lost_files(const Record& record);

}  // namespace precbench
