// NVFP4 of any device against the CPU device: codes, scales, amaxes and random draws bit for bit, GEMMs by
// the 2x rule.
#include "kernels/checks/check_quantize.h"
#include "kernels/device/compare_testing.h"
#include "kernels/numerics/nvfp4.h"

using namespace precbench;
using namespace precbench::testing;
using checks::Input, checks::kInputs;

namespace {

// Whole tiles of every kernel; none; one block; more blocks in one direction than a tile has.
constexpr Size kNvfp4Sizes[] = {{256, 384}, {144, 208}, {16, 16}, {16, 2064}, {2064, 16}};

/// Returns the element at (r, c) of a copy without the tensor's factor.
double value_of(const GemmOperand& operand, std::int64_t r, std::int64_t c) {
  const std::int64_t rows = operand.data.rows, k = operand.data.cols, at = r * k + c;
  const std::uint8_t code = operand.data.as<std::uint8_t>()[at / 2] >> 4 * (at % 2) & 0xF;
  const std::uint8_t scale =
      operand.scale.as<std::uint8_t>()[scale_index(operand.format.granularity, rows, k, r, c / 16)];
  return static_cast<double>(e2m1_decode(code)) * e4m3_decode(scale);
}

/// Checks every element of D against the FP64 product: the error may be that of truncating FP32 additions
/// plus one rounding to D's dtype.
void check_product(const Tensor& d, const Tensor& before, const GemmOperand& a, const GemmOperand& b,
                   bool accumulate) {
  const std::int64_t k = a.k();
  const double alpha = static_cast<double>(*a.amax.as<float>()) * *b.amax.as<float>() /
                       (kNvfp4Max * static_cast<double>(kNvfp4Max));
  const double rounding = d.dtype == DType::f32 ? 0x1p-24 : 0x1p-8;
  std::int64_t wrong = 0;
  double largest = 0;
  for (std::int64_t m = 0; m < d.rows; ++m)
    for (std::int64_t n = 0; n < d.cols; ++n) {
      const std::int64_t at = m * d.cols + n;
      double sum = 0, size = 0;
      for (std::int64_t i = 0; i < k; ++i) {
        const double product = value_of(a, m, i) * value_of(b, n, i) * alpha;
        sum += product;
        size += std::fabs(product);
      }
      const double start = accumulate ? HostMemory::get(before, at) : 0.0, want = start + sum;
      const double error = std::fabs(HostMemory::get(d, at) - want);
      const double allowed = (static_cast<double>(k) + 3) * 0x1p-23 * (size + std::fabs(start)) +
                             rounding * (std::fabs(want) + size * 1e-4);
      largest = std::max(largest, error / allowed);
      wrong += !(error <= allowed);
    }
  INFO("largest error, of what is allowed: " << largest);
  CHECK(wrong == 0);
}

}  // namespace

PRECBENCH_OP_TEST(nvfp4_copies_on, "quantize is bit-exact in NVFP4") {
  for (const QuantFormat& format : nvfp4_formats())
    for (const Input input : kInputs)
      for (const Size& size : kNvfp4Sizes) {
        INFO(describe(format) << ", input " << name_of(input) << ", " << size.M << " x " << size.C);
        b.start();
        const Tensor word = b.host().tensor(DType::i32, 1, 1);
        word.as<std::int32_t>()[0] = -7;
        CHECK(quantize_difference(b, {format, format}, input, {size.M, size.C},
                                  {.word = word, .stream = 6, .rows = 96}) == "");
      }
}

PRECBENCH_OP_TEST(nvfp4_draws_on, "another word, stream or first row draws other numbers") {
  b.start();
  const QuantFormat format = nvfp4_format(Granularity::block_1x16, ElementRounding::stochastic);
  const Tensor value = b.put(b.host().random(DType::bf16, 64, 48, 1.0f)),
               word = b.host().tensor(DType::i32, 1, 1);
  const auto codes = [&](std::int32_t number, std::uint32_t stream, std::int64_t first_row, bool columns) {
    word.as<std::int32_t>()[0] = number;
    QuantizedTensor x = columns ? b.operand({{}, format}, 64, 48) : b.operand({format, {}}, 64, 48);
    x.value = value;
    x.random = {.word = b.put(word), .stream = stream, .rows = first_row};
    b.device().quantize({x});
    return b.fetch(columns ? x.columnwise.data : x.rowwise.data);
  };
  for (const bool columns : {false, true}) {
    const Tensor first = codes(1, 2, 0, columns);
    CHECK(same_bits(first, codes(1, 2, 0, columns)));
    CHECK_FALSE(same_bits(first, codes(2, 2, 0, columns)));
    CHECK_FALSE(same_bits(first, codes(1, 4, 0, columns)));
    CHECK_FALSE(same_bits(first, codes(1, 2, 64, columns)));
  }
}

PRECBENCH_OP_TEST(nvfp4_parts_draw_on, "a rank's part of sequences draws the numbers of its rows of all") {
  constexpr std::int64_t kCols = 48;
  const SequencePart first{128, 2, 0};
  const std::int64_t B = 2, rows = B * first.T, mine = B * first.tokens();
  for (const ElementRounding rounding : {ElementRounding::stochastic, ElementRounding::rne})
    for (const bool columns : {false, true})
      for (const int index : {0, 1}) {
        INFO((columns ? "columns" : "rows") << " of part " << index);
        b.start();
        const QuantFormat format = nvfp4_format(Granularity::block_1x16, rounding);
        const Tensor whole = b.host().random(DType::bf16, rows, kCols, 1.0f),
                     word = b.host().tensor(DType::i32, 1, 1),
                     part = b.host().tensor(DType::bf16, mine, kCols);
        word.as<std::int32_t>()[0] = 77;
        for (const std::int64_t row :
             {0L, 64L, 128L, 192L})  // every rank has the tensor's amax and so its scales
          for (const std::int64_t at : {row, row + 32}) HostMemory::set(whole, at * kCols, 8.0f);
        const RowMap map = SequencePart{128, 2, index}.rows(B);
        for (std::int64_t row = 0; row < mine; ++row)
          for (std::int64_t c = 0; c < kCols; ++c)
            HostMemory::set(part, row * kCols + c, HostMemory::get(whole, map.of(row) * kCols + c));
        const auto codes = [&](const Tensor& value, const RowMap& placed) {
          QuantizedTensor x = columns ? b.operand({{}, format}, value.rows, kCols)
                                      : b.operand({format, {}}, value.rows, kCols);
          x.value = b.put(value);
          x.random = {.word = b.put(word), .stream = 4, .rows = placed};
          b.device().quantize({x});
          return b.fetch(columns ? x.columnwise.data : x.rowwise.data);
        };
        const Tensor all = codes(whole, {}), got = codes(part, map), elsewhere = codes(part, {});
        std::int64_t wrong = 0;
        for (std::int64_t row = 0; row < mine; ++row)
          for (std::int64_t c = 0; c < kCols; ++c) {
            const auto code = [&](const Tensor& of, std::int64_t r) {
              const std::int64_t at = columns ? c * (of.size() / kCols) + r : r * kCols + c;
              return of.as<std::uint8_t>()[at / 2] >> 4 * (at % 2) & 15;
            };
            wrong += code(got, row) != code(all, map.of(row));
          }
        CHECK(wrong == 0);
        CHECK(same_bits(elsewhere, got) == (rounding == ElementRounding::rne));
      }
}

PRECBENCH_OP_TEST(nvfp4_product_on, "products of NVFP4 tensors") {
  // K of whole 16 bytes, and one without a cuBLASLt kernel: that shape is emulated.
  constexpr std::int64_t kM = 144, kN = 80;
  for (const std::int64_t K : {224, 208})
    for (const Granularity granularity : {Granularity::block_1x16, Granularity::block_16x16})
      for (const DType dtype : {DType::bf16, DType::f32})
        for (const bool accumulate : {false, true}) {
          INFO("K " << K << ", " << name_of(granularity) << " into " << name_of(dtype)
                    << (accumulate ? " accumulated" : ""));
          b.start();
          HostMemory& host = b.host();
          // Widely differing sizes, so that a wrong alpha or a misplaced scale shows.
          const auto operand = [&](std::int64_t rows, float size, Granularity blocks) {
            const Tensor value = host.random(DType::bf16, rows, K, size);
            for (std::int64_t i = 0; i < value.size(); ++i)
              HostMemory::set(value, i, std::ldexp(HostMemory::get(value, i), static_cast<int>(i / 16 % 7)));
            QuantizedTensor x = b.host_operand({nvfp4_format(blocks), {}}, value);
            b.cpu().quantize({x});
            return x.rowwise;
          };
          const GemmOperand x = operand(kM, 3.0f, Granularity::block_1x16),
                            w = operand(kN, 0.02f, granularity);
          const Tensor before = host.random(dtype, kM, kN, 30.0f), d = b.put(before);
          b.device().matmul({d, b.put(x), b.put(w), {.role = GemmRole::wgrad, .accumulate = accumulate}});
          check_product(b.fetch(d), before, x, w, accumulate);
        }
}

PRECBENCH_OP_TEST(nvfp4_error_on, "the quantization error of NVFP4 is the CPU's") {
  for (const QuantFormat& format : nvfp4_formats())
    for (const bool columns : {false, true}) {
      b.start();
      const Tensor value = b.host().random(DType::bf16, 144, 208, 3.0f);
      for (std::int64_t i = 0; i < value.size(); i += 17) HostMemory::set(value, i, i % 2 ? 0.0f : 1e-4f);
      const Tensor sums = b.check_error(format, value, columns);
      CHECK(sums.as<float>()[1] > 0.003f * sums.as<float>()[0]);
    }
}
