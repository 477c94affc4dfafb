// Step graphs and the device clock on CUDA; see graph.h.
#include "kernels/gpu/graph.h"

#include <vector>

#include "kernels/base/errors.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda_device.h"

namespace precbench {
namespace {

class CudaStepGraph final : public StepGraph {
 public:
  CudaStepGraph(CudaDevice& device, const CudaDevice::Captured& captured)
      : device_(device), captured_(captured) {}
  ~CudaStepGraph() override { cudaGraphExecDestroy(captured_.graph); }
  CudaStepGraph(const CudaStepGraph&) = delete;
  CudaStepGraph& operator=(const CudaStepGraph&) = delete;
  void replay() override {
    PRECBENCH_CHECK(cudaGraphLaunch(captured_.graph, device_.stream()));
    device_.launched("captured step");
  }
  int early_kernels() const override { return captured_.early_kernels; }

 private:
  CudaDevice& device_;
  CudaDevice::Captured captured_;
};

class EventClock final : public DeviceClock {
 public:
  explicit EventClock(CudaDevice& device) : device_(device) {}
  ~EventClock() override {
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
  }
  EventClock(const EventClock&) = delete;
  EventClock& operator=(const EventClock&) = delete;

  std::size_t mark() override {
    if (used_ == events_.size()) {
      cudaEvent_t event = nullptr;
      PRECBENCH_CHECK(cudaEventCreate(&event));
      events_.push_back(event);
    }
    // "External" makes the record a graph node, so that the event can be read after a replay.
    PRECBENCH_CHECK(
        cudaEventRecordWithFlags(events_[used_], device_.stream(),
                                 device_.capturing() ? cudaEventRecordExternal : cudaEventRecordDefault));
    return used_++;
  }
  void reset() override { used_ = 0; }
  double milliseconds(std::size_t from, std::size_t to) override {
    float ms = 0;
    PRECBENCH_CHECK(cudaEventElapsedTime(&ms, events_.at(from), events_.at(to)));
    return ms;
  }

 private:
  CudaDevice& device_;
  std::vector<cudaEvent_t> events_;  // kept over resets: creating one costs more than recording it
  std::size_t used_ = 0;
};

}  // namespace

bool has_graphs(const Device& device) { return dynamic_cast<const CudaDevice*>(&device) != nullptr; }

std::unique_ptr<StepGraph> capture_step(Device& device, const std::function<void()>& step, KernelStart start) {
  auto* cuda = dynamic_cast<CudaDevice*>(&device);
  if (!cuda) throw Unsupported("the " + device.name() + " device has no graphs");
  cuda->begin_capture();
  try {
    step();
  } catch (...) {
    cuda->abandon_capture();
    throw;
  }
  return std::make_unique<CudaStepGraph>(*cuda, cuda->end_capture(start));
}

std::unique_ptr<DeviceClock> make_device_clock(Device& device) {
  if (auto* cuda = dynamic_cast<CudaDevice*>(&device)) return std::make_unique<EventClock>(*cuda);
  return make_host_clock(device);
}

}  // namespace precbench
