// SwiGLU of expert rows, times the weight of a row's slot. Backward also computes the weights' gradients:
// every tile writes its part of a row's sum, and a second kernel adds the parts in order.
#include "kernels/cuda/hopper/early_start.cuh"
#include "kernels/cuda/layers/swiglu.cuh"

namespace precbench {
namespace cuda {
namespace {

/// The rows that have a slot, with its weight.
struct ExpertRows {
  const std::int32_t* slots;
  const float* weights;  // may be null: 1
  std::int64_t rows;
  float* products;  // [rows, tiles]: a tile's part of dw; null: not requested

  ExpertRows(const Groups& groups, const Tensor& w, float* products = nullptr)
      : slots(groups.source.as<std::int32_t>()),
        weights(w.as<float>()),
        rows(groups.rows_capacity()),
        products(products) {}
  template <bool kFull>
  __device__ int slot(std::int64_t row) const {
    return kFull || row < rows ? slots[row] : -1;
  }
  __device__ float weight(int slot) const { return weights ? weights[slot] : 1.0f; }
  /// Adds the products of half a warp, which has one row of a tile.
  __device__ void store_product(float product, std::int64_t row, std::int64_t col, std::int64_t cols) const {
    if (!products) return;
#pragma unroll
    for (int step = 1; step < kTile / kSquare; step *= 2)
      product += __shfl_xor_sync(kAllLanes, product, step);
    if (threadIdx.x % (kTile / kSquare) == 0 && row < rows)
      products[row * ((cols + kTile - 1) / kTile) + col / kTile] = product;
  }
};

/// gpt-oss's SwiGLU of expert rows, and its backward.
struct ClampedSource : SwigluSource<ExpertRows> {
  ClampedGate<CudaMath> clamped;

  ClampedSource(const Tensor& gate_up, const ExpertRows& which, float limit)
      : SwigluSource(gate_up, which), clamped{limit} {}
  __device__ void make(Bf16x8 (&out)[1], const Raw& raw, const Column&, std::int64_t, std::int64_t) const {
    float g[8], u[8];
    unpack(g, raw.gate);
    unpack(u, raw.up);
#pragma unroll
    for (int j = 0; j < 8; ++j) g[j] = clamped(g[j], u[j]).s * raw.weight;
    out[0] = pack(g);
  }
};

struct ClampedBackwardSource : SwigluBackwardSource<ExpertRows> {
  ClampedGate<CudaMath> clamped;

  ClampedBackwardSource(const Tensor& gate_up, const Tensor& ds, const ExpertRows& which, float limit)
      : SwigluBackwardSource(gate_up, ds, which), clamped{limit} {}
  __device__ void make(Bf16x8 (&out)[3], const Raw& raw, const Column&, std::int64_t row,
                       std::int64_t col) const {
    float g[8], u[8], d[8], s[8];
    unpack(g, raw.gate);
    unpack(u, raw.up);
    unpack(d, raw.ds);
    float product = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const auto value = clamped(g[j], u[j]);
      const float weighted = d[j] * raw.weight;
      product += d[j] * value.s;
      s[j] = value.s * raw.weight;
      g[j] = weighted * value.dgate;
      u[j] = weighted * value.dup;
    }
    which.store_product(product, row, col, cols);
    out[0] = pack(g);
    out[1] = pack(u);
    out[2] = pack(s);
  }
};

constexpr int kSwigluThreads = 256;

/// One thread per slot.
__global__ void __launch_bounds__(kSwigluThreads)
    sum_products_kernel(float* dw, const float* products, const std::int32_t* row_of, int slots, int tiles) {
  wait_for_work_before();
  const int slot = blockIdx.x * kSwigluThreads + threadIdx.x;
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
  const ExpertRows rows(op.groups, op.weights);
  if (op.limit > 0)
    produce_operand(*this, ClampedSource(op.gate_up, rows, op.limit), op.s, &op.groups);
  else
    produce_operand(*this, SwigluSource<ExpertRows>(op.gate_up, rows), op.s, &op.groups);
  launched("grouped_swiglu");
}

void CudaDevice::do_grouped_swiglu_backward(const ops::GroupedSwigluBackward& op) {
  using namespace cuda;
  const std::int64_t tiles = (op.ds.cols + kTile - 1) / kTile;
  const std::size_t product_bytes = op.dw.empty() ? 0 : op.ds.rows * tiles * sizeof(float);
  auto* free =
      static_cast<std::byte*>(scratch(product_bytes + amax_scratch_bytes(*this, op.dgate_up, &op.groups) +
                                      amax_scratch_bytes(*this, op.s, &op.groups)));
  auto* products = op.dw.empty() ? nullptr : reinterpret_cast<float*>(free);
  const ExpertRows rows(op.groups, op.weights, products);
  std::byte* const amaxes = free + product_bytes;
  if (op.limit > 0)
    produce_swiglu_backward(*this, ClampedBackwardSource(op.gate_up, op.ds, rows, op.limit), op.dgate_up,
                            op.s, amaxes, &op.groups);
  else
    produce_swiglu_backward(*this, SwigluBackwardSource<ExpertRows>(op.gate_up, op.ds, rows), op.dgate_up,
                            op.s, amaxes, &op.groups);
  if (!op.dw.empty()) {
    const int slots = static_cast<int>(op.dw.size());
    sum_products_kernel<<<static_cast<unsigned>((slots + kSwigluThreads - 1) / kSwigluThreads), kSwigluThreads, 0, stream()>>>(
        op.dw.as<float>(), products, op.groups.row_of.as<std::int32_t>(), slots, static_cast<int>(tiles));
  }
  launched("grouped_swiglu_backward");
}

}  // namespace precbench
