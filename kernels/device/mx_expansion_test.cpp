// Power-of-two scales expanded to MXFP8: the same values and the same GEMM results, bit for bit, as with the
// original scales, in the layout that cuBLASLt reads.
#include "kernels/numerics/mx_expansion.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/device/op_testing.h"
#include "kernels/numerics/scale_layout.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

/// A quantized copy with its own memory.
struct ExpandedOperand {
  Owned data, scale;
  GemmOperand operand;

  ExpandedOperand(const QuantFormat& format, std::int64_t rows, std::int64_t k)
      : data(format.dtype, rows, k),
        scale(scale_dtype(format), 1, scale_count(format.granularity, rows, k)),
        operand{format, data, scale} {}
};

QuantFormat pow2(Granularity granularity, DType dtype = DType::e4m3) {
  return {dtype, granularity, ScaleType::f32_pow2};
}

/// Returns values whose rows and blocks of 128 differ in size, so that a misplaced scale shows.
std::vector<float> uneven(std::uint64_t seed, std::int64_t rows, std::int64_t k) {
  std::vector<float> values = normal(seed, rows * k);
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < k; ++c)
      values[r * k + c] = std::ldexp(values[r * k + c], static_cast<int>((r / 3 + 5 * (c / 128)) % 23) - 11);
  return values;
}

ExpandedOperand quantized(Device& device, const QuantFormat& format, std::int64_t rows, std::int64_t k,
                          std::uint64_t seed) {
  const Owned value(DType::bf16, rows, k, uneven(seed, rows, k)), amax(DType::f32, 1, 1);
  ExpandedOperand copy(format, rows, k);
  device.quantize({{.value = value, .rowwise = copy.operand, .amax_out = amax}});
  return copy;
}

/// Returns the same codes with expanded scales.
ExpandedOperand expanded(const ExpandedOperand& copy) {
  const GemmOperand& from = copy.operand;
  const std::int64_t rows = from.rows(), k = from.k();
  ExpandedOperand to(expanded_to_mx(from.format), rows, k);
  std::memcpy(to.data.tensor().data, from.data.data, static_cast<std::size_t>(from.data.bytes()));
  for (std::int64_t i = 0; i < to.scale.tensor().size(); ++i)
    to.scale.tensor().as<std::uint8_t>()[i] =
        expanded_entry(from.format.granularity, from.scale.as<float>(), rows, k, i);
  return to;
}

bool equal_bits(const Owned& a, const Owned& b) {
  return std::memcmp(a.tensor().data, b.tensor().data, static_cast<std::size_t>(a.tensor().bytes())) == 0;
}

}  // namespace

TEST_CASE("mx expansion: GEMMs of blockwise_pow2 and rowwise keep every bit", "[cpu][matmul]") {
  const auto device = make_cpu_device(2);
  constexpr std::int64_t kM = 200, kN = 272, kK = 640;  // no whole tiles of scales
  for (const char* name : {"blockwise_pow2", "rowwise", "rowwise_gw_hp"})
    for (const GemmRole role : kGemmRoles) {
      const GemmRecipe gemm = find_recipe(name).gemm(role);
      if (!gemm.a.quantized()) continue;
      REQUIRE((expands_to_mx(gemm.a) && expands_to_mx(gemm.b)));
      const ExpandedOperand a = quantized(*device, gemm.a, kM, kK, 1),
                            b = quantized(*device, gemm.b, kN, kK, 2);
      const ExpandedOperand mx_a = expanded(a), mx_b = expanded(b);
      for (const DType dtype : {DType::bf16, DType::f32})
        for (const bool accumulate : {false, true}) {
          INFO(name << " " << name_of(role) << " into " << name_of(dtype)
                    << (accumulate ? " accumulated" : ""));
          const std::vector<float> before = rounded(normal(3, kM * kN));
          const Owned d(dtype, kM, kN, before), mx_d(dtype, kM, kN, before);
          device->matmul({d, a.operand, b.operand, {.role = role, .accumulate = accumulate}});
          device->matmul({mx_d, mx_a.operand, mx_b.operand, {.role = role, .accumulate = accumulate}});
          CHECK(equal_bits(d, mx_d));
        }
    }
}

TEST_CASE("mx expansion: every value keeps its bits for every granularity", "[cpu][matmul]") {
  const auto device = make_cpu_device(1);
  constexpr std::int64_t kRows = 200, kK = 384;
  for (const Granularity granularity :
       {Granularity::tensor, Granularity::row, Granularity::block_1x128, Granularity::block_128x128})
    for (const DType dtype : {DType::e4m3, DType::e5m2}) {
      INFO(name_of(granularity) << " " << name_of(dtype));
      const ExpandedOperand copy = quantized(*device, pow2(granularity, dtype), kRows, kK, 5),
                            mx = expanded(copy);
      const Owned values(DType::f32, kRows, kK), mx_values(DType::f32, kRows, kK);
      device->dequantize({values, copy.operand});
      device->dequantize({mx_values, mx.operand});
      CHECK(equal_bits(values, mx_values));
      const std::vector<float> all = values.floats();
      CHECK(std::count(all.begin(), all.end(), 0.0f) < std::ssize(all) / 2);
    }
}

TEST_CASE("mx expansion: every scale is at its layout position and padding is zero", "[cpu][matmul]") {
  const auto device = make_cpu_device(1);
  for (const std::int64_t rows : {1, 128, 200})
    for (const std::int64_t k : {32, 160, 384})
      for (const Granularity granularity :
           {Granularity::tensor, Granularity::row, Granularity::block_1x128, Granularity::block_128x128}) {
        INFO(name_of(granularity) << " " << rows << " x " << k);
        const ExpandedOperand copy = quantized(*device, pow2(granularity), rows, k, 6), mx = expanded(copy);
        std::vector<std::uint8_t> expected(static_cast<std::size_t>(mx.scale.tensor().size()), 0);
        for (std::int64_t r = 0; r < rows; ++r)
          for (std::int64_t block = 0; block < k / 32; ++block)
            expected[static_cast<std::size_t>(scale_index(Granularity::block_1x32, rows, k, r, block))] =
                expanded_exponent(granularity, copy.operand.scale.as<float>(), rows, k, r, block);
        CHECK(std::memcmp(mx.scale.tensor().data, expected.data(), expected.size()) == 0);
        CHECK(std::count(expected.begin(), expected.end(), 0) == std::ssize(expected) - rows * k / 32);
      }
}

TEST_CASE("mx expansion: scales that are no powers of two and formats other than FP8 are not expanded",
          "[matmul]") {
  CHECK(expands_to_mx(pow2(Granularity::block_1x128)));
  CHECK_FALSE(expands_to_mx({DType::e4m3, Granularity::block_1x128, ScaleType::f32}));
  CHECK_FALSE(expands_to_mx({DType::e4m3, Granularity::block_1x32, ScaleType::ue8m0}));
  CHECK_FALSE(expands_to_mx({DType::e3m4, Granularity::row, ScaleType::f32_pow2}));
  CHECK_FALSE(expands_to_mx({}));
  const float scales[] = {NAN, HUGE_VALF, 0x1p-126f, 1.0f};
  CHECK(expanded_exponent(Granularity::row, scales, 4, 128, 0, 3) == 0xFF);
  CHECK(expanded_exponent(Granularity::row, scales, 4, 128, 1, 0) == 0xFF);
  CHECK(expanded_exponent(Granularity::row, scales, 4, 128, 2, 0) == 1);
  CHECK(expanded_exponent(Granularity::row, scales, 4, 128, 3, 0) == 127);
}
