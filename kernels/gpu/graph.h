// What a session needs to run steps on a device fast and to time them there: a step captured once as a graph
// and replayed, and a clock of the device's own. No CUDA headers; both work in a build without CUDA as far as
// they can.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "kernels/device/device.h"

namespace precbench {

/// When kernels of a captured step start: each after the one in front of it; or our own while that one still runs, to wait for
/// its end in their places (kernels/cuda/hopper/early_start.cuh), on GPUs of 9.0 and later.
enum class KernelStart { in_turn, early };

/// One captured step. Replaying it repeats every op with the same addresses, so inputs change by uploading to
/// the same tensors, and per-step scalars live in device memory.
class StepGraph {
 public:
  virtual ~StepGraph() = default;
  virtual void replay() = 0;  ///< asynchronous, in order with the device's other work
  /// Of its kernels, those that start early.
  virtual int early_kernels() const = 0;
};

/// Whether capture_step works on this device.
bool has_graphs(const Device& device);

/// Captures what `step` runs on the device (collectives on its stream too) without executing it. The same
/// step must have run once before, so that plans and scratch exist. `step` may not allocate, upload, download
/// or synchronize. Throws Unsupported where the device has no graphs; an exception of `step` ends the capture
/// and passes through.
std::unique_ptr<StepGraph> capture_step(Device& device, const std::function<void()>& step,
                                        KernelStart start = KernelStart::in_turn);

/// Moments in the order of a device's work. On a GPU: events, also inside a captured graph, where they are taken
/// anew at every replay. Elsewhere: the host's clock after synchronize().
class DeviceClock {
 public:
  virtual ~DeviceClock() = default;
  virtual std::size_t mark() = 0;  ///< takes a moment and returns its number, counted from the last reset()
  virtual void reset() = 0;  ///< forgets all marks (and must not be called while a graph that has them lives)
  /// Time from one mark to a later one. The work before both must be complete: synchronize() first.
  virtual double milliseconds(std::size_t from, std::size_t to) = 0;
};

std::unique_ptr<DeviceClock> make_device_clock(Device& device);
std::unique_ptr<DeviceClock> make_host_clock(Device& device);

}  // namespace precbench
