// Reads the loss curves of --base: BF16 runs of the reader.
#pragma once

#include <string>
#include <vector>

#include "tools/analysis/horizon_slope.h"

namespace precbench {

/// Returns the runs of the files. A file of records (*.jsonl or *.jsonl.xz, or a folder of them) gives its BF16 runs that are
/// no forks; any other file is a table of text with a header line, whose columns are separated by commas, tabs
/// or spaces: `tokens` and `loss`, and optionally `lr`. Throws InvalidInput that names the file and line.
std::vector<BaseRun> read_base_runs(const std::vector<std::string>& paths);

}  // namespace precbench
