// Reader of golden files for tests, which are packed with xz: sections of "name count" followed by that many hexadecimal words.
#pragma once

#include <cstdint>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/base/xz_testing.h"
#include "kernels/testing/catch.h"

namespace precbench::testing {

using GoldenWords = std::vector<std::uint64_t>;

/// Returns the sections of PATH, committed as PATH.xz, by name; fails the test if a section is short.
inline std::map<std::string, GoldenWords> golden_sections(const std::string& path) {
  std::istringstream file(unpacked_file(path + ".xz"));
  std::map<std::string, GoldenWords> found;
  std::string section;
  std::size_t count = 0;
  while (file >> section >> std::dec >> count) {
    GoldenWords& words = found[section];
    for (std::uint64_t word; words.size() < count && file >> std::hex >> word;) words.push_back(word);
    if (words.size() != count) FAIL("short section " << section);
  }
  return found;
}

}  // namespace precbench::testing
