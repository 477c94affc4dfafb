// SwiGLU: s = silu(gate) * up from gate_up [M, 2F] = [gate | up], and its backward, which recomputes s.
//
// Both are Sources of tile.cuh, so that quantized copies are cast from registers. Backward has three outputs,
// dgate, dup and s, from one read of gate, up and ds; dgate and dup are side by side in one operand. Bytes
// per element of s: forward 4 read, backward 6 read; plus what is written, and one more read if a scale needs
// an amax pass. For backward that costs less than writing dgate_up in BF16 and casting it (12 + copies
// against 6 + 4 + 4 + copies).
#include "kernels/cuda/layers/swiglu.cuh"

namespace precbench {
namespace cuda {
namespace {

struct SwigluSource {
  static constexpr int kOutputs = 1, kBatch = 4;
  struct Column {};
  struct Raw {
    Bf16x8 gate, up;
  };
  Matrix gate, up;
  std::int64_t rows = gate.rows, cols = gate.cols;

  bool vectors() const { return gate.vectors && up.vectors; }
  template <bool kFull>
  __device__ Column column(std::int64_t) const {
    return {};
  }
  template <bool kFull>
  __device__ Raw fetch(std::int64_t row, std::int64_t col) const {
    return {load<kFull>(gate, row, col), load<kFull>(up, row, col)};
  }
  __device__ void make(Bf16x8 (&out)[1], const Raw& raw, const Column&, std::int64_t, std::int64_t) const {
    float g[8], u[8];
    unpack(g, raw.gate);
    unpack(u, raw.up);
#pragma unroll
    for (int j = 0; j < 8; ++j) g[j] = gated(g[j], sigmoid(g[j]), u[j]);
    out[0] = pack(g);
  }
};

struct SwigluBackwardSource {
  static constexpr int kOutputs = 3, kBatch = 4;  // dgate, dup, s
  struct Column {};
  struct Raw {
    Bf16x8 gate, up, ds;
  };
  Matrix gate, up, ds;
  std::int64_t rows = gate.rows, cols = gate.cols;

  bool vectors() const { return gate.vectors && up.vectors && ds.vectors; }
  template <bool kFull>
  __device__ Column column(std::int64_t) const {
    return {};
  }
  template <bool kFull>
  __device__ Raw fetch(std::int64_t row, std::int64_t col) const {
    return {load<kFull>(gate, row, col), load<kFull>(up, row, col), load<kFull>(ds, row, col)};
  }
  __device__ void make(Bf16x8 (&out)[3], const Raw& raw, const Column&, std::int64_t, std::int64_t) const {
    float g[8], u[8], d[8], s[8];
    unpack(g, raw.gate);
    unpack(u, raw.up);
    unpack(d, raw.ds);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float sigma = sigmoid(g[j]);
      s[j] = gated(g[j], sigma, u[j]);
      ungate(g[j], u[j], sigma, d[j]);
    }
    out[0] = pack(g);
    out[1] = pack(u);
    out[2] = pack(s);
  }
};

}  // namespace
}  // namespace cuda

void CudaDevice::do_swiglu(const ops::Swiglu& op) {
  using namespace cuda;
  const std::int64_t F = op.s.value.cols;
  produce_swiglu(*this, SwigluSource{matrix(op.gate_up, 0, F), matrix(op.gate_up, F, F)}, op.s);
  launched("swiglu");
}

void CudaDevice::do_swiglu_backward(const ops::SwigluBackward& op) {
  using namespace cuda;
  const std::int64_t F = op.ds.cols;
  auto* amaxes = static_cast<std::byte*>(
      scratch(amax_scratch_bytes(*this, op.dgate_up) + amax_scratch_bytes(*this, op.s)));
  const SwigluBackwardSource source{matrix(op.gate_up, 0, F), matrix(op.gate_up, F, F), matrix(op.ds)};
  produce_swiglu_backward(*this, source, op.dgate_up, op.s, amaxes);
  launched("swiglu_backward");
}

}  // namespace precbench
