// Lion in one pass. Bytes per element with FP32 master, moment and gradient: 12 read and 10 written.
#include "kernels/cuda/elementwise/weight_update.cuh"
#include "kernels/cuda/hopper/early_start.cuh"

namespace precbench {
namespace cuda {
namespace {

template <class Moment, class Gradient, bool kMaster>
__global__ void __launch_bounds__(kElementThreads)
    lion_kernel(const WeightArgs a, Moment* m, const Gradient* gradient) {
  wait_for_work_before();
  const StepScalars step = *a.scalars;
  const UpdateOptions& o = a.options;
  const float clip = clip_factor(a.norm_squared, o.max_norm);
  const std::int64_t i = first_element();
  float w[8], mean[8], g[8];
  load_weights<kMaster>(w, a, i);
  load_elements(mean, m, i, a.size, a.vectors);
  load_elements(g, gradient, i, a.size, a.vectors);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float clipped = g[j] * clip;
    const float direction = o.beta1 * mean[j] + (1.0f - o.beta1) * clipped;
    const float sign = direction > 0 ? 1.0f : direction < 0 ? -1.0f : 0.0f;
    mean[j] = o.beta2 * mean[j] + (1.0f - o.beta2) * clipped;
    w[j] -= step.lr * (sign + o.weight_decay * w[j]);
  }
  store_elements(m, mean, i, a.size, a.vectors);
  store_weights<kMaster>(w, a, i, step.seed);
}

}  // namespace
}  // namespace cuda

void CudaDevice::do_lion(const ops::Lion& op) {
  using namespace cuda;
  const WeightArgs args = weight_args(op, op.norm_squared, aligned(op.m) && aligned(op.gradient));
  if (args.size > 0)
    with_type(op.m.dtype, [&](auto moment) {
      with_type(op.gradient.dtype, [&](auto grad) {
        using Moment = decltype(moment);
        using Gradient = decltype(grad);
        const auto kernel =
            op.master.empty() ? lion_kernel<Moment, Gradient, false> : lion_kernel<Moment, Gradient, true>;
        kernel<<<element_blocks(args.size), kElementThreads, 0, stream()>>>(args, op.m.as<Moment>(),
                                                                            op.gradient.as<Gradient>());
      });
    });
  launched("lion");
}

}  // namespace precbench
