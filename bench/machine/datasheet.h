// Dense peak rates and memory bandwidth of known GPUs, the denominators of MFU and of the speed of light.
// Data sheets print the rate for 2:4 sparsity, which is twice as high for most formats and which no training
// step reaches. The numbers are those of the machine files (machine.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace precbench {

struct DatasheetRates {
  double bf16_tflops = 0;            ///< dense, FP32 accumulation
  std::optional<double> fp8_tflops;  ///< dense, FP32 accumulation; null before compute capability 8.9
  std::optional<double> fp4_tflops;  ///< dense; null before compute capability 10.0
  double memory_gb_per_s = 0;        ///< 10^9 bytes per second
  std::string source;
  std::optional<double> memory_gb{};  ///< capacity as the data sheet says it; null if not known
};

/// Returns the peaks of a GPU by the exact name that its driver reports, e.g. "NVIDIA H100 80GB HBM3". Null
/// for names of no machine file, such as MIG slices: a guessed denominator would make every ratio a
/// guess.
std::optional<DatasheetRates> datasheet_rates(const std::string& gpu_name);

/// A GPU of a machine file and the memory that a program can count on.
struct DatasheetGpu {
  std::string name;        ///< as the driver reports it, or the machine file's where that is not known
  double memory_gb = 0;    ///< as the data sheet says it
  std::int64_t bytes = 0;  ///< usable_bytes() of the machine
};

/// Finds a GPU by words of its name or its machine file's in any letter case: "h100", "H100 PCIe", "rtx4090",
/// "mi300x". Of several the first, which is the most common board. Throws InvalidInput with the known names.
DatasheetGpu find_datasheet_gpu(const std::string& words);
/// Returns the names of all GPUs that have a machine file.
std::vector<std::string> datasheet_names();

/// The environment variable with user-provided peaks: "bf16=503.8,fp8=1007.6,fp4=2015.2,memory=1792", in
/// dense TFLOP/s and GB/s. bf16 and memory are required.
inline constexpr const char* kPeaksVariable = "PRECBENCH_PEAKS";

/// Parses such a text; the result's source is the variable. Throws InvalidInput if it is malformed.
DatasheetRates parse_peaks(const std::string& text);

/// Returns the peaks of the environment variable, or else the data sheet's. Throws InvalidInput like
/// parse_peaks.
std::optional<DatasheetRates> known_peaks(const std::string& gpu_name);

/// Throws InvalidInput if the variable cannot be parsed; call it before a sweep begins.
void check_peaks_variable();

/// Returns the warning about a GPU without known peaks, which says how to provide them.
std::string no_peaks_known(const std::string& gpu_name);

}  // namespace precbench
