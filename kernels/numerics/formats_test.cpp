// formats.h against kernels/numerics/golden/formats.txt (tools/goldens/make_format_goldens.py), exhaustively:
// every code decoded, every BF16 input and every rounding threshold with both FP32 neighbours encoded. Also
// the non-finite rule, end to end.
#include "kernels/numerics/formats.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kernels/numerics/golden_testing.h"
#include "kernels/testing/catch.h"

using namespace precbench;

namespace {

using Words = testing::GoldenWords;
constexpr std::uint32_t kSign = 0x80000000u;
constexpr std::uint32_t kInf = 0x7F800000u;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

float as_float(std::uint64_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits)); }
std::uint32_t as_bits(float x) { return std::bit_cast<std::uint32_t>(x); }

/// Returns a section of the golden file; fails if the file or the section is missing or short.
const Words& golden(const std::string& name) {
  static const auto sections =
      testing::golden_sections(PRECBENCH_SOURCE_DIR "/kernels/numerics/golden/formats.txt");
  const auto it = sections.find(name);
  if (it == sections.end()) FAIL("no section " << name);
  return it->second;
}

bool same(float got, std::uint64_t want_bits) {
  return std::isnan(as_float(want_bits)) ? std::isnan(got) : as_bits(got) == want_bits;
}

template <class Decode>
void check_decode(const std::string& format, Decode decode) {
  const Words& want = golden(format + ".decode");
  for (std::size_t code = 0; code < want.size(); ++code) {
    INFO(format << " code " << code);
    CHECK(same(decode(static_cast<std::uint8_t>(code)), want[code]));
  }
}

/// Returns the code according to the golden thresholds: the last one whose first input is not above the
/// magnitude.
int code_by_threshold(const Words& firsts, std::uint32_t magnitude) {
  return static_cast<int>(std::upper_bound(firsts.begin(), firsts.end(), magnitude) - firsts.begin()) - 1;
}

template <class Encode>
void check_encode(const std::string& format, int sign_code, int nan_code, Encode encode) {
  const Words& firsts = golden(format + ".first");
  std::vector<float> inputs;
  for (std::uint32_t high = 0; high < 0x10000; ++high) inputs.push_back(as_float(high << 16));
  for (std::uint64_t first : firsts) {  // a tie is the threshold itself or the float before it
    for (std::uint64_t bits = first < 2 ? 0 : first - 2; bits <= first + 2; ++bits) {
      inputs.push_back(as_float(bits));
      inputs.push_back(as_float(bits | kSign));
    }
  }
  std::vector<std::uint8_t> codes(
      inputs.size());  // one plain loop, so that the test covers the vectorized code
  for (std::size_t i = 0; i < inputs.size(); ++i) codes[i] = encode(inputs[i]);
  int wrong = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const std::uint32_t bits = as_bits(inputs[i]);
    const int sign = bits & kSign ? sign_code : 0;
    const int want = std::isnan(inputs[i]) ? nan_code : code_by_threshold(firsts, bits & ~kSign) | sign;
    if (codes[i] != want && ++wrong < 5) UNSCOPED_INFO(inputs[i] << " gave " << +codes[i] << " not " << want);
  }
  CHECK(wrong == 0);
}

/// Quantizes and dequantizes `x` with one scale, as every path with FP32 scales does.
std::vector<float> round_trip(const std::vector<float>& x, ScaleType type) {
  std::int32_t amax = 0;
  for (float v : x) amax = std::max(amax, abs_bits(v));
  const float scale = multiplying_scale(as_float(static_cast<std::uint32_t>(amax)), DType::e4m3, type);
  std::vector<float> out;
  for (float v : x) out.push_back(e4m3_decode(e4m3_encode(v * scale)) * (1.0f / scale));
  return out;
}

std::vector<float> round_trip_mx(const std::vector<float>& x, ScaleRounding rounding) {
  std::int32_t amax = 0;
  for (float v : x) amax = std::max(amax, abs_bits(v));
  const std::uint8_t b = ue8m0_from_amax(as_float(static_cast<std::uint32_t>(amax)), DType::e4m3, rounding);
  std::vector<float> out;
  for (float v : x) out.push_back(e4m3_decode(e4m3_encode(v * ue8m0_multiplier(b))) * ue8m0_decode(b));
  return out;
}

constexpr ScaleRounding kRoundings[] = {ScaleRounding::rceil, ScaleRounding::floor, ScaleRounding::ceil,
                                        ScaleRounding::even};
const char* const kRoundingNames[] = {"rceil", "floor", "ceil", "even"};

/// Returns the non-negative finite values of a format by its definition, in code order.
std::vector<double> values_of(int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  // With five exponent bits the last binade is Inf and NaN; with fewer only the last code is NaN.
  const int codes = (1 << (exponent_bits + mantissa_bits)) - (exponent_bits == 5 ? 1 << mantissa_bits : 1);
  std::vector<double> values;
  for (int code = 0; code < codes; ++code) {
    const int exponent = code >> mantissa_bits, mantissa = code & ((1 << mantissa_bits) - 1);
    const double fraction = std::ldexp(mantissa, -mantissa_bits);
    values.push_back(std::ldexp(exponent == 0 ? fraction : 1 + fraction, std::max(exponent, 1) - bias));
  }
  return values;
}

/// Returns the code of the value nearest to a magnitude, ties to the even one.
std::size_t nearest_code(const std::vector<double>& values, double magnitude) {
  const double clamped = std::min(magnitude, values.back());
  auto code =
      static_cast<std::size_t>(std::lower_bound(values.begin(), values.end(), clamped) - values.begin());
  if (code == 0) return code;
  const double below = clamped - values[code - 1], above = values[code] - clamped;
  return below < above || (below == above && code % 2 == 1) ? code - 1 : code;
}

/// Returns every BF16 value, and values around the midpoints between neighbours.
std::vector<float> inputs_around(const std::vector<double>& values) {
  std::vector<float> inputs;
  for (std::uint32_t high = 0; high < 0x10000; ++high) inputs.push_back(as_float(high << 16));
  for (std::size_t i = 0; i + 1 < values.size(); ++i) {
    const auto middle = static_cast<float>((values[i] + values[i + 1]) / 2);
    for (const float x : {std::nextafter(middle, 0.0f), middle, std::nextafter(middle, kInfinity)})
      inputs.insert(inputs.end(), {x, -x});
  }
  return inputs;
}

}  // namespace

TEST_CASE("formats: every code decodes like ml_dtypes and PyTorch", "[formats]") {
  check_decode("e4m3", e4m3_decode);
  check_decode("e5m2", e5m2_decode);
  check_decode("e2m1", e2m1_decode);
  check_decode("ue8m0", ue8m0_decode);
}

TEST_CASE("formats: every BF16 input and every threshold encodes like ml_dtypes and PyTorch", "[formats]") {
  check_encode("e4m3", 0x80, 0x7F, e4m3_encode);
  check_encode("e5m2", 0x80, 0x7F, e5m2_encode);
  check_encode("e2m1", 0x8, 0x7, e2m1_encode);
}

TEST_CASE("round_to_narrower: formats without hardware support round every input once to their nearest value",
          "[formats]") {
  struct Rare {
    const char* name;
    DType dtype;
    int dropped, exponent_bits, mantissa_bits;
    double max;
  };
  for (const Rare& f : {Rare{"e4m2", DType::e4m3, 1, 4, 2, 384}, Rare{"e4m1", DType::e4m3, 2, 4, 1, 256},
                        Rare{"e5m1", DType::e5m2, 1, 5, 1, 49152}, Rare{"e5m3", DType::e5m3, 0, 5, 3, 61440},
                        Rare{"e3m4", DType::e3m4, 0, 3, 4, 30}, Rare{"e3m3", DType::e3m3, 0, 3, 3, 28},
                        Rare{"e4m4", DType::e4m4, 0, 4, 4, 480}}) {
    INFO(f.name);
    const std::vector<double> values = values_of(f.exponent_bits, f.mantissa_bits);
    CHECK(values.back() == f.max);
    CHECK(format_max(f.dtype, f.dropped) == f.max);
    CHECK(mantissa_bits_of(f.dtype, f.dropped) == f.mantissa_bits);
    int wrong = 0;
    for (const float x : inputs_around(values)) {
      const float got = round_to_narrower(x, f.dtype, f.dropped);
      const auto want = static_cast<float>(std::copysign(values[nearest_code(values, std::fabs(x))], x));
      const bool right = std::isnan(x) ? std::isnan(got) : as_bits(got) == as_bits(want);
      if (!right && ++wrong < 5) UNSCOPED_INFO(x << " gave " << got << ", not " << want);
      if (held_in_bf16(f.dtype))
        wrong += encode_in_bf16(x, f.dtype) != (std::isnan(x) ? 0x7FFF : as_bits(want) >> 16);
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("round_to_narrower: e4m2 and e4m1 and e5m1 are codes of e4m3 and e5m2 rounded once", "[formats]") {
  for (const auto& [dtype, dropped, mantissa_bits] :
       {std::tuple{DType::e4m3, 1, 2}, {DType::e4m3, 2, 1}, {DType::e5m2, 1, 1}}) {
    const bool e4 = dtype == DType::e4m3;
    const auto encode = [e4](float x) { return e4 ? e4m3_encode(x) : e5m2_encode(x); };
    const auto decode = [e4](std::uint8_t code) { return e4 ? e4m3_decode(code) : e5m2_decode(code); };
    const std::vector<double> values = values_of(e4 ? 4 : 5, mantissa_bits);
    int wrong = 0, twice_differs = 0;
    for (const float x : inputs_around(values)) {
      const float got = round_to_narrower(x, dtype, dropped);
      if (std::isnan(x)) {
        wrong += encode(got) != 0x7F;
        continue;
      }
      const auto code = static_cast<int>(nearest_code(values, std::fabs(x)) << dropped);
      wrong += encode(got) != (code | (std::signbit(x) ? 0x80 : 0)) || decode(encode(got)) != got;
      twice_differs += round_to_narrower(decode(encode(x)), dtype, dropped) != got;
    }
    CHECK(wrong == 0);
    CHECK(twice_differs > 0);  // so rounding an e4m3 or e5m2 code a second time would be noticed
  }
}

TEST_CASE("round_to_narrower: an e2m1 value equals its decoded code", "[formats]") {
  int wrong = 0;
  for (const float x : inputs_around({0, 0.5, 1, 1.5, 2, 3, 4, 6}))
    if (!std::isnan(x))
      wrong += as_bits(round_to_narrower(x, DType::e2m1)) != as_bits(e2m1_decode(e2m1_encode(x)));
  CHECK(wrong == 0);
}

TEST_CASE("formats: a finite code survives decode and encode", "[formats]") {
  for (int code = 0; code < 256; ++code) {
    const auto byte = static_cast<std::uint8_t>(code);
    if (!std::isnan(e4m3_decode(byte))) CHECK(e4m3_encode(e4m3_decode(byte)) == byte);
    if (std::isfinite(e5m2_decode(byte))) CHECK(e5m2_encode(e5m2_decode(byte)) == byte);
    if (code < 16) CHECK(e2m1_encode(e2m1_decode(byte)) == byte);
  }
}

TEST_CASE("bf16_encode: rounds to nearest even", "[formats]") {
  const Words& pairs = golden("bf16.encode");
  for (std::size_t i = 0; i < pairs.size(); i += 2) CHECK(bf16_encode(as_float(pairs[i])) == pairs[i + 1]);

  int wrong = 0;
  for (std::uint32_t code = 0; code < 0x10000; ++code) {
    const float value = bf16_decode(static_cast<std::uint16_t>(code));
    if (std::isnan(value)) {
      wrong += bf16_encode(value) != 0x7FFF;
      continue;
    }
    wrong += as_bits(value) != code << 16 || bf16_encode(value) != code;
    if (std::isinf(value)) continue;
    const std::uint32_t tie = code << 16 | 0x8000;
    wrong += bf16_encode(as_float(tie - 1)) != code;
    wrong += bf16_encode(as_float(tie)) != code + (code & 1);
    wrong += bf16_encode(as_float(tie + 1)) != code + 1;
  }
  CHECK(wrong == 0);
}

TEST_CASE("bf16_encode_stochastic: unbiased and deterministic per random value", "[formats]") {
  for (std::uint32_t bits : {0x3F801234u, 0xBF80FFFFu, 0x00000001u, 0x42F68000u, 0x7F7F0001u}) {
    std::uint32_t up = 0;
    bool neighbour = true;
    for (std::uint32_t random = 0; random < 0x10000; ++random) {
      const std::uint32_t code = bf16_encode_stochastic(as_float(bits), random);
      up += code - (bits >> 16);
      neighbour = neighbour && code - (bits >> 16) <= 1;
    }
    CHECK(neighbour);
    CHECK(up == (bits & 0xFFFF));
  }
  for (std::uint32_t random : {0u, 0x8000u, 0xFFFFu, 0xFFFFFFFFu}) {
    CHECK(bf16_encode_stochastic(1.5f, random) == bf16_encode(1.5f));
    CHECK(bf16_encode_stochastic(-kInfinity, random) == 0xFF80);
    CHECK(bf16_encode_stochastic(as_float(0x7F800001u), random) == 0x7FFF);
  }
}

TEST_CASE("random_bits: matches the reference and is uniform", "[formats]") {
  const Words& words = golden("random.bits");
  for (std::size_t i = 0; i < words.size(); i += 3)
    CHECK(random_bits(words[i], words[i + 1]) == words[i + 2]);

  // 2^16 draws per bit: the count of ones has a standard deviation of 128, and six of them are allowed.
  constexpr int kDraws = 1 << 16;
  for (int bit = 0; bit < 32; ++bit) {
    int ones = 0, repeats = 0;
    for (int i = 0; i < kDraws; ++i) {
      ones += random_bits(7, i) >> bit & 1;
      repeats += (random_bits(7, i) ^ random_bits(8, i)) >> bit & 1;
    }
    CHECK(std::abs(ones - kDraws / 2) < 6 * 128);
    CHECK(std::abs(repeats - kDraws / 2) < 6 * 128);
  }
}

TEST_CASE("abs_bits: orders numbers and Inf and NaN", "[formats]") {
  CHECK(abs_bits(-0.0f) == 0);
  CHECK(abs_bits(-2.0f) > abs_bits(1.0f));
  CHECK(abs_bits(-kInfinity) > abs_bits(std::numeric_limits<float>::max()));
  CHECK(abs_bits(-kNan) > abs_bits(kInfinity));
}

TEST_CASE("fp32_scale: equals PyTorch's and never overflows and f32_pow2 rounds down", "[formats]") {
  for (const auto& [format, dtype] : {std::pair{"e4m3", DType::e4m3}, std::pair{"e5m2", DType::e5m2}}) {
    const Words& scales = golden(std::string(format) + ".scale");
    for (std::size_t i = 0; i < scales.size(); i += 2) {
      INFO(format << " amax bits " << scales[i]);
      CHECK(same(fp32_scale(as_float(scales[i]), format_max(dtype)), scales[i + 1]));
      CHECK(same(multiplying_scale(as_float(scales[i]), dtype, ScaleType::f32), scales[i + 1]));
    }
    const Words& powers = golden(std::string(format) + ".scale_pow2");
    for (std::size_t i = 0; i < powers.size(); i += 2)
      CHECK(same(pow2_round_down(as_float(powers[i])), powers[i + 1]));
  }
  CHECK(std::isfinite(fp32_scale(1e-38f, kE4m3Max)));  // 448 / 1e-38 overflows FP32
  CHECK(fp32_scale(0.0f, kE4m3Max) == fp32_scale(1e-12f, kE4m3Max));
  CHECK(std::isnan(pow2_round_down(kNan)));
  CHECK(multiplying_scale(3.0f, DType::e4m3, ScaleType::f32_pow2) == 128.0f);  // 3 * 128 = 384, in (224, 448]
}

TEST_CASE("ue8m0_from_amax: bytes equal the definition at every threshold", "[formats]") {
  for (const auto& [format, format_dtype] :
       {std::pair{"e4m3", DType::e4m3}, std::pair{"e5m2", DType::e5m2}, std::pair{"e2m1", DType::e2m1}}) {
    const DType dtype = format_dtype;
    for (int r = 0; r < 4; ++r) {
      const Words& firsts = golden(std::string(format) + "." + kRoundingNames[r]);
      const auto byte_of = [&](std::uint64_t bits) {
        return ue8m0_from_amax(as_float(bits), dtype, kRoundings[r]);
      };
      int wrong = 0;
      for (std::size_t b = 0; b < firsts.size(); ++b) {
        wrong += byte_of(firsts[b]) != b;
        if (b > 0) wrong += byte_of(firsts[b] - 1) != b - 1;
      }
      for (std::uint32_t bits = 0; bits < kInf; bits += 0x8001)  // over all exponents, unaligned to them
        wrong += byte_of(bits) != code_by_threshold(firsts, bits);
      INFO(format << " " << kRoundingNames[r]);
      CHECK(wrong == 0);
      CHECK(byte_of(as_bits(0.0f)) == 0);
      CHECK(byte_of(kInf) == 0xFF);
      CHECK(byte_of(as_bits(kNan)) == 0xFF);
    }
  }
}

TEST_CASE("ue8m0: round_up and multiplier at the edges of the range", "[formats]") {
  // Test vectors of d itself from torchao's test utilities.
  CHECK(ue8m0_round_up(as_float(0x00000000u)) == 0);
  CHECK(ue8m0_round_up(as_float(0x00400000u)) == 0);
  CHECK(ue8m0_round_up(as_float(0x00400001u)) == 1);
  CHECK(ue8m0_round_up(as_float(0x00800000u)) == 1);
  CHECK(ue8m0_round_up(as_float(0x00800001u)) == 2);
  CHECK(ue8m0_round_up(as_float(0x3F800000u)) == 127);
  CHECK(ue8m0_round_up(as_float(0x3F800001u)) == 128);
  CHECK(ue8m0_round_up(as_float(0x7F000000u)) == 254);
  CHECK(ue8m0_round_up(as_float(0x7F000001u)) == 255);
  CHECK(ue8m0_round_up(kInfinity) == 255);
  CHECK(ue8m0_round_up(kNan) == 255);

  for (int b = 0; b < 255; ++b) {
    const auto byte = static_cast<std::uint8_t>(b);
    CHECK(ue8m0_decode(byte) == std::ldexp(1.0f, b - 127));
    CHECK(ue8m0_multiplier(byte) == std::ldexp(1.0f, 127 - b));
  }
  CHECK(std::isnan(ue8m0_decode(0xFF)));
  CHECK(std::isnan(ue8m0_multiplier(0xFF)));
}

TEST_CASE("ue8m0_from_amax: rceil scales a BF16 amax into 224 to 448 and floor saturates", "[formats]") {
  int outside = 0;
  for (std::uint32_t high = 0x0800; high < 0x7F80; ++high) {  // from where the byte is not clamped at 0
    const float amax = as_float(high << 16);
    const float scaled = amax * ue8m0_multiplier(ue8m0_from_amax(amax, DType::e4m3, ScaleRounding::rceil));
    outside += !(scaled > 224.0f && scaled <= 448.0f);
  }
  CHECK(outside == 0);
  CHECK(500.0f * ue8m0_multiplier(ue8m0_from_amax(500.0f, DType::e4m3, ScaleRounding::floor)) == 500.0f);
}

TEST_CASE("non-finite rule: a scope with Inf or NaN becomes all NaN and other scopes keep their values",
          "[formats]") {
  for (float bad : {kInfinity, -kInfinity, kNan}) {
    const std::vector<float> x = {1.0f, bad, 0.0f, -3.0f, 1e-30f};
    for (ScaleType type : {ScaleType::f32, ScaleType::f32_pow2})
      for (float v : round_trip(x, type)) CHECK(std::isnan(v));
    for (ScaleRounding rounding : kRoundings)
      for (float v : round_trip_mx(x, rounding)) CHECK(std::isnan(v));
  }
}

TEST_CASE("quantize and dequantize: zero and tiny and outlier scopes round-trip", "[formats]") {
  for (ScaleType type : {ScaleType::f32, ScaleType::f32_pow2}) {
    for (float v : round_trip({0.0f, -0.0f, 0.0f}, type)) CHECK(v == 0.0f);
    // With amax below its bound of 1e-12, everything is below half of e4m3's smallest step times 1e-12 / 448.
    for (float v : round_trip({1e-38f, as_float(1), -1e-20f}, type)) CHECK(v == 0.0f);
    const std::vector<float> outlier = round_trip({1024.0f, 1.0f, 1e-3f}, type);
    CHECK(std::abs(outlier[0] - 1024.0f) < 1e-3f);
    CHECK(std::abs(outlier[1] - 1.0f) <= 1.0f / 16);  // half an ulp of three mantissa bits
    CHECK(outlier[2] == 0.0f);
  }
  for (ScaleRounding rounding : kRoundings) {
    for (float v : round_trip_mx({0.0f, -0.0f}, rounding)) CHECK(v == 0.0f);
    CHECK(round_trip_mx({1024.0f, 1.0f}, rounding)[0] == 1024.0f);
    // An MX block of subnormals keeps them: 2^-127 is the smallest scale.
    CHECK(round_trip_mx({as_float(0x00400000u)}, rounding)[0] == as_float(0x00400000u));
  }
}
