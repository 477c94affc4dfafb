// Inputs of norms and SwiGLU as their kernels read them: in BF16, or in groups of 16 (keeps_directly) that forward makes
// of BF16 in the same pass and that backward reads. Data and scales are those of quantize and dequantize, bit for bit.
//
// An input has: vectors, whether 16-byte loads are possible everywhere; rows, cols; Raw, eight elements as loaded;
//   Raw fetch<kFull>(row, col)        the load; elements outside are 0
//   Bf16x8 value(raw, row, col)       the elements
// Two adjacent lanes have the halves of a group. A dequantized element has eight significant bits, so BF16 is exact.
#pragma once

#include "kernels/base/errors.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/quantize/gemm_operands.cuh"
#include "kernels/numerics/custom_format.h"

namespace precbench::cuda {

/// A BF16 matrix.
struct PlainInput : Matrix {
  using Raw = Bf16x8;
  template <bool kFull>
  __device__ Raw fetch(std::int64_t row, std::int64_t col) const {
    return load<kFull>(*this, row, col);
  }
  __device__ const Bf16x8& value(const Raw& raw, std::int64_t, std::int64_t) const { return raw; }
};

/// Columns [first, first + cols) of data in groups of 16, multiples of 16 all of them.
struct KeptInput {
  static constexpr bool vectors = true;
  struct Raw {
    uint2 codes;
    std::uint32_t scale;  ///< UE5M3
  };
  std::uint8_t *codes, *scales;
  std::int64_t rows, cols, first, k;

  KeptInput(const GemmOperand& kept, std::int64_t first_col, std::int64_t count)
      : codes(kept.data.as<std::uint8_t>()),
        scales(kept.scale.as<std::uint8_t>()),
        rows(kept.data.rows),
        cols(count),
        first(first_col),
        k(kept.data.cols) {
    if (!keeps_directly(kept.format, first) || cols % 16 != 0)
      throw Unsupported("the CUDA device keeps inputs in groups of 16 only");
  }

  __device__ std::int64_t scale_at(std::int64_t row, std::int64_t col) const {
    return scale_index(Granularity::block_1x16, rows, k, row, (first + col) / 16);
  }
  template <bool kFull>
  __device__ Raw fetch(std::int64_t row, std::int64_t col) const {
    if (!kFull && (row >= rows || col >= cols)) return {};
    return {*reinterpret_cast<const uint2*>(codes + row * k + first + col), scales[scale_at(row, col)]};
  }
  __device__ Bf16x8 value(const Raw& raw, std::int64_t, std::int64_t) const {
    return dequantized(raw.codes, ue5m3_decode(static_cast<std::uint8_t>(raw.scale)));
  }

  __device__ static Bf16x8 dequantized(uint2 data, float scale) {
    float x[8];
    unpack_e4m3(x, data);
#pragma unroll
    for (int j = 0; j < 8; ++j) x[j] *= scale;
    return pack(x);
  }
  /// Returns eight elements inside the matrix. The BF16 value is not read.
  __device__ Bf16x8 read(std::int64_t row, std::int64_t col, const std::uint16_t*) const {
    return value(fetch<true>(row, col), row, col);
  }
  /// Writes the eight elements `x` if they are `inside`, and returns them as fetch() and value() will. Both lanes of a
  /// group must call it.
  __device__ Bf16x8 keep(std::int64_t row, std::int64_t col, const Bf16x8& x, bool inside) const {
    constexpr ScaleRule kRule{ScaleType::ue5m3, ScaleRounding::none, mantissa_bits_of(DType::e4m3, 0),
                              kE4m3Max};
    std::uint32_t amax = max_half(max_of_pairs(x));
    amax = max(amax, __shfl_xor_sync(3u << (threadIdx.x % kWarp & ~1u), amax, 1));
    const CustomScale scale = custom_scale(kRule, __uint_as_float(amax << 16), 0.0f);
    const uint2 data = fp8x8(x, scale.multiply, std::integral_constant<DType, DType::e4m3>());
    if (inside) {
      *reinterpret_cast<uint2*>(codes + row * k + first + col) = data;
      if (col % 16 == 0) scales[scale_at(row, col)] = scale.byte;
    }
    return dequantized(data, scale.dequantize);
  }
};

/// In place of a KeptInput: the BF16 value stays as it is.
struct NotKept {
  __device__ static Bf16x8 keep(std::int64_t, std::int64_t, const Bf16x8& x, bool) { return x; }
  __device__ static Bf16x8 read(std::int64_t, std::int64_t, const std::uint16_t* value) {
    return load_vector(value);
  }
};

/// A BF16 matrix that is kept as it is read.
struct KeepingInput {
  using Raw = Bf16x8;
  PlainInput from;
  KeptInput to;
  bool vectors = from.vectors;
  std::int64_t rows = to.rows, cols = to.cols;

  template <bool kFull>
  __device__ Raw fetch(std::int64_t row, std::int64_t col) const {
    return from.template fetch<kFull>(row, col);
  }
  __device__ Bf16x8 value(const Raw& raw, std::int64_t row, std::int64_t col) const {
    return to.keep(row, col, raw, row < rows && col < cols);
  }
};

/// Zeroes the scales of `kept` if some have no elements, which kernels do not write.
inline void clear_padding(const GemmOperand& kept, cudaStream_t stream) {
  if (kept.scale.size() != kept.data.size() / 16)
    PRECBENCH_CHECK(cudaMemsetAsync(kept.scale.data, 0, kept.scale.bytes(), stream));
}

}  // namespace precbench::cuda
