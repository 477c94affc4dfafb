// Opens a trace of any format that is read.
#pragma once

#include <string>

#include "tools/explain/training_trace.h"

namespace precbench {

/// Reads a Kineto trace, plain or packed with gzip or xz, or an SQLite export of Nsight Systems, told by its content.
/// Throws
/// InvalidInput that names the file if it cannot be read, is none of these, or has no GPU work.
TrainingTrace read_trace(const std::string& path);

}  // namespace precbench
