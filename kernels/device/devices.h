// Creates devices. Callers see only device.h.
#pragma once

#include <memory>

#include "kernels/device/device.h"

namespace precbench {

/// `threads`: OpenMP threads of this rank.
std::unique_ptr<Device> make_cpu_device(int threads);

/// Creates a device that touches no data. support() and scratch sizes are those of `like`, the device whose
/// run is predicted; null: everything is native, without scratch.
std::unique_ptr<Device> make_dry_device(const Device* like);

}  // namespace precbench
