// Selects warnings of models, and warnings of records by their prefix. See warnings.h.
#include "bench/sweep/warnings.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <set>

#include "bench/process/standard_error.h"
#include "bench/step/lost_files.h"

namespace precbench {
namespace {

/// Returns true the first time that it is called with a text.
bool is_first(const std::string& text) {
  static std::mutex mutex;
  static std::set<std::string> seen;
  const std::lock_guard lock(mutex);
  return seen.insert(text).second;
}

}  // namespace

std::vector<std::string> immediate_warnings(const Record& record) {
  std::vector<std::string> lines = lost_files(record);
  for (const std::string& warning : record.warnings)
    for (const char* kind : {"--init-from: ", "uint16 tokens: "})  // each file has its own
      if (warning.starts_with(kind) && is_first(warning)) lines.push_back(warning);
  for (const std::string& warning : record.warnings)
    for (const char* kind :
         {"--eval-data: ", "the checkpoint ", "driver: ", "--graph early: ", "peaks: ", "--data: ",
          "not recorded: ", "contradicts itself: ", "step times are noisy: ",
          "the median step is not typical: ", "a single step was far from the others: ", "killed: "})
      if (warning.starts_with(kind) && is_first(kind)) lines.push_back(warning);
  return lines;
}

void warn_once(const std::string& warning) {
  if (is_first(warning)) log_line("precbench: " + warning);
}

std::vector<std::string> model_warnings(const std::vector<Plan>& grid) {
  std::vector<std::string> lines;
  const auto add = [&](const std::string& line) {
    if (std::find(lines.begin(), lines.end(), line) == lines.end()) lines.push_back(line);
  };
  std::map<std::string, const Plan*> longest;  // by the case's model name
  for (const Plan& plan : grid) {
    for (const std::string& line : plan.model_warnings()) add(line);
    if (!plan.position_warning()) continue;
    const Plan*& other = longest.try_emplace(plan.fields.model, &plan).first->second;
    if (plan.T > other->T) other = &plan;
  }
  for (const auto& [model, plan] : longest) add(plan->position_warning().value());
  return lines;
}

void print_model_warnings(const std::vector<Plan>& grid) {
  for (const std::string& line : model_warnings(grid)) log_line("precbench: " + line);
}

}  // namespace precbench
