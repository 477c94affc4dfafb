// Sustained timing for the GEMM benchmark: the GPU runs at the clock of its power limit.
#pragma once

#include <algorithm>
#include <functional>

#include "kernels/gpu/graph.h"

namespace precbench {

/// Returns the milliseconds of one op, run back to back for the given time, of which the last three quarters
/// count.
inline double sustained_ms(Device& device, double seconds, const std::function<void()>& op) {
  const auto clock = make_device_clock(device);
  constexpr int kTrial = 4;
  op();
  clock->mark();
  for (int i = 0; i < kTrial; ++i) op();
  clock->mark();
  device.synchronize();
  const int runs = std::max(kTrial, static_cast<int>(seconds * 1e3 * kTrial / clock->milliseconds(0, 1)));
  clock->reset();
  for (int i = 0; i < runs / 4; ++i) op();
  clock->mark();
  for (int i = runs / 4; i < runs; ++i) op();
  clock->mark();
  device.synchronize();
  return clock->milliseconds(0, 1) / (runs - runs / 4);
}

}  // namespace precbench
