// vector.h: accuracy of exp, sums and all_finite.
#include "kernels/cpu/vector.h"

#include "kernels/device/op_testing.h"

using namespace precbench;

TEST_CASE("exp: within 1.25 ulp over its range", "[cpu][vector]") {
  double worst = 0;
  float worst_at = 0;
  // Every 97th float: all exponents from 2^-127 to the ends of the range, all parts of the mantissa.
  for (std::uint32_t sign : {0u, 0x80000000u})
    for (std::uint32_t magnitude = 0; magnitude <= float_to_bits(88.72f); magnitude += 97) {
      const float x = bits_to_float(magnitude | sign);
      if (x < -87.3f) break;
      const double exact = std::exp(static_cast<double>(x));
      int exponent = 0;
      std::frexp(static_cast<float>(exact), &exponent);
      const double error = std::fabs(cpu::exp(x) - exact) / std::ldexp(1.0, exponent - 24);
      if (error > worst) worst = error, worst_at = x;
    }
  INFO("at " << worst_at);
  CHECK(worst < 1.25);
  CHECK(worst > 0.5);  // below even correct rounding: proves that the loop measured
}

TEST_CASE("exp: limits at and beyond the ends of its range", "[cpu][vector]") {
  constexpr float kInf = HUGE_VALF;
  CHECK(cpu::exp(0.0f) == 1.0f);
  CHECK(cpu::exp(-0.0f) == 1.0f);
  for (float x : {-87.4f, -100.0f, -1e30f, -kInf}) CHECK(cpu::exp(x) == 0.0f);
  for (float x : {88.73f, 88.8f, 100.0f, 1e30f, kInf}) CHECK(cpu::exp(x) == kInf);
  CHECK(std::isnan(cpu::exp(std::nanf(""))));
}

TEST_CASE("lane_sum: adds every term once", "[cpu][vector]") {
  for (std::int64_t n : {0, 1, 15, 16, 17, 31, 32, 100}) {
    const float total = cpu::lane_sum(n, [](std::int64_t i) { return static_cast<float>(i + 1); });
    const std::int64_t expected = n * (n + 1) / 2;
    CHECK(total == static_cast<float>(expected));
  }
}

TEST_CASE("all_finite: detects NaN and Inf at any position", "[cpu][vector]") {
  for (std::size_t n : {0, 1, 16, 17, 40}) {
    std::vector<float> values(n, -3e38f);  // their sum would be infinite
    CHECK(cpu::all_finite(values.data(), static_cast<std::int64_t>(n)));
    for (std::size_t i = 0; i < n; ++i)
      for (const float bad : {std::nanf(""), HUGE_VALF, -HUGE_VALF}) {
        values[i] = bad;
        CHECK_FALSE(cpu::all_finite(values.data(), static_cast<std::int64_t>(n)));
        values[i] = -3e38f;
      }
  }
}
