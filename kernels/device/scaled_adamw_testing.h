// Helpers for tests of AdamW with scaled states: states on the host, and both passes of a step.
#pragma once

#include <cstring>

#include "kernels/device/op_testing.h"
#include "kernels/numerics/state_formats.h"

namespace precbench::testing {

inline constexpr UpdateOptions kOptions{.max_norm = 0};

struct Stored {
  Tensor codes;
  StateScale scale;
};

/// Returns a zero moment on the host.
inline Stored stored(HostMemory& host, StateFormat format, std::int64_t size) {
  Stored s{host.tensor(dtype_of(format), 1, size), {}};
  std::memset(s.codes.data, 0, s.codes.bytes());
  if (!scaled(format)) return s;
  const std::int64_t groups = (size + kCoatGroup - 1) / kCoatGroup;
  s.scale.scale = format == StateFormat::coat ? host.tensor(DType::f32, groups, kCoatScaleFloats)
                                              : host.tensor(DType::f32, 1, 1);
  for (std::int64_t i = 0; i < s.scale.scale.size(); ++i) s.scale.scale.as<float>()[i] = 1;
  if (format == StateFormat::coat) return s;
  s.scale.amax = host.tensor(DType::f32, 1, 1);
  *s.scale.amax.as<float>() = 0;
  return s;
}

/// Runs both passes and commits the new scales.
inline void step(Device& device, const ops::Adamw& op) {
  if (op.m_scale.of_tensor() || op.v_scale.of_tensor() || op.master_scale.of_tensor()) {
    ops::Adamw measure = op;
    measure.measure = true;
    device.adamw(measure);
  }
  device.adamw(op);
  for (const auto& [codes, scale] :
       {std::pair(op.m, op.m_scale), std::pair(op.v, op.v_scale), std::pair(op.master, op.master_scale)})
    if (scale.of_tensor()) device.commit_scale({scale.scale, scale.amax, state_max(codes.dtype)});
}

/// Returns a step on the stored states.
inline ops::Adamw adamw_of(const Stored& w, const Stored& m, const Stored& v, const Tensor& gradient,
                           const Tensor& scalars, const Tensor& norm_squared,
                           const UpdateOptions& options = kOptions) {
  return {.weights = {},
          .master = w.codes,
          .m = m.codes,
          .v = v.codes,
          .gradient = gradient,
          .scalars = scalars,
          .norm_squared = norm_squared,
          .options = options,
          .m_scale = m.scale,
          .v_scale = v.scale,
          .measure = false,
          .master_scale = w.scale};
}

}  // namespace precbench::testing
