// transpose_codes against rounding written down in FP64: the nearest of e4m3's 127 magnitudes, found by
// exhaustive search.
#include <cmath>

#include "kernels/checks/check_quantize.h"
#include "kernels/device/compare_testing.h"
#include "kernels/device/moe_testing.h"
#include "kernels/numerics/scale_layout.h"

using namespace precbench;
using namespace precbench::testing;
using checks::Input, checks::kInputs, checks::make_input;

namespace {

constexpr std::int64_t kSide = 128;
constexpr int kNan = 0x7F;

/// Returns the OCP e4m3 value of a non-NaN code without sign.
double magnitude_of(int code) {
  const int exponent = code >> 3, fraction = code & 7;
  return exponent > 0 ? std::ldexp(8 + fraction, exponent - 10) : std::ldexp(fraction, -9);
}

/// Returns the code nearest to the code's value times 2^-down; ties go to even. NaN has one code.
std::uint8_t cast_again(std::uint8_t code, int down) {
  if ((code & 0x7F) == kNan) return kNan;
  const double wanted = std::ldexp(magnitude_of(code & 0x7F), -down);
  int nearest = 0;
  for (int other = 1; other < kNan; ++other) {
    const double better = std::fabs(magnitude_of(nearest) - wanted) - std::fabs(magnitude_of(other) - wanted);
    if (better > 0 || (better == 0 && other % 2 == 0)) nearest = other;
  }
  return static_cast<std::uint8_t>((code & 0x80) | nearest);
}

/// All results of cast_again by code and shift, as a lookup table for speed.
const std::vector<std::uint8_t>& cast_table() {
  static const std::vector<std::uint8_t> table = [] {
    std::vector<std::uint8_t> all;
    for (int down = 0; down <= 40; ++down)
      for (int code = 0; code < 256; ++code) all.push_back(cast_again(static_cast<std::uint8_t>(code), down));
    return all;
  }();
  return table;
}

/// Number of wrong codes and scales in rows [first, first + count) of a copy [rows, cols].
struct Differences {
  std::int64_t codes = 0, scales = 0;
};
Differences differences(const GemmOperand& src, const GemmOperand& dst, std::int64_t first,
                        std::int64_t count) {
  constexpr Granularity g = Granularity::block_1x128;
  const std::int64_t rows = src.data.rows, cols = src.data.cols;
  const auto scale_at = [&](std::int64_t r, std::int64_t block) {
    return src.scale.as<float>()[scale_index(g, rows, cols, r, block)];
  };
  Differences wrong;
  for (std::int64_t r0 = first; r0 < first + count; r0 += kSide)
    for (std::int64_t block = 0; block < cols / kSide; ++block) {
      float largest = 0;
      for (std::int64_t r = r0; r < r0 + kSide; ++r)
        if (const float s = scale_at(r, block); std::isfinite(s) && s > largest) largest = s;
      for (std::int64_t c = block * kSide; c < (block + 1) * kSide; ++c) {
        if (largest > 0)
          wrong.scales += dst.scale.as<float>()[scale_index(g, cols, rows, c, r0 / kSide)] != largest;
        for (std::int64_t r = r0; r < r0 + kSide; ++r) {
          const float scale = scale_at(r, block);
          const std::uint8_t code = src.data.as<std::uint8_t>()[r * cols + c];
          std::uint8_t expected = kNan;
          if (std::isfinite(scale)) {
            const int down = std::min(40, std::ilogb(largest) - std::ilogb(scale));
            expected = cast_table()[static_cast<std::size_t>(down) * 256 + code];
          }
          wrong.codes += dst.data.as<std::uint8_t>()[c * rows + r] != expected;
        }
      }
    }
  return wrong;
}

/// Returns the device's transpose of a host copy, fetched.
GemmOperand transposed_on(OpTest& b, const GemmOperand& src, const Groups& groups = {}) {
  const GemmOperand dst = b.quantized_copy(src.format, src.data.cols, src.data.rows);
  b.device().transpose_codes({dst, b.put(src), groups});
  return {src.format, b.fetch(dst.data), b.fetch(dst.scale)};
}

GemmOperand rowwise_copy(OpTest& b, const Tensor& value) {
  QuantizedTensor x = b.host_operand({kBlockPow2, {}}, value);
  b.cpu().quantize({x});
  return x.rowwise;
}

/// Returns rows with magnitudes from 2^0 to 2^20 in no order.
Tensor rows_of_sizes(HostMemory& host, std::int64_t rows, std::int64_t cols) {
  const Tensor value = host.random(DType::bf16, rows, cols, 1.0f);
  for (std::int64_t i = 0; i < value.size(); ++i)
    HostMemory::set(value, i, std::ldexp(HostMemory::get(value, i), static_cast<int>(i / cols * 8 % 21)));
  return value;
}

}  // namespace

PRECBENCH_OP_TEST(all_pairs_on, "transpose_codes: every code under every shift from 0 to 40") {
  b.start();
  HostMemory& host = b.host();
  const GemmOperand src{kBlockPow2, host.tensor(DType::e4m3, kSide, 256),
                        host.tensor(DType::f32, 1, 2 * kSide)};
  for (std::int64_t r = 0; r < kSide; ++r)
    for (std::int64_t c = 0; c < 256; ++c) {
      src.data.as<std::uint8_t>()[r * 256 + c] = static_cast<std::uint8_t>(c);
      src.scale.as<float>()[c / kSide * kSide + r] = std::ldexp(1.0f, 7 - static_cast<int>(r % 41));
    }
  const GemmOperand dst = transposed_on(b, src);
  std::int64_t wrong = 0;
  for (std::int64_t r = 0; r < kSide; ++r)
    for (std::int64_t c = 0; c < 256; ++c)
      wrong += dst.data.as<std::uint8_t>()[c * kSide + r] !=
               cast_again(static_cast<std::uint8_t>(c), static_cast<int>(r % 41));
  CHECK(wrong == 0);
  CHECK(differences(src, dst, 0, kSide).scales == 0);
}

PRECBENCH_OP_TEST(tiles_on, "transpose_codes: tiles of any input are cast once") {
  for (const Size& size : {Size{128, 128}, Size{384, 256}, Size{256, 640}}) {
    for (const Input input : kInputs) {
      INFO(static_cast<int>(input) << ", " << size.M << " x " << size.C);
      b.start();
      const GemmOperand src = rowwise_copy(b, make_input(b.host(), input, size.M, size.C));
      const GemmOperand dst = transposed_on(b, src);
      const Differences wrong = differences(src, dst, 0, size.M);
      CHECK(wrong.codes == 0);
      CHECK(wrong.scales == 0);
    }
    b.start();
    const GemmOperand src = rowwise_copy(b, rows_of_sizes(b.host(), size.M, size.C));
    const Differences wrong = differences(src, transposed_on(b, src), 0, size.M);
    CHECK(wrong.codes == 0);
    CHECK(wrong.scales == 0);
  }
}

PRECBENCH_OP_TEST(groups_on, "transpose_codes: a group's columns are those of its rows alone") {
  const std::int64_t E = 4, C = 256;
  b.start();
  HostMemory& host = b.host();
  const std::vector<std::int32_t> index = experts_with({200, 0, 128, 1});
  const std::int64_t T = static_cast<std::int64_t>(index.size());
  const Groups on_host = make_groups(
      b.cpu(), [&](DType t, std::int64_t r, std::int64_t c) { return host.tensor(t, r, c); },
      host_integers(host, index, 1), E, kSide, T, host.tensor(DType::f32, 1, 3));
  const GemmOperand tokens = rowwise_copy(b, rows_of_sizes(host, T, C));
  QuantizedTensor rows =
      b.host_operand({kBlockPow2, {}}, host.tensor(DType::bf16, on_host.rows_capacity(), C));
  rows.value = {}, rows.keep_value = false;  // only codes are moved
  QuantizedTensor source{.value = host.random(DType::bf16, T, C, 1.0f), .rowwise = tokens};
  b.cpu().permute({rows, source, {}, on_host});

  Groups groups = on_host;
  groups.offsets = b.put(on_host.offsets), groups.counts = b.put(on_host.counts);
  const GemmOperand dst = transposed_on(b, rows.rowwise, groups);
  const std::int64_t end = on_host.offsets.as<std::int32_t>()[E];
  REQUIRE(end == 256 + 128 + 128);
  const Differences wrong = differences(rows.rowwise, dst, 0, end);
  CHECK(wrong.codes == 0);
  CHECK(wrong.scales == 0);
  // Padding is +0 in every column and does not raise the scales: the last group has one row, whose scale
  // stays.
  for (std::int64_t c = 0; c < C; ++c)
    for (const std::int64_t r : {std::int64_t{200}, std::int64_t{255}, end - kSide + 1, end - 1})
      REQUIRE(dst.data.as<std::uint8_t>()[c * rows.rowwise.data.rows + r] == 0);
  const std::int64_t last = end - kSide;
  for (std::int64_t c = 0; c < C; ++c)
    REQUIRE(
        dst.scale
            .as<float>()[scale_index(Granularity::block_1x128, C, rows.rowwise.data.rows, c, last / kSide)] ==
        rows.rowwise.scale
            .as<float>()[scale_index(Granularity::block_1x128, rows.rowwise.data.rows, C, last, c / kSide)]);
}

PRECBENCH_OP_TEST(nothing_lost_on, "transpose_codes loses nothing but what falls below the smallest normal") {
  const std::int64_t side = 256;
  b.start();
  const GemmOperand src = rowwise_copy(b, rows_of_sizes(b.host(), side, side));
  const GemmOperand dst = transposed_on(b, src);
  const Tensor out = b.output(DType::bf16, side, side);
  b.device().dequantize({out, b.put(src)});
  const Tensor before = b.fetch(out);
  b.device().dequantize({out, b.put(dst)});
  const Tensor after = b.fetch(out);
  std::int64_t changed = 0;
  for (std::int64_t r = 0; r < side; ++r)
    for (std::int64_t c = 0; c < side; ++c) {
      const float was = HostMemory::get(before, r * side + c), is = HostMemory::get(after, c * side + r);
      const float scale =
          dst.scale.as<float>()[scale_index(Granularity::block_1x128, side, side, c, r / kSide)];
      changed += was != is;
      if (std::fabs(was) >= 0x1p-6f * scale) REQUIRE(was == is);
      REQUIRE(std::fabs(was - is) <= 0x1p-10f * scale);
    }
  CHECK(changed > 0);  // magnitudes differ by 2^20: many codes underflow
}

PRECBENCH_OP_TEST(
    casting_twice_on,
    "codes of rows cast again along columns err by half as much again, unless scales are powers of two") {
  b.start();
  constexpr std::int64_t side = 256;
  const Tensor value = b.host().random(DType::bf16, side, side, 1.0f);
  for (std::int64_t i = 0; i < value.size(); ++i)  // rows of many magnitudes, like tokens
    HostMemory::set(value, i,
                    HostMemory::get(value, i) * (1 + static_cast<float>(i / side * 37 % side) / 64));
  const auto columns_of = [&](const QuantFormat& format, const Tensor& of) {
    QuantizedTensor x = b.host_operand({{}, format}, of);
    b.cpu().quantize({x});
    return x.columnwise;
  };
  const auto values_of = [&](const GemmOperand& operand) {
    const Tensor values = b.host().tensor(DType::bf16, side, side);
    b.cpu().dequantize({values, operand});
    return values;
  };
  const auto error = [&](const GemmOperand& columns) {
    const Tensor got = values_of(columns);
    double wrong = 0, all = 0;
    for (std::int64_t r = 0; r < side; ++r)
      for (std::int64_t c = 0; c < side; ++c) {
        const double was = HostMemory::get(value, r * side + c);
        wrong += std::pow(HostMemory::get(got, c * side + r) - was, 2), all += was * was;
      }
    return std::sqrt(wrong / all);
  };
  const auto twice_over_once = [&](const QuantFormat& format) {
    QuantizedTensor rows = b.host_operand({format, {}}, value);
    b.cpu().quantize({rows});
    return error(columns_of(format, values_of(rows.rowwise))) / error(columns_of(format, value));
  };
  const double once = error(columns_of(kBlockPow2, value));
  CHECK((once > 0.025 && once < 0.029));
  CHECK((twice_over_once(kBlock) > 1.42 && twice_over_once(kBlock) < 1.44));
  CHECK(std::fabs(twice_over_once(kBlockPow2) - 1) < 0.01);
  CHECK(std::fabs(error(transposed_on(b, rowwise_copy(b, value))) / once - 1) < 0.01);
}
