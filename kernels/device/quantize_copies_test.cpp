// Quantizers of any device against the CPU device, bit for bit: every granularity, scale and rounding, in
// both directions, on random and hostile inputs and on sizes that no tile divides.
#include "kernels/checks/check_quantize.h"
#include "kernels/device/compare_testing.h"
#include "kernels/numerics/format_testing.h"

using namespace precbench;
using namespace precbench::testing;
using checks::Input, checks::kInputs, checks::make_input;

namespace {

using Shape = checks::MatrixShape;
// Whole tiles; whole vectors but not tiles; neither; smaller than a vector.
constexpr Shape kShapes[] = {{256, 384}, {144, 208}, {133, 101}, {1, 16}, {40, 8}, {7, 3}};

void check_quantize(OpTest& b, const OutputFormats& formats, Input input, Shape shape) {
  INFO("row " << describe(formats.rowwise) << ", col " << describe(formats.columnwise) << ", input "
              << name_of(input) << ", " << shape.rows << " x " << shape.cols);
  b.start();
  CHECK(quantize_difference(b, formats, input, shape) == "");
}

}  // namespace

PRECBENCH_OP_TEST(every_format_on, "quantize is bit-exact in every format") {
  for (const QuantFormat& format : quantized_formats())
    for (Input input : kInputs)
      for (const Shape& shape : kShapes) check_quantize(b, {format, format}, input, shape);
}

PRECBENCH_OP_TEST(mixtures_on, "quantize writes only the requested copies, in any combination") {
  const QuantFormat formats[] = {{},      kTensorE4m3, kTensorE5m2, kRow,        kRowExact, kBlock,
                                 kSquare, kMx,         kMxSquare,   kTensorE5m3, kRowE3m4,  kMxE3m3};
  for (const QuantFormat& row : formats)
    for (const QuantFormat& col : formats)
      for (const Shape& shape : {Shape{128, 256}, Shape{144, 72}, Shape{3, 9000}})
        check_quantize(b, {row, col}, Input::imbalanced, shape);
}

PRECBENCH_OP_TEST(parts_on, "amax and the quantization of parts are bit-exact") {
  for (const QuantFormat& format : {kTensorE4m3, kTensorE5m2, kTensorE4m1})
    for (Input input : kInputs)
      for (DType dtype : {DType::bf16, DType::f32})
        for (const Shape& shape : {Shape{256, 384}, Shape{133, 101}, Shape{7, 3}}) {
          INFO(describe(format) << ", input " << static_cast<int>(input) << ", " << name_of(dtype) << ", "
                                << shape.rows << " x " << shape.cols);
          b.start();
          HostMemory& host = b.host();
          const Tensor value = host.converted(make_input(host, input, shape.rows, shape.cols), dtype);
          const std::int64_t size = value.size();
          const Tensor amax = host.tensor(DType::f32, 1, 1);
          const GemmOperand expected{format, host.tensor(format.dtype, 1, size),
                                     host.tensor(DType::f32, 1, 1), false};
          b.cpu().amax({amax, value});
          b.cpu().quantize_with_amax({expected, value, amax});

          const Tensor dev_value = b.put(value), dev_amax = b.output(DType::f32, 1, 1);
          const GemmOperand operand = b.quantized_copy(format, 1, size);
          b.device().amax({dev_amax, dev_value});
          // One element, so that the next part starts unaligned; none; and the rest.
          const std::int64_t ends[] = {0, 1, 1, size};
          for (int i = 0; i < 3; ++i)
            b.device().quantize_with_amax(
                {{format, operand.data.elements(ends[i], ends[i + 1] - ends[i]), operand.scale, false},
                 dev_value.elements(ends[i], ends[i + 1] - ends[i]),
                 dev_amax});
          CHECK(same_scales(b.fetch(dev_amax), amax));
          CHECK(same_scales(b.fetch(operand.scale), expected.scale));
          CHECK(same_bits(b.fetch(operand.data), expected.data));
          // Also in one piece, through the kernel's vectorized path.
          b.device().quantize_with_amax({operand, dev_value, dev_amax});
          CHECK(same_bits(b.fetch(operand.data), expected.data));
        }
}

PRECBENCH_OP_TEST(columns_on, "parts are placed as the CPU places them") {
  b.start();
  HostMemory& host = b.host();
  const Tensor whole = host.tensor(DType::e4m3, 37, 200), part = host.tensor(DType::e4m3, 37, 72);
  for (std::int64_t i = 0; i < part.size(); ++i)
    part.as<std::uint8_t>()[i] = static_cast<std::uint8_t>(random_bits(1, i));
  const Tensor dev_whole = b.put(whole);
  for (const std::int64_t first : {0, 72, 128}) {
    b.device().copy_columns({dev_whole, first, b.put(part)});
    b.cpu().copy_columns({whole, first, part});
    CHECK(same_bits(b.fetch(dev_whole), whole));
  }
}

PRECBENCH_OP_TEST(rows_placed_on, "rows gathered from ranks are placed by position, and back") {
  constexpr std::int64_t kCols = 48, kT = 48;
  for (const DType dtype : {DType::bf16, DType::f32})
    for (const int parts : {1, 2, 3, 4})
      for (const std::int64_t B : {1, 3}) {
        INFO(name_of(dtype) << " of " << parts << " ranks, " << B << " sequences");
        b.start();
        const std::int64_t rows = B * kT, mine = rows / parts;
        const Tensor by_rank = b.host().random(dtype, rows, kCols, 1.0f);
        const Tensor placed = b.output(dtype, rows, kCols), back = b.output(dtype, rows, kCols);
        b.device().place_rows({placed, b.put(by_rank), kT, parts});
        b.device().place_rows({back, placed, kT, parts, true});
        const Tensor got = b.fetch(placed);
        std::int64_t wrong = 0;
        for (int rank = 0; rank < parts; ++rank) {
          const RowMap map = SequencePart{kT, parts, rank}.rows(B);
          for (std::int64_t row = 0; row < mine; ++row)
            wrong += !same_bits(got.slice_rows(map.of(row), 1), by_rank.slice_rows(rank * mine + row, 1));
        }
        CHECK(wrong == 0);
        CHECK(same_bits(b.fetch(back), by_rank));
      }
}

PRECBENCH_OP_TEST(columns_apart_on, "parts are taken out of a matrix and put back") {
  for (const DType dtype : {DType::e4m3, DType::bf16, DType::f32}) {
    INFO(name_of(dtype));
    b.start();
    constexpr std::int64_t kRows = 37, kCols = 200, kFirst = 24, kPart = 72;
    const std::int64_t size = bits_of(dtype) / 8;
    const Tensor whole = b.host().tensor(dtype, kRows, kCols), other = b.host().tensor(dtype, kRows, kCols);
    for (std::int64_t i = 0; i < whole.bytes(); ++i)
      whole.as<std::uint8_t>()[i] = static_cast<std::uint8_t>(random_bits(1, static_cast<std::uint64_t>(i)));
    const Tensor part = b.output(dtype, kRows, kPart), back = b.put(other);
    b.device().copy_columns({part, kFirst, b.put(whole)});
    b.device().copy_columns({back, kFirst, part});
    const Tensor got = b.fetch(part), placed = b.fetch(back);
    std::int64_t wrong = 0;
    for (std::int64_t r = 0; r < kRows; ++r) {
      const std::uint8_t* row = whole.as<std::uint8_t>() + r * kCols * size;
      wrong += std::memcmp(got.as<std::uint8_t>() + r * kPart * size, row + kFirst * size,
                           static_cast<std::size_t>(kPart * size)) != 0;
      for (std::int64_t i = 0; i < kCols * size; ++i) {
        const bool inside = i >= kFirst * size && i < (kFirst + kPart) * size;
        wrong += placed.as<std::uint8_t>()[r * kCols * size + i] !=
                 (inside ? row[i] : other.as<std::uint8_t>()[r * kCols * size + i]);
      }
    }
    CHECK(wrong == 0);
  }
}

PRECBENCH_OP_TEST(transpose_on, "the transpose of copies is bit-exact") {
  for (const QuantFormat& format : {kTensorE5m2, kSquare})
    for (const Shape& shape : {Shape{16, 16}, Shape{144, 400}, Shape{128, 256}, Shape{1040, 528}}) {
      INFO(describe(format) << ", " << shape.rows << " x " << shape.cols);
      b.start();
      HostMemory& host = b.host();
      const Tensor value = make_input(host, Input::imbalanced, shape.rows, shape.cols);
      QuantizedTensor x = b.host_operand({format, format}, value);
      b.cpu().quantize({x});
      const GemmOperand operand = b.quantized_copy(format, shape.cols, shape.rows);
      b.device().transpose({operand, b.put(x.rowwise)});
      CHECK(same_bits(b.fetch(operand.data), x.columnwise.data));
      CHECK(same_bits(b.fetch(operand.scale), x.columnwise.scale));
    }
}

PRECBENCH_OP_TEST(error_on, "quantization error is the CPU's") {
  const QuantFormat floor{DType::e4m3, Granularity::block_1x32, ScaleType::ue8m0, ScaleRounding::floor};
  for (const QuantFormat& format :
       {kTensorE5m2, kRow, kBlock, kSquare, kMx, floor, kTensorE5m3, kRowE3m4, kMxE3m3})
    for (const bool columns : {false, true}) {
      b.start();
      const Tensor value = make_input(b.host(), Input::hostile, 133, 101);
      for (std::int64_t i = 0; i < value.size(); ++i)  // sums of squares must stay finite
        if (std::fabs(HostMemory::get(value, i)) > 1e10f) HostMemory::set(value, i, 1e4f);
      b.check_error(format, value, columns);
    }
}

PRECBENCH_OP_TEST(known_amax_on, "an amax that is known before sets the tensor's scale") {
  b.start();
  const Tensor value = b.host().random(DType::bf16, 64, 48, 1.0f), amax = b.host().tensor(DType::f32, 1, 1);
  amax.as<float>()[0] = 64.0f;
  const OutputFormats formats{kTensorE4m3, kTensorE5m2};
  QuantizedTensor x = b.operand(formats, 64, 48), expected = b.host_operand(formats, value);
  x.value = b.put(value);
  x.amax_in = b.put(amax), expected.amax_in = amax;
  x.amax_out = expected.amax_out = {};
  b.device().quantize({x});
  b.cpu().quantize({expected});
  CHECK(same_bits(b.fetch(x.rowwise.data), expected.rowwise.data));
  CHECK(same_bits(b.fetch(x.columnwise.data), expected.columnwise.data));
  CHECK(b.fetch(x.rowwise.scale).as<float>()[0] == 64.0f / 448.0f);
  CHECK(b.fetch(x.columnwise.scale).as<float>()[0] == 64.0f / 57344.0f);
}
