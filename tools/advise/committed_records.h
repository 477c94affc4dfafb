// Where the records that come with the program are.
#pragma once

#include <string>
#include <vector>

namespace precbench {

/// Returns the record files that come with the program, in the order of their names. They lie in
/// share/precbench/records beside the program's folder (installed: PREFIX/bin and PREFIX/share) or in it (a
/// build folder, where CMake links them). Empty if there are none.
std::vector<std::string> committed_record_files();

/// The same for a program at `program`, a path.
std::vector<std::string> committed_record_files(const std::string& program);

}  // namespace precbench
