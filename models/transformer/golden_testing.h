// Opens goldens, which are packed with xz, for tests.
#pragma once

#include <string>

#include "kernels/base/xz_testing.h"
#include "kernels/testing/temp_directory.h"
#include "models/checkpoint/safetensors.h"

namespace precbench::testing {

/// Opens the golden PATH, committed as PATH.xz. Files are mapped into memory: the unpacked copy is gone as soon as it is.
inline SafetensorsFile open_golden(const std::string& path) {
  const TempDirectory copy;
  return SafetensorsFile(copy.write("golden.safetensors", unpacked_file(path + ".xz")));
}

}  // namespace precbench::testing
