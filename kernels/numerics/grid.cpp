// Checks the values of a grid, and keeps one copy of each. See grid.h.
#include "kernels/numerics/grid.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <mutex>

#include "kernels/base/errors.h"

namespace precbench {
namespace {

constexpr double kLeastGap = 0x1p-24;  // of the largest magnitude
constexpr float kSmallestMax = 0x1p-64f, kLargestMax = 0x1p64f;

/// Checks the values as they are listed.
void check_list(const std::vector<float>& values) {
  if (values.empty()) throw InvalidInput("has no values; list them in ascending order, with 0");
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i]))
      throw InvalidInput(fmt::format("{}: {} is not a finite FP32 number", i, values[i]));
    if (i > 0 && !(values[i] > values[i - 1]))
      throw InvalidInput(fmt::format("{}: {} is not above {}, the value before it; sort the list", i,
                                     values[i], values[i - 1]));
  }
  if (std::count(values.begin(), values.end(), 0.0f) == 0)
    throw InvalidInput("has no 0, which padding and an all-zero block need");
}

/// Checks the complete values.
void check_grid(const std::vector<float>& values) {
  if (values.front() == 0.0f || values.back() == 0.0f)
    throw InvalidInput("needs a value above 0; without negative values it is mirrored");
  const float largest = std::max(-values.front(), values.back());
  if (largest > kLargestMax || std::min(-values.front(), values.back()) < kSmallestMax)
    throw InvalidInput(fmt::format("must end between 2^-64 and 2^64 on both sides, not at {} and {}",
                                   values.front(), values.back()));
  for (std::size_t i = 1; i < values.size(); ++i)
    if (static_cast<double>(values[i]) - static_cast<double>(values[i - 1]) <
        kLeastGap * static_cast<double>(largest))
      throw InvalidInput(fmt::format("has {} and {}, which are less than 2^-24 of its largest value apart",
                                     values[i - 1], values[i]));
}

/// Returns bounds[i] (grid.h). `tie_up`: the midpoint itself is rounded up.
float bound_between(float below, float above, bool tie_up) {
  const double middle = (static_cast<double>(below) + static_cast<double>(above)) / 2;  // exact
  auto bound = static_cast<float>(middle);
  constexpr float kDown = -std::numeric_limits<float>::infinity();
  if (static_cast<double>(bound) > middle) bound = std::nextafter(bound, kDown);
  return tie_up && static_cast<double>(bound) == middle ? std::nextafter(bound, kDown) : bound;
}

Grid grid_of(const std::vector<float>& values) {
  Grid grid;
  grid.count = static_cast<std::uint16_t>(values.size());
  grid.zero = static_cast<std::uint8_t>(std::find(values.begin(), values.end(), 0.0f) - values.begin());
  grid.max = std::min(-values.front(), values.back());
  const int binade = std::ilogb(grid.max);
  unsigned in_binade = 0;
  for (const float value : values)
    in_binade +=
        std::signbit(value) == (grid.max != values.back()) && value != 0.0f && std::ilogb(value) == binade;
  grid.mantissa_bits = static_cast<std::uint8_t>(std::bit_width(in_binade - 1));
  std::copy(values.begin(), values.end(), grid.values);
  for (std::size_t i = 0; i + 1 < values.size(); ++i)
    grid.bounds[i] = bound_between(values[i], values[i + 1], (i + 1 - grid.zero) % 2 == 0);
  return grid;
}

}  // namespace

bool Grid::mirrored() const {
  for (int i = 0; i < count; ++i)
    if (values[i] != -values[count - 1 - i]) return false;
  return true;
}

const Grid* make_grid(std::vector<float> values) {
  for (float& value : values)
    if (value == 0.0f) value = 0.0f;  // -0 becomes +0
  check_list(values);
  if (values.front() == 0.0f) {
    std::vector<float> mirrored;
    for (auto value = values.rbegin(); value + 1 != values.rend(); ++value) mirrored.push_back(-*value);
    values.insert(values.begin(), mirrored.begin(), mirrored.end());
  }
  if (values.size() > kMostGridValues)
    throw InvalidInput(fmt::format("has {} values with their negatives; a byte numbers {} at most",
                                   values.size(), kMostGridValues));
  check_grid(values);
  static std::mutex mutex;
  static std::map<std::vector<float>, std::unique_ptr<const Grid>> known;
  const std::lock_guard lock(mutex);
  std::unique_ptr<const Grid>& grid = known[values];
  if (!grid) grid = std::make_unique<const Grid>(grid_of(values));
  return grid.get();
}

}  // namespace precbench
