// Collects and links a trace's events. See training_trace.h.
#include "tools/explain/training_trace.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace precbench {
namespace {

/// Reorders a vector: entry i becomes the one at order[i].
template <class T>
void reorder(std::vector<T>& values, const std::vector<std::uint32_t>& order) {
  std::vector<T> sorted;
  sorted.reserve(values.size());
  for (const std::uint32_t i : order) sorted.push_back(values[i]);
  values = std::move(sorted);
}

/// Returns the order by start; of equal starts the longer first, as it surrounds the other.
template <class T>
std::vector<std::uint32_t> order_by_start(const std::vector<T>& events) {
  std::vector<std::uint32_t> order(events.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return events[a].start != events[b].start ? events[a].start < events[b].start
                                              : events[a].duration > events[b].duration;
  });
  return order;
}

/// Sets HostEvent::parent of events that are sorted by start: the innermost operation around them on their thread. With
/// `ops` the same vector, of each other.
void nest(std::vector<HostEvent>& events, const std::vector<HostEvent>& ops, bool same) {
  std::unordered_map<std::int64_t, std::vector<std::uint32_t>> open;  // by thread, outermost first
  std::size_t next = 0;
  for (std::size_t i = 0; i < events.size(); ++i) {
    HostEvent& event = events[i];
    const auto begin = [&](std::uint32_t op) {
      std::vector<std::uint32_t>& stack = open[ops[op].thread];
      while (!stack.empty() && ops[stack.back()].end() <= ops[op].start) stack.pop_back();
      stack.push_back(op);
    };
    if (!same)
      for (; next < ops.size() && ops[next].start <= event.start; ++next)
        begin(static_cast<std::uint32_t>(next));
    std::vector<std::uint32_t>& stack = open[event.thread];
    while (!stack.empty() && ops[stack.back()].end() <= event.start) stack.pop_back();
    event.parent = stack.empty() ? kNoIndex : stack.back();
    if (same) stack.push_back(static_cast<std::uint32_t>(i));
  }
}

}  // namespace

bool OpInputs::operator<(const OpInputs& other) const {
  return std::tie(dims, types, elements) < std::tie(other.dims, other.types, other.elements);
}

std::uint32_t TraceBuilder::name(std::string_view text) {
  const std::string kept(text.substr(0, kMostNameBytes));
  if (const auto found = names_.find(kept); found != names_.end()) return found->second;
  if (trace_.names.size() >= kMostNames) return 0;
  const auto index = static_cast<std::uint32_t>(trace_.names.size());
  trace_.names.push_back(kept);
  names_.emplace(kept, index);
  return index;
}

std::uint32_t TraceBuilder::inputs(OpInputs inputs) {
  if (inputs.dims.empty()) return kNoIndex;
  if (const auto found = inputs_.find(inputs); found != inputs_.end()) return found->second;
  if (trace_.inputs.size() >= kMostInputs) return kNoIndex;
  const auto index = static_cast<std::uint32_t>(trace_.inputs.size());
  trace_.inputs.push_back(inputs);
  inputs_.emplace(std::move(inputs), index);
  return index;
}

void TraceBuilder::add_gpu(const GpuEvent& event, std::uint64_t correlation, std::uint64_t external) {
  if (trace_.gpu.size() >= kMostGpuEvents) {
    ++trace_.beyond;
    return;
  }
  trace_.gpu.push_back(event);
  gpu_ids_.push_back({correlation, external});
}

void TraceBuilder::add_call(const HostEvent& event, std::uint64_t correlation, std::uint64_t external) {
  if (trace_.calls.size() >= kMostHostEvents) {
    ++trace_.beyond;
    return;
  }
  trace_.calls.push_back(event);
  call_ids_.push_back({correlation, external});
}

void TraceBuilder::add_op(const HostEvent& event, std::uint64_t external) {
  if (trace_.ops.size() >= kMostHostEvents) {
    ++trace_.beyond;
    return;
  }
  trace_.ops.push_back(event);
  op_ids_.push_back(external);
}

void TraceBuilder::finish() {
  // Files of several GPUs: the busiest is explained.
  std::map<std::int32_t, std::size_t> by_device;
  for (const GpuEvent& event : trace_.gpu) ++by_device[event.device];
  if (by_device.size() > 1) {
    const std::int32_t kept = std::max_element(by_device.begin(), by_device.end(), [](auto& a, auto& b) {
                                return a.second < b.second;
                              })->first;
    std::size_t to = 0;
    for (std::size_t i = 0; i < trace_.gpu.size(); ++i)
      if (trace_.gpu[i].device == kept) {
        trace_.gpu[to] = trace_.gpu[i];
        gpu_ids_[to++] = gpu_ids_[i];
      }
    trace_.other_devices = static_cast<std::int64_t>(trace_.gpu.size() - to);
    trace_.gpu.resize(to);
    gpu_ids_.resize(to);
  }
  const auto sort = [](auto& events, auto& ids) {
    const std::vector<std::uint32_t> order = order_by_start(events);
    reorder(events, order);
    reorder(ids, order);
  };
  sort(trace_.gpu, gpu_ids_);
  sort(trace_.calls, call_ids_);
  sort(trace_.ops, op_ids_);
  std::int64_t first = std::numeric_limits<std::int64_t>::max();
  for (const auto* host : {&trace_.ops, &trace_.calls})
    if (!host->empty()) first = std::min(first, host->front().start);
  if (!trace_.gpu.empty()) first = std::min(first, trace_.gpu.front().start);
  for (GpuEvent& event : trace_.gpu) event.start -= first;
  for (auto* host : {&trace_.ops, &trace_.calls})
    for (HostEvent& event : *host) event.start -= first;

  nest(trace_.ops, trace_.ops, true);
  nest(trace_.calls, trace_.ops, false);
  std::unordered_map<std::uint64_t, std::uint32_t> calls, ops;
  for (std::size_t i = 0; i < call_ids_.size(); ++i)
    if (call_ids_[i].correlation) calls.emplace(call_ids_[i].correlation, static_cast<std::uint32_t>(i));
  for (std::size_t i = 0; i < op_ids_.size(); ++i)
    if (op_ids_[i]) ops.emplace(op_ids_[i], static_cast<std::uint32_t>(i));
  const auto found = [](const auto& map, std::uint64_t id) {
    const auto at = id ? map.find(id) : map.end();
    return at == map.end() ? kNoIndex : at->second;
  };
  for (std::size_t i = 0; i < trace_.gpu.size(); ++i) {
    GpuEvent& event = trace_.gpu[i];
    event.call = found(calls, gpu_ids_[i].correlation);
    event.op = event.call != kNoIndex ? trace_.calls[event.call].parent : kNoIndex;
    if (event.op == kNoIndex) event.op = found(ops, gpu_ids_[i].external);
    if (event.op == kNoIndex && event.call != kNoIndex) event.op = found(ops, call_ids_[event.call].external);
  }
}

}  // namespace precbench
