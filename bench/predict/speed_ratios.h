// Speed of a GPU over that of an H200, by op, format and shape, from public tables of measured kernel times.
//
// A GPU whose steps were not measured takes the times of the H200's steps, divided by these ratios. Files are in
// results/rates/ratios, embedded at configure time, and written by tools/rates/condense_tables.py.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/predict/network.h"
#include "kernels/device/ops.h"

namespace precbench {

/// Ratios at the places of one to three axes of sizes, the last axis fastest.
struct RatioGrid {
  std::vector<std::vector<double>> axes;  ///< exponents of 2, ascending
  std::vector<double> ratios;
  double spread = 0;  ///< standard deviation of the logarithm, among inference stacks

  /// Returns the ratio at a size per axis, linear in the logarithms between places and constant outside them.
  double at(const std::vector<double>& sizes) const;
};

/// Speed of one op on a GPU over that on an H200.
struct SpeedRatio {
  double ratio = 1;
  double spread = 0;         ///< standard deviation of the logarithm of `ratio`
  std::string over_formats;  ///< formats_text() of the H200's op that the ratio is over
  bool measured = true;      ///< false: the ratio of a similar op, such as the forward op of a backward one
};

/// Ratios of one GPU.
struct SpeedRatios {
  std::string machine;  ///< preset
  std::string over;     ///< preset whose times are divided
  std::string source;   ///< package, version and license
  /// A format of GEMMs: "bf16", "fp8", "fp8_block" (FP32 scales), "mxfp8" or "nvfp4".
  struct Gemm {
    std::string format;
    std::string over;  ///< format of the H200's GEMM
    RatioGrid grid;    ///< m, n, k
  };
  std::vector<Gemm> gemms;
  struct Attention {
    std::int64_t head_dim = 0;
    RatioGrid grid;  ///< tokens of a sequence
  };
  std::vector<Attention> attention;  ///< forward, causal, BF16
  double cast = 0, cast_spread = 0;  ///< from BF16 to FP8 with a known scale; 0: unknown
  BusRates bus;                      ///< of the machine itself, no ratios

  /// Returns the ratio of an op. Null for ops that no table has a similar op of: GEMMs of other formats, and attention
  /// with soft-capped scores, in windows, or in heads of more than 192.
  std::optional<SpeedRatio> of(const OpCost& op, bool softcap) const;
};

/// Throws InvalidInput that starts with `where`.
SpeedRatios speed_ratios_from_json(const nlohmann::json& json, const std::string& where);
/// Returns the embedded ratios of a machine preset; null if it has none.
const SpeedRatios* embedded_speed_ratios(const std::string& machine);

/// Returns the format of a GEMM as SpeedRatios names it, from formats_text(); empty for one that the tables lack.
std::string table_format(const std::string& formats);

}  // namespace precbench
