// Topics of `precbench help` that are no commands.
#pragma once

#include <string>
#include <vector>

#include "bench/cli/help_parts.h"
#include "results/text/screen.h"

namespace precbench {

struct HelpTopic {
  const char* name;
  const char* what;  ///< for the list of topics
  /// Returns the text, which ends with a newline.
  std::string (*text)(const std::vector<HelpPage>& pages, const Screen& screen);
};
/// Returns values, status, environment.
const std::vector<HelpTopic>& help_topics();

}  // namespace precbench
