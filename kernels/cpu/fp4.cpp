// FP4 on the CPU: quantizes a matrix to e2m1 codes, two per byte, with block scales and, for e4m3 scales, the
// tensor's amax; and dequantizes it. The arithmetic is that of numerics/nvfp4.h and fp4.h.
#include "kernels/numerics/fp4.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/quantize_rows.h"
#include "kernels/cpu/vector.h"
#include "kernels/numerics/amax.h"
#include "kernels/numerics/custom_format.h"
#include "kernels/numerics/scale_layout.h"

namespace precbench {
namespace {

float float_of(std::int32_t bits) { return bits_to_float(static_cast<std::uint32_t>(bits)); }

SignBits signs_of(const Transform& transform, const RandomStream& random, bool columns) {
  return sign_bits(transform.signs, cpu::word_of(random), random.sign_stream(transform.signs, columns));
}

/// Random numbers of a copy's elements, indexed by their position in the value.
struct Draws {
  std::uint64_t seed;
  RowMap rows;         // of the value, in the matrix of all ranks
  std::int64_t width;  // of the value
  bool columns;        // the copy is its transpose

  std::uint64_t place(std::int64_t r, std::int64_t k) const {
    return place_of_element(rows, width, columns, r, k);
  }
  /// Fills one byte per element for a block of row r from column k on.
  void fill(std::uint32_t* bytes, std::int64_t block, std::int64_t r, std::int64_t k) const {
    if (columns) {
      for (std::int64_t i = 0; i < block; ++i) bytes[i] = random_byte(seed, place(r, k + i));
      return;
    }
    // A word has the bytes of four neighbours; blocks start at a multiple of four, as rows are whole blocks.
    const std::uint64_t word = place(r, k) / 4;
    for (std::int64_t i = 0; i < block; i += 4) {
      const std::uint32_t bits = random_bits(seed, word + static_cast<std::uint64_t>(i) / 4);
      for (int byte = 0; byte < 4; ++byte) bytes[i + byte] = bits >> 8 * byte & 0xFFu;
    }
  }
};

/// Packs two codes per byte. Combining them as a word vectorizes.
template <int n>
void pack(std::uint8_t* out, const std::uint8_t (&codes)[n]) {
  std::uint16_t pairs[n / 2];
  std::memcpy(pairs, codes, sizeof pairs);
  for (int i = 0; i < n / 2; ++i) out[i] = static_cast<std::uint8_t>(pairs[i] | pairs[i] >> 4);
}

/// Unpacks: the values of a byte's two codes.
struct CodePair {
  float values[2];
};
constexpr auto kCodePairs = [] {
  std::array<CodePair, 256> pairs{};
  for (int byte = 0; byte < 256; ++byte)
    pairs[byte] = {{e2m1_decode(static_cast<std::uint8_t>(byte & 15)),
                    e2m1_decode(static_cast<std::uint8_t>(byte >> 4))}};
  return pairs;
}();

/// A quantized copy being written from a matrix in its storage order.
struct Fp4Copy {
  const GemmOperand& operand;
  const float* x;  // [rows, k]
  float amax;      // of the tensor
  Draws draws;

  std::int64_t rows() const { return operand.data.rows; }
  std::int64_t k() const { return operand.data.cols; }
};

/// Elements and blocks of a row processed together: as many as one correction may span. The counts are
/// constants, so that loops over them vectorize.
inline constexpr int kTogether = kLongestTransform;
template <int n>
inline constexpr int kBlocks = kTogether / n;

/// Applies EDEN's correction to the scales of blocks of row r from column k0 on. scaled: divided by their
/// steps.
template <int n>
void correct(Fp4Block (&made)[kBlocks<n>], const Fp4Copy& a, const float (&scaled)[kTogether], std::int64_t r,
             std::int64_t k0) {
  EdenSums sums[kBlocks<n>];
  eden_sums<n>(sums, scaled);
  const int share = a.operand.format.eden / n;
  for (int b = 0; share > 1 && b < kBlocks<n>; b += share) {
    EdenSums all;
    for (int i = b; i < b + share; ++i) all.add(sums[i]);
    for (int i = b; i < b + share; ++i) sums[i] = all;
  }
  std::uint32_t random[kBlocks<n>];
  for (int b = 0; b < kBlocks<n>; ++b) random[b] = random_bits(a.draws.seed, a.draws.place(r, k0 + b * n));
  float corrections[kBlocks<n>];
  for (int b = 0; b < kBlocks<n>; ++b) corrections[b] = sums[b].correction();
  std::uint8_t scales[kBlocks<n>];
  for (int b = 0; b < kBlocks<n>; ++b) scales[b] = made[b].scale;
  for (int b = 0; b < kBlocks<n>; ++b) scales[b] = eden_scale(scales[b], corrections[b], random[b]);
  for (int b = 0; b < kBlocks<n>; ++b) made[b].scale = scales[b];
}

/// Writes the scales and codes of blocks of row r from column k0 on; x points to their elements.
template <int n>
void write_blocks(const Fp4Copy& a, Fp4Block (&made)[kBlocks<n>], const float* x, std::int64_t r,
                  std::int64_t k0) {
  const int count = static_cast<int>(std::min<std::int64_t>(kBlocks<n>, (a.k() - k0) / n));
  const QuantFormat& format = a.operand.format;
  float scaled[kTogether];
  for (int b = 0; b < kBlocks<n>; ++b) {
    const float factor = made[b].factor;
    if (made[b].divide)
      for (int i = b * n; i < (b + 1) * n; ++i) scaled[i] = x[i] / factor;
    else
      for (int i = b * n; i < (b + 1) * n; ++i) scaled[i] = x[i] * factor;
  }
  if (format.eden) correct<n>(made, a, scaled, r, k0);
  std::uint8_t codes[kTogether], packed[kTogether / 2];
  if (format.element_rounding == ElementRounding::stochastic) {
    std::uint32_t bytes[kTogether];
    a.draws.fill(bytes, kTogether, r, k0);
    for (int i = 0; i < kTogether; ++i) codes[i] = e2m1_encode_stochastic(scaled[i], bytes[i]);
  } else {
    for (int i = 0; i < kTogether; ++i) codes[i] = e2m1_encode(scaled[i]);
  }
  pack(packed, codes);
  std::memcpy(a.operand.data.as<std::uint8_t>() + (r * a.k() + k0) / 2, packed, count * n / 2);
  for (int b = 0; b < count; ++b)
    a.operand.scale.as<std::uint8_t>()[scale_index(format.granularity, a.rows(), a.k(), r, k0 / n + b)] =
        made[b].scale;
}

/// Returns kTogether elements of row r from column k0 on; at a row's end a zero-padded copy in `whole`.
const float* elements(const Fp4Copy& a, std::int64_t r, std::int64_t k0, float (&whole)[kTogether]) {
  const float* x = a.x + r * a.k() + k0;
  if (a.k() - k0 >= kTogether) return x;
  std::fill(std::copy_n(x, a.k() - k0, whole), std::end(whole), 0.0f);
  return whole;
}

/// Quantizes rows [first, last) that share scales, in blocks of n.
template <int n>
void quantize_scope(const Fp4Copy& a, std::int64_t first, std::int64_t last) {
  const QuantFormat format = a.operand.format;  // a copy, so that stores to codes and scales cannot alias it
  const float amax = a.amax;
  float whole[kTogether];
  for (std::int64_t k0 = 0; k0 < a.k(); k0 += kTogether) {
    std::int32_t largest[kBlocks<n>] = {};
    for (std::int64_t r = first; r < last; ++r) {
      const float* x = elements(a, r, k0, whole);
      for (int b = 0; b < kBlocks<n>; ++b) largest[b] = std::max(largest[b], amax_bits(x + b * n, n));
    }
    float of_blocks[kBlocks<n>];
    for (int b = 0; b < kBlocks<n>; ++b) of_blocks[b] = float_of(largest[b]);
    std::uint8_t scales[kBlocks<n>], fours[kBlocks<n>] = {};
    fp4_scales_of_amax(scales, format, of_blocks, amax);
    if (format.four_over_six) {
      for (float& of_block : of_blocks) of_block *= 1.5f;
      fp4_scales_of_amax(fours, format, of_blocks, amax);
    }
    for (std::int64_t r = first; r < last; ++r) {
      const float* x = elements(a, r, k0, whole);
      Fp4Block made[kBlocks<n>];
      fp4_blocks<n>(made, format, x, scales, fours, amax);
      write_blocks<n>(a, made, x, r, k0);
    }
  }
}

/// Dequantizes row r in blocks of n, without the tensor's factor.
template <int n>
void widen_row(float* out, const GemmOperand& operand, std::int64_t r) {
  const Granularity g = operand.format.granularity;
  const std::int64_t rows = operand.data.rows, k = operand.data.cols;
  const bool e4m3 = operand.format.scale == ScaleType::e4m3;
  const std::uint8_t* codes = operand.data.as<std::uint8_t>() + r * k / 2;
  for (std::int64_t k0 = 0; k0 < k; k0 += kTogether) {
    const int count = static_cast<int>(std::min<std::int64_t>(kBlocks<n>, (k - k0) / n));
    std::uint8_t bytes[kBlocks<n>] = {};
    for (int b = 0; b < count; ++b)
      bytes[b] = operand.scale.as<std::uint8_t>()[scale_index(g, rows, k, r, k0 / n + b)];
    float scales[kBlocks<n>];
    for (int b = 0; b < kBlocks<n>; ++b) scales[b] = e4m3 ? e4m3_decode(bytes[b]) : ue8m0_decode(bytes[b]);
    for (int b = 0; b < count; ++b) {
      const float scale = scales[b];
      for (int i = 0; i < n / 2; ++i) {
        const CodePair& pair = kCodePairs[codes[(k0 + b * n) / 2 + i]];
        out[k0 + b * n + 2 * i] = pair.values[0] * scale;
        out[k0 + b * n + 2 * i + 1] = pair.values[1] * scale;
      }
    }
  }
}

}  // namespace

const float* CpuDevice::transformed(int slot, const QuantFormat& format, const float* matrix,
                                    std::int64_t rows, std::int64_t k, const RandomStream& random,
                                    bool columns) {
  if (!format.transform) return matrix;
  const SignBits signs = signs_of(format.transform, random, columns);
  float* out = scratch(slot, rows * k);
  with_length(format.transform.length, [&](auto length) {
    cpu::for_rows(threads_, rows, 0, [&](std::int64_t r, float*) {
      float* row = out + r * k;
      if (out != matrix) std::copy_n(matrix + r * k, k, row);
      hadamard_transform<length()>(row, signs, k);
    });
  });
  return out;
}

void CpuDevice::quantize_fp4(const GemmOperand& operand, const float* matrix, const RandomStream& random,
                             bool columns) {
  const std::int64_t rows = operand.data.rows, k = operand.data.cols;
  const QuantFormat& format = operand.format;
  const float* x = transformed(1, format, matrix, rows, k, random, columns);

  float amax = 0;
  if (!operand.amax.empty()) {
    std::vector<std::int32_t> by_row(static_cast<std::size_t>(rows));
    cpu::for_rows(threads_, rows, 0, [&](std::int64_t r, float*) { by_row[r] = amax_bits(x + r * k, k); });
    *operand.amax.as<float>() = amax = float_of(*std::max_element(by_row.begin(), by_row.end()));
  }
  // Padding entries of the scale buffer are defined too, so that buffers compare and copy byte for byte.
  std::memset(operand.scale.data, 0, operand.scale.bytes());
  const Fp4Copy a{operand,
                  x,
                  amax,
                  {stream_seed(cpu::word_of(random), random.stream + (columns ? 1u : 0u)), random.rows,
                   columns ? rows : k, columns}};
  const std::int64_t tall = block_rows(format.granularity);
  const auto quantize = block_length(format.granularity) == 32 ? quantize_scope<32> : quantize_scope<16>;
  cpu::for_rows(threads_, detail::blocks_of(rows, tall), 0, [&](std::int64_t scope, float*) {
    quantize(a, scope * tall, std::min(rows, (scope + 1) * tall));
  });
}

void CpuDevice::widen_fp4(float* out, const GemmOperand& operand) {
  const auto widen = block_length(operand.format.granularity) == 32 ? widen_row<32> : widen_row<16>;
  cpu::for_rows(threads_, operand.data.rows, 0,
                [&](std::int64_t r, float*) { widen(out + r * operand.data.cols, operand, r); });
}

void CpuDevice::do_dequantize(const ops::Dequantize& op) {
  const float* x = widen(0, op.operand);
  const QuantFormat& format = op.operand.format;
  const float amax = op.operand.amax.empty() ? 0.0f : *op.operand.amax.as<float>();
  const float factor = format.dtype == DType::e2m1 ? fp4_tensor_factor(format, amax) : 1.0f;
  cpu::for_rows(threads_, op.dst.rows, op.dst.cols, [&](std::int64_t r, float* row) {
    for (std::int64_t c = 0; c < op.dst.cols; ++c) row[c] = x[r * op.dst.cols + c] * factor;
    cpu::store(op.dst, r * op.dst.cols, op.dst.cols, row);
  });
}

void CpuDevice::do_inverse_hadamard(const ops::InverseHadamard& op) {
  const QuantFormat& format = op.operand.format;
  const std::int64_t rows = op.dst.rows, k = op.dst.cols, block = block_length(format.granularity);
  const SignBits signs = sign_bits(format.transform.signs, 0, 0);
  const float* source = widen(0, {{}, op.src, {}, false});
  const float* clipped = nullptr;
  if (!op.value.empty())
    clipped = transformed(1, format, widen(1, {{}, op.value, {}, false}), rows, k, {}, false);
  cpu::for_rows(threads_, rows, 2 * k, [&](std::int64_t r, float* row) {
    std::copy_n(source + r * k, k, row);
    for (std::int64_t k0 = 0; clipped && k0 < k; k0 += block) {
      const std::int64_t at = scale_index(format.granularity, rows, k, r, k0 / block);
      const std::uint8_t scale = op.operand.scale.as<std::uint8_t>()[at];
      for (std::int64_t i = k0; i < k0 + block; ++i)
        row[i] = fp4_clips(clipped[r * k + i], scale) ? 0.0f : row[i];
    }
    with_length(format.transform.length, [&](auto length) {
      hadamard_sums<length()>(row, k);
      for (std::int64_t i = 0; i < k; ++i) row[i] *= hadamard_factor(length);
      signs.apply_to<length()>(row, k);
    });
    if (op.accumulate) {
      const float* before = cpu::load(op.dst, r * k, k, row + k);
      for (std::int64_t i = 0; i < k; ++i) row[i] += before[i];
    }
    cpu::store(op.dst, r * k, k, row);
  });
}

}  // namespace precbench
