// FP8 quantization by scopes; internal to kernels/cpu. An amax over a scope (tensor, row or block), a scale
// from it, and every element multiplied by the scale and cast with saturation.
#pragma once

#include <algorithm>
#include <cstring>

#include "kernels/cpu/vector.h"
#include "kernels/device/operands.h"
#include "kernels/numerics/amax.h"
#include "kernels/numerics/scale_layout.h"

namespace precbench::cpu {

/// Returns max |x| over n values and `start`; NaN if any is NaN.
inline float amax_of(const float* x, std::int64_t n, float start = 0.0f) {
  return bits_to_float(static_cast<std::uint32_t>(std::max(abs_bits(start), amax_bits(x, n))));
}

/// A scope's scale in both directions.
struct Scale {
  float multiply;     // before the cast
  float dequantize;   // as passed to the GEMM, in FP32
  std::uint8_t byte;  // the same as ue8m0, e4m3 or ue5m3
};

inline Scale scale_of(float amax, const QuantFormat& format) {
  if (format.scale == ScaleType::ue8m0) {
    const std::uint8_t byte = ue8m0_from_amax(amax, format.dtype, format.scale_rounding, format.dropped_bits);
    return {ue8m0_multiplier(byte), ue8m0_decode(byte), byte};
  }
  const float multiply = format.delayed()
                             ? delayed_scale(amax, format_max(format.dtype, format.dropped_bits),
                                             format.history.margin, format.scale)
                             : multiplying_scale(amax, format.dtype, format.scale, format.dropped_bits);
  return {multiply, 1.0f / multiply, 0};
}

inline void store_scale(const Tensor& scales, std::int64_t index, const Scale& scale) {
  if (scales.dtype != DType::f32)
    scales.as<std::uint8_t>()[index] = scale.byte;
  else
    scales.as<float>()[index] = scale.dequantize;
}

/// The format is a template parameter so that the loop can be vectorized.
template <DType dtype, int dropped_bits>
void cast_narrower(std::uint8_t* q, const float* x, std::int64_t n, float multiply) {
  for (std::int64_t i = 0; i < n; ++i) {
    const float value = round_to_narrower(x[i] * multiply, dtype, dropped_bits);
    q[i] = dtype == DType::e4m3 ? e4m3_encode(value) : e5m2_encode(value);
  }
}

template <DType dtype>
void cast_in_bf16(std::uint16_t* q, const float* x, std::int64_t n, float multiply) {
  for (std::int64_t i = 0; i < n; ++i) q[i] = encode_in_bf16(x[i] * multiply, dtype);
}

/// Casts n elements to codes from `first` on.
inline void cast(const Tensor& codes, std::int64_t first, const float* x, std::int64_t n, float multiply,
                 const QuantFormat& format) {
  const DType dtype = format.dtype;
  std::uint8_t* q = codes.as<std::uint8_t>() + first;
  if (held_in_bf16(dtype))
    (dtype == DType::e5m3   ? cast_in_bf16<DType::e5m3>
     : dtype == DType::e4m4 ? cast_in_bf16<DType::e4m4>
     : dtype == DType::e3m4 ? cast_in_bf16<DType::e3m4>
                            : cast_in_bf16<DType::e3m3>)(codes.as<std::uint16_t>() + first, x, n, multiply);
  else if (format.dropped_bits > 0)
    (dtype == DType::e5m2       ? cast_narrower<DType::e5m2, 1>
     : format.dropped_bits == 1 ? cast_narrower<DType::e4m3, 1>
                                : cast_narrower<DType::e4m3, 2>)(q, x, n, multiply);
  else if (dtype == DType::e4m3)
    for (std::int64_t i = 0; i < n; ++i) q[i] = e4m3_encode(x[i] * multiply);
  else
    for (std::int64_t i = 0; i < n; ++i) q[i] = e5m2_encode(x[i] * multiply);
}

/// A source of rows: the matrix itself, or its transpose read from tiles already converted to FP32.
struct Rows {
  const float* data;  // [rows, k]
  std::int64_t rows, k;
  const float* row(std::int64_t r) const { return data + r * k; }
};

/// Returns the random word of a stream; 0 if it has none.
inline std::uint32_t word_of(const RandomStream& random) {
  return random.word.empty() ? 0 : *random.word.as<std::uint32_t>();
}

/// Quantizes scope by scope. make_scale(amax): the scope's scale. cast_run(r, k0, n, scale): casts n elements
/// of row r from k0 on. `tensor_amax`: for granularity tensor.
template <class MakeScale, class CastRun>
void quantize_scopes(int threads, const GemmOperand& operand, const Rows& source, float tensor_amax,
                     const MakeScale& make_scale, const CastRun& cast_run) {
  const Granularity g = operand.format.granularity;
  const std::int64_t block = block_length(g) ? block_length(g) : source.k;
  const std::int64_t scope_rows = block_rows(g);
  const bool by_row = g == Granularity::block_32x32 || g == Granularity::block_16x16;  // of stored scales
  // Padding entries of the scale buffer are defined too, so that buffers compare and copy byte for byte.
  std::memset(operand.scale.data, 0, operand.scale.bytes());
  for_rows(threads, detail::blocks_of(source.rows, scope_rows), 0, [&](std::int64_t scope, float*) {
    const std::int64_t first = scope * scope_rows;
    const std::int64_t last = std::min(source.rows, first + scope_rows);
    for (std::int64_t k0 = 0, kb = 0; k0 < source.k; k0 += block, ++kb) {
      const std::int64_t n = std::min(block, source.k - k0);
      float amax = tensor_amax;
      if (g != Granularity::tensor)
        for (std::int64_t r = first; r < last; ++r)
          amax = amax_of(source.row(r) + k0, n, r == first ? 0.0f : amax);
      const Scale scale = make_scale(amax);
      if (g != Granularity::tensor || (first == 0 && kb == 0))
        store_scale(operand.scale, scale_index(g, source.rows, source.k, first, kb), scale);
      for (std::int64_t r = first + 1; by_row && r < last; ++r)
        store_scale(operand.scale, scale_index(g, source.rows, source.k, r, kb), scale);
      for (std::int64_t r = first; r < last; ++r) cast_run(r, k0, n, scale);
    }
  });
}

inline void quantize_rows(int threads, const GemmOperand& operand, const Rows& source, float tensor_amax) {
  const QuantFormat& format = operand.format;
  quantize_scopes(
      threads, operand, source, tensor_amax, [&](float amax) { return scale_of(amax, format); },
      [&](std::int64_t r, std::int64_t k0, std::int64_t n, const Scale& scale) {
        cast(operand.data, r * source.k + k0, source.row(r) + k0, n, scale.multiply, format);
      });
}

template <class T>
void transpose_matrix(int threads, T* out, const T* in, std::int64_t rows, std::int64_t cols) {
  constexpr std::int64_t kTile = 32;
  for_rows(threads, detail::blocks_of(cols, kTile), 0, [&](std::int64_t tile, float*) {
    const std::int64_t c_end = std::min(cols, (tile + 1) * kTile);
    for (std::int64_t r0 = 0; r0 < rows; r0 += kTile)
      for (std::int64_t c = tile * kTile; c < c_end; ++c)
        for (std::int64_t r = r0; r < std::min(rows, r0 + kTile); ++r) out[c * rows + r] = in[r * cols + c];
  });
}

}  // namespace precbench::cpu
