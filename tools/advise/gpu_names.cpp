// Compares words. See gpu_names.h.
#include "tools/advise/gpu_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "kernels/base/errors.h"

namespace precbench {
namespace {

/// Returns the words of a name in lower case; spaces, '-' and '_' separate them.
std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words(1);
  for (const char c : text)
    if (std::isalnum(static_cast<unsigned char>(c)))
      words.back() += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    else if (!words.back().empty())
      words.emplace_back();
  if (words.back().empty()) words.pop_back();
  return words;
}

}  // namespace

std::string find_gpu_name(const std::string& text, const std::vector<std::string>& names) {
  const std::vector<std::string> wanted = words_of(text);
  for (const std::string& name : names)
    if (words_of(name) == wanted) return name;
  for (const std::string& name : names) {
    const std::vector<std::string> words = words_of(name);
    const bool all =
        !wanted.empty() && std::all_of(wanted.begin(), wanted.end(), [&](const std::string& word) {
          return std::find(words.begin(), words.end(), word) != words.end();
        });
    if (all) return name;
  }
  throw InvalidInput(fmt::format("--gpu: unknown GPU \"{}\"; known are {}", text, fmt::join(names, ", ")));
}

}  // namespace precbench
