// Dense peak rates and memory bandwidth of known GPUs, the denominators of MFU and of the speed of light.
// Dense only: data sheets print the number for 2:4 sparsity, which is twice as high for most formats and which no
// training step reaches.
#pragma once

#include <optional>
#include <string>

namespace precbench {

struct DatasheetRates {
  double bf16_tflops = 0;            ///< dense, FP32 accumulation
  std::optional<double> fp8_tflops;  ///< dense, FP32 accumulation; none before compute capability 8.9
  std::optional<double> fp4_tflops;  ///< dense; none before compute capability 10.0
  double memory_gb_per_s = 0;        ///< 10^9 bytes a second
  std::string source;
};

/// Returns the peaks of a GPU under the exact name that its driver reports, e.g. "NVIDIA H100 80GB HBM3". A name that
/// is not in the table, a MIG slice among them, gives nullopt: a guessed denominator would make every ratio
/// of it a guess.
std::optional<DatasheetRates> datasheet_rates(const std::string& gpu_name);

/// The environment variable with peaks given by hand: "bf16=503.8,fp8=1007.6,fp4=2015.2,memory=1792", in dense TFLOP/s and
/// GB/s. bf16 and memory are required.
inline constexpr const char* kPeaksVariable = "PRECBENCH_PEAKS";

/// Returns the peaks that such a text gives, whose source is the variable. Throws InvalidInput for one that is malformed.
DatasheetRates parse_peaks(const std::string& text);

/// Returns the peaks in the environment, which win, or the data sheet's. Throws InvalidInput as parse_peaks.
std::optional<DatasheetRates> known_peaks(const std::string& gpu_name);

/// Throws InvalidInput where the environment has peaks that cannot be read; before a sweep begins.
void check_peaks_variable();

/// Returns the warning about a GPU without known peaks, which says how to give them.
std::string no_peaks_known(const std::string& gpu_name);

}  // namespace precbench
