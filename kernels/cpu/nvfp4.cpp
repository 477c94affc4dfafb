// NVFP4 on the CPU: a matrix into e2m1 codes, two a byte, with e4m3 scales of blocks and the tensor's amax; and back. The
// arithmetic is numerics/nvfp4.h's.
#include "kernels/numerics/nvfp4.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/vector.h"
#include "kernels/numerics/scale_layout.h"

namespace precbench {
namespace {

constexpr std::int64_t kNvfp4Block = 16;

/// The bits of the largest magnitude of n values; NaN's are the largest.
std::int32_t largest_bits(const float* x, std::int64_t n) {
  std::int32_t largest = 0;
  for (std::int64_t i = 0; i < n; ++i) largest = std::max(largest, abs_bits(x[i]));
  return largest;
}

float float_of(std::int32_t bits) { return bits_to_float(static_cast<std::uint32_t>(bits)); }

/// The random bytes of a form's elements.
struct Draws {
  std::uint64_t seed;
  std::int64_t first_row, width;  // of the value: its first row among all ranks', its columns
  bool columns;                   // the form is its transpose

  /// A block of a form's row r from column k on, by the place of its elements in the value.
  void fill(std::uint32_t (&bytes)[kNvfp4Block], std::int64_t r, std::int64_t k) const {
    if (columns) {
      for (std::int64_t i = 0; i < kNvfp4Block; ++i)
        bytes[i] = random_byte(seed, static_cast<std::uint64_t>((first_row + k + i) * width + r));
      return;
    }
    // A word has the bytes of four neighbours; rows are whole blocks long, so they start at one.
    const auto word = static_cast<std::uint64_t>((first_row + r) * width + k) / 4;
    for (std::int64_t i = 0; i < kNvfp4Block; i += 4) {
      const std::uint32_t bits = random_bits(seed, word + static_cast<std::uint64_t>(i) / 4);
      for (int byte = 0; byte < 4; ++byte) bytes[i + byte] = bits >> 8 * byte & 0xFFu;
    }
  }
};

/// The codes of a block, two a byte; encode(i) makes one. In two loops, of which the first vectorises.
template <class Encode>
void pack_block(std::uint8_t* out, Encode&& encode) {
  std::uint8_t codes[kNvfp4Block];
  for (std::int64_t i = 0; i < kNvfp4Block; ++i) codes[i] = encode(i);
  for (std::int64_t i = 0; i < kNvfp4Block / 2; ++i)
    out[i] = static_cast<std::uint8_t>(codes[2 * i] | codes[2 * i + 1] << 4);
}

}  // namespace

const float* CpuDevice::transformed(int slot, const QuantFormat& format, const float* matrix,
                                    std::int64_t rows, std::int64_t k) {
  if (format.transform == Transform::none) return matrix;
  float* out = scratch(slot, rows * k);
  const std::uint32_t signs = format.transform == Transform::hadamard_te ? kHadamardSigns : 0;
  cpu::for_rows(threads_, rows, 0, [&](std::int64_t r, float*) {
    float* row = out + r * k;
    if (out != matrix) std::copy_n(matrix + r * k, k, row);
    for (std::int64_t i = 0; i < k; i += kHadamardLength) hadamard_transform(row + i, signs);
  });
  return out;
}

void CpuDevice::quantize_nvfp4(const GemmOperand& form, const float* matrix, const RandomStream& random,
                               bool columns) {
  const std::int64_t rows = form.data.rows, k = form.data.cols;
  const QuantFormat& format = form.format;
  const float* x = transformed(1, format, matrix, rows, k);

  std::vector<std::int32_t> by_row(static_cast<std::size_t>(rows));
  cpu::for_rows(threads_, rows, 0, [&](std::int64_t r, float*) { by_row[r] = largest_bits(x + r * k, k); });
  const float amax = float_of(*std::max_element(by_row.begin(), by_row.end()));
  *form.amax.as<float>() = amax;
  const float tensor_scale = nvfp4_tensor_scale(amax);

  const bool stochastic = format.element_rounding == ElementRounding::stochastic;
  const std::uint32_t word = random.word.empty() ? 0 : *random.word.as<std::uint32_t>();
  const Draws draws{stream_seed(word, random.stream + (columns ? 1u : 0u)), random.first_row,
                    columns ? rows : k, columns};
  // Padding entries of the scale buffer are defined too, so that buffers compare and copy byte for byte.
  std::memset(form.scale.data, 0, form.scale.bytes());
  auto* codes = form.data.as<std::uint8_t>();
  auto* scales = form.scale.as<std::uint8_t>();
  const std::int64_t tall = block_rows(format.granularity);
  cpu::for_rows(threads_, detail::blocks_of(rows, tall), 0, [&](std::int64_t scope, float*) {
    const std::int64_t first = scope * tall, last = std::min(rows, first + tall);
    std::uint32_t bytes[kNvfp4Block];
    for (std::int64_t k0 = 0; k0 < k; k0 += kNvfp4Block) {
      std::int32_t largest = 0;
      for (std::int64_t r = first; r < last; ++r)
        largest = std::max(largest, largest_bits(x + r * k + k0, kNvfp4Block));
      const std::uint8_t scale = nvfp4_block_scale(float_of(largest), tensor_scale);
      const float multiply = nvfp4_multiplier(scale, tensor_scale);
      for (std::int64_t r = first; r < last; ++r) {
        scales[scale_index(format.granularity, rows, k, r, k0 / kNvfp4Block)] = scale;
        std::uint8_t* out = codes + (r * k + k0) / 2;
        const float* block = x + r * k + k0;
        if (stochastic) {
          draws.fill(bytes, r, k0);
          pack_block(out,
                     [&](std::int64_t i) { return e2m1_encode_stochastic(block[i] * multiply, bytes[i]); });
        } else {
          pack_block(out, [&](std::int64_t i) { return e2m1_encode(block[i] * multiply); });
        }
      }
    }
  });
}

void CpuDevice::widen_nvfp4(float* out, const GemmOperand& form) {
  const std::int64_t rows = form.data.rows, k = form.data.cols;
  cpu::for_rows(threads_, rows, 0, [&](std::int64_t r, float*) {
    for (std::int64_t k0 = 0; k0 < k; k0 += kNvfp4Block) {
      const std::int64_t at = scale_index(form.format.granularity, rows, k, r, k0 / kNvfp4Block);
      const float scale = e4m3_decode(form.scale.as<std::uint8_t>()[at]);
      const std::uint8_t* codes = form.data.as<std::uint8_t>() + (r * k + k0) / 2;
      float* target = out + r * k + k0;
      for (std::int64_t i = 0; i < kNvfp4Block; i += 2) {
        target[i] = e2m1_decode(codes[i / 2]) * scale;
        target[i + 1] = e2m1_decode(static_cast<std::uint8_t>(codes[i / 2] >> 4)) * scale;
      }
    }
  });
}

}  // namespace precbench
