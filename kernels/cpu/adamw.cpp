// AdamW (Loshchilov & Hutter 2019) with clipping by the global norm, on a run of elements. Weights are BF16.
// With a master the update happens there and the weights are its rounding; without one they are their own
// master, rounded to nearest or stochastically. Moments, master and gradient are FP32 or BF16, or stored with
// scales: FP16 or e4m3 with one power of two per tensor, moments also in COAT's groups.
#include <array>
#include <numeric>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/scaled_values.h"
#include "kernels/cpu/weight_update.h"
#include "kernels/numerics/amax.h"

namespace precbench {
namespace {

constexpr std::int64_t kMomentChunk = cpu::kUpdateChunk;
static_assert(kMomentChunk % kCoatGroup == 0);

CoatScale& coat_scale_of(const StateScale& scale, std::int64_t element) {
  return scale.scale.as<CoatScale>()[element / kCoatGroup];
}

/// Returns n values from `first` on, in `buffer` or in place.
const float* load_moment(const Tensor& codes, const StateScale& scale, std::int64_t first, std::int64_t n,
                         float* buffer) {
  if (!scale.groups()) return cpu::load_scaled(codes, scale.scale, first, n, buffer);
  for (std::int64_t i = 0; i < n; ++i)
    buffer[i] = coat_decode(codes.as<std::uint8_t>()[first + i], coat_scale_of(scale, first + i));
  return buffer;
}

void store_groups(const Tensor& codes, const StateScale& scale, std::int64_t first, std::int64_t n,
                  const float* values) {
  for (std::int64_t begin = 0; begin < n; begin += kCoatGroup)
    coat_scale_of(scale, first + begin) = coat_encode_group(codes.as<std::uint8_t>() + first + begin,
                                                            values + begin, std::min(kCoatGroup, n - begin));
}

void store_moment(const Tensor& codes, const StateScale& scale, std::int64_t first, std::int64_t n,
                  const float* values) {
  if (scale.scale.empty()) return cpu::store(codes, first, n, values);
  if (scale.groups()) return store_groups(codes, scale, first, n, values);
  cpu::store_scaled(codes, scale, first, n, values);
}

/// Computes the new moments of n elements. The old ones may alias the outputs only as m0 == mean and v0 ==
/// square.
void update_moments(float* mean, float* square, const float* m0, const float* v0, const float* g0,
                    std::int64_t n, const UpdateOptions& o, float clip) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const float g = g0[i] * clip;
    mean[i] = multiply_add(o.beta1, m0[i], (1.0f - o.beta1) * g);
    square[i] = multiply_add(o.beta2, v0[i], (1.0f - o.beta2) * g * g);
  }
}

void update_weights(float* w, const float* w0, const float* mean, const float* square, std::int64_t n,
                    const UpdateOptions& o, const StepScalars& step) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const float update =
        mean[i] / step.bias_correction1 / (std::sqrt(square[i] / step.bias_correction2) + o.eps);
    w[i] = multiply_add(-step.lr, multiply_add(o.weight_decay, w0[i], update), w0[i]);
  }
}

/// An amax and the bits that raise it.
struct Raised {
  Tensor amax;
  std::int32_t bits;
};

/// Returns the largest magnitudes of weights [first, first + n), one per overlapping part of the op's amaxes.
std::vector<Raised> weight_amaxes(const ops::Adamw& op, std::int64_t first, std::int64_t n) {
  std::vector<Raised> largest;
  for (const ops::WeightAmax& of : op.amaxes) {
    const std::int64_t end = std::min(first + n, of.last);
    for (std::int64_t i = std::max(first, of.first); i < end;) {
      const std::int64_t part = (i - of.first) / of.part_size(),
                         part_end = std::min(end, of.first + (part + 1) * of.part_size());
      std::uint16_t most = 0;
      for (; i < part_end; ++i)
        most = std::max<std::uint16_t>(most, op.weights.as<std::uint16_t>()[i] & 0x7FFFu);
      largest.push_back({of.amax.elements(part, 1), static_cast<std::int32_t>(most) << 16});
    }
  }
  return largest;
}

}  // namespace

void CpuDevice::do_adamw(const ops::Adamw& op) {
  const UpdateOptions& o = op.options;
  const StepScalars step = cpu::step_scalars(op.scalars);
  const float clip = cpu::clip_factor(op.norm_squared, o.max_norm);
  const Tensor& source = op.master.empty() ? op.weights : op.master;
  const bool scaled_master = op.master_scale.of_tensor();
  std::vector<float> squares(cpu::update_chunks(op.m.size()));
  std::vector<std::array<std::int32_t, 3>> amaxes(op.measure ? squares.size() : 0);
  std::vector<std::vector<Raised>> of_weights(op.amaxes.empty() ? 0 : squares.size());
  cpu::for_update_chunks(threads_, op.m.size(), 4, [&](std::int64_t first, std::int64_t n, float* buffer) {
    float *w = buffer, *mean = w + kMomentChunk, *square = mean + kMomentChunk;
    // FP32 sources are read in place; the updates go through the buffers.
    const float* m0 = load_moment(op.m, op.m_scale, first, n, mean);
    const float* v0 = load_moment(op.v, op.v_scale, first, n, square);
    const float* g0 = cpu::load_scaled(op.gradient, op.gradient_scale, first, n, square + kMomentChunk);
    update_moments(mean, square, m0, v0, g0, n, o, clip);
    if (!op.measure || scaled_master) {
      const float* w0 = cpu::load_scaled(source, op.master_scale.scale, first, n, w);
      update_weights(w, w0, mean, square, n, o, step);
    }
    if (op.measure) {
      amaxes[first / kMomentChunk] = {amax_bits(mean, n), amax_bits(square, n),
                                      scaled_master ? amax_bits(w, n) : 0};
      return;
    }
    if (o.max_norm <= 0) squares[first / kMomentChunk] = cpu::lane_dot(n, g0, g0);
    store_moment(op.m, op.m_scale, first, n, mean);
    store_moment(op.v, op.v_scale, first, n, square);
    if (scaled_master)
      cpu::store_scaled(op.master, op.master_scale, first, n, w);
    else
      cpu::store_weights(op.weights, op.master, first, n, w, o, step.seed);
    if (!of_weights.empty()) of_weights[first / kMomentChunk] = weight_amaxes(op, first, n);
  });
  for (const std::vector<Raised>& largest : of_weights)
    for (const Raised& raised : largest) cpu::raise_amax(raised.amax, raised.bits);
  for (const auto& [m, v, w] : amaxes) {
    cpu::raise_amax(op.m_scale, m);
    cpu::raise_amax(op.v_scale, v);
    cpu::raise_amax(op.master_scale, w);
  }
  if (o.max_norm <= 0 && !op.measure)
    *op.norm_squared.as<float>() += static_cast<float>(std::accumulate(squares.begin(), squares.end(), 0.0));
}

}  // namespace precbench
