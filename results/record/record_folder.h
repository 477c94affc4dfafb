// Finds the record files of a folder.
#pragma once

#include <string>
#include <vector>

namespace precbench {

/// Returns true for the name of a record file: *.jsonl, or *.jsonl.xz, packed with xz.
bool is_record_file(const std::string& path);

/// Returns the path of a record file without .jsonl or .jsonl.xz.
std::string without_record_extension(const std::string& path);

/// Returns the record files of a folder by name; if it has none, those of the folders in it. Of NAME.jsonl and
/// NAME.jsonl.xz beside it only the former, the copy that was unpacked. Throws InvalidInput if the folder cannot be
/// read; folders in it that cannot are passed over.
std::vector<std::string> record_files_in(const std::string& folder);

}  // namespace precbench
