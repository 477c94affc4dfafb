// Reads SQLite exports of Nsight Systems (`nsys export --type sqlite`).
#pragma once

#include <string>

#include "tools/explain/training_trace.h"

namespace precbench {

/// Returns true if a file that begins so is an SQLite database.
bool is_sqlite(std::string_view begin);

/// Reads an export. Operations are NVTX ranges, with shapes if PyTorch wrote them (torch.autograd.profiler.emit_nvtx).
/// Throws
/// InvalidInput that names the file if it is damaged or has no table of kernels.
TrainingTrace read_nsys(const std::string& path);

}  // namespace precbench
