// How to get a device. Callers see only device.h.
#pragma once

#include <memory>

#include "kernels/device/device.h"

namespace precbench {

/// `threads`: OpenMP threads of this rank.
std::unique_ptr<Device> make_cpu_device(int threads);

/// Touches no data. support() answers like `like`, whose run is predicted, and it holds as much scratch; null: everything is
/// native, without scratch.
std::unique_ptr<Device> make_dry_device(const Device* like);

}  // namespace precbench
