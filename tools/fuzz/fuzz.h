// Shared by the fuzz targets. A target feeds bytes to one entry point of the program, as an untrusted file or
// message would. Sanitizers check memory and arithmetic. InvalidInput and Unsupported are valid results; any
// other exception ends the run and is a finding. A target is a program with libFuzzer (run.sh) and, among the
// tests, a function that corpus_test.cpp calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <stdexcept>
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

/// Returns the folder for the files of the targets in this program.
inline const TempDirectory& scratch() {
  static const TempDirectory directory;
  return directory;
}

/// Ends the run with a finding unless `holds`.
inline void expect(bool holds) {
  if (holds) return;
#ifdef PRECBENCH_FUZZ
  __builtin_trap();
#else
  throw std::logic_error("an expectation of the target does not hold");  // corpus_test.cpp names the input
#endif
}

using FuzzTarget = int (*)(const std::uint8_t* data, std::size_t size);

/// Returns the targets that are linked in, by name.
inline std::map<std::string, FuzzTarget>& fuzz_targets() {
  static std::map<std::string, FuzzTarget> targets;
  return targets;
}

}  // namespace precbench

/// Begins the definition of a target, a function of `data` and `size` that returns 0.
#ifdef PRECBENCH_FUZZ
#define PRECBENCH_FUZZ_TARGET(name)                                                  \
  extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size); \
  int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size)
#else
#define PRECBENCH_FUZZ_TARGET(name)                                                                      \
  static int name##_target(const std::uint8_t* data, std::size_t size);                                  \
  [[maybe_unused]] static const bool name##_known = fuzz_targets().emplace(#name, name##_target).second; \
  static int name##_target(const std::uint8_t* data, std::size_t size)
#endif
