// MX quantizers against torchao (golden/mx.txt from tools/goldens/make_mx_goldens.py), byte for byte: E4M3
// and E5M2, every scale rounding, and 32x32 blocks in both directions.
#include "kernels/device/compare_testing.h"
#include "kernels/numerics/golden_testing.h"
#include "kernels/numerics/scale_layout.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

constexpr std::int64_t kMxRows = 32, kMxCols = 64, kLength = 32;

}  // namespace

PRECBENCH_OP_TEST(torchao_on, "MX blocks are torchao's, byte for byte") {
  const auto sections = golden_sections(PRECBENCH_SOURCE_DIR "/kernels/device/golden/mx.txt");
  REQUIRE(sections.size() == 1 + 2 * 2 * 4 + 1 + 2 * 2);
  for (const DType dtype : {DType::e4m3, DType::e5m2})
    for (const ScaleRounding rounding :
         {ScaleRounding::floor, ScaleRounding::rceil, ScaleRounding::ceil, ScaleRounding::even}) {
      const std::string name = std::string(name_of(dtype)) + "." + name_of(rounding);
      INFO(name);
      const QuantFormat format{dtype, Granularity::block_1x32, ScaleType::ue8m0, rounding};
      b.start();
      const Tensor value = b.host().tensor(DType::bf16, kMxRows, kMxCols);
      const GoldenWords& input = sections.at("input");
      for (std::int64_t i = 0; i < value.size(); ++i)
        value.as<std::uint16_t>()[i] = static_cast<std::uint16_t>(input.at(i));
      QuantizedTensor x = b.operand({format, {}}, kMxRows, kMxCols);
      x.value = b.put(value);
      b.device().quantize({x});
      const Tensor codes = b.fetch(x.rowwise.data), scales = b.fetch(x.rowwise.scale);
      const GoldenWords &want = sections.at(name + ".codes"), &bytes = sections.at(name + ".scales");
      std::int64_t wrong = 0, wrong_scales = 0;
      for (std::int64_t r = 0; r < kMxRows; ++r)
        for (std::int64_t c = 0; c < kMxCols; ++c) {
          wrong += codes.as<std::uint8_t>()[r * kMxCols + c] != want.at(r * kMxCols + c);
          if (c % kLength != 0) continue;
          const std::int64_t at = scale_index(format.granularity, kMxRows, kMxCols, r, c / kLength);
          wrong_scales += scales.as<std::uint8_t>()[at] != bytes.at(r * kMxCols / kLength + c / kLength);
        }
      CHECK(wrong_scales == 0);
      CHECK(wrong == 0);
    }
}

PRECBENCH_OP_TEST(torchao_squares_on, "32x32 blocks are torchao's, byte for byte, in both directions") {
  const auto sections = golden_sections(PRECBENCH_SOURCE_DIR "/kernels/device/golden/mx.txt");
  constexpr std::int64_t kTall = 64, kWide = 96;
  for (const DType dtype : {DType::e4m3, DType::e5m2}) {
    const std::string name = std::string("squares.") + name_of(dtype);
    INFO(name);
    const QuantFormat format{dtype, Granularity::block_32x32, ScaleType::ue8m0, ScaleRounding::rceil};
    b.start();
    const Tensor value = b.host().tensor(DType::bf16, kTall, kWide);
    for (std::int64_t i = 0; i < value.size(); ++i)
      value.as<std::uint16_t>()[i] = static_cast<std::uint16_t>(sections.at("squares").at(i));
    QuantizedTensor x = b.operand({format, format}, kTall, kWide);
    x.value = b.put(value);
    b.device().quantize({x});
    const GoldenWords &want = sections.at(name + ".codes"), &bytes = sections.at(name + ".scales");
    const Tensor codes = b.fetch(x.rowwise.data), scales = b.fetch(x.rowwise.scale),
                 turned = b.fetch(x.columnwise.data), turned_scales = b.fetch(x.columnwise.scale);
    std::int64_t wrong = 0, wrong_scales = 0;
    for (std::int64_t r = 0; r < kTall; ++r)
      for (std::int64_t c = 0; c < kWide; ++c) {
        wrong += codes.as<std::uint8_t>()[r * kWide + c] != want.at(r * kWide + c);
        wrong += turned.as<std::uint8_t>()[c * kTall + r] != want.at(r * kWide + c);
        const std::uint64_t byte = bytes.at(r / kLength * (kWide / kLength) + c / kLength);
        const std::int64_t at = scale_index(format.granularity, kTall, kWide, r, c / kLength);
        const std::int64_t turned_at = scale_index(format.granularity, kWide, kTall, c, r / kLength);
        wrong_scales += scales.as<std::uint8_t>()[at] != byte;
        wrong_scales += turned_scales.as<std::uint8_t>()[turned_at] != byte;
      }
    CHECK(wrong_scales == 0);
    CHECK(wrong == 0);
  }
}

PRECBENCH_OP_TEST(square_on, "a 32x32 block has the codes of a row as long as it, in both directions") {
  // A block's elements in one row of 1x32 blocks, each with the block's largest element: equal scales, so
  // equal codes.
  for (const DType dtype : {DType::e4m3, DType::e5m2})
    for (const ScaleRounding rounding : {ScaleRounding::rceil, ScaleRounding::even}) {
      const QuantFormat square{dtype, Granularity::block_32x32, ScaleType::ue8m0, rounding};
      const QuantFormat line{dtype, Granularity::block_1x32, ScaleType::ue8m0, rounding};
      b.start();
      HostMemory& host = b.host();
      const Tensor value = host.random(DType::bf16, kLength, kLength, 1.0f);
      for (std::int64_t r = 0; r < kLength; ++r)
        HostMemory::set(value, r * kLength + r, r == 3 ? -6.0f : 6.0f);
      QuantizedTensor both = b.operand({square, square}, kLength, kLength);
      QuantizedTensor lines = b.operand({line, {}}, kLength, kLength);
      both.value = lines.value = b.put(value);
      b.device().quantize({both});
      b.device().quantize({lines});
      CHECK(same_bits(b.fetch(both.rowwise.data), b.fetch(lines.rowwise.data)));
      CHECK(same_bits(b.fetch(both.rowwise.scale), b.fetch(lines.rowwise.scale)));
      const Tensor codes = b.fetch(both.rowwise.data), turned = b.fetch(both.columnwise.data);
      for (std::int64_t r = 0; r < kLength; ++r)
        for (std::int64_t c = 0; c < kLength; ++c)
          REQUIRE(codes.as<std::uint8_t>()[r * kLength + c] == turned.as<std::uint8_t>()[c * kLength + r]);
    }
}
