// Muon's ops other than GEMMs: momentum, normalization before its iteration, linear combinations within it,
// and the weight update. One pass each.
#include "kernels/cuda/elementwise/weight_update.cuh"
#include "kernels/cuda/hopper/early_start.cuh"

namespace precbench {
namespace cuda {
namespace {

template <class Moment, class Gradient>
__global__ void __launch_bounds__(kElementThreads)
    momentum_kernel(std::uint16_t* update, Moment* m, const Gradient* gradient, const float* norm_squared,
                    float momentum, float max_norm, std::int64_t size, bool vectors) {
  wait_for_work_before();
  const float clip = clip_factor(norm_squared, max_norm);
  const std::int64_t i = first_element();
  float mean[8], g[8];
  load_elements(mean, m, i, size, vectors);
  load_elements(g, gradient, i, size, vectors);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float clipped = g[j] * clip;
    mean[j] += (1.0f - momentum) * (clipped - mean[j]);
    g[j] = clipped + momentum * (mean[j] - clipped);
  }
  store_elements(m, mean, i, size, vectors);
  store_elements(update, g, i, size, vectors);
}

__global__ void __launch_bounds__(kElementThreads)
    to_unit_norm_kernel(std::uint16_t* x, const float* norm_squared, float eps, std::int64_t size,
                        bool vectors) {
  wait_for_work_before();
  const float norm = fmaxf(sqrtf(*norm_squared), eps);
  const std::int64_t i = first_element();
  float values[8];
  load_elements(values, x, i, size, vectors);
#pragma unroll
  for (int j = 0; j < 8; ++j) values[j] = __fdiv_rn(values[j], norm);
  store_elements(x, values, i, size, vectors);
}

template <class D, class X, class Y>
__global__ void __launch_bounds__(kElementThreads)
    combine_kernel(D* dst, float alpha, const X* x, float beta, const Y* y, std::int64_t size, bool vectors) {
  wait_for_work_before();
  const std::int64_t i = first_element();
  float a[8], b[8];
  load_elements(a, x, i, size, vectors);
  load_elements(b, y, i, size, vectors);
#pragma unroll
  for (int j = 0; j < 8; ++j) a[j] = alpha * a[j] + beta * b[j];
  store_elements(dst, a, i, size, vectors);
}

template <bool kMaster>
__global__ void __launch_bounds__(kElementThreads)
    descend_kernel(const WeightArgs a, const std::uint16_t* update, float factor) {
  wait_for_work_before();
  const StepScalars step = *a.scalars;
  const std::int64_t i = first_element();
  float w[8], u[8];
  load_weights<kMaster>(w, a, i);
  load_elements(u, update, i, a.size, a.vectors);
#pragma unroll
  for (int j = 0; j < 8; ++j) w[j] -= step.lr * (factor * u[j] + a.options.weight_decay * w[j]);
  store_weights<kMaster>(w, a, i, step.seed);
}

}  // namespace
}  // namespace cuda

void CudaDevice::do_momentum(const ops::Momentum& op) {
  using namespace cuda;
  const bool vectors = aligned(op.update) && aligned(op.m) && aligned(op.gradient);
  if (const std::int64_t size = op.m.size())
    with_type(op.m.dtype, [&](auto moment) {
      with_type(op.gradient.dtype, [&](auto grad) {
        using Moment = decltype(moment);
        using Gradient = decltype(grad);
        momentum_kernel<<<element_blocks(size), kElementThreads, 0, stream()>>>(
            op.update.as<std::uint16_t>(), op.m.as<Moment>(), op.gradient.as<Gradient>(),
            op.norm_squared.as<float>(), op.momentum, op.max_norm, size, vectors);
      });
    });
  launched("momentum");
}

void CudaDevice::do_to_unit_norm(const ops::ToUnitNorm& op) {
  using namespace cuda;
  if (const std::int64_t size = op.x.size())
    to_unit_norm_kernel<<<element_blocks(size), kElementThreads, 0, stream()>>>(
        op.x.as<std::uint16_t>(), op.norm_squared.as<float>(), op.eps, size, aligned(op.x));
  launched("to_unit_norm");
}

void CudaDevice::do_combine(const ops::Combine& op) {
  using namespace cuda;
  const bool vectors = aligned(op.dst) && aligned(op.x) && aligned(op.y);
  if (const std::int64_t size = op.dst.size())
    with_type(op.dst.dtype, [&](auto d) {
      with_type(op.x.dtype, [&](auto x) {
        with_type(op.y.dtype, [&](auto y) {
          combine_kernel<<<element_blocks(size), kElementThreads, 0, stream()>>>(
              op.dst.as<decltype(d)>(), op.alpha, op.x.as<decltype(x)>(), op.beta, op.y.as<decltype(y)>(),
              size, vectors);
        });
      });
    });
  launched("combine");
}

void CudaDevice::do_descend(const ops::Descend& op) {
  using namespace cuda;
  const WeightArgs args = weight_args(op, {}, aligned(op.update));
  if (args.size > 0) {
    const auto kernel = op.master.empty() ? descend_kernel<false> : descend_kernel<true>;
    kernel<<<element_blocks(args.size), kElementThreads, 0, stream()>>>(args, op.update.as<std::uint16_t>(),
                                                                        op.factor);
  }
  launched("descend");
}

}  // namespace precbench
