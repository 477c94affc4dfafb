// MXFP4, Quartet and Quartet II copies of any device against the CPU device: codes, scales and draws bit for
// bit, and the quantization error.
#include "kernels/checks/check_quantize.h"
#include "kernels/device/compare_testing.h"
#include "kernels/numerics/fp4.h"

using namespace precbench;
using namespace precbench::testing;
using checks::Input, checks::kInputs;

PRECBENCH_OP_TEST(other_fp4_copies_on, "quantize is bit-exact in MXFP4 and in Quartet's formats") {
  for (const QuantFormat& format : other_fp4_formats())
    for (const Input input : kInputs)
      for (const Size& size : {Size{256, 384}, Size{128, 128}, Size{128, 2176}, Size{2176, 128}}) {
        INFO(describe(format) << ", input " << name_of(input) << ", " << size.M << " x " << size.C);
        b.start();
        const Tensor word = b.host().tensor(DType::i32, 1, 1);
        word.as<std::int32_t>()[0] = 1234567;
        CHECK(quantize_difference(
                  b, {format, format}, input, {size.M, size.C},
                  {.word = word, .stream = 8, .rows = 384, .row_signs = 14, .column_signs = 15}) == "");
      }
}

PRECBENCH_OP_TEST(signs_on, "operands of one product have the same random signs, and of others their own") {
  b.start();
  const std::int64_t M = 128, C = 128;
  const Tensor value = b.host().random(DType::bf16, M, C, 1.0f), turned = b.host().tensor(DType::bf16, C, M);
  for (std::int64_t r = 0; r < M; ++r)
    for (std::int64_t c = 0; c < C; ++c)
      HostMemory::set(turned, c * M + r, HostMemory::get(value, r * C + c));
  const auto codes = [&](Signs signs, const Tensor& of, bool columns, std::uint32_t row_signs,
                         std::uint32_t column_signs) {
    const QuantFormat format = mxfp4_format({64, signs});
    QuantizedTensor x = columns ? b.operand({{}, format}, M, C) : b.operand({format, {}}, M, C);
    x.value = b.put(of);
    x.random = {.row_signs = row_signs, .column_signs = column_signs};
    b.device().quantize({x});
    return b.fetch(columns ? x.columnwise.data : x.rowwise.data);
  };
  for (const Signs signs : {Signs::gemm, Signs::backward}) {
    INFO(name_of(signs));
    // The same matrix rowwise and, transposed, columnwise.
    const Tensor first = codes(signs, value, false, 6, 9);
    CHECK(same_bits(first, codes(signs, turned, true, 3, 6)));
    CHECK_FALSE(same_bits(first, codes(signs, value, false, 8, 9)));
    // wgrad uses dgrad's signs if they are drawn once for the whole backward.
    CHECK(same_bits(first, codes(signs, turned, true, 6, 7)) == (signs == Signs::backward));
  }
}

PRECBENCH_OP_TEST(other_fp4_error_on, "the quantization error of MXFP4 and Quartet's formats is the CPU's") {
  for (const QuantFormat& format : other_fp4_formats())
    for (const bool columns : {false, true}) {
      b.start();
      HostMemory& host = b.host();
      const Tensor value = host.random(DType::bf16, 128, 256, 3.0f), word = host.tensor(DType::i32, 1, 1);
      word.as<std::int32_t>()[0] = 5;
      const Tensor sums = b.check_error(format, value, columns,
                                        {.word = word, .stream = 2, .row_signs = 4, .column_signs = 5});
      const double share = sums.as<float>()[1] / sums.as<float>()[0];
      CHECK(share > 0.005);
      CHECK(share < 0.05);
    }
}

PRECBENCH_OP_TEST(fp4_beside_bf16_on,
                  "matmul: an FP4 operand beside a BF16 one is what its codes stand for") {
  constexpr std::int64_t kM = 64, kN = 96, kK = 256;
  for (const QuantFormat& format : {nvfp4_format(Granularity::block_1x16), mxfp4_format(),
                                    unbiased_mxfp4_format(), four_over_six_format()})
    for (const bool first : {true, false}) {
      INFO(describe(format) << (first ? " x bf16" : ", bf16 x it"));
      b.start();
      const std::int64_t rows = first ? kM : kN;
      // Far from 1, so that the tensor's own factor matters.
      QuantizedTensor x = b.operand({format, {}}, rows, kK);
      x.value = b.put(b.host().random(DType::bf16, rows, kK, 37.0f));
      b.device().quantize({x});
      const Tensor dense = b.put(b.host().tensor(DType::bf16, rows, kK));
      b.device().dequantize({dense, x.rowwise});
      const GemmOperand other{{}, b.put(b.host().random(DType::bf16, first ? kN : kM, kK, 1.0f)), {}, false};
      const Tensor d = b.put(b.host().tensor(DType::f32, kM, kN)),
                   want = b.put(b.host().tensor(DType::f32, kM, kN));
      const GemmOperand plain{{}, dense, {}, false};
      b.device().matmul({d, first ? x.rowwise : other, first ? other : x.rowwise});
      b.device().matmul({want, first ? plain : other, first ? other : plain});
      const std::vector<double> got = HostMemory::values(b.fetch(d)),
                                expected = HostMemory::values(b.fetch(want));
      double error = 0, size = 0;
      for (std::size_t i = 0; i < got.size(); ++i)
        error += (got[i] - expected[i]) * (got[i] - expected[i]), size += expected[i] * expected[i];
      // dequantize rounds to BF16, whose error is at most half a unit in the last of eight bits.
      CHECK(std::sqrt(error / size) < 0x1p-8);
    }
}
