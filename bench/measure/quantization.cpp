// Sums the errors that the device measures. See quantization.h.
#include "bench/measure/quantization.h"

#include <algorithm>
#include <cmath>

namespace precbench {

void QuantizationStatistics::observe(std::int64_t layer, LinearRole role, LinearOperand operand,
                                     const QuantizedTensor& values) {
  if (!plan_.converts(layer, role)) return;
  const std::string name = std::string(name_of(role)) + "." + name_of(operand);
  add(name + " rows", values, values.rowwise, false);
  add(name + " columns", values, values.columnwise, true);
}

void QuantizationStatistics::add(const std::string& role, const QuantizedTensor& operand,
                                 const GemmOperand& form, bool columns) {
  if (form.empty() || !form.format.quantized()) return;
  const Scope scope(arena_);
  const Tensor out = arena_.push(Segment::other, DType::f32, 1, 5);
  device_.quantization_error({out, operand.value, form, columns, operand.random});
  float values[5];
  device_.download(values, out);
  Sums& sums = sums_[role];
  sums.format = describe(form.format);
  sums.signal += values[0];
  sums.noise += values[1];
  sums.nonzero += values[2];
  sums.underflow += values[3];
  sums.saturated += values[4];
}

std::vector<QuantizationStats> QuantizationStatistics::result() const {
  std::vector<QuantizationStats> stats;
  for (const auto& [role, s] : sums_) {
    QuantizationStats entry{role, s.format, std::nullopt, std::nullopt, std::nullopt};
    if (s.nonzero > 0) {
      entry.underflow_percent = 100 * s.underflow / s.nonzero;
      entry.saturation_percent = 100 * s.saturated / s.nonzero;
    }
    if (s.noise > 0 && std::isfinite(s.signal / s.noise)) entry.sqnr_db = 10 * std::log10(s.signal / s.noise);
    stats.push_back(entry);
  }
  return stats;
}

}  // namespace precbench
