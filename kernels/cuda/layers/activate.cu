// Activation of a non-gated feed-forward network, s = act(z + bias), and its backward, which recomputes s. Both
// are Sources of tile.cuh, as SwiGLU's are: quantized copies are cast from registers. Bytes per element of s:
// forward 2 read, backward 4 read; plus what is written, and one more read if a scale needs an amax pass.
#include "kernels/cuda/layers/swiglu.cuh"

namespace precbench {
namespace cuda {
namespace {

/// Columns of a bias, which may be absent.
struct BiasColumns {
  struct Column {
    Bf16x8 bias;
  };
  Matrix bias;

  template <bool kFull>
  __device__ Column column(std::int64_t col) const {
    return {bias.data ? load<kFull>(bias, 0, col) : Bf16x8{}};
  }
  /// Returns z + bias.
  __device__ static void add(float (&sum)[8], const Bf16x8& z, const Column& column) {
    float b[8];
    unpack(sum, z);
    unpack(b, column.bias);
#pragma unroll
    for (int j = 0; j < 8; ++j) sum[j] += b[j];
  }
};

template <class Act>
struct ActivateSource : BiasColumns {
  static constexpr int kOutputs = 1, kBatch = 4;
  struct Raw {
    Bf16x8 z;
  };
  Matrix z;
  std::int64_t rows, cols;

  ActivateSource(const Tensor& z_, const Tensor& bias_)
      : BiasColumns{matrix(bias_)}, z(matrix(z_)), rows(z.rows), cols(z.cols) {}
  bool vectors() const { return z.vectors && (!bias.data || bias.vectors); }
  template <bool kFull>
  __device__ Raw fetch(std::int64_t row, std::int64_t col) const {
    return {load<kFull>(z, row, col)};
  }
  __device__ void make(Bf16x8 (&out)[1], const Raw& raw, const Column& column, std::int64_t,
                       std::int64_t) const {
    float x[8];
    add(x, raw.z, column);
#pragma unroll
    for (int j = 0; j < 8; ++j) x[j] = x[j] * Act::sigma(x[j]);
    out[0] = pack(x);
  }
};

template <class Act>
struct ActivateBackwardSource : BiasColumns {
  static constexpr int kOutputs = 2, kBatch = 4;  // dz, s
  struct Raw {
    Bf16x8 z, ds;
  };
  Matrix z, ds;
  std::int64_t rows, cols;

  ActivateBackwardSource(const Tensor& z_, const Tensor& ds_, const Tensor& bias_)
      : BiasColumns{matrix(bias_)}, z(matrix(z_)), ds(matrix(ds_)), rows(z.rows), cols(z.cols) {}
  bool vectors() const { return z.vectors && ds.vectors && (!bias.data || bias.vectors); }
  template <bool kFull>
  __device__ Raw fetch(std::int64_t row, std::int64_t col) const {
    return {load<kFull>(z, row, col), load<kFull>(ds, row, col)};
  }
  __device__ void make(Bf16x8 (&out)[2], const Raw& raw, const Column& column, std::int64_t,
                       std::int64_t) const {
    float x[8], d[8];
    add(x, raw.z, column);
    unpack(d, raw.ds);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float sigma = Act::sigma(x[j]);
      d[j] = Act::slope(d[j], x[j], sigma);
      x[j] = x[j] * sigma;
    }
    out[0] = pack(d);
    out[1] = pack(x);
  }
};

}  // namespace
}  // namespace cuda

void CudaDevice::do_activate(const ops::Activate& op) {
  using namespace cuda;
  with_any_activation<CudaMath>(op.activation, [&](auto act) {
    produce_operand(*this, ActivateSource<decltype(act)>(op.z, op.bias), op.s);
  });
  launched("activate");
}

void CudaDevice::do_activate_backward(const ops::ActivateBackward& op) {
  using namespace cuda;
  const std::size_t of_dz = amax_scratch_bytes(*this, op.dz);
  auto* amaxes = static_cast<std::byte*>(scratch(of_dz + amax_scratch_bytes(*this, op.s)));
  const TileOutputs<2> outputs{{tile_output(*this, op.dz, writes_value(op.dz), amaxes),
                                tile_output(*this, op.s, writes_value(op.s), amaxes + of_dz)}};
  with_any_activation<CudaMath>(op.activation, [&](auto act) {
    produce(*this, ActivateBackwardSource<decltype(act)>(op.z, op.ds, op.bias), outputs);
  });
  quantize_from_value(*this, op.dz);
  quantize_from_value(*this, op.s);
  launched("activate_backward");
}

}  // namespace precbench
