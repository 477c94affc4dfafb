// AdamW with moments that are stored with scales: FP16 or e4m3 with one power of two for the tensor, or COAT's groups.
#include <array>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/weight_update.h"
#include "kernels/numerics/state_formats.h"

namespace precbench {
namespace {

constexpr std::int64_t kMomentChunk = cpu::kUpdateChunk;
static_assert(kMomentChunk % kCoatGroup == 0);

CoatScale& coat_scale_of(const StateScale& scale, std::int64_t element) {
  return scale.scale.as<CoatScale>()[element / kCoatGroup];
}

/// n values from `first` on, in the buffer or where they lie.
const float* load_moment(const Tensor& codes, const StateScale& scale, std::int64_t first, std::int64_t n,
                         float* buffer) {
  if (scale.scale.empty()) return cpu::load(codes, first, n, buffer);
  if (scale.groups()) {
    for (std::int64_t i = 0; i < n; ++i)
      buffer[i] = coat_decode(codes.as<std::uint8_t>()[first + i], coat_scale_of(scale, first + i));
    return buffer;
  }
  const float factor = 1.0f / *scale.scale.as<float>();
  for (std::int64_t i = 0; i < n; ++i) buffer[i] = state_decode(codes.dtype, codes.data, first + i) * factor;
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
  const float factor = state_scale(*scale.amax.as<float>(), state_max(codes.dtype), *scale.scale.as<float>());
  for (std::int64_t i = 0; i < n; ++i) state_encode(codes.dtype, codes.data, first + i, values[i] * factor);
}

void raise_amax(const StateScale& scale, std::int32_t bits) {
  if (!scale.of_tensor()) return;
  float& amax = *scale.amax.as<float>();
  amax = bits_to_float(static_cast<std::uint32_t>(std::max(bits, abs_bits(amax))));
}

}  // namespace

void CpuDevice::scaled_adamw(const ops::Adamw& op) {
  const UpdateOptions& o = op.options;
  const StepScalars step = cpu::step_scalars(op.scalars);
  const float clip = cpu::clip_factor(op.norm_squared, o.max_norm);
  const Tensor& source = op.master.empty() ? op.weights : op.master;
  std::vector<float> squares(cpu::update_chunks(op.m.size()));
  std::vector<std::array<std::int32_t, 2>> amaxes(squares.size());
  cpu::for_update_chunks(threads_, op.m.size(), 4, [&](std::int64_t first, std::int64_t n, float* buffer) {
    float *w = buffer, *mean = w + kMomentChunk, *square = mean + kMomentChunk;
    const float* m0 = load_moment(op.m, op.m_scale, first, n, mean);
    const float* v0 = load_moment(op.v, op.v_scale, first, n, square);
    const float* g0 = cpu::load(op.gradient, first, n, square + kMomentChunk);
    for (std::int64_t i = 0; i < n; ++i) {
      const float g = g0[i] * clip;
      mean[i] = o.beta1 * m0[i] + (1.0f - o.beta1) * g;
      square[i] = o.beta2 * v0[i] + (1.0f - o.beta2) * g * g;
    }
    if (op.measure) {
      amaxes[first / kMomentChunk] = {amax_bits(mean, n), amax_bits(square, n)};
      return;
    }
    if (o.max_norm <= 0)
      squares[first / kMomentChunk] = cpu::lane_sum(n, [&](std::int64_t i) { return g0[i] * g0[i]; });
    const float* w0 = cpu::load(source, first, n, w);
    for (std::int64_t i = 0; i < n; ++i) {
      const float update =
          mean[i] / step.bias_correction1 / (std::sqrt(square[i] / step.bias_correction2) + o.eps);
      w[i] = w0[i] - step.lr * (update + o.weight_decay * w0[i]);
    }
    store_moment(op.m, op.m_scale, first, n, mean);
    store_moment(op.v, op.v_scale, first, n, square);
    cpu::store_weights(op.weights, op.master, first, n, w, o, step.seed);
  });
  if (op.measure) {
    for (const auto& [m, v] : amaxes) {
      raise_amax(op.m_scale, m);
      raise_amax(op.v_scale, v);
    }
    return;
  }
  double total = 0;
  for (const float chunk : squares) total += chunk;
  if (o.max_norm <= 0) *op.norm_squared.as<float>() += static_cast<float>(total);
}

void CpuDevice::do_commit_scale(const ops::CommitScale& op) {
  for (std::int64_t i = 0; i < op.scale.size(); ++i) {
    float &scale = op.scale.as<float>()[i], &amax = op.amax.as<float>()[i];
    scale = state_scale(amax, op.max, scale);
    amax = 0;
  }
}

}  // namespace precbench
