// Warnings by what they begin with. See told_at_once.h.
#include "bench/sweep/told_at_once.h"

#include <mutex>
#include <set>

#include "bench/step/lost_files.h"

namespace precbench {

std::vector<std::string> told_at_once(const Record& record) {
  static std::mutex mutex;
  static std::set<std::string> told;
  const std::lock_guard lock(mutex);
  std::vector<std::string> fresh = lost_files(record);
  for (const std::string& warning : record.warnings)
    for (const char* kind :
         {"--eval-data: ", "driver: ", "--graph early: ", "--data: ", "not recorded: ",
          "contradicts itself: ", "step times are noisy: ", "the median step is not typical: ",
          "a single step was far from the others: ", "killed: "})
      if (warning.starts_with(kind) && told.insert(kind).second) fresh.push_back(warning);
  return fresh;
}

}  // namespace precbench
