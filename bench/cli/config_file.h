// Sweep files: TOML whose keys are the fields of a case, as lists or as ranges in quotes.
//
//   seq = "2048-8192*2"
//   recipe = ["bf16", "tensorwise"]
//   [small]                         # a section is a grid of its own, on top of the keys before the first one
//   model = ["llama3.2-1b"]
//   gpus = [1, 2]
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bench/cli/axis.h"

namespace precbench {

struct SweepFile {
  struct Grid {
    std::string section;  ///< empty for that of a file without sections
    Axes axes;
  };
  std::vector<Grid> grids;  ///< never empty
  std::optional<std::string> out;
  std::optional<double> timeout_s;
  std::optional<bool> interleave;
};

/// Throws InvalidInput, "FILE:LINE: why": a line that is neither [section] nor key = value, a quote or a list
/// that does not end, an unknown key (with the nearest one), a value that no case can have, a key or section
/// that is given twice; and "--config: FILE: why" for a file that cannot be read.
SweepFile read_sweep_file(const std::string& path);

/// The text of a file that --config names. Throws InvalidInput, "--config: FILE: why".
std::string config_text(const std::string& path);

/// The seconds of --timeout and of the file's `timeout`. Throws InvalidInput.
double parse_timeout(const std::string& text);

}  // namespace precbench
