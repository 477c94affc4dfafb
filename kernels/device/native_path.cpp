// Names of native paths. See native_path.h.
#include "kernels/device/native_path.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/numerics/without_draws.h"

namespace precbench {

std::string gemm_path(const GemmRecipe& gemm, GemmRole role) {
  GemmRecipe bare = without_draws(gemm);
  for (QuantFormat* format : {&bare.a, &bare.b}) {
    format->history = {};
    format->scale_rounding = ScaleRounding::none;
    format->four_over_six = false;
  }
  return fmt::format("gemm {} x {}{} {}", describe(bare.a), describe(bare.b), gemm.fast_accum ? " fast" : "",
                     name_of(role));
}

QuantFormat quantizer_format(QuantFormat format) {
  format.history = {};
  format.from_fprop = false;
  return format;
}

std::string quantizer_path(const QuantFormat& format) {
  return "quantizer " + describe(quantizer_format(format));
}

std::string attention_path(const std::string& implementation) {
  return "attention " + implementation.substr(0, implementation.find(' '));
}

std::vector<std::string> attention_paths(const std::string& names) {
  std::vector<std::string> paths;
  for (std::size_t begin = 0; begin < names.size();) {
    const std::size_t end = std::min(names.find(", ", begin), names.size());
    paths.push_back(attention_path(names.substr(begin, end - begin)));
    begin = end + 2;
  }
  return paths;
}

std::string demoted_reason(const DemotedPaths& demoted, const GemmRecipe& gemm, GemmRole role) {
  if (demoted.empty()) return "";
  for (const std::string& path : {std::string(kEveryGemm), gemm_path(gemm, role)})
    if (const auto found = demoted.find(path); found != demoted.end()) return found->second;
  for (const QuantFormat* format : {&gemm.a, &gemm.b})
    if (format->quantized())
      if (const auto found = demoted.find(quantizer_path(*format)); found != demoted.end())
        return found->second;
  return "";
}

}  // namespace precbench
