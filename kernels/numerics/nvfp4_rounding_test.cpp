// NVFP4 against torchao's version of TransformerEngine's (golden/nvfp4.txt from
// tools/goldens/make_nvfp4_goldens.py), and stochastic rounding against TransformerEngine's own. Without
// third-party reference: the mean over all random bytes, the transform's inverse, non-finite values.
#include "kernels/numerics/fp4.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/numerics/golden_testing.h"
#include "kernels/numerics/random.h"
#include "kernels/testing/catch.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

constexpr std::int64_t kRows = 64, kCols = 48, kBlockSize = 16;

std::vector<float> values_of(const GoldenWords& words) {
  std::vector<float> values;
  for (const std::uint64_t word : words) values.push_back(bf16_decode(static_cast<std::uint16_t>(word)));
  return values;
}

/// Checks scales and packed codes of `x`, [rows, k], in blocks `tall` rows high, against the sections of
/// `name`.
void check_quantized(const std::string& name, const std::vector<float>& x, std::int64_t k,
                     std::int64_t tall) {
  INFO(name);
  static const auto sections = golden_sections(PRECBENCH_SOURCE_DIR "/kernels/numerics/golden/nvfp4.txt");
  const auto rows = static_cast<std::int64_t>(x.size()) / k;
  float amax = 0;
  for (const float value : x) amax = std::max(amax, std::fabs(value));
  REQUIRE(float_to_bits(amax) == sections.at(name + ".amax").at(0));
  const float tensor_scale = nvfp4_tensor_scale(amax);
  const GoldenWords &scales = sections.at(name + ".scales"), &codes = sections.at(name + ".codes");
  int zero_scales = 0, wrong_scales = 0, wrong_codes = 0;
  for (std::int64_t r0 = 0; r0 < rows; r0 += tall)
    for (std::int64_t k0 = 0; k0 < k; k0 += kBlockSize) {
      float block_amax = 0;
      for (std::int64_t i = 0; i < tall * kBlockSize; ++i)
        block_amax = std::max(block_amax, std::fabs(x[(r0 + i / kBlockSize) * k + k0 + i % kBlockSize]));
      const std::uint8_t scale = nvfp4_block_scale(block_amax, tensor_scale);
      const float multiplier = nvfp4_multiplier(scale, tensor_scale);
      zero_scales += scale == 0;
      for (std::int64_t r = r0; r < r0 + tall; ++r) {
        wrong_scales += scale != scales.at((r * k + k0) / kBlockSize);
        for (std::int64_t c = k0; c < k0 + kBlockSize; c += 2) {
          const std::uint8_t pair = static_cast<std::uint8_t>(
              e2m1_encode(x[r * k + c] * multiplier) | e2m1_encode(x[r * k + c + 1] * multiplier) << 4);
          wrong_codes += pair != codes.at((r * k + c) / 2);
        }
      }
    }
  CHECK(zero_scales > 0);
  CHECK(wrong_scales == 0);
  CHECK(wrong_codes == 0);
}

}  // namespace

TEST_CASE("NVFP4: scales and codes equal torchao's for rows and squares and after a Hadamard transform") {
  const auto sections = golden_sections(PRECBENCH_SOURCE_DIR "/kernels/numerics/golden/nvfp4.txt");
  const std::vector<float> x = values_of(sections.at("input"));
  REQUIRE(x.size() == static_cast<std::size_t>(kRows * kCols));
  check_quantized("1x16", x, kCols, 1);
  check_quantized("16x16", x, kCols, kBlockSize);

  std::vector<float> turned(x.size());
  for (std::int64_t r = 0; r < kRows; ++r)
    for (std::int64_t c = 0; c < kCols; ++c) turned[c * kRows + r] = x[r * kCols + c];
  for (std::size_t i = 0; i < turned.size(); i += kBlockSize)
    hadamard_transform<kBlockSize>(&turned[i], sign_bits(Signs::te, 0, 0));
  CHECK(turned == values_of(sections.at("rht")));
  check_quantized("rht.1x16", turned, kRows, 1);
}

TEST_CASE("NVFP4: stochastic codes equal TransformerEngine's for the same random bytes") {
  const auto sections = golden_sections(PRECBENCH_SOURCE_DIR "/kernels/numerics/golden/nvfp4.txt");
  const std::vector<float> x = values_of(sections.at("input"));
  const GoldenWords &scales = sections.at("1x16.scales"), &codes = sections.at("1x16.stochastic.codes"),
                    &bytes = sections.at("1x16.stochastic.bytes");
  const float tensor_scale =
      nvfp4_tensor_scale(bits_to_float(static_cast<std::uint32_t>(sections.at("1x16.amax").at(0))));
  REQUIRE(bytes.size() == x.size());
  int wrong = 0, moved = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float scaled =
        x[i] * nvfp4_multiplier(static_cast<std::uint8_t>(scales.at(i / kBlockSize)), tensor_scale);
    const std::uint8_t got = e2m1_encode_stochastic(scaled, static_cast<std::uint32_t>(bytes[i]));
    wrong += got != (codes.at(i / 2) >> 4 * (i % 2) & 0xF);
    moved += got != e2m1_encode(scaled);
  }
  CHECK(wrong == 0);
  CHECK(moved > 500);
}

TEST_CASE("e2m1_encode_stochastic: picks an adjacent value and is exact over all random bytes") {
  // Every 256th of a step between neighbours: over 256 draws the mean is then exact.
  for (int code = 0; code < 7; ++code) {
    const float low = e2m1_decode(static_cast<std::uint8_t>(code));
    const float high = e2m1_decode(static_cast<std::uint8_t>(code + 1));
    for (int part = 0; part < 256; ++part) {
      const float x = low + (high - low) * static_cast<float>(part) / 256.0f;
      int ups = 0;
      for (std::uint32_t r = 0; r < 256; ++r) {
        const int got = e2m1_encode_stochastic(x, r);
        REQUIRE((got == code || got == code + 1));
        REQUIRE(e2m1_encode_stochastic(-x, r) == (got | 8));
        ups += got == code + 1;
      }
      REQUIRE(ups == part);
    }
  }
  for (std::uint32_t r = 0; r < 256; ++r) {
    CHECK(e2m1_encode_stochastic(6.0f, r) == 7);
    CHECK(e2m1_encode_stochastic(1e30f, r) == 7);
    CHECK(e2m1_encode_stochastic(-INFINITY, r) == 15);
    CHECK(e2m1_encode_stochastic(NAN, r) == 7);
  }
}

TEST_CASE("e2m1_encode_stochastic: the mean of draws is within its standard deviation") {
  constexpr int kValues = 64, kDraws = 4096;
  double squares = 0;
  for (int i = 0; i < kValues; ++i) {
    // On the grid of the 8 random bits, where the rounding is exact in expectation.
    const float x = std::round(1.5f * irwin_hall_normal(3, i) * 512.0f) / 512.0f;
    if (std::fabs(x) >= 1.0f) continue;
    double mean = 0;
    for (int draw = 0; draw < kDraws; ++draw)
      mean += e2m1_decode(
          e2m1_encode_stochastic(x, random_byte(17, static_cast<std::uint64_t>(i) * kDraws + draw)));
    mean /= kDraws;
    const double below = std::floor(2 * std::fabs(x)) / 2, p = 2 * (std::fabs(x) - below);
    const double deviation = 0.5 * std::sqrt(p * (1 - p) / kDraws);
    if (deviation == 0) {
      CHECK(mean == x);
      continue;
    }
    const double z = (mean - x) / deviation;
    CHECK(std::fabs(z) < 4.5);
    squares += z * z;
  }
  // A sum of as many squares; half of the values lie below 1.
  CHECK(squares > 8);
  CHECK(squares < 80);
}

TEST_CASE("e4m3_encode_stochastic: rounds up for a share of random words equal to the fraction") {
  for (int code = 0; code < 0x7E; ++code) {
    const float low = e4m3_decode(static_cast<std::uint8_t>(code));
    const float high = e4m3_decode(static_cast<std::uint8_t>(code + 1));
    for (const double part : {0.0, 0x1p-20, 0x1p-3, 0.3, 0.5, 0.8, 1 - 0x1p-20}) {
      const float x = low + static_cast<float>(part) * (high - low);
      // Exact: a step is a power of two.
      const double words = std::ceil(static_cast<double>(x - low) / static_cast<double>(high - low) * 0x1p32);
      REQUIRE(words < 0x1p32);
      const auto first_below = static_cast<std::uint32_t>(words);  // smaller words round up
      if (first_below > 0) {
        REQUIRE(e4m3_encode_stochastic(x, 0) == code + 1);
        REQUIRE(e4m3_encode_stochastic(x, first_below - 1) == code + 1);
      }
      REQUIRE(e4m3_encode_stochastic(x, first_below) == code);
      REQUIRE(e4m3_encode_stochastic(x, 0xFFFFFFFFu) == code);
    }
  }
  for (const std::uint32_t word : {0u, 0xFFFFFFFFu}) {
    CHECK(e4m3_encode_stochastic(448.0f, word) == 0x7E);
    CHECK(e4m3_encode_stochastic(INFINITY, word) == 0x7E);
    CHECK(e4m3_encode_stochastic(NAN, word) == 0x7F);
  }
  // A fraction below a word's last place still rounds up, but only for the word 0.
  CHECK(e4m3_encode_stochastic(0x1p-60f, 0) == 1);
  CHECK(e4m3_encode_stochastic(0x1p-60f, 1) == 0);
}

TEST_CASE("hadamard_transform: applied to both vectors it keeps their dot product") {
  float a[16], b[16];
  double plain = 0, both = 0, one = 0;
  for (int i = 0; i < 16; ++i) {
    // Small integers: all sums and the transform's BF16 are exact.
    a[i] = static_cast<float>(static_cast<int>(random_bits(1, i) % 9) - 4) * 4;
    b[i] = static_cast<float>(static_cast<int>(random_bits(2, i) % 9) - 4) * 4;
    plain += static_cast<double>(a[i]) * b[i];
  }
  std::vector<float> before(b, b + 16);
  hadamard_transform<16>(a, sign_bits(Signs::te, 0, 0));
  for (int i = 0; i < 16; ++i) one += static_cast<double>(a[i]) * b[i];
  hadamard_transform<16>(b, sign_bits(Signs::te, 0, 0));
  for (int i = 0; i < 16; ++i) both += static_cast<double>(a[i]) * b[i];
  CHECK(both == plain);
  CHECK(one != plain);
  CHECK(std::vector<float>(b, b + 16) != before);
  // H is its own inverse; the signs then apply after it.
  hadamard_transform<16>(b, {});
  for (int i = 0; i < 16; ++i) CHECK(b[i] == (kHadamardSigns >> i & 1u ? -before[i] : before[i]));
}

TEST_CASE("NVFP4: scales carry NaN and Inf and stay finite at both ends of the range") {
  CHECK(nvfp4_tensor_scale(0.0f) == 1.0f);
  CHECK(nvfp4_tensor_scale(INFINITY) == 1.0f);
  CHECK(std::isnan(nvfp4_tensor_scale(NAN)));
  CHECK(nvfp4_tensor_scale(1e-40f) == bits_to_float(0x7F7FFFFFu));
  CHECK(nvfp4_block_scale(NAN, 1.0f) == 0x7F);
  CHECK(std::isnan(nvfp4_multiplier(0x7F, 1.0f)));
  CHECK(nvfp4_multiplier(0, 1.0f) == bits_to_float(0x7F7FFFFFu));
  CHECK_FALSE(std::isfinite(nvfp4_alpha(INFINITY, 1.0f)));
  CHECK(std::isnan(nvfp4_alpha(NAN, 1.0f)));
}
