// Recognizes lost files by the prefix of their warning. See lost_files.h.
#include "bench/step/lost_files.h"

namespace precbench {
namespace {

constexpr const char* kNotWritten = "not written: ";

}  // namespace

std::string lost_file_warning(const std::string& what) { return kNotWritten + what; }

std::vector<std::string> lost_files(const Record& record) {
  std::vector<std::string> lost;
  for (const std::string& warning : record.warnings)
    if (warning.starts_with(kNotWritten)) lost.push_back(warning);
  return lost;
}

}  // namespace precbench
