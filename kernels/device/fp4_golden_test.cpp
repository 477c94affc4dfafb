// MXFP4, Quartet and Quartet II of any device against an independent implementation of the authors' formulas,
// with the same random signs and numbers. tools/goldens/make_fp4_goldens.py makes golden/fp4.txt;
// check_third_party.py there compares it with the authors' code.
#include "kernels/device/compare_testing.h"
#include "kernels/numerics/fp4.h"
#include "kernels/numerics/golden_testing.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

constexpr std::int64_t kFp4Rows = 32, kFp4Cols = 256;

const std::map<std::string, GoldenWords>& fp4_goldens() {
  static const auto sections = golden_sections(PRECBENCH_SOURCE_DIR "/kernels/device/golden/fp4.txt");
  return sections;
}

/// Returns a BF16 matrix of the file.
Tensor golden_matrix(HostMemory& host, const std::string& name) {
  const Tensor t = host.tensor(DType::bf16, kFp4Rows, kFp4Cols);
  for (std::int64_t i = 0; i < t.size(); ++i)
    t.as<std::uint16_t>()[i] =
        static_cast<std::uint16_t>(fp4_goldens().at(name).at(static_cast<std::size_t>(i)));
  return t;
}

/// Returns the file's random stream.
RandomStream golden_random(OpTest& b) {
  const GoldenWords& words = fp4_goldens().at("word");
  const Tensor word = b.host().tensor(DType::i32, 1, 1);
  word.as<std::int32_t>()[0] = static_cast<std::int32_t>(words.at(0));
  return {.word = b.put(word),
          .stream = static_cast<std::uint32_t>(words.at(1)),
          .rows = static_cast<std::int64_t>(words.at(2)),
          .row_signs = static_cast<std::uint32_t>(words.at(3))};
}

/// Clears the sign of zeros in a byte of two codes: it depends on the order of a transform's additions.
std::uint64_t without_signs_of_zeros(std::uint64_t byte) {
  return ((byte & 0x0F) == 0x08 ? 0 : byte & 0x0F) | ((byte & 0xF0) == 0x80 ? 0 : byte & 0xF0);
}

/// Checks that the input's rowwise copy in this format has the file's bytes.
void check_golden(OpTest& b, const std::string& name, const QuantFormat& format) {
  INFO(name);
  b.start();
  QuantizedTensor x = b.operand({format, {}}, kFp4Rows, kFp4Cols);
  x.value = b.put(golden_matrix(b.host(), "input"));
  x.random = golden_random(b);
  b.device().quantize({x});
  const GoldenWords &scales = fp4_goldens().at(name + ".scales"), &codes = fp4_goldens().at(name + ".codes");
  const Tensor got_scales = b.fetch(x.rowwise.scale), got = b.fetch(x.rowwise.data);
  const std::int64_t block = block_length(format.granularity);
  std::int64_t wrong = 0, wrong_scales = 0;
  for (std::int64_t i = 0; i < kFp4Rows * kFp4Cols; i += block) {
    const std::int64_t at =
        scale_index(format.granularity, kFp4Rows, kFp4Cols, i / kFp4Cols, i % kFp4Cols / block);
    wrong_scales += got_scales.as<std::uint8_t>()[at] != scales.at(static_cast<std::size_t>(i / block));
    for (std::int64_t byte = i / 2; byte < (i + block) / 2; ++byte)
      wrong += without_signs_of_zeros(got.as<std::uint8_t>()[byte]) !=
               without_signs_of_zeros(codes.at(static_cast<std::size_t>(byte)));
  }
  CHECK(wrong_scales == 0);
  CHECK(wrong == 0);
  if (!x.rowwise.amax.empty())
    CHECK(float_to_bits(b.fetch(x.rowwise.amax).as<float>()[0]) == fp4_goldens().at(name + ".amax").at(0));
}

}  // namespace

PRECBENCH_OP_TEST(mxfp4_golden_on, "MXFP4 has the codes of its formulas") {
  check_golden(b, "mxfp4", mxfp4_format());
  check_golden(b, "mxfp4.h64.sr", find_recipe("mxfp4_bwd").dgrad.a);
}

PRECBENCH_OP_TEST(quartet_golden_on, "Quartet and Quartet II have the codes of their formulas") {
  check_golden(b, "quest", quest_format());
  check_golden(b, "mxfp4.h32", find_recipe("quartet").dgrad.a);
  check_golden(b, "mxfp4.h32.sr", find_recipe("quartet_sr").dgrad.a);
  check_golden(b, "four_over_six", four_over_six_format());
  check_golden(b, "eden", eden_format());
  check_golden(b, "eden128", eden128_format());
}

PRECBENCH_OP_TEST(inverse_hadamard_on, "inverse_hadamard: transforms gradients, 0 where fprop clipped") {
  const QuantFormat format = quest_format();
  const GoldenWords& clipped = fp4_goldens().at("quest.clipped");
  for (const DType dtype : {DType::bf16, DType::f32})
    for (const bool masked : {false, true})
      for (const bool accumulate : {false, true}) {
        INFO(name_of(dtype) << (masked ? ", masked" : "") << (accumulate ? ", accumulated" : ""));
        b.start();
        HostMemory& host = b.host();
        const Tensor value = golden_matrix(host, "input"), src = host.random(dtype, kFp4Rows, kFp4Cols, 1.0f),
                     before = host.random(dtype, kFp4Rows, kFp4Cols, 1.0f);
        QuantizedTensor x = b.operand({format, {}}, kFp4Rows, kFp4Cols);
        x.value = b.put(value);
        b.device().quantize({x});
        const Tensor dst = b.put(before);
        b.device().inverse_hadamard({dst, accumulate, b.put(src), masked ? x.value : Tensor{}, x.rowwise});
        std::vector<double> want;
        std::int64_t zeros = 0;
        for (std::int64_t i = 0; i < kFp4Rows * kFp4Cols; ++i) {
          const std::int64_t first = i / 32 * 32;
          double sum = 0;
          for (std::int64_t j = 0; j < 32; ++j) {
            const bool zero = masked && clipped.at(static_cast<std::size_t>(first + j));
            const int sign = __builtin_popcount(static_cast<unsigned>(j & (i - first))) % 2 ? -1 : 1;
            sum += zero ? 0.0 : sign * static_cast<double>(HostMemory::get(src, first + j));
          }
          zeros += masked && clipped.at(static_cast<std::size_t>(i));
          want.push_back(sum / std::sqrt(32.0) + (accumulate ? HostMemory::get(before, i) : 0.0f));
        }
        CHECK((!masked || zeros > 20));
        const Tensor got = b.fetch(dst);
        double worst = 0;
        for (std::int64_t i = 0; i < kFp4Rows * kFp4Cols; ++i) {
          const double error = std::fabs(HostMemory::get(got, i) - want[static_cast<std::size_t>(i)]);
          // One rounding to BF16, or a few FP32 roundings in sums of 32 values near 1.
          worst = std::max(worst,
                           error / (dtype == DType::f32
                                        ? 32 * 0x1p-23
                                        : 0x1p-8 * std::fabs(want[static_cast<std::size_t>(i)]) + 0x1p-16));
        }
        CHECK(worst <= 1);
      }
}

PRECBENCH_OP_TEST(dequantize_on, "what codes stand for, in BF16") {
  for (const QuantFormat& format : {mxfp4_format(), quest_format(), four_over_six_format(), eden_format(),
                                    nvfp4_format(Granularity::block_16x16)}) {
    INFO(describe(format));
    b.start();
    const Tensor value = golden_matrix(b.host(), "input"), out = b.output(DType::bf16, kFp4Rows, kFp4Cols);
    QuantizedTensor x = b.host_operand({format, {}}, value);
    b.cpu().quantize({x});
    b.device().dequantize({out, b.put(x.rowwise)});
    const Tensor got = b.fetch(out);
    const float amax = x.rowwise.amax.empty() ? 0.0f : *x.rowwise.amax.as<float>();
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < value.size(); ++i) {
      const std::int64_t block = block_length(format.granularity);
      const std::int64_t at =
          scale_index(format.granularity, kFp4Rows, kFp4Cols, i / kFp4Cols, i % kFp4Cols / block);
      const std::uint8_t byte = x.rowwise.scale.as<std::uint8_t>()[at];
      const float scale = format.scale == ScaleType::ue8m0 ? ue8m0_decode(byte) : e4m3_decode(byte);
      const auto code = static_cast<std::uint8_t>(x.rowwise.data.as<std::uint8_t>()[i / 2] >> 4 * (i % 2));
      wrong += got.as<std::uint16_t>()[i] !=
               bf16_encode(e2m1_decode(code) * scale * fp4_tensor_factor(format, amax));
    }
    CHECK(wrong == 0);
  }
}
