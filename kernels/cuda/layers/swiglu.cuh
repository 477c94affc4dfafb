// SwiGLU: s = act(gate) * up * weight, where act is SiLU or GELU, from gate_up [M, 2F] = [gate | up], and its
// backward, which recomputes s; of all rows (swiglu.cu) and of expert rows (../experts/grouped_swiglu.cu).
//
// Both are Sources of tile.cuh, so that quantized copies are cast from registers. Backward has three outputs,
// dgate, dup and s, from one read of gate, up and ds; dgate and dup are side by side in one operand. Bytes
// per element of s: forward 4 read, backward 6 read; plus what is written, and one more read if a scale needs
// an amax pass. For backward that costs less than writing dgate_up in BF16 and casting it (12 + copies
// against 6 + 4 + 4 + copies).
//
// With what is kept of gate_up (kept_input.cuh) forward writes 1 1/16 for each of gate and up in the same pass, and
// reads that in its second pass; backward reads no gate_up.
//
// The parameter Rows of both says which rows are computed, and with which weights:
//   int slot<kFull>(row)                    negative for padding, which is not read; its results are zero
//   float weight(slot)
//   void store_product(sum, row, col, cols) receives, from every thread, the sum of ds times the unweighted s
//                                           over 8 columns
#pragma once

#include "kernels/cuda/quantize/kept_input.cuh"
#include "kernels/cuda/quantize/produce.cuh"
#include "kernels/numerics/activation_functions.h"

namespace precbench::cuda {

/// Like __expf and __fdividef, but flushing subnormals: no result bit changes, and it saves a third of the
/// instructions.
__device__ inline float sigmoid(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(1.0f + exp2_approx(-x * 1.4426950408889634f)));
  return result;
}

struct CudaMath {
  __device__ static float sigmoid(float x) { return cuda::sigmoid(x); }
};

/// Returns s, the same in forward and backward.
__device__ inline float gated(float gate, float sigma, float up) { return gate * sigma * up; }

/// Turns gate and up into their gradients, given s's.
template <class Act>
__device__ inline void ungate(float& gate, float& up, float sigma, float ds) {
  const float dgate = Act::slope(ds * up, gate, sigma);
  up = ds * gate * sigma;
  gate = dgate;
}

/// All rows, each with weight 1.
struct AllRows {
  template <bool kFull>
  __device__ int slot(std::int64_t) const {
    return 0;
  }
  __device__ float weight(int) const { return 1; }
  __device__ void store_product(float, std::int64_t, std::int64_t, std::int64_t) const {}
};

/// Returns the halves of gate_up [M, 2F].
inline PlainInput gate_part(const Tensor& gate_up) { return {matrix(gate_up, 0, gate_up.cols / 2)}; }
inline PlainInput up_part(const Tensor& gate_up) {
  return {matrix(gate_up, gate_up.cols / 2, gate_up.cols / 2)};
}
inline KeptInput gate_part(const GemmOperand& kept) { return {kept, 0, kept.data.cols / 2}; }
inline KeptInput up_part(const GemmOperand& kept) { return {kept, kept.data.cols / 2, kept.data.cols / 2}; }

template <class Rows, class Act = Silu<CudaMath>, class Input = PlainInput>
struct SwigluSource : NoColumns {
  static constexpr int kOutputs = 1, kBatch = 4;
  struct Raw {
    typename Input::Raw gate, up;
    float weight;
  };
  Input gate, up;
  std::int64_t rows, cols;
  Rows which;

  SwigluSource(const Input& gate, const Input& up, const Rows& which)
      : gate(gate), up(up), rows(gate.rows), cols(gate.cols), which(which) {}
  SwigluSource(const Tensor& gate_up, const Rows& which)
      : SwigluSource(gate_part(gate_up), up_part(gate_up), which) {}
  bool vectors() const { return gate.vectors && up.vectors; }
  template <bool kFull>
  __device__ Raw fetch(std::int64_t row, std::int64_t col) const {
    const int slot = which.template slot<kFull>(row);
    if (slot < 0) return {};
    return {gate.template fetch<kFull>(row, col), up.template fetch<kFull>(row, col), which.weight(slot)};
  }
  __device__ void make(Bf16x8 (&out)[1], const Raw& raw, const Column&, std::int64_t row,
                       std::int64_t col) const {
    float g[8], u[8];
    unpack(g, gate.value(raw.gate, row, col));
    unpack(u, up.value(raw.up, row, col));
#pragma unroll
    for (int j = 0; j < 8; ++j) g[j] = gated(g[j], Act::sigma(g[j]), u[j]) * raw.weight;
    out[0] = pack(g);
  }
};

template <class Rows, class Act = Silu<CudaMath>, class Input = PlainInput>
struct SwigluBackwardSource : NoColumns {
  static constexpr int kOutputs = 3, kBatch = 4;  // dgate, dup, s
  struct Raw {
    typename Input::Raw gate, up;
    Bf16x8 ds;
    float weight;
  };
  Input gate, up;
  Matrix ds;
  std::int64_t rows, cols;
  Rows which;

  SwigluBackwardSource(const Input& gate, const Input& up, const Tensor& ds, const Rows& which)
      : gate(gate), up(up), ds(matrix(ds)), rows(gate.rows), cols(gate.cols), which(which) {}
  SwigluBackwardSource(const Tensor& gate_up, const Tensor& ds, const Rows& which)
      : SwigluBackwardSource(gate_part(gate_up), up_part(gate_up), ds, which) {}
  bool vectors() const { return gate.vectors && up.vectors && ds.vectors; }
  template <bool kFull>
  __device__ Raw fetch(std::int64_t row, std::int64_t col) const {
    const int slot = which.template slot<kFull>(row);
    if (slot < 0) return {};
    return {gate.template fetch<kFull>(row, col), up.template fetch<kFull>(row, col),
            load<kFull>(ds, row, col), which.weight(slot)};
  }
  __device__ void make(Bf16x8 (&out)[3], const Raw& raw, const Column&, std::int64_t row,
                       std::int64_t col) const {
    float g[8], u[8], d[8], s[8];
    unpack(g, gate.value(raw.gate, row, col));
    unpack(u, up.value(raw.up, row, col));
    unpack(d, raw.ds);
    float product = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float sigma = Act::sigma(g[j]), value = gated(g[j], sigma, u[j]);
      product += d[j] * value;
      s[j] = value * raw.weight;
      ungate<Act>(g[j], u[j], sigma, d[j] * raw.weight);
    }
    which.store_product(product, row, col, cols);
    out[0] = pack(g);
    out[1] = pack(u);
    out[2] = pack(s);
  }
};

/// Writes dgate_up and s, which may be empty, from a Source of dgate, dup and s, each F wide. `scratch`:
/// amax_scratch_bytes of both.
template <class Source>
void produce_swiglu_backward(CudaDevice& device, const Source& source, const QuantizedTensor& dgate_up,
                             const QuantizedTensor& s, std::byte* scratch, const Groups* groups = nullptr) {
  const std::int64_t F = source.cols;
  // Tiles of dup line up with the scopes of dgate_up's scales only if F is a multiple of a tile; otherwise
  // the values are written first and cast from memory.
  const bool aligned = F % kTile == 0;
  const TileOutput both = tile_output(device, dgate_up, false, scratch, groups);
  const TileOutput again =
      tile_output(device, s, false, scratch + amax_scratch_bytes(device, dgate_up, groups), groups);
  TileOutputs<3> outputs;
  if (aligned) outputs = {{both, both, again}};
  outputs.of[1].first_col = F;
  if (writes_value(dgate_up) || !aligned) {
    outputs.of[0].value = matrix(dgate_up.value, 0, F);
    outputs.of[1].value = matrix(dgate_up.value, F, F);
  }
  if (writes_value(s) || (!aligned && !s.value.empty())) outputs.of[2].value = matrix(s.value);
  produce(device, source, outputs);
  if (!aligned) {
    cast_value(device, dgate_up.value, both);
    if (!s.value.empty()) cast_value(device, s.value, again);
  }
  quantize_from_value(device, dgate_up);
  quantize_from_value(device, s);
}

}  // namespace precbench::cuda
