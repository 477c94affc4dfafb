// SwiGLU over expert rows: the dense Sources (../layers/swiglu.cu) times the weight of a row's slot, with
// zeros for padding rows, which are not read. Backward also computes the weights' gradients: every tile
// writes its part of a row's sum, and a second kernel adds the parts in order.
#include "kernels/cuda/hopper/early_start.cuh"
#include "kernels/cuda/layers/swiglu.cuh"

namespace precbench {
namespace cuda {
namespace {

/// Slots of the rows, and their weights.
struct WeightedRows {
  const std::int32_t* slots;
  const float* weights;  // may be null: 1
  std::int64_t rows;

  WeightedRows(const Groups& groups, const Tensor& w)
      : slots(groups.source.as<std::int32_t>()), weights(w.as<float>()), rows(groups.rows_capacity()) {}
  template <bool kFull>
  __device__ int slot(std::int64_t row) const {
    return kFull || row < rows ? slots[row] : -1;
  }
  __device__ float weight(int slot) const { return weights ? weights[slot] : 1.0f; }
};

struct GroupedSwigluSource {
  static constexpr int kOutputs = 1, kBatch = 4;
  struct Column {};
  struct Raw {
    Bf16x8 gate, up;
    float weight;
  };
  Matrix gate, up;
  WeightedRows of;
  std::int64_t rows = gate.rows, cols = gate.cols;

  bool vectors() const { return gate.vectors && up.vectors; }
  template <bool kFull>
  __device__ Column column(std::int64_t) const {
    return {};
  }
  template <bool kFull>
  __device__ Raw fetch(std::int64_t row, std::int64_t col) const {
    const int slot = of.template slot<kFull>(row);
    if (slot < 0) return {};
    return {load<kFull>(gate, row, col), load<kFull>(up, row, col), of.weight(slot)};
  }
  __device__ void make(Bf16x8 (&out)[1], const Raw& raw, const Column&, std::int64_t, std::int64_t) const {
    float g[8], u[8];
    unpack(g, raw.gate);
    unpack(u, raw.up);
#pragma unroll
    for (int j = 0; j < 8; ++j) g[j] = gated(g[j], sigmoid(g[j]), u[j]) * raw.weight;
    out[0] = pack(g);
  }
};

struct GroupedSwigluBackwardSource {
  static constexpr int kOutputs = 3, kBatch = 4;  // dgate, dup, s
  struct Column {};
  struct Raw {
    Bf16x8 gate, up, ds;
    float weight;
  };
  Matrix gate, up, ds;
  WeightedRows of;
  float* products;  // [rows, tiles]: a tile's part of dw; null: not requested
  std::int64_t rows = gate.rows, cols = gate.cols;

  bool vectors() const { return gate.vectors && up.vectors && ds.vectors; }
  template <bool kFull>
  __device__ Column column(std::int64_t) const {
    return {};
  }
  template <bool kFull>
  __device__ Raw fetch(std::int64_t row, std::int64_t col) const {
    const int slot = of.template slot<kFull>(row);
    if (slot < 0) return {};
    return {load<kFull>(gate, row, col), load<kFull>(up, row, col), load<kFull>(ds, row, col),
            of.weight(slot)};
  }
  __device__ void make(Bf16x8 (&out)[3], const Raw& raw, const Column&, std::int64_t row,
                       std::int64_t col) const {
    float g[8], u[8], d[8], s[8];
    unpack(g, raw.gate);
    unpack(u, raw.up);
    unpack(d, raw.ds);
    float product = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float sigma = sigmoid(g[j]), value = gated(g[j], sigma, u[j]);
      product += d[j] * value;
      s[j] = value * raw.weight;
      ungate(g[j], u[j], sigma, d[j] * raw.weight);
    }
    if (products) leave_product(product, row, col);
    out[0] = pack(g);
    out[1] = pack(u);
    out[2] = pack(s);
  }

 private:
  /// Half a warp has one row of a tile.
  __device__ void leave_product(float product, std::int64_t row, std::int64_t col) const {
#pragma unroll
    for (int step = 1; step < kTile / kSquare; step *= 2)
      product += __shfl_xor_sync(kAllLanes, product, step);
    if (threadIdx.x % (kTile / kSquare) == 0 && row < rows)
      products[row * ((cols + kTile - 1) / kTile) + col / kTile] = product;
  }
};

constexpr int kThreads = 256;

/// One thread per slot.
__global__ void __launch_bounds__(kThreads)
    sum_products_kernel(float* dw, const float* products, const std::int32_t* row_of, int slots, int tiles) {
  wait_for_work_before();
  const int slot = blockIdx.x * kThreads + threadIdx.x;
  if (slot >= slots) return;
  const std::int64_t row = row_of[slot];
  float sum = 0;
  for (int tile = 0; row >= 0 && tile < tiles; ++tile) sum += products[row * tiles + tile];
  dw[slot] = sum;
}

}  // namespace
}  // namespace cuda

void CudaDevice::do_grouped_swiglu(const ops::GroupedSwiglu& op) {
  using namespace cuda;
  const std::int64_t F = op.s.value.cols;
  const GroupedSwigluSource source{
      matrix(op.gate_up, 0, F), matrix(op.gate_up, F, F), {op.groups, op.weights}};
  produce_swiglu(*this, source, op.s, &op.groups);
  launched("grouped_swiglu");
}

void CudaDevice::do_grouped_swiglu_backward(const ops::GroupedSwigluBackward& op) {
  using namespace cuda;
  const std::int64_t F = op.ds.cols, tiles = (F + kTile - 1) / kTile;
  const std::size_t product_bytes = op.dw.empty() ? 0 : op.ds.rows * tiles * sizeof(float);
  auto* products =
      static_cast<std::byte*>(scratch(product_bytes + amax_scratch_bytes(*this, op.dgate_up, &op.groups) +
                                      amax_scratch_bytes(*this, op.s, &op.groups)));
  const GroupedSwigluBackwardSource source{matrix(op.gate_up, 0, F),
                                           matrix(op.gate_up, F, F),
                                           matrix(op.ds),
                                           {op.groups, op.weights},
                                           op.dw.empty() ? nullptr : reinterpret_cast<float*>(products)};
  produce_swiglu_backward(*this, source, op.dgate_up, op.s, products + product_bytes, &op.groups);
  if (!op.dw.empty()) {
    const int slots = static_cast<int>(op.dw.size());
    sum_products_kernel<<<static_cast<unsigned>((slots + kThreads - 1) / kThreads), kThreads, 0, stream()>>>(
        op.dw.as<float>(), source.products, op.groups.row_of.as<std::int32_t>(), slots,
        static_cast<int>(tiles));
  }
  launched("grouped_swiglu_backward");
}

}  // namespace precbench
