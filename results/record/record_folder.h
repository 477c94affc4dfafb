// Finds the record files of a folder.
#pragma once

#include <string>
#include <vector>

namespace precbench {

/// Returns the record files, *.jsonl, of a folder by name; if it has none, those of the folders in it. Throws
/// InvalidInput if the folder cannot be read; folders in it that cannot are passed over.
std::vector<std::string> record_files_in(const std::string& folder);

}  // namespace precbench
