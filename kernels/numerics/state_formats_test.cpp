// Optimizer-state formats: FP16 against the processor's or compiler's, per-tensor scales, COAT's groups
// against FP64 and against its kernel (golden/coat.txt from tools/goldens/make_coat_golden.py).
#include "kernels/numerics/state_formats.h"

#ifdef __F16C__
#include <immintrin.h>
#endif

#include <algorithm>

#include "kernels/numerics/golden_testing.h"
#include "kernels/numerics/random.h"
#include "kernels/testing/catch.h"

using namespace precbench;

namespace {

// Independent FP16: the processor's if available, since older Clangs lack the type on x86.
#ifdef __F16C__
float f16_value(std::uint16_t bits) { return _cvtsh_ss(bits); }
std::uint16_t f16_bits(float x) { return _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT); }
#else
float f16_value(std::uint16_t bits) { return static_cast<float>(__builtin_bit_cast(_Float16, bits)); }
std::uint16_t f16_bits(float x) { return __builtin_bit_cast(std::uint16_t, static_cast<_Float16>(x)); }
#endif

}  // namespace

TEST_CASE("f16_encode: equals the processor's except at the ends of the range", "[formats][state_formats]") {
  int wrong = 0;
  for (int code = 0; code < 65536; ++code) {
    const auto bits = static_cast<std::uint16_t>(code);
    const float value = f16_value(bits);
    wrong += std::isnan(value) ? !std::isnan(f16_decode(bits)) : f16_decode(bits) != value;
    if (std::isfinite(value)) wrong += f16_encode(value) != bits;
  }
  CHECK(wrong == 0);
  // Every 97th FP32 value up to the largest FP16 one, of both signs.
  for (std::uint32_t i = 0; i <= float_to_bits(kF16Max); i += 97)
    for (const std::uint32_t sign : {0u, 0x80000000u}) {
      const float x = bits_to_float(i | sign);
      wrong += f16_encode(x) != f16_bits(x);
    }
  CHECK(wrong == 0);
  CHECK(f16_encode(1e6f) == 0x7BFF);
  CHECK(f16_encode(-INFINITY) == 0xFBFF);
  CHECK(f16_encode(NAN) == 0x7E00);
}

TEST_CASE("state_scale: a power of two below max over amax and unchanged for invalid amax",
          "[state_formats]") {
  CHECK(state_scale(448.0f, kE4m3Max, 3) == 1.0f);
  CHECK(state_scale(449.0f, kE4m3Max, 3) == 0.5f);
  CHECK(state_scale(0.75f, kF16Max, 3) == 65536.0f);  // 87338 is above it
  for (const float amax : {0.0f, INFINITY, NAN}) CHECK(state_scale(amax, kE4m3Max, 3) == 3.0f);
  CHECK(state_scale(1e-45f, kE4m3Max, 3) == 3.0f);  // 448 / 1e-45 overflows
  for (int i = 1; i < 2000; ++i) {
    const float amax = std::exp(0.1f * static_cast<float>(i - 800)), scale = state_scale(amax, kE4m3Max, 0);
    if (scale == 0) continue;
    CHECK((amax * scale <= kE4m3Max && 2 * amax * scale > kE4m3Max * (1 - 1e-6f)));
  }
}

TEST_CASE("coat_encode_group: codes equal those of COAT's kernel", "[state_formats]") {
  const auto sections = testing::golden_sections(PRECBENCH_SOURCE_DIR "/kernels/numerics/golden/coat.txt");
  for (const std::string name : {"m", "v"}) {
    INFO(name);
    const auto part = [&](const char* what) -> const testing::GoldenWords& {
      return sections.at(name + what);
    };
    const auto real = [&](const char* what, std::size_t i) {
      return bits_to_float(static_cast<std::uint32_t>(part(what).at(i)));
    };
    const std::size_t groups = part(".power").size();
    REQUIRE(part(".values").size() == groups * kCoatGroup);
    std::size_t equal = 0;
    for (std::size_t group = 0; group < groups; ++group) {
      INFO("group " << group);
      float values[kCoatGroup];
      std::uint8_t codes[kCoatGroup];
      for (std::size_t i = 0; i < kCoatGroup; ++i) values[i] = real(".values", group * kCoatGroup + i);
      const CoatScale scale = coat_encode_group(codes, values, kCoatGroup);
      CHECK(scale.power == real(".power", group));
      CHECK(scale.middle == real(".middle", group));
      // powf is the library's: its last bits differ, amplified by a power of a few hundred, and codes at ties
      // may differ.
      CHECK(std::fabs(scale.scale / real(".scale", group) - 1) < 1e-6f * std::max(1.0f, scale.power));
      for (std::size_t i = 0; i < kCoatGroup; ++i) {
        const auto want = static_cast<std::uint8_t>(part(".codes").at(group * kCoatGroup + i));
        REQUIRE(std::abs(codes[i] - want) <= 1);
        equal += codes[i] == want;
        const float back = coat_decode(want, {real(".scale", group), scale.middle, scale.power});
        REQUIRE(std::fabs(back - real(".decoded", group * kCoatGroup + i)) <= 1e-5f * std::fabs(back));
      }
    }
    CHECK(equal >= groups * kCoatGroup * 999 / 1000);
  }
}

TEST_CASE("coat_encode_group: reaches e4m3's ends and round-trips within one step", "[state_formats]") {
  for (const float range : {1.0f, 2.0f, 1e3f, 1e6f, 1e12f, 1e30f}) {
    INFO(range);
    const float largest = 3e-4f, smallest = largest / range;
    const CoatScale s = coat_scale(largest, smallest);
    CHECK(coat_encode(largest, s) == 0x7E);
    CHECK(coat_encode(-largest, s) == 0xFE);
    CHECK(coat_encode(0.0f, s) == 0);
    CHECK(coat_decode(0, s) == 0.0f);
    CHECK(std::fabs(coat_decode(0x7E, s) / largest - 1) < 1e-4f);
    // The power is a multiple of 1/16: the largest that keeps the smallest value at least 2 e4m3 steps above
    // 0, unless 1/16 is already too much.
    CHECK(16 * s.power == std::floor(16 * s.power));
    if (range == 1) CHECK(s.power == 1);
    if (range > 1 && range < 1e12f) {
      const double top = std::log2(448.0 * 448.0 / 2);
      CHECK(s.power * std::log2(range) <= top * (1 + 1e-5));
      CHECK((s.power + 1.0 / 16) * std::log2(range) > top * (1 - 1e-5));
    }
    // An element's error is at most e4m3's half step, scaled by the root.
    for (int i = 0; i < 200; ++i) {
      const double x = smallest * std::pow(static_cast<double>(range), i / 199.0);
      const double back = coat_decode(coat_encode(static_cast<float>(x), s), s);
      const double y = std::pow(x / s.middle, s.power) / s.scale;
      const double half = y < 0x1p-6 ? 0x1p-10 / y : 0x1p-4;
      CHECK(std::fabs(std::log(back / x)) * s.power <= -std::log1p(-std::min(half, 0.75)) + 1e-3);
    }
  }
  const CoatScale none = coat_scale(0, 0);
  CHECK((none.scale == 1 && none.middle == 1 && none.power == 1));
}
