// Logs of other programs, read by a file that says which column is what (--map): CSV with a header, tab-separated, or a JSON object
// a line.
#pragma once

#include <string>
#include <vector>

#include "tools/import/log_format.h"

namespace precbench {

/// An item of the file: key = "word", or key = ["word", ...].
struct MapItem {
  std::string key;
  std::vector<std::string> words;
  std::string place;  ///< "FILE:LINE"
};

/// Returns the format that the items describe:
///   program        name of the program; required
///   step           column of the step; required
///   loss           column, nats
///   loss_kind      step, window or ema (default step)
///   step_time      [column, s|ms|us]
///   tokens_per_s   [column, gpu|all]
///   samples_per_s  column, of all GPUs
///   tflops         column, per GPU
///   mfu            [column, %|fraction]
///   memory         [column, B|MiB|MB|GiB|GB, allocated|reserved|driver]
///   global_batch   column, sequences
///   window         step or mean: a line is of one step, or the mean of those since the line before (default step)
///   warmup         steps at a start that are not settled (default 5)
/// Throws InvalidInput, "FILE:LINE: ...", for anything else. `name`: of the file, for what is missing.
LogFormat mapped_format(const std::vector<MapItem>& items, const std::string& name);

}  // namespace precbench
