// Sweep files: TOML whose keys are the fields of a case, as lists or as ranges in quotes.
//
//   seq = "2048-8192*2"
//   recipe = ["bf16", "tensorwise"]
//   [small]                         # a section is a grid of its own, on top of the keys before the first one
//   model = ["llama3.2-1b"]
//   gpus = [1, 2]
#pragma once

#include <map>
#include <string>
#include <vector>

#include "bench/axis.h"

namespace precbench {

struct SweepFile {
  std::vector<Axes> grids;                     ///< one per section; exactly one where there is no section
  std::map<std::string, std::string> options;  ///< `out`, `timeout` and `interleave`, as written
};

/// Throws InvalidInput that names the file and the key: a missing file, a line that is no `key = value`, an
/// unknown key (with the nearest one), a key given twice.
SweepFile read_sweep_file(const std::string& path);

}  // namespace precbench
