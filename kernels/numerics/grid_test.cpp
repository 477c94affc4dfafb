// Grids: rounding against a search in FP64, equality with the formats that they describe, and refusals.
#include "kernels/numerics/grid.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/numerics/custom_format.h"
#include "kernels/numerics/grid_testing.h"
#include "kernels/numerics/random.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

constexpr float kInfiniteBits = std::numeric_limits<float>::infinity();

/// Returns the nearest value by a search over all of them; of two, the one an even number of places from 0.
float nearest_value(const std::vector<float>& values, float x) {
  const auto zero = std::find(values.begin(), values.end(), 0.0f) - values.begin();
  std::size_t best = 0;
  for (std::size_t i = 1; i < values.size(); ++i) {
    // Exact: a difference of two FP32 numbers no more than 2^24 apart in size.
    const long double here = std::fabs(static_cast<long double>(x) - values[i]),
                      there = std::fabs(static_cast<long double>(x) - values[best]);
    if (here < there || (here == there && (static_cast<std::ptrdiff_t>(i) - zero) % 2 == 0)) best = i;
  }
  return values[best];
}

std::vector<float> mirrored(const std::vector<float>& values) {
  std::vector<float> all;
  for (auto value = values.rbegin(); value != values.rend(); ++value)
    if (*value != 0) all.push_back(-*value);
  all.insert(all.end(), values.begin(), values.end());
  return all;
}

/// Returns the grid's values, midpoints and their neighbours, and random numbers.
std::vector<float> inputs_for(const std::vector<float>& values) {
  std::vector<float> inputs = {0.0f, -0.0f, 1e-30f, -1e-30f, 1e30f, -1e30f, kInfiniteBits, -kInfiniteBits};
  for (std::size_t i = 0; i < values.size(); ++i) {
    inputs.push_back(values[i]);
    if (i + 1 == values.size()) continue;
    const float middle =
        static_cast<float>((static_cast<double>(values[i]) + static_cast<double>(values[i + 1])) / 2);
    inputs.insert(inputs.end(),
                  {middle, std::nextafter(middle, kInfiniteBits), std::nextafter(middle, -kInfiniteBits)});
  }
  for (std::uint64_t i = 0; i < 4000; ++i)
    inputs.push_back(0.7f * std::fabs(values.back()) * irwin_hall_normal(3, i));
  return inputs;
}

}  // namespace

TEST_CASE("make_grid: values are kept and mirrored and shared", "[grid]") {
  const Grid* nf4 = make_grid(nf4_values());
  REQUIRE(nf4->count == 16);
  CHECK(std::equal(nf4->values, nf4->values + 16, nf4_values().begin()));
  CHECK(nf4->zero == 7);
  CHECK(nf4->max == 1.0f);
  CHECK_FALSE(nf4->mirrored());
  CHECK(make_grid(nf4_values()) == nf4);
  const Grid* e2m1 = make_grid(e2m1_values());
  CHECK(e2m1->count == 15);
  CHECK(e2m1->values[0] == -6.0f);
  CHECK((e2m1->mirrored() && e2m1->max == 6.0f && e2m1->mantissa_bits == 1));
  CHECK(make_grid(mirrored(e2m1_values())) == e2m1);
  const Grid* int4 = make_grid(integers(-8, 7));
  CHECK((int4->max == 7.0f && int4->mantissa_bits == 2));  // 4 to 7
  CHECK(make_grid(e4m3_values())->mantissa_bits == 3);
  CHECK(make_grid(e3m0_values())->mantissa_bits == 0);
  CHECK(make_grid(integers(-128, 127))->count == 256);
}

TEST_CASE("grid_encode: rounds to the nearest value as a search over all of them does", "[grid]") {
  for (const std::vector<float>& values :
       {nf4_values(), integers(-8, 7), integers(-128, 127), mirrored(e3m0_values()), mirrored(e4m3_values()),
        std::vector<float>{-1, 0, 0x1p-20f, 3}, std::vector<float>{-0.3f, 0, 0.1f, 0.7f}}) {
    const Grid& grid = *make_grid(values);
    int wrong = 0;
    for (const float x : inputs_for(values)) {
      const float bounded = std::clamp(x, values.front(), values.back());
      wrong += grid_decode(grid, grid_encode(grid, x)) != nearest_value(values, bounded);
    }
    CHECK(wrong == 0);
    CHECK(grid_decode(grid, grid_encode(grid, std::nanf(""))) == 0.0f);
  }
}

TEST_CASE("grid_encode: grids of e2m1 and e4m3 and INT4 equal their casts", "[grid]") {
  const Grid &e2m1 = *make_grid(e2m1_values()), &e4m3 = *make_grid(e4m3_values()),
             &int4 = *make_grid(integers(-8, 7));
  CHECK(e4m3.count == 253);
  std::vector<float> inputs = inputs_for(mirrored(e4m3_values()));
  const std::vector<float> more = inputs_for(mirrored(e2m1_values()));
  inputs.insert(inputs.end(), more.begin(), more.end());
  for (int half = -40; half <= 40; ++half) inputs.push_back(static_cast<float>(half) / 2);
  int wrong = 0;
  for (const float x : inputs) {
    wrong += grid_decode(e2m1, grid_encode(e2m1, x)) != e2m1_decode(e2m1_encode(x));
    wrong += grid_decode(e4m3, grid_encode(e4m3, x)) != e4m3_decode(e4m3_encode(x));
    wrong += grid_decode(int4, grid_encode(int4, x)) != std::clamp(std::nearbyint(x), -8.0f, 7.0f);
  }
  CHECK(wrong == 0);
}

TEST_CASE("grid_encode_stochastic: takes a neighbour with the right probability", "[grid]") {
  const std::vector<float> values = nf4_values();
  const Grid& grid = *make_grid(values);
  for (const float value : values)
    for (const std::uint32_t random : {0u, 0x80000000u, 0xFFFFFFFFu})
      CHECK(grid_decode(grid, grid_encode_stochastic(grid, value, random)) == value);
  CHECK(grid_decode(grid, grid_encode_stochastic(grid, kInfiniteBits, 0)) == 1.0f);
  CHECK(grid_decode(grid, grid_encode_stochastic(grid, -kInfiniteBits, 0)) == -1.0f);
  CHECK(grid_decode(grid, grid_encode_stochastic(grid, std::nanf(""), 0)) == 0.0f);
  constexpr int kDraws = 20000;
  for (const float x : {0.9f, 0.3f, 0.01f, -0.05f, -0.99f}) {
    double sum = 0;
    float low = 2, high = -2;
    for (std::uint64_t i = 0; i < kDraws; ++i) {
      const float y = grid_decode(grid, grid_encode_stochastic(grid, x, random_bits(9, i)));
      sum += y, low = std::min(low, y), high = std::max(high, y);
    }
    INFO(x);
    const auto above = std::upper_bound(values.begin(), values.end(), x);
    CHECK((low == *(above - 1) && high == *above));
    // Five deviations of the mean of draws of two values.
    const double up = (static_cast<double>(x) - low) / (static_cast<double>(high) - low);
    CHECK(std::fabs(sum / kDraws - x) < 5 * (high - low) * std::sqrt(up * (1 - up) / kDraws));
  }
}

TEST_CASE("make_grid: impossible values are refused with their place", "[grid]") {
  const auto why = [](std::vector<float> values) {
    return refusal_of([&] { make_grid(std::move(values)); });
  };
  CHECK(why({}) == "has no values; list them in ascending order, with 0");
  CHECK(why({0, 1, 0.5f}) == "2: 0.5 is not above 1, the value before it; sort the list");
  CHECK(why({0, 1, 1}) == "2: 1 is not above 1, the value before it; sort the list");
  CHECK(why({0, std::nanf("")}) == "1: nan is not a finite FP32 number");
  CHECK(why({0, 1, kInfiniteBits}) == "2: inf is not a finite FP32 number");
  CHECK(why({-1, 1}) == "has no 0, which padding and an all-zero block need");
  CHECK(why({0}) == "needs a value above 0; without negative values it is mirrored");
  CHECK(why({-1, 0}) == "needs a value above 0; without negative values it is mirrored");
  CHECK(why(integers(-128, 128)) == "has 257 values with their negatives; a byte numbers 256 at most");
  CHECK(why(integers(0, 128)) == "has 257 values with their negatives; a byte numbers 256 at most");
  CHECK(why({0, 1e-9f, 1}) == "has -1e-09 and 0, which are less than 2^-24 of its largest value apart");
  CHECK(why({0, 1e30f}) == "must end between 2^-64 and 2^64 on both sides, not at -1e+30 and 1e+30");
  CHECK(why({-0.0f, 1}).empty());
}

TEST_CASE("ue5m3: values follow the formula and casts take the nearest", "[grid]") {
  std::vector<double> values;
  for (int code = 0; code < 255; ++code) {
    const int exponent = code / 8, mantissa = code % 8;
    values.push_back(exponent == 0 ? std::ldexp(mantissa, -17) : std::ldexp(8 + mantissa, exponent - 18));
    CHECK(ue5m3_decode(static_cast<std::uint8_t>(code)) == values.back());
    CHECK(ue5m3_encode(static_cast<float>(values.back())) == code);
  }
  CHECK(values.back() == 114688);
  CHECK(std::isnan(ue5m3_decode(0xFF)));
  CHECK((ue5m3_encode(std::nanf("")) == 0xFF && ue5m3_encode(kInfiniteBits) == 0xFF));
  CHECK((ue5m3_encode(1e30f) == 0xFE && ue5m3_encode(1e-30f) == 0));
  int wrong = 0;
  for (int code = 0; code + 1 < 255; ++code) {
    const auto middle = static_cast<float>((values[code] + values[code + 1]) / 2);
    wrong += ue5m3_encode(middle) != code + code % 2;  // ties to even
    wrong += ue5m3_encode(std::nextafter(middle, 0.0f)) != code;
    wrong += ue5m3_encode(std::nextafter(middle, kInfiniteBits)) != code + 1;
  }
  CHECK(wrong == 0);
}

TEST_CASE("custom_scale: grids of known formats have the scales of these formats", "[grid]") {
  const QuantFormat fp4 = grid_format(e2m1_values(), Granularity::block_1x16, ScaleType::e4m3);
  for (const float tensor_amax : {0.0f, 1e-30f, 0.3f, 7.0f, 1e30f})
    for (const float share : {0.0f, 1e-4f, 0.01f, 0.4f, 1.0f}) {
      const float amax = share * tensor_amax, tensor_scale = nvfp4_tensor_scale(tensor_amax);
      const CustomScale scale = custom_scale(scale_rule(fp4), amax, tensor_amax);
      CHECK(scale.byte == nvfp4_block_scale(amax, tensor_scale));
      CHECK(scale.multiply == nvfp4_multiplier(scale.byte, tensor_scale));
      CHECK(custom_tensor_factor(scale_rule(fp4), tensor_amax) == tensor_amax / kNvfp4Max);
    }
  for (const ScaleRounding rounding :
       {ScaleRounding::rceil, ScaleRounding::floor, ScaleRounding::ceil, ScaleRounding::even}) {
    const QuantFormat grid = grid_format(e4m3_values(), Granularity::block_1x32, ScaleType::ue8m0, rounding);
    for (std::uint64_t i = 0; i < 200; ++i) {
      const float amax = std::ldexp(1 + std::fabs(irwin_hall_normal(5, i)) / 5, static_cast<int>(i) - 100);
      CHECK(custom_scale(scale_rule(grid), amax, 0).byte == ue8m0_from_amax(amax, DType::e4m3, rounding));
    }
  }
  const ScaleRule rule = scale_rule(grid_format({0, 1, 2}, Granularity::block_1x32, ScaleType::ue5m3));
  CHECK(custom_scale(rule, kInfiniteBits, 0).byte == 0xFF);
  CHECK(std::isnan(custom_scale(rule, kInfiniteBits, 0).dequantize));
  CHECK(custom_scale(rule, 0, 0).byte == 0);
  CHECK(std::isfinite(custom_scale(rule, 0, 0).multiply));
  CHECK(custom_scale(rule, 3, 0).dequantize == 1.5f);
}
