// Conversion between floats and doubles. See packed_series.h.
#include "results/packed_series.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace precbench {

void PackedSeries::pack() {
  auto* doubles = std::get_if<Doubles>(&values_);
  if (!doubles) return;
  const bool are_floats = std::all_of(doubles->begin(), doubles->end(), [](double value) {
    if (!std::isfinite(value)) return true;  // a NaN of a curve is a JSON null, so its bits do not matter
    return std::abs(value) <= std::numeric_limits<float>::max() &&
           static_cast<double>(static_cast<float>(value)) == value;
  });
  if (are_floats)
    values_ = Floats(doubles->begin(), doubles->end());
  else
    doubles->shrink_to_fit();
}

PackedSeries::Doubles& PackedSeries::own() {
  if (const auto* floats = std::get_if<Floats>(&values_)) values_ = Doubles(floats->begin(), floats->end());
  return *std::get_if<Doubles>(&values_);
}

}  // namespace precbench
