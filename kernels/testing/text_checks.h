// Text checks for tests.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>

#include "kernels/base/errors.h"
#include "kernels/testing/catch.h"

namespace precbench {

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// Returns the number of bytes of a text's longest line.
inline std::size_t longest_line(const std::string& text) {
  std::size_t longest = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    longest = std::max(longest, end - begin);
    begin = end + 1;
  }
  return longest;
}

/// Returns the message of the InvalidInput that action() throws, which must be one line; empty
/// if it throws none.
template <class Action>
std::string refusal_of(Action&& action) {
  try {
    action();
  } catch (const InvalidInput& error) {
    std::string message = error.what();
    INFO(message);
    CHECK(!contains(message, "\n"));
    return message;
  }
  return "";
}

}  // namespace precbench
