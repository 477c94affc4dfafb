// Dense peak rates and memory bandwidth of known GPUs, the denominators of MFU and of the speed of light.
// Dense only: data sheets print the number for 2:4 sparsity, which is twice as high and which no training
// step reaches.
#pragma once

#include <optional>
#include <string>

namespace precbench {

struct DatasheetRates {
  double bf16_tflops = 0;            ///< dense, FP32 accumulation
  std::optional<double> fp8_tflops;  ///< dense; none before compute capability 8.9
  double memory_gb_per_s = 0;        ///< 10^9 bytes a second
  std::string source;
};

/// The peaks of a GPU under the exact name that its driver reports, e.g. "NVIDIA H100 80GB HBM3". A name that
/// is not in the table, a MIG slice among them, gives nullopt: a guessed denominator would make every ratio
/// of it a guess.
std::optional<DatasheetRates> datasheet_rates(const std::string& gpu_name);

}  // namespace precbench
