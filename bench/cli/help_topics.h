// Topics of `precbench help` that are no commands.
#pragma once

#include <string>
#include <vector>

#include "bench/cli/help_parts.h"

namespace precbench {

struct HelpTopic {
  const char* name;
  const char* what;                                         ///< for the list of topics
  std::string (*text)(const std::vector<HelpPage>& pages);  ///< without a newline at the end
};
/// Returns values, status, environment.
const std::vector<HelpTopic>& help_topics();

}  // namespace precbench
