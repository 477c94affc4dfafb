// End of a step with delayed scaling: amaxes move into the histories that give the next scales.
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/hopper/early_start.cuh"
#include "kernels/cuda/vector.cuh"

namespace precbench {
namespace cuda {
namespace {

constexpr int kHistoryThreads = 256;

/// One block per slot. The history moves by a chunk of kHistoryThreads at a time, each read before it is
/// written.
__global__ void __launch_bounds__(kHistoryThreads)
    update_history_kernel(float* known, float* history, float* staged, std::int64_t length,
                          bool most_recent) {
  wait_for_work_before();
  __shared__ std::uint32_t buffer[kWarp];
  const std::int64_t slot = blockIdx.x;
  const float amax = staged[slot];
  __syncthreads();  // all threads have read it
  if (threadIdx.x == 0) staged[slot] = 0;
  if (!(amax > 0) || __float_as_uint(amax) >= 0x7F800000u)
    return;  // 0 or not finite: the same in every thread
  float* mine = history + slot * length;
  std::uint32_t largest = __float_as_uint(amax);  // bits of non-negative floats order like the floats
  for (std::int64_t first = 0; first < length; first += kHistoryThreads) {
    const std::int64_t i = first + threadIdx.x;
    float moved = amax;
    if (i < length) {
      largest = max(largest, __float_as_uint(mine[i]));
      if (i + 1 < length) moved = mine[i + 1];
    }
    __syncthreads();
    if (i < length) mine[i] = moved;
    __syncthreads();
  }
  largest = block_max(largest, buffer);
  if (threadIdx.x == 0) known[slot] = most_recent ? amax : __uint_as_float(largest);
}

}  // namespace
}  // namespace cuda

void CudaDevice::do_update_history(const ops::UpdateHistory& op) {
  using namespace cuda;
  const auto slots = static_cast<unsigned>(op.known.size());
  update_history_kernel<<<slots, kHistoryThreads, 0, stream()>>>(
      op.known.as<float>(), op.history.empty() ? nullptr : op.history.as<float>(), op.staged.as<float>(),
      op.history.empty() ? 0 : op.history.cols, op.most_recent);
  launched("update_history");
}

}  // namespace precbench
