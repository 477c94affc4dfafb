// Shared by the fuzz targets. A target feeds bytes to one entry point of the program, as an untrusted file or
// message would. Sanitizers check memory and arithmetic. InvalidInput and Unsupported are valid results; any
// other exception ends the run and is a finding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/base/errors.h"
#include "kernels/testing/temp_directory.h"

namespace precbench {

/// Returns true if the input was accepted, false if it was refused properly.
template <class EntryPoint>
bool taken(EntryPoint&& entry_point) {
  try {
    entry_point();
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

/// Returns the folder for the files of the running target.
inline const TempDirectory& scratch() {
  static const TempDirectory directory;
  return directory;
}

/// Ends the run with a finding unless `holds`.
inline void expect(bool holds) {
  if (!holds) __builtin_trap();
}

}  // namespace precbench

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
