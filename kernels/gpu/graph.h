// Fast execution and timing of steps on a device: a step captured once as a graph and replayed, and a device
// clock. No CUDA headers; both also work in a build without CUDA, within its limits.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "kernels/device/device.h"

namespace precbench {

/// Start of kernels in a captured step. in_turn: after the previous kernel has ended. early: our own kernels
/// may start while the previous one still runs, and wait for its end on the GPU (programmatic dependent
/// launch, kernels/cuda/hopper/early_start.cuh); GPUs of 9.0 and later.
enum class KernelStart { in_turn, early };

/// One captured step. A replay repeats every op with the same addresses: inputs change by uploading to the
/// same tensors, and per-step scalars are in device memory.
class StepGraph {
 public:
  virtual ~StepGraph() = default;
  virtual void replay() = 0;  ///< asynchronous, in order with the device's other work
  /// Returns how many of its kernels start early.
  virtual int early_kernels() const = 0;
};

/// Returns true if capture_step works on this device.
bool has_graphs(const Device& device);

/// Captures the work that `step` enqueues on the device (including collectives on its stream) without
/// executing it. The same step must have run once before, so that plans and scratch exist. `step` must not
/// allocate, upload, download or synchronize. Throws Unsupported if the device has no graphs; an exception
/// from `step` ends the capture and propagates.
std::unique_ptr<StepGraph> capture_step(Device& device, const std::function<void()>& step,
                                        KernelStart start = KernelStart::in_turn);

/// Timestamps in the order of a device's work. On a GPU: events, also inside a captured graph, where every
/// replay records them anew. Elsewhere: the host's clock after synchronize().
class DeviceClock {
 public:
  virtual ~DeviceClock() = default;
  virtual std::size_t mark() = 0;  ///< records a timestamp and returns its number since the last reset()
  virtual void reset() = 0;        ///< forgets all marks; must not be called while a graph with marks lives
  /// Returns the time between two marks. The work before both must be complete: synchronize() first.
  virtual double milliseconds(std::size_t from, std::size_t to) = 0;
};

std::unique_ptr<DeviceClock> make_device_clock(Device& device);
std::unique_ptr<DeviceClock> make_host_clock(Device& device);

}  // namespace precbench
