// Time breakdown of a step: an observer that marks the beginning and end of every op on the device's clock.
//
// Used around one step outside the timed samples:
//   StepProfiler profiler(device);
//   profiler.start(); run the step; profiler.stop(); device.synchronize(); profiler.result()
// or, to exclude launch gaps, around the capture of a step that is then replayed and synchronized.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "kernels/device/device.h"
#include "kernels/gpu/graph.h"

namespace precbench {

class StepProfiler final : public OpObserver {
 public:
  explicit StepProfiler(Device& device);
  /// Uses another clock than the device's.
  StepProfiler(Device& device, std::unique_ptr<DeviceClock> clock);
  ~StepProfiler() override;

  void start();  ///< discards earlier results and becomes the device's observer
  void stop();   ///< restores the previous observer

  void begin(const OpCost& cost) override;
  void end(const OpCost& cost) override;

  /// All calls of one op with equal costs.
  struct OpTime {
    OpCost cost;  ///< of one call
    int calls = 0;
    double ms = 0;  ///< of all calls
  };
  struct Result {
    double total_ms = 0;  ///< start() to stop()
    double idle_ms = 0;   ///< part of it outside all ops
    std::array<double, kOpClasses> class_ms{};
    std::vector<OpTime> ops;  ///< longest first
  };
  Result result();

 private:
  struct Span {
    OpCost cost;
    std::size_t begin, end;
  };
  Device& device_;
  std::unique_ptr<DeviceClock> clock_;
  OpObserver* previous_ = nullptr;
  std::vector<Span> spans_;
  std::size_t start_ = 0, stop_ = 0;
  bool running_ = false;
};

}  // namespace precbench
