// Elements of a tensor stored as codes with scales (state_formats.h), or as FP32 or BF16 without; the format
// is known at run time. Eight at a time, with one or two accesses if aligned. Conversions are the hardware's
// and give the codes of state_formats.h.
#pragma once

#include <cuda_fp16.h>

#include "kernels/cuda/elementwise/elements.cuh"
#include "kernels/numerics/state_formats.h"

namespace precbench::cuda {

enum class Stored : int { f32, bf16, f16, e4m3, coat };

struct StoredArgs {
  void* codes;
  float* scale;
  float* amax;
  float max;
  Stored stored;
  bool vectors;  ///< every eighth element is aligned for an access of eight
};

inline StoredArgs stored_args(const Tensor& codes, const StateScale& scale) {
  const Stored stored = codes.dtype == DType::f32    ? Stored::f32
                        : codes.dtype == DType::bf16 ? Stored::bf16
                        : codes.dtype == DType::f16  ? Stored::f16
                        : scale.groups()             ? Stored::coat
                                                     : Stored::e4m3;
  const std::uintptr_t access = std::min<std::int64_t>(bytes_of(codes.dtype, 8), 16);
  return {codes.data,
          scale.scale.as<float>(),
          scale.amax.as<float>(),
          state_max(codes.dtype),
          stored,
          reinterpret_cast<std::uintptr_t>(codes.data) % access == 0};
}

/// Eight elements in their memory format: eight words of FP32, four of 16-bit, two of 8-bit.
struct EightStored {
  std::uint32_t word[8];
};

/// Loads elements [i, i + 8), kBytes each; those beyond the end are 0.
template <int kBytes>
__device__ inline void fetch_eight(EightStored& to, const void* elements, std::int64_t i, std::int64_t size,
                                   bool vectors) {
  const char* from = static_cast<const char*>(elements) + i * kBytes;
  if (vectors && i + 8 <= size) {
    if constexpr (kBytes == 1) {
      const uint2 v = *reinterpret_cast<const uint2*>(from);
      to.word[0] = v.x, to.word[1] = v.y;
    } else {
#pragma unroll
      for (int k = 0; k < kBytes / 2; ++k) {
        const uint4 v = reinterpret_cast<const uint4*>(from)[k];
        to.word[4 * k] = v.x, to.word[4 * k + 1] = v.y, to.word[4 * k + 2] = v.z, to.word[4 * k + 3] = v.w;
      }
    }
    return;
  }
  using Element = std::conditional_t<kBytes == 1, std::uint8_t,
                                     std::conditional_t<kBytes == 2, std::uint16_t, std::uint32_t>>;
#pragma unroll
  for (int k = 0; k < 2 * kBytes; ++k) to.word[k] = 0;
#pragma unroll
  for (int j = 0; j < 8; ++j)
    if (i + j < size)
      to.word[j * kBytes / 4] |= static_cast<std::uint32_t>(reinterpret_cast<const Element*>(from)[j])
                                 << (8 * (j * kBytes % 4));
}

template <int kBytes>
__device__ inline void put_eight(void* elements, const EightStored& eight, std::int64_t i, std::int64_t size,
                                 bool vectors) {
  char* to = static_cast<char*>(elements) + i * kBytes;
  if (vectors && i + 8 <= size) {
    if constexpr (kBytes == 1) {
      *reinterpret_cast<uint2*>(to) = make_uint2(eight.word[0], eight.word[1]);
    } else {
#pragma unroll
      for (int k = 0; k < kBytes / 2; ++k)
        reinterpret_cast<uint4*>(to)[k] = make_uint4(eight.word[4 * k], eight.word[4 * k + 1],
                                                     eight.word[4 * k + 2], eight.word[4 * k + 3]);
    }
    return;
  }
  using Element = std::conditional_t<kBytes == 1, std::uint8_t,
                                     std::conditional_t<kBytes == 2, std::uint16_t, std::uint32_t>>;
#pragma unroll
  for (int j = 0; j < 8; ++j)
    if (i + j < size)
      reinterpret_cast<Element*>(to)[j] =
          static_cast<Element>(eight.word[j * kBytes / 4] >> (8 * (j * kBytes % 4)));
}

// ---- conversions

/// Returns the bits of f16_encode.
__device__ inline std::uint32_t f16_code(float x) {
  const float clamped = fminf(fmaxf(x, -kF16Max), kF16Max);
  return isnan(x) ? 0x7E00u : __half_as_ushort(__float2half_rn(clamped));
}

template <int kBytes>
__device__ inline void decode_eight(float (&x)[8], const EightStored& eight);

/// e4m3; NaN codes give NaN.
template <>
__device__ inline void decode_eight<1>(float (&x)[8], const EightStored& eight) {
#pragma unroll
  for (int pair = 0; pair < 4; ++pair) {
    const auto codes = static_cast<__nv_fp8x2_storage_t>(eight.word[pair / 2] >> (16 * (pair % 2)));
    const float2 two = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(codes, __NV_E4M3)));
    x[2 * pair] = two.x, x[2 * pair + 1] = two.y;
  }
}

/// FP16
template <>
__device__ inline void decode_eight<2>(float (&x)[8], const EightStored& eight) {
#pragma unroll
  for (int j = 0; j < 8; ++j)
    x[j] = __half2float(__ushort_as_half(static_cast<std::uint16_t>(eight.word[j / 2] >> (16 * (j % 2)))));
}

template <int kBytes>
__device__ inline void encode_eight(EightStored& eight, const float (&x)[8]);

template <>
__device__ inline void encode_eight<1>(EightStored& eight, const float (&x)[8]) {
  eight.word[0] = fp8x4(x[0], x[1], x[2], x[3], DType::e4m3);
  eight.word[1] = fp8x4(x[4], x[5], x[6], x[7], DType::e4m3);
}

template <>
__device__ inline void encode_eight<2>(EightStored& eight, const float (&x)[8]) {
#pragma unroll
  for (int pair = 0; pair < 4; ++pair)
    eight.word[pair] = f16_code(x[2 * pair]) | f16_code(x[2 * pair + 1]) << 16;
}

// ---- by format

/// Issues the load of eight elements without waiting for it.
__device__ inline EightStored fetch_stored(const StoredArgs& a, std::int64_t i, std::int64_t size) {
  EightStored eight;
  if (a.stored == Stored::f32)
    fetch_eight<4>(eight, a.codes, i, size, a.vectors);
  else if (a.stored == Stored::bf16 || a.stored == Stored::f16)
    fetch_eight<2>(eight, a.codes, i, size, a.vectors);
  else
    fetch_eight<1>(eight, a.codes, i, size, a.vectors);
  return eight;
}

/// Returns the dequantization factor of codes with a per-tensor scale; 1 without one.
__device__ inline float kept_factor(const StoredArgs& a) {
  return a.scale && a.stored != Stored::coat ? __fdiv_rn(1.0f, *a.scale) : 1.0f;
}

/// Returns the factor before encoding, from the scale that the amax gives, which is recorded later.
__device__ inline float new_factor(const StoredArgs& a) {
  return a.scale && a.stored != Stored::coat ? state_scale(*a.amax, a.max, *a.scale) : 1.0f;
}

/// For formats other than COAT's groups; `factor`: kept_factor.
__device__ inline void widen_stored(float (&x)[8], const StoredArgs& a, const EightStored& eight,
                                    float factor) {
  if (a.stored == Stored::f32) {
#pragma unroll
    for (int j = 0; j < 8; ++j) x[j] = __uint_as_float(eight.word[j]);
    return;
  }
  if (a.stored == Stored::bf16) {
#pragma unroll
    for (int j = 0; j < 8; ++j) x[j] = j % 2 ? high(eight.word[j / 2]) : low(eight.word[j / 2]);
    return;
  }
  if (a.stored == Stored::f16)
    decode_eight<2>(x, eight);
  else
    decode_eight<1>(x, eight);
#pragma unroll
  for (int j = 0; j < 8; ++j) x[j] *= factor;
}

/// For formats other than COAT's groups; `factor`: new_factor.
__device__ inline void store_stored(const StoredArgs& a, std::int64_t i, std::int64_t size,
                                    const float (&x)[8], float factor) {
  EightStored eight;
  if (a.stored == Stored::f32) {
#pragma unroll
    for (int j = 0; j < 8; ++j) eight.word[j] = __float_as_uint(x[j]);
    return put_eight<4>(a.codes, eight, i, size, a.vectors);
  }
  if (a.stored == Stored::bf16) {
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) eight.word[pair] = pack(x[2 * pair], x[2 * pair + 1]);
    return put_eight<2>(a.codes, eight, i, size, a.vectors);
  }
  float scaled[8];
#pragma unroll
  for (int j = 0; j < 8; ++j) scaled[j] = x[j] * factor;
  if (a.stored == Stored::f16) {
    encode_eight<2>(eight, scaled);
    put_eight<2>(a.codes, eight, i, size, a.vectors);
  } else {
    encode_eight<1>(eight, scaled);
    put_eight<1>(a.codes, eight, i, size, a.vectors);
  }
}

/// One thread of the block raises it. Non-negative floats are ordered as integers, NaN above all.
__device__ inline void raise_amax(const StoredArgs& a, std::uint32_t bits) {
  if (a.amax && threadIdx.x == 0) atomicMax(reinterpret_cast<unsigned*>(a.amax), bits);
}

__device__ inline std::uint32_t amax_of(std::uint32_t amax, const float (&x)[8]) {
#pragma unroll
  for (int j = 0; j < 8; ++j) amax = max(amax, static_cast<std::uint32_t>(abs_bits(x[j])));
  return amax;
}

/// Computes sum_of_squares of codes with a scale.
void sum_code_squares(CudaDevice& device, const ops::SumOfSquares& op);

}  // namespace precbench::cuda
