// Elements of a tensor that is kept as codes with scales (state_formats.h), or as FP32 or BF16 without, where which it is
// is known at run time only.
#pragma once

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
};

inline StoredArgs stored_args(const Tensor& codes, const StateScale& scale) {
  const Stored stored = codes.dtype == DType::f32    ? Stored::f32
                        : codes.dtype == DType::bf16 ? Stored::bf16
                        : codes.dtype == DType::f16  ? Stored::f16
                        : scale.groups()             ? Stored::coat
                                                     : Stored::e4m3;
  return {codes.data, scale.scale.as<float>(), scale.amax.as<float>(), state_max(codes.dtype), stored};
}

/// Of anything but COAT's groups.
__device__ inline float load_stored(const StoredArgs& a, std::int64_t i) {
  switch (a.stored) {
    case Stored::f32:
      return static_cast<const float*>(a.codes)[i];
    case Stored::bf16:
      return to_float(static_cast<const std::uint16_t*>(a.codes)[i]);
    case Stored::f16:
      return f16_decode(static_cast<const std::uint16_t*>(a.codes)[i]) * __fdiv_rn(1.0f, *a.scale);
    default:
      return e4m3_decode(static_cast<const std::uint8_t*>(a.codes)[i]) * __fdiv_rn(1.0f, *a.scale);
  }
}

/// By the scale that the amax gives, which is noted later.
__device__ inline void store_stored(const StoredArgs& a, std::int64_t i, float x) {
  if (a.stored == Stored::f32) {
    static_cast<float*>(a.codes)[i] = x;
  } else if (a.stored == Stored::bf16) {
    from_float(static_cast<std::uint16_t*>(a.codes)[i], x);
  } else {
    const float scaled = x * state_scale(*a.amax, a.max, *a.scale);
    if (a.stored == Stored::f16)
      static_cast<std::uint16_t*>(a.codes)[i] = f16_encode(scaled);
    else
      static_cast<std::uint8_t*>(a.codes)[i] = e4m3_encode(scaled);
  }
}

/// By one thread of the block. Non-negative floats are ordered as integers, NaN above all.
__device__ inline void raise_amax(const StoredArgs& a, std::uint32_t bits) {
  if (a.amax && threadIdx.x == 0) atomicMax(reinterpret_cast<unsigned*>(a.amax), bits);
}

/// sum_of_squares of codes with a scale.
void sum_code_squares(CudaDevice& device, const ops::SumOfSquares& op);

}  // namespace precbench::cuda
