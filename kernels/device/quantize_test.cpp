// quantize and quantization_error on the CPU device: every granularity, scale type and rounding, both
// directions, against quantize_reference.h.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <vector>

#include "kernels/cpu/quantize_reference.h"
#include "kernels/device/op_testing.h"
#include "kernels/numerics/format_testing.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

struct QuantizeShape {
  std::int64_t rows, cols;
};
// Whole blocks in both directions, and ragged ones: the specification also covers sizes that a GPU does not
// support.
constexpr QuantizeShape kQuantizeShapes[] = {{256, 128}, {130, 200}, {5, 48}};

enum class Data { normal, imbalanced, outlier, adversarial };

std::vector<float> values(Data data, const QuantizeShape& s) {
  std::vector<float> x = normal(1, s.rows * s.cols);
  const auto size = static_cast<std::int64_t>(x.size());
  switch (data) {
    case Data::normal:
      break;
    case Data::imbalanced:  // token magnitudes from 2^-20 to 2^19, some all zero
      for (std::int64_t i = 0; i < size; ++i) {
        const std::int64_t row = i / s.cols;
        x[i] = row % 9 == 4 ? 0 : std::ldexp(x[i], static_cast<int>(row % 40) - 20);
      }
      break;
    case Data::outlier:
      x[size / 2] = -3e5f;
      break;
    case Data::adversarial: {
      // Denormal and tiny amax, the largest BF16, powers of two and their neighbours, the formats' ends: one
      // row each, so that small values are not always next to large ones.
      const float special[] = {1e-40f,     1e-38f, 1.3e-36f,  1e-12f,    3.3895314e38f, 448,
                               449.5f,     464,    57344,     61440,     0x1p-126f,     0x1p-118f,
                               0x1.fep-1f, 1,      0x1.02p0f, 0x1.c0p3f, 0x1.e0p3f,     0};
      for (std::int64_t i = 0; i < size; ++i) {
        const float top = special[i / s.cols % std::size(special)];
        x[i] = i % 7 == 0 ? top : i % 7 == 1 ? -top : top * std::ldexp(x[i], -static_cast<int>(i % 5) - 3);
      }
      break;
    }
  }
  return rounded(x);
}

/// An operand with both quantized copies, and its memory.
struct Quantized {
  Owned value, row_data, row_scale, col_data, col_scale, amax;
  QuantizedTensor operand;

  Quantized(DType dtype, const std::vector<float>& x, const QuantizeShape& s, const QuantFormat& format)
      : value(dtype, s.rows, s.cols, x),
        row_data(format.dtype, s.rows, s.cols),
        row_scale(scale_type(format), 1, scale_count(format.granularity, s.rows, s.cols)),
        col_data(format.dtype, s.cols, s.rows),
        col_scale(scale_type(format), 1, scale_count(format.granularity, s.cols, s.rows)),
        operand{.value = value,
                .rowwise = {format, row_data, row_scale, false},
                .columnwise = {format, col_data, col_scale, false}} {
    if (format.granularity != Granularity::tensor) return;
    amax = Owned(DType::f32, 1, 1);
    operand.amax_out = amax;
  }
  Quantized(const Quantized&) = delete;

  static DType scale_type(const QuantFormat& format) {
    return format.scale == ScaleType::ue8m0 ? DType::ue8m0 : DType::f32;
  }
};

/// Returns the element at `i` in the format's own units.
float element(const GemmOperand& operand, std::int64_t i) {
  if (held_in_bf16(operand.format.dtype)) return bf16_decode(operand.data.as<std::uint16_t>()[i]);
  const std::uint8_t code = operand.data.as<std::uint8_t>()[i];
  return operand.format.dtype == DType::e4m3 ? e4m3_decode(code) : e5m2_decode(code);
}

float scale_at(const GemmOperand& operand, std::int64_t r, std::int64_t i) {
  const Granularity g = operand.format.granularity;
  const std::int64_t block = block_length(g) ? block_length(g) : operand.data.cols;
  const std::int64_t at = scale_index(g, operand.data.rows, operand.data.cols, r, i / block);
  return operand.scale.dtype == DType::ue8m0 ? ue8m0_decode(operand.scale.as<std::uint8_t>()[at])
                                             : operand.scale.as<float>()[at];
}

/// Counts the elements of `operand` that differ from the reference in code or scale.
std::int64_t mismatches(const GemmOperand& operand, const ReferenceCopy& want) {
  std::int64_t count = 0;
  const std::int64_t k = operand.data.cols;
  for (std::int64_t i = 0; i < operand.data.size(); ++i) {
    const float got = element(operand, i);
    const bool same_sign = std::signbit(got) == std::signbit(want.cast[i]);
    count += got != want.cast[i] || !same_sign || scale_at(operand, i / k, i % k) != want.dequantize[i];
  }
  return count;
}

/// Counts nonzero entries of the scale buffer that belong to no element.
std::int64_t dirty_padding(const GemmOperand& operand) {
  const Granularity g = operand.format.granularity;
  const std::int64_t rows = operand.data.rows, k = operand.data.cols;
  const std::int64_t bytes = operand.scale.bytes() / operand.scale.size();
  std::vector<bool> used(operand.scale.size());
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t kb = 0; kb < scale_blocks(g, k); ++kb) used[scale_index(g, rows, k, r, kb)] = true;
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < operand.scale.size(); ++i)
    for (std::int64_t b = 0; b < bytes; ++b)
      count += !used[i] && operand.scale.as<std::uint8_t>()[i * bytes + b] != 0;
  return count;
}

std::vector<float> transposed(const std::vector<float>& x, const QuantizeShape& s) {
  std::vector<float> t(x.size());
  for (std::int64_t r = 0; r < s.rows; ++r)
    for (std::int64_t c = 0; c < s.cols; ++c) t[c * s.rows + r] = x[r * s.cols + c];
  return t;
}

}  // namespace

TEST_CASE("quantize: both copies equal the reference in every format", "[cpu][quantize]") {
  const auto device = make_cpu_device(1);
  for (const QuantFormat& format : quantized_formats())
    for (const QuantizeShape& s : kQuantizeShapes)
      for (Data data : {Data::normal, Data::imbalanced, Data::outlier, Data::adversarial}) {
        INFO(describe(format) << ", " << s.rows << " x " << s.cols << ", data " << static_cast<int>(data));
        const std::vector<float> x = values(data, s);
        const ReferenceCopy row = quantize_reference(x, s.rows, s.cols, format);
        const ReferenceCopy col = quantize_reference(transposed(x, s), s.cols, s.rows, format);
        for (DType dtype : {DType::bf16, DType::f32}) {
          Quantized q(dtype, x, s, format);
          device->quantize({q.operand});
          CHECK(mismatches(q.operand.rowwise, row) == 0);
          CHECK(mismatches(q.operand.columnwise, col) == 0);
          CHECK(dirty_padding(q.operand.rowwise) == 0);
          CHECK(dirty_padding(q.operand.columnwise) == 0);
          if (format.granularity != Granularity::tensor) continue;
          float amax = 0;
          for (float v : x) amax = std::max(amax, std::fabs(v));
          CHECK(q.amax.floats()[0] == amax);
        }
      }
}

TEST_CASE("quantize: a copy that is not requested is not written and changes nothing else",
          "[cpu][quantize]") {
  const auto device = make_cpu_device(1);
  const QuantizeShape s{130, 200};
  const QuantFormat format{DType::e4m3, Granularity::row, ScaleType::f32};
  const std::vector<float> x = values(Data::normal, s);
  Quantized both(DType::bf16, x, s, format), row_only(DType::bf16, x, s, format),
      untouched(DType::bf16, x, s, format);
  device->quantize({both.operand});
  row_only.operand.columnwise = {};
  device->quantize({row_only.operand});
  CHECK(row_only.row_data.bytes() == both.row_data.bytes());
  CHECK(row_only.row_scale.bytes() == both.row_scale.bytes());
  CHECK(row_only.col_data.bytes() == untouched.col_data.bytes());
  CHECK(row_only.value.bytes() == both.value.bytes());
}

TEST_CASE("quantize: amax_out is written whenever present even if no copy needs it", "[cpu][quantize]") {
  const auto device = make_cpu_device(1);
  const Owned gate_up(DType::bf16, 40, 60, normal(1, 40 * 60)), ds(DType::bf16, 40, 30, normal(2, 40 * 30));
  const Owned s(DType::bf16, 40, 30), amax(DType::f32, 1, 1), dgate_up(DType::bf16, 40, 60);
  QuantizedTensor out{.value = s, .amax_out = amax};
  device->swiglu({out, gate_up});
  float largest = 0;
  for (float v : s.floats()) largest = std::max(largest, std::fabs(v));
  CHECK(amax.floats()[0] == largest);

  // Backward quantizes with the amax that forward left. A deliberately wrong one shows that it is read.
  const QuantFormat format{DType::e4m3, Granularity::tensor, ScaleType::f32};
  const Owned data(DType::e4m3, 30, 40), scale(DType::f32, 1, 1), doubled(DType::f32, 1, 1, {2 * largest});
  QuantizedTensor again{.value = s, .columnwise = {format, data, scale, false}, .amax_in = doubled};
  QuantizedTensor gradient = operand(dgate_up);
  device->swiglu_backward({gradient, again, ds, gate_up});
  CHECK(doubled.floats()[0] == 2 * largest);
  CHECK(scale.floats()[0] == 1.0f / static_cast<float>(448.0 / (2.0 * largest)));
}

TEST_CASE("quantize: with amax_in the new amax_out is still raised", "[cpu][quantize]") {
  const auto device = make_cpu_device(2);
  const QuantFormat format{DType::e4m3, Granularity::tensor, ScaleType::f32};
  const Owned value(DType::bf16, 1, 4, {1, -3, 2, 0}), data(DType::e4m3, 1, 4), scale(DType::f32, 1, 1);
  const Owned earlier(DType::f32, 1, 1, {448.0f}), lower(DType::f32, 1, 1, {2.0f}),
      higher(DType::f32, 1, 1, {5.0f});
  for (const Owned* now : {&lower, &higher})
    device->quantize(
        {{.value = value, .rowwise = {format, data, scale}, .amax_out = *now, .amax_in = earlier}});
  CHECK((lower.floats()[0] == 3 && higher.floats()[0] == 5));
  CHECK(scale.floats()[0] == 1);
}

TEST_CASE("amax: largest magnitude and 0 without elements and NaN if a value is NaN", "[cpu][quantize]") {
  const auto device = make_cpu_device(2);
  const auto amax = [&](DType dtype, const std::vector<float>& x) {
    const Owned out(DType::f32, 1, 1), value(dtype, 1, static_cast<std::int64_t>(x.size()), x);
    device->amax({out, value});
    return out.floats()[0];
  };
  for (DType dtype : {DType::f32, DType::bf16}) {
    CHECK(amax(dtype, {}) == 0);
    CHECK(amax(dtype, {-0.0f, 0x1p-130f}) == 0x1p-130f);
    CHECK(amax(dtype, {1, -3, 2}) == 3);
    CHECK(amax(dtype, {1, -INFINITY}) == INFINITY);
    std::vector<float> x = normal(3, 70001);
    x[69999] = -9;
    CHECK(amax(dtype, x) == 9);
    x[12345] = NAN;
    CHECK(std::isnan(amax(dtype, x)));
  }
}

TEST_CASE("quantize_with_amax: parts quantized separately equal the whole matrix", "[cpu][quantize]") {
  const auto device = make_cpu_device(2);
  const QuantizeShape s{37, 130};
  for (const QuantFormat& format : quantized_formats()) {
    if (format.granularity != Granularity::tensor) continue;
    for (Data data : {Data::normal, Data::imbalanced, Data::outlier, Data::adversarial})
      for (DType dtype : {DType::bf16, DType::f32}) {
        INFO(describe(format) << ", data " << static_cast<int>(data) << ", " << name_of(dtype));
        Quantized whole(dtype, values(data, s), s, format);
        device->quantize({whole.operand});
        const Owned codes(format.dtype, 1, s.rows * s.cols), scale(DType::f32, 1, 1);
        const std::int64_t ends[] = {0, 1, 1, 4096,
                                     s.rows * s.cols};  // one element, none, whole vectors, a rest
        for (int i = 0; i < 4; ++i)
          device->quantize_with_amax(
              {{format, codes.tensor().elements(ends[i], ends[i + 1] - ends[i]), scale, false},
               whole.value.tensor().elements(ends[i], ends[i + 1] - ends[i]),
               whole.amax});
        CHECK(codes.bytes() == whole.row_data.bytes());
        CHECK(scale.bytes() == whole.row_scale.bytes());
      }
  }
}

TEST_CASE("transpose: equals the quantized copy of the transposed matrix", "[cpu][quantize]") {
  const auto device = make_cpu_device(2);
  for (const QuantFormat& format : quantized_formats()) {
    const Granularity g = format.granularity;
    const bool exchanged = g == Granularity::tensor || g == Granularity::block_128x128;
    if (!exchanged || held_in_bf16(format.dtype)) continue;
    for (const QuantizeShape& s : {QuantizeShape{16, 16}, QuantizeShape{144, 400}, QuantizeShape{256, 128}}) {
      INFO(describe(format) << ", " << s.rows << " x " << s.cols);
      Quantized q(DType::bf16, values(Data::imbalanced, s), s, format);
      device->quantize({q.operand});
      const Owned data(format.dtype, s.cols, s.rows), scale(DType::f32, 1, scale_count(g, s.cols, s.rows));
      device->transpose({{format, data, scale, false}, q.operand.rowwise});
      CHECK(data.bytes() == q.col_data.bytes());
      CHECK(scale.bytes() == q.col_scale.bytes());
    }
  }
}

TEST_CASE("copy_columns: parts placed side by side equal the whole", "[cpu][quantize]") {
  const auto device = make_cpu_device(2);
  constexpr std::int64_t kRows = 5, kCols = 48;
  std::vector<std::uint8_t> whole(kRows * kCols), got(kRows * kCols, 0xFF);
  for (std::size_t i = 0; i < whole.size(); ++i) whole[i] = static_cast<std::uint8_t>(i);
  for (const auto& [first, cols] : {std::pair<std::int64_t, std::int64_t>{0, 16}, {40, 8}, {16, 24}}) {
    std::vector<std::uint8_t> part;
    for (std::int64_t r = 0; r < kRows; ++r)
      part.insert(part.end(), &whole[r * kCols + first], &whole[r * kCols + first] + cols);
    device->copy_columns(
        {{got.data(), DType::e4m3, kRows, kCols}, first, {part.data(), DType::e4m3, kRows, cols}});
  }
  CHECK(got == whole);
}

TEST_CASE("matmul: a quantized copy times the identity gives the dequantized values",
          "[cpu][quantize][matmul]") {
  const auto device = make_cpu_device(1);
  for (const QuantFormat& format : quantized_formats())
    for (const QuantizeShape& s : kQuantizeShapes) {
      INFO(describe(format) << ", " << s.rows << " x " << s.cols);
      Quantized q(DType::bf16, values(Data::imbalanced, s), s, format);
      device->quantize({q.operand});
      for (bool column : {false, true}) {
        const GemmOperand& operand = column ? q.operand.columnwise : q.operand.rowwise;
        std::vector<float> identity(operand.k() * operand.k()), expected;
        for (std::int64_t i = 0; i < operand.k(); ++i) identity[i * operand.k() + i] = 1;
        for (std::int64_t i = 0; i < operand.data.size(); ++i)
          expected.push_back(element(operand, i) * scale_at(operand, i / operand.k(), i % operand.k()));
        const Owned eye(DType::f32, operand.k(), operand.k(), identity),
            d(DType::f32, operand.rows(), operand.k());
        device->matmul({d, operand, {{}, eye, {}, false}, {}});
        CHECK(d.floats() == expected);
      }
    }
}

TEST_CASE("quantization_error: sums equal those of the dequantized copy", "[cpu][quantize]") {
  const auto device = make_cpu_device(1);
  double saturations = 0, underflows = 0;
  for (const QuantFormat& format : quantized_formats())
    for (const QuantizeShape& s : kQuantizeShapes)
      for (Data data : {Data::normal, Data::imbalanced, Data::outlier, Data::adversarial})
        for (bool column : {false, true}) {
          INFO(describe(format) << ", " << s.rows << " x " << s.cols << ", data " << static_cast<int>(data));
          // The square of the largest BF16 overflows an FP32 sum.
          std::vector<float> x = values(data, s);
          for (float& v : x) v = std::fabs(v) > 1e18f ? 512.0f : v;
          Quantized q(DType::bf16, x, s, format);
          device->quantize({q.operand});
          const Owned out(DType::f32, 1, 5);
          device->quantization_error(
              {out, q.value, column ? q.operand.columnwise : q.operand.rowwise, column});

          const std::vector<float> source = column ? transposed(x, s) : x;
          const ReferenceCopy want =
              quantize_reference(source, column ? s.cols : s.rows, column ? s.rows : s.cols, format);
          double signal = 0, noise = 0, nonzero = 0, underflow = 0, saturated = 0;
          // The GEMM sees the FP32 product of code and scale. Values more than half a step beyond the
          // format's end were saturated, not rounded.
          const double step = std::ldexp(1.0, largest_exponent_of(format) - mantissa_bits_of(format));
          const double end = max_of(format) + step / 2;
          for (std::size_t i = 0; i < source.size(); ++i) {
            const double v = source[i], error = v - static_cast<float>(want.cast[i] * want.dequantize[i]);
            signal += v * v, noise += error * error;
            nonzero += v != 0;
            underflow += v != 0 && want.cast[i] == 0;
            saturated += std::fabs(want.scaled[i]) > end;
          }
          const std::vector<float> got = out.floats();
          CHECK(std::fabs(got[0] - signal) <= 0x1p-23 * signal);
          CHECK(std::fabs(got[1] - noise) <= 0x1p-20 * noise);
          CHECK(got[2] == nonzero);
          CHECK(got[3] == underflow);
          CHECK(got[4] == saturated);
          saturations += saturated, underflows += underflow;
        }
  CHECK(saturations > 0);
  CHECK(underflows > 0);
}
