// Building blocks of the memory-bound kernels: BF16 in 16-byte vectors, amax on packed bits, FP8 in words of
// four, and reductions over a warp or a block.
//
// Amax works on BF16 bits without sign, two per register: their integer order is that of magnitudes, with Inf
// above all numbers and NaN above Inf (formats.h), and an integer maximum is independent of the order.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>

#include "kernels/numerics/formats.h"
#include "kernels/numerics/tensor.h"

namespace precbench::cuda {

inline constexpr int kWarp = 32;
inline constexpr std::uint32_t kAllLanes = 0xFFFFFFFFu;

/// Eight consecutive BF16, the even ones in the low halves.
struct Bf16x8 {
  std::uint32_t pair[4];
};

__device__ inline float low(std::uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ inline float high(std::uint32_t pair) { return __uint_as_float(pair & 0xFFFF0000u); }

/// Packs two floats, rounded to nearest even.
__device__ inline std::uint32_t pack(float even, float odd) {
  const __nv_bfloat162 rounded = __floats2bfloat162_rn(even, odd);
  return static_cast<std::uint32_t>(__bfloat16_as_ushort(rounded.x)) |
         static_cast<std::uint32_t>(__bfloat16_as_ushort(rounded.y)) << 16;
}

__device__ inline void unpack(float (&out)[8], const Bf16x8& v) {
#pragma unroll
  for (int p = 0; p < 4; ++p) {
    out[2 * p] = low(v.pair[p]);
    out[2 * p + 1] = high(v.pair[p]);
  }
}

__device__ inline Bf16x8 pack(const float (&values)[8]) {
  Bf16x8 v;
#pragma unroll
  for (int p = 0; p < 4; ++p) v.pair[p] = pack(values[2 * p], values[2 * p + 1]);
  return v;
}

/// Makes the compiler discard the values unpacked from v, which it would otherwise keep in twice the
/// registers.
__device__ inline void stay_packed(Bf16x8& v) {
#pragma unroll
  for (int p = 0; p < 4; ++p) asm volatile("" : "+r"(v.pair[p]));
}

/// `p` must be 16-byte aligned.
__device__ inline Bf16x8 load_vector(const void* p) {
  const uint4 v = *static_cast<const uint4*>(p);
  return {{v.x, v.y, v.z, v.w}};
}
__device__ inline void store_vector(void* p, const Bf16x8& v) {
  *static_cast<uint4*>(p) = make_uint4(v.pair[0], v.pair[1], v.pair[2], v.pair[3]);
}

/// Eight FP32 at a 16-byte aligned address.
__device__ inline void load_vector(float (&out)[8], const float* p) {
  const float4 a = reinterpret_cast<const float4*>(p)[0], b = reinterpret_cast<const float4*>(p)[1];
  out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w;
  out[4] = b.x, out[5] = b.y, out[6] = b.z, out[7] = b.w;
}
__device__ inline void store_vector(float* p, const float (&v)[8]) {
  reinterpret_cast<float4*>(p)[0] = make_float4(v[0], v[1], v[2], v[3]);
  reinterpret_cast<float4*>(p)[1] = make_float4(v[4], v[5], v[6], v[7]);
}

// Returns a BF16 element (given as bits) or an FP32 element as float.
__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(std::uint16_t bits) { return low(bits); }
__device__ inline void from_float(float& out, float x) { out = x; }
__device__ inline void from_float(std::uint16_t& out, float x) {
  out = __bfloat16_as_ushort(__float2bfloat16_rn(x));
}

/// Eight elements at a 16-byte aligned address.
__device__ inline void load_vector(float (&out)[8], const std::uint16_t* p) { unpack(out, load_vector(p)); }
__device__ inline void store_vector(std::uint16_t* p, const float (&v)[8]) { store_vector(p, pack(v)); }

/// Calls body(T()) with the element type of an f32 or bf16 tensor.
template <class Body>
void with_type(DType dtype, Body&& body) {
  if (dtype == DType::f32) return body(float());
  body(std::uint16_t());
}

/// A BF16 window [rows, cols] of a matrix with rows `pitch` elements apart.
struct Matrix {
  std::uint16_t* data = nullptr;  ///< null: absent
  std::int64_t rows = 0, cols = 0, pitch = 0;
  bool vectors = false;  ///< every eighth column of every row is 16-byte aligned
};

/// Returns columns [first, first + count) of a BF16 tensor.
inline Matrix matrix(const Tensor& t, std::int64_t first, std::int64_t count) {
  if (t.empty()) return {};
  std::uint16_t* data = t.as<std::uint16_t>() + first;
  return {data, t.rows, count, t.cols, t.cols % 8 == 0 && reinterpret_cast<std::uintptr_t>(data) % 16 == 0};
}
inline Matrix matrix(const Tensor& t) { return matrix(t, 0, t.cols); }

/// Loads eight elements from (row, col) on; those outside the matrix are 0. kFull: all are inside, and
/// m.vectors.
template <bool kFull>
__device__ inline Bf16x8 load(const Matrix& m, std::int64_t row, std::int64_t col) {
  const std::uint16_t* p = m.data + row * m.pitch + col;
  if (kFull) return load_vector(p);
  Bf16x8 v = {};
  if (row >= m.rows) return v;
  if (m.vectors && col + 8 <= m.cols) return load_vector(p);
#pragma unroll
  for (int j = 0; j < 8; ++j)
    if (col + j < m.cols) v.pair[j / 2] |= static_cast<std::uint32_t>(p[j]) << (16 * (j % 2));
  return v;
}

template <bool kFull>
__device__ inline void store(const Matrix& m, std::int64_t row, std::int64_t col, const Bf16x8& v) {
  std::uint16_t* p = m.data + row * m.pitch + col;
  if (kFull) return store_vector(p, v);
  if (row >= m.rows) return;
  if (m.vectors && col + 8 <= m.cols) return store_vector(p, v);
#pragma unroll
  for (int j = 0; j < 8; ++j)
    if (col + j < m.cols) p[j] = static_cast<std::uint16_t>(v.pair[j / 2] >> (16 * (j % 2)));
}

/// 2^x, within 2 ulp; 2^-inf is 0.
__device__ inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// ---- amax on bits ----

inline constexpr std::uint32_t kNoSigns = 0x7FFF7FFFu;

/// Maximum of each half.
__device__ inline std::uint32_t max_of_pairs(std::uint32_t a, std::uint32_t b) { return __vmaxu2(a, b); }
__device__ inline std::uint32_t max_of_pairs(const Bf16x8& v) {
  return max_of_pairs(max_of_pairs(v.pair[0] & kNoSigns, v.pair[1] & kNoSigns),
                      max_of_pairs(v.pair[2] & kNoSigns, v.pair[3] & kNoSigns));
}
/// Returns the larger half, as BF16 bits.
__device__ inline std::uint32_t max_half(std::uint32_t pair) { return max(pair & 0xFFFFu, pair >> 16); }

// ---- FP8 ----

/// Returns four codes, `a` in the lowest byte; equal to e4m3_encode or e5m2_encode.
__device__ inline std::uint32_t fp8x4(float a, float b, float c, float d, DType dtype) {
#if __CUDA_ARCH__ >= 890
  const __nv_fp8_interpretation_t format = dtype == DType::e4m3 ? __NV_E4M3 : __NV_E5M2;
  const std::uint32_t ab = __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, format);
  const std::uint32_t cd = __nv_cvt_float2_to_fp8x2(make_float2(c, d), __NV_SATFINITE, format);
  return ab | cd << 16;
#else
  const float x[4] = {a, b, c, d};
  std::uint32_t word = 0;
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t code = dtype == DType::e4m3 ? e4m3_encode(x[i]) : e5m2_encode(x[i]);
    word |= code << (8 * i);
  }
  return word;
#endif
}

/// Decodes eight E4M3 codes; equal to e4m3_decode.
__device__ inline void unpack_e4m3(float (&out)[8], uint2 codes) {
#pragma unroll
  for (int p = 0; p < 4; ++p) {
    const std::uint32_t two = (p < 2 ? codes.x : codes.y) >> (16 * (p % 2)) & 0xFFFFu;
#if __CUDA_ARCH__ >= 890
    const __half2_raw halves = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(two), __NV_E4M3);
    const float2 both = __half22float2(__half2(halves));
    out[2 * p] = both.x, out[2 * p + 1] = both.y;
#else
    out[2 * p] = e4m3_decode(static_cast<std::uint8_t>(two));
    out[2 * p + 1] = e4m3_decode(static_cast<std::uint8_t>(two >> 8));
#endif
  }
}

/// FP8 with dropped mantissa bits (QuantFormat::dropped_bits).
struct NarrowerFp8 {
  DType dtype;
  NarrowerValues values;
};

/// Not inlined, so that kernels for full-width formats stay short.
static __device__ __noinline__ std::uint32_t fp8x4(float a, float b, float c, float d, NarrowerFp8 to) {
  const auto rounded = [to](float x) { return round_to_narrower(x, to.values); };
  return fp8x4(rounded(a), rounded(b), rounded(c), rounded(d), to.dtype);
}

/// Returns the codes of eight values times `factor`.
template <class Format>
__device__ __forceinline__ uint2 fp8x8(const Bf16x8& v, float factor, Format to) {
  float x[8];
  unpack(x, v);
  return make_uint2(fp8x4(x[0] * factor, x[1] * factor, x[2] * factor, x[3] * factor, to),
                    fp8x4(x[4] * factor, x[5] * factor, x[6] * factor, x[7] * factor, to));
}

/// Calls body(std::integral_constant<DType, dtype>()), so that one branch selects the type instead of issuing
/// each conversion for both. Calls body(NarrowerFp8) if bits are dropped, which is for controls and need not
/// be fast.
template <class Body>
__device__ inline void with_fp8(DType dtype, int dropped_bits, Body&& body) {
  if (dropped_bits > 0)
    body(NarrowerFp8{dtype, NarrowerValues(dtype, dropped_bits)});
  else if (dtype == DType::e4m3)
    body(std::integral_constant<DType, DType::e4m3>());
  else
    body(std::integral_constant<DType, DType::e5m2>());
}

__device__ inline float fp8_decode(std::uint8_t code, DType dtype) {
  return dtype == DType::e4m3 ? e4m3_decode(code) : e5m2_decode(code);
}

/// Transposes a 4x4 square of codes: each word holds one row before, one column after.
__device__ inline void transpose_4x4(std::uint32_t (&word)[4]) {
  const std::uint32_t ab_low = __byte_perm(word[0], word[1], 0x5140);
  const std::uint32_t ab_high = __byte_perm(word[0], word[1], 0x7362);
  const std::uint32_t cd_low = __byte_perm(word[2], word[3], 0x5140);
  const std::uint32_t cd_high = __byte_perm(word[2], word[3], 0x7362);
  word[0] = __byte_perm(ab_low, cd_low, 0x5410);
  word[1] = __byte_perm(ab_low, cd_low, 0x7632);
  word[2] = __byte_perm(ab_high, cd_high, 0x5410);
  word[3] = __byte_perm(ab_high, cd_high, 0x7632);
}

// ---- reductions ----

template <class T>
__device__ inline T warp_sum(T x) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);
  return x;
}

/// Returns the sum over the block in every thread. One barrier: two consecutive calls need different buffers,
/// and a buffer is free again after another call's barrier.
template <class T>
__device__ inline T block_sum(T x, T* buffer /* [32] */) {
  x = warp_sum(x);
  if (threadIdx.x % kWarp == 0) buffer[threadIdx.x / kWarp] = x;
  __syncthreads();
  const unsigned lane = threadIdx.x % kWarp;
  return warp_sum(lane < (blockDim.x + kWarp - 1) / kWarp ? buffer[lane] : T(0));
}

/// Returns the maximum over the block, with the same rules.
__device__ inline std::uint32_t block_max(std::uint32_t x, std::uint32_t* buffer /* [32] */) {
  x = __reduce_max_sync(kAllLanes, x);
  if (threadIdx.x % kWarp == 0) buffer[threadIdx.x / kWarp] = x;
  __syncthreads();
  const unsigned lane = threadIdx.x % kWarp;
  return __reduce_max_sync(kAllLanes, lane < (blockDim.x + kWarp - 1) / kWarp ? buffer[lane] : 0u);
}

}  // namespace precbench::cuda
