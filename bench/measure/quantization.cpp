// Sums the quantization errors that the device measures. See quantization.h.
#include "bench/measure/quantization.h"

#include <algorithm>
#include <cmath>

namespace precbench {
namespace {

std::string operand_name(LinearRole role, LinearOperand operand) {
  return std::string(name_of(role)) + "." + name_of(operand);
}

}  // namespace

std::optional<double> percent_of_counts(double count, double all) {
  return all > 0 ? std::optional(std::min(100.0, 100 * count / all)) : std::nullopt;
}

std::optional<double> QuantizationStatistics::Sums::relative_error() const {
  if (signal > 0 && std::isfinite(noise / signal)) return std::sqrt(noise / signal);
  return std::nullopt;
}

std::optional<double> QuantizationStatistics::Sums::underflow_percent() const {
  return percent_of_counts(underflow, nonzero);
}

std::optional<double> QuantizationStatistics::Sums::saturation_percent() const {
  return percent_of_counts(saturated, nonzero);
}

void QuantizationStatistics::observe(std::int64_t layer, LinearRole role, LinearOperand operand,
                                     const QuantizedTensor& values) {
  if (!plan_.converts(layer, role)) return;
  const std::string name = operand_name(role, operand);
  for (const auto& [copy, columns] : {std::pair(&values.rowwise, false), std::pair(&values.columnwise, true)})
    if (!copy->empty() && copy->format.quantized())
      add(sums_[name + (columns ? " columns" : " rows")], values, *copy, columns);
}

void QuantizationStatistics::observe_codes(LinearRole role, LinearOperand operand,
                                           const QuantizedTensor& values, const Groups& groups) {
  const Scope scope(arena_);
  const GemmOperand& codes = values.rowwise;
  const std::int64_t rows = codes.data.rows, cols = codes.data.cols;
  const GemmOperand turned = push_gemm_operand(arena_, Segment::other, codes.format, cols, rows);
  const GemmOperand direct = push_gemm_operand(arena_, Segment::other, codes.format, cols, rows);
  for (const Tensor& t : {turned.data, turned.scale}) device_.zero({t});  // rows behind the last group
  device_.transpose_codes({turned, codes, groups});
  QuantizedTensor known{.value = arena_.push(Segment::other, DType::bf16, rows, cols)};
  device_.dequantize({known.value, codes});
  const std::string name = operand_name(role, operand);
  ConversionSums& sums = conversions_[name];
  add(sums.of_codes, known, turned, true);
  if (values.value.empty()) return;
  device_.quantize({{.value = values.value, .columnwise = direct}});
  add(sums.total, values, turned, true);
  add(sums.direct, values, direct, true);
  sums_[name + " columns"] = sums.total;
}

void QuantizationStatistics::add(Sums& sums, const QuantizedTensor& operand, const GemmOperand& copy,
                                 bool columns) {
  const Scope scope(arena_);
  const Tensor out = arena_.push(Segment::other, DType::f32, 1, 5);
  device_.quantization_error({out, operand.value, copy, columns, operand.random});
  float values[5];
  device_.download(values, out);
  sums.format = describe(copy.format);
  sums.signal += values[0];
  sums.noise += values[1];
  sums.nonzero += values[2];
  sums.underflow += values[3];
  sums.saturated += values[4];
}

std::vector<QuantizationStats> QuantizationStatistics::result() const {
  std::vector<QuantizationStats> stats;
  for (const auto& [role, s] : sums_) {
    QuantizationStats entry{role, s.format, s.underflow_percent(), s.saturation_percent(), std::nullopt};
    if (s.noise > 0 && std::isfinite(s.signal / s.noise)) entry.sqnr_db = 10 * std::log10(s.signal / s.noise);
    stats.push_back(entry);
  }
  return stats;
}

std::vector<Conversion> QuantizationStatistics::conversions() const {
  std::vector<Conversion> all;
  for (const auto& [role, s] : conversions_)
    all.push_back({role, s.of_codes.relative_error(), s.total.relative_error(), s.direct.relative_error(),
                   s.of_codes.underflow_percent()});
  return all;
}

}  // namespace precbench
