// FP4 on the CPU: a matrix into e2m1 codes, two a byte, with scales of blocks and, of e4m3 scales, the tensor's amax; and
// back. The arithmetic is that of numerics/nvfp4.h and fp4.h.
#include "kernels/numerics/fp4.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/vector.h"
#include "kernels/numerics/scale_layout.h"

namespace precbench {
namespace {

/// The bits of the largest magnitude of n values; NaN's are the largest.
std::int32_t largest_bits(const float* x, std::int64_t n) {
  std::int32_t largest = 0;
  for (std::int64_t i = 0; i < n; ++i) largest = std::max(largest, abs_bits(x[i]));
  return largest;
}

float float_of(std::int32_t bits) { return bits_to_float(static_cast<std::uint32_t>(bits)); }

std::uint32_t word_of(const RandomStream& random) {
  return random.word.empty() ? 0 : *random.word.as<std::uint32_t>();
}

SignBits signs_of(const Transform& transform, const RandomStream& random, bool columns) {
  return sign_bits(transform.signs, word_of(random), random.sign_stream(transform.signs, columns));
}

/// The random numbers of a form's elements, by their place in the value.
struct Draws {
  std::uint64_t seed;
  std::int64_t first_row, width;  // of the value: its first row among all ranks', its columns
  bool columns;                   // the form is its transpose

  std::uint64_t place(std::int64_t r, std::int64_t k) const {
    return static_cast<std::uint64_t>(columns ? (first_row + k) * width + r : (first_row + r) * width + k);
  }
  /// A block of a form's row r from column k on: a byte each.
  void fill(std::uint32_t* bytes, std::int64_t block, std::int64_t r, std::int64_t k) const {
    if (columns) {
      for (std::int64_t i = 0; i < block; ++i) bytes[i] = random_byte(seed, place(r, k + i));
      return;
    }
    // A word has the bytes of four neighbours; rows are whole blocks long, so they start at one.
    const std::uint64_t word = place(r, k) / 4;
    for (std::int64_t i = 0; i < block; i += 4) {
      const std::uint32_t bits = random_bits(seed, word + static_cast<std::uint64_t>(i) / 4);
      for (int byte = 0; byte < 4; ++byte) bytes[i + byte] = bits >> 8 * byte & 0xFFu;
    }
  }
};

/// The codes of a block, two a byte; encode(i) makes one. In two loops, of which the first vectorises.
template <class Encode>
void pack_block(std::uint8_t* out, std::int64_t block, Encode&& encode) {
  std::uint8_t codes[kFp4LongestBlock];
  for (std::int64_t i = 0; i < block; ++i) codes[i] = encode(i);
  for (std::int64_t i = 0; i < block / 2; ++i)
    out[i] = static_cast<std::uint8_t>(codes[2 * i] | codes[2 * i + 1] << 4);
}

}  // namespace

const float* CpuDevice::transformed(int slot, const QuantFormat& format, const float* matrix,
                                    std::int64_t rows, std::int64_t k, const RandomStream& random,
                                    bool columns) {
  if (!format.transform) return matrix;
  const SignBits signs = signs_of(format.transform, random, columns);
  float* out = scratch(slot, rows * k);
  const int length = format.transform.length;
  cpu::for_rows(threads_, rows, 0, [&](std::int64_t r, float*) {
    float* row = out + r * k;
    if (out != matrix) std::copy_n(matrix + r * k, k, row);
    for (std::int64_t i = 0; i < k; i += length) hadamard_transform(row + i, length, signs);
  });
  return out;
}

void CpuDevice::quantize_fp4(const GemmOperand& form, const float* matrix, const RandomStream& random,
                             bool columns) {
  const std::int64_t rows = form.data.rows, k = form.data.cols;
  const QuantFormat& format = form.format;
  const float* x = transformed(1, format, matrix, rows, k, random, columns);

  float amax = 0;
  if (!form.amax.empty()) {
    std::vector<std::int32_t> by_row(static_cast<std::size_t>(rows));
    cpu::for_rows(threads_, rows, 0, [&](std::int64_t r, float*) { by_row[r] = largest_bits(x + r * k, k); });
    *form.amax.as<float>() = amax = float_of(*std::max_element(by_row.begin(), by_row.end()));
  }
  const bool stochastic = format.element_rounding == ElementRounding::stochastic;
  const Draws draws{stream_seed(word_of(random), random.stream + (columns ? 1u : 0u)), random.first_row,
                    columns ? rows : k, columns};
  // Padding entries of the scale buffer are defined too, so that buffers compare and copy byte for byte.
  std::memset(form.scale.data, 0, form.scale.bytes());
  auto* codes = form.data.as<std::uint8_t>();
  auto* scales = form.scale.as<std::uint8_t>();
  const std::int64_t tall = block_rows(format.granularity), block = block_length(format.granularity);
  cpu::for_rows(threads_, detail::blocks_of(rows, tall), 0, [&](std::int64_t scope, float*) {
    const std::int64_t first = scope * tall, last = std::min(rows, first + tall);
    std::uint32_t bytes[kFp4LongestBlock];
    for (std::int64_t k0 = 0; k0 < k; k0 += block) {
      std::int32_t largest = 0;
      for (std::int64_t r = first; r < last; ++r)
        largest = std::max(largest, largest_bits(x + r * k + k0, block));
      for (std::int64_t r = first; r < last; ++r) {
        const float* values = x + r * k + k0;
        const std::uint32_t draw = format.eden ? random_bits(draws.seed, draws.place(r, k0)) : 0;
        const Fp4Block made =
            fp4_block(format, values, static_cast<int>(block), float_of(largest), amax, draw);
        scales[scale_index(format.granularity, rows, k, r, k0 / block)] = made.scale;
        std::uint8_t* out = codes + (r * k + k0) / 2;
        if (stochastic) {
          draws.fill(bytes, block, r, k0);
          pack_block(out, block, [&](std::int64_t i) {
            return e2m1_encode_stochastic(made.scaled(values[i]), bytes[i]);
          });
        } else if (made.divide) {
          pack_block(out, block, [&](std::int64_t i) { return e2m1_encode(values[i] / made.factor); });
        } else {
          pack_block(out, block, [&](std::int64_t i) { return e2m1_encode(values[i] * made.factor); });
        }
      }
    }
  });
}

void CpuDevice::widen_fp4(float* out, const GemmOperand& form) {
  const std::int64_t rows = form.data.rows, k = form.data.cols, block = block_length(form.format.granularity);
  const bool e4m3 = form.format.scale == ScaleType::e4m3;
  cpu::for_rows(threads_, rows, 0, [&](std::int64_t r, float*) {
    for (std::int64_t k0 = 0; k0 < k; k0 += block) {
      const std::int64_t at = scale_index(form.format.granularity, rows, k, r, k0 / block);
      const std::uint8_t byte = form.scale.as<std::uint8_t>()[at];
      const float scale = e4m3 ? e4m3_decode(byte) : ue8m0_decode(byte);
      const std::uint8_t* codes = form.data.as<std::uint8_t>() + (r * k + k0) / 2;
      float* target = out + r * k + k0;
      for (std::int64_t i = 0; i < block; i += 2) {
        target[i] = e2m1_decode(codes[i / 2]) * scale;
        target[i + 1] = e2m1_decode(static_cast<std::uint8_t>(codes[i / 2] >> 4)) * scale;
      }
    }
  });
}

void CpuDevice::do_dequantize(const ops::Dequantize& op) {
  const float* x = widen(0, op.form);
  const float factor =
      fp4_tensor_factor(op.form.format, op.form.amax.empty() ? 0.0f : *op.form.amax.as<float>());
  cpu::for_rows(threads_, op.dst.rows, op.dst.cols, [&](std::int64_t r, float* row) {
    for (std::int64_t c = 0; c < op.dst.cols; ++c) row[c] = x[r * op.dst.cols + c] * factor;
    cpu::store(op.dst, r * op.dst.cols, op.dst.cols, row);
  });
}

void CpuDevice::do_turn_back(const ops::TurnBack& op) {
  const QuantFormat& format = op.form.format;
  const std::int64_t rows = op.dst.rows, k = op.dst.cols, block = block_length(format.granularity);
  const int length = format.transform.length;
  const SignBits signs = sign_bits(format.transform.signs, 0, 0);
  const float* source = widen(0, {{}, op.src, {}, false});
  const float* clipped = nullptr;
  if (!op.value.empty())
    clipped = transformed(1, format, widen(1, {{}, op.value, {}, false}), rows, k, {}, false);
  cpu::for_rows(threads_, rows, 2 * k, [&](std::int64_t r, float* row) {
    std::copy_n(source + r * k, k, row);
    for (std::int64_t i = 0; clipped && i < k; ++i) {
      const std::int64_t at = scale_index(format.granularity, rows, k, r, i / block);
      if (fp4_clips(clipped[r * k + i], op.form.scale.as<std::uint8_t>()[at])) row[i] = 0;
    }
    for (std::int64_t i = 0; i < k; i += length) hadamard_sums(row + i, length);
    for (std::int64_t i = 0; i < k; ++i)
      row[i] *=
          signs.minus(static_cast<int>(i % length)) ? -hadamard_factor(length) : hadamard_factor(length);
    if (op.accumulate) {
      const float* before = cpu::load(op.dst, r * k, k, row + k);
      for (std::int64_t i = 0; i < k; ++i) row[i] += before[i];
    }
    cpu::store(op.dst, r * k, k, row);
  });
}

}  // namespace precbench
