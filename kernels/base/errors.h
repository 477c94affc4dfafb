// The exceptions of the project. what() is always one line that a user can act on.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace precbench {

/// The user asked for something that does not exist or cannot be read: exit code 2.
struct InvalidInput : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The case is valid but this recipe, shape or device cannot run it: status "unsupported".
struct Unsupported : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A device or host allocation failed: status "oom".
struct OutOfMemory : std::runtime_error {
  OutOfMemory(const std::string& message, std::int64_t wanted) : std::runtime_error(message), bytes(wanted) {}
  std::int64_t bytes;  ///< requested size
};

/// The loss became non-finite: status "diverged".
struct Diverged : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Returns the candidate of which `word` is probably a typo: the nearest by edit distance. If none is one
/// edit away, the shortest one that `word` is a prefix of; "" if none is near enough.
std::string nearest(const std::string& word, const std::vector<std::string>& candidates);

}  // namespace precbench
