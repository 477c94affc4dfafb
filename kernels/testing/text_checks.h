// Text checks for tests.
#pragma once

#include <string>

#include "kernels/base/errors.h"
#include "kernels/testing/catch.h"

namespace precbench {

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
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
