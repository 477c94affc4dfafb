// What the fuzz targets share. A target feeds bytes to one door of the program, as a file or a message of anybody's
// would come in. The sanitizers judge memory and arithmetic; the target judges what leaves the door: InvalidInput and
// Unsupported are answers, any other exception ends the run and is a finding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/base/errors.h"
#include "tools/testing/temp_directory.h"

namespace precbench {

/// Whether the input was taken; false where it was refused as it should be.
template <class Door>
bool taken(Door&& door) {
  try {
    door();
    return true;
  } catch (const InvalidInput&) {
    return false;
  } catch (const Unsupported&) {
    return false;
  }
}

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// A folder for the files of the running target.
inline const TempDirectory& scratch() {
  static const TempDirectory directory;
  return directory;
}

/// Ends the run as a finding.
inline void expect(bool holds) {
  if (!holds) __builtin_trap();
}

}  // namespace precbench

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
