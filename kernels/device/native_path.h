// Names of the native paths of a device: what is verified or demoted as one. Names are stable text, because
// results of a verification are kept in files.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "kernels/numerics/recipe.h"

namespace precbench {

/// Returns "gemm e4m3 row f32 x e4m3 row f32 fast wgrad". GEMMs whose operands differ only in how their scales
/// and codes were chosen have one name.
std::string gemm_path(const GemmRecipe& gemm, GemmRole role);

/// Returns the format that a quantizer sees: without an amax history, which only supplies the amax.
QuantFormat quantizer_format(QuantFormat format);
/// Returns "quantizer e4m3 row f32".
std::string quantizer_path(const QuantFormat& format);

/// Returns "attention own" for an implementation, "own 128x128" or "cudnn 9.14.0": its first word decides.
std::string attention_path(const std::string& implementation);
/// Returns the paths in a device's attention_name(), "own 128x128 forward, cudnn 9.14.0 backward".
std::vector<std::string> attention_paths(const std::string& names);

/// Native paths that must not run natively: name and reason.
using DemotedPaths = std::map<std::string, std::string>;
inline constexpr const char* kEveryGemm = "gemm *";

/// Returns the reason why a GEMM is demoted, itself, through the quantizer of an operand, or with every GEMM; empty
/// if it is not.
std::string demoted_reason(const DemotedPaths& demoted, const GemmRecipe& gemm, GemmRole role);

}  // namespace precbench
