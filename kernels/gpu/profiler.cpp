// The step profiler and the host clock; see profiler.h and graph.h. Built with and without CUDA.
#include "kernels/gpu/profiler.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace precbench {
namespace {

class HostClock final : public DeviceClock {
 public:
  explicit HostClock(Device& device) : device_(device) {}
  std::size_t mark() override {
    device_.synchronize();
    moments_.push_back(std::chrono::steady_clock::now());
    return moments_.size() - 1;
  }
  void reset() override { moments_.clear(); }
  double milliseconds(std::size_t from, std::size_t to) override {
    return std::chrono::duration<double, std::milli>(moments_.at(to) - moments_.at(from)).count();
  }

 private:
  Device& device_;
  std::vector<std::chrono::steady_clock::time_point> moments_;
};

}  // namespace

std::unique_ptr<DeviceClock> make_host_clock(Device& device) { return std::make_unique<HostClock>(device); }

StepProfiler::StepProfiler(Device& device) : StepProfiler(device, make_device_clock(device)) {}

StepProfiler::StepProfiler(Device& device, std::unique_ptr<DeviceClock> clock)
    : device_(device), clock_(std::move(clock)) {}

StepProfiler::~StepProfiler() {
  if (running_) device_.set_observer(previous_);
}

void StepProfiler::start() {
  spans_.clear();
  clock_->reset();
  previous_ = device_.observer();
  device_.set_observer(this);
  running_ = true;
  start_ = clock_->mark();
}

void StepProfiler::stop() {
  stop_ = clock_->mark();
  device_.set_observer(previous_);
  running_ = false;
}

void StepProfiler::begin(const OpCost& cost) {
  if (previous_) previous_->begin(cost);
  const std::size_t moment = clock_->mark();
  spans_.push_back({cost, moment, moment});
}

void StepProfiler::end(const OpCost& cost) {
  spans_.back().end = clock_->mark();
  if (previous_) previous_->end(cost);
}

StepProfiler::Result StepProfiler::result() {
  Result result;
  result.total_ms = clock_->milliseconds(start_, stop_);
  result.idle_ms = result.total_ms;
  for (const Span& span : spans_) {
    const double ms = clock_->milliseconds(span.begin, span.end);
    auto op = std::find_if(result.ops.begin(), result.ops.end(),
                           [&](const OpTime& o) { return same_call(o.cost, span.cost); });
    if (op == result.ops.end()) op = result.ops.insert(op, OpTime{.cost = span.cost});
    ++op->calls;
    op->ms += ms;
    result.class_ms[static_cast<int>(span.cost.op_class)] += ms;
    result.idle_ms -= ms;
  }
  // Each time is rounded to the clock's ticks, so the sum of many may exceed the total.
  result.idle_ms = std::max(0.0, result.idle_ms);
  std::sort(result.ops.begin(), result.ops.end(),
            [](const OpTime& a, const OpTime& b) { return a.ms > b.ms; });
  return result;
}

}  // namespace precbench
