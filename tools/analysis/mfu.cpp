// Finds recipes with FP8 GEMMs by the formats in their definition. See mfu.h.
#include "tools/analysis/mfu.h"

#include <nlohmann/json.hpp>
#include <string>

namespace precbench {
namespace {

using Json = nlohmann::ordered_json;

bool is_fp8_operand(const Json& recipe, const char* gemm, const char* operand) {
  const Json::json_pointer pointer = Json::json_pointer("") / gemm / operand / "format";
  if (!recipe.contains(pointer) || !recipe.at(pointer).is_string()) return false;
  const std::string format = recipe.at(pointer).get<std::string>();
  return format == "e4m3" || format == "e5m2";
}

}  // namespace

std::optional<double> fp8_peak(const Record& record) {
  if (!record.metrics || !record.metrics->peaks || !record.definition || !record.definition->recipe)
    return std::nullopt;
  for (const char* gemm : {"fprop", "dgrad", "wgrad"})
    if (is_fp8_operand(*record.definition->recipe, gemm, "a") &&
        is_fp8_operand(*record.definition->recipe, gemm, "b"))
      return record.metrics->peaks->fp8_tflops;
  return std::nullopt;
}

std::optional<double> mfu_fp8(const Row& row) {
  const std::optional<double> peak = fp8_peak(row.record());
  if (!peak || *peak <= 0 || !row.mfu_bf16) return std::nullopt;
  const std::optional<double>& bf16 = row.record().metrics->peaks->bf16_tflops;
  return bf16 ? std::optional(*row.mfu_bf16 * *bf16 / *peak) : std::nullopt;
}

}  // namespace precbench
