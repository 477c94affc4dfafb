// Sweep files: TOML whose keys are the fields of a case. Values are lists, or ranges in quotes.
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
    std::string section;  ///< name; empty if the file has no sections
    Axes axes;
  };
  std::vector<Grid> grids;  ///< never empty
  std::optional<std::string> out;
  std::optional<double> timeout_s;
  std::optional<bool> interleave;
};

/// Reads a sweep file. Throws InvalidInput, "FILE:LINE: why", for a line that is neither [section] nor key =
/// value, an unclosed quote or list, an unknown key (with the nearest one), an invalid value, and a repeated
/// key or section. Throws InvalidInput, "--config: FILE: why", if the file cannot be read.
SweepFile read_sweep_file(const std::string& path);

/// Returns the text of the file given by --config. Throws InvalidInput, "--config: FILE: why".
std::string config_text(const std::string& path);

/// Parses the seconds of --timeout or of a sweep file's `timeout`. Throws InvalidInput.
double parse_timeout(const std::string& text);

}  // namespace precbench
