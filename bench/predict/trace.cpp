// Writes and counts traces. See trace.h.
#include "bench/predict/trace.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace precbench {
namespace {

OpCost cost_of(const TraceCollective& collective) {
  return {
      .name = collective.name.c_str(), .op_class = OpClass::communication, .bytes = collective.wire_bytes};
}

}  // namespace

std::size_t hash_of(const OpCost& op) {
  std::size_t hash = std::hash<double>()(op.flops) * 31 + std::hash<double>()(op.bytes);
  for (const std::int64_t n : op.shape) hash = hash * 31 + static_cast<std::size_t>(n);
  return hash;
}

int TraceWriter::op_index(const OpCost& cost) {
  // Layers are alike, so most ops are those that followed the last one before.
  int& next = next_[last_];
  if (next >= 0 && same_call(trace_.ops[static_cast<std::size_t>(next)], cost)) return next;
  std::vector<int>& alike = known_[hash_of(cost)];
  auto known = std::find_if(alike.begin(), alike.end(),
                            [&](int i) { return same_call(trace_.ops[static_cast<std::size_t>(i)], cost); });
  if (known == alike.end()) {
    known = alike.insert(known, static_cast<int>(trace_.ops.size()));
    trace_.ops.push_back(cost);
  }
  return next = *known;
}

void TraceWriter::begin(const OpCost& cost) {
  if (cost.op_class == OpClass::communication) return;  // started() has it
  const int index = op_index(cost);
  next_.resize(trace_.ops.size() + 1, -1);
  last_ = static_cast<std::size_t>(index) + 1;
  trace_.events.push_back({TraceEvent::Kind::op, index, 0});
}

int TraceWriter::comm_index(const Comm& comm) {
  auto known = std::find(numbers_.begin(), numbers_.end(), comm.number());
  const auto index = static_cast<int>(known - numbers_.begin());
  if (known == numbers_.end()) {
    numbers_.push_back(comm.number());
    tickets_.push_back(0);
    trace_.comms.push_back(comm.members());
  }
  return index;
}

void TraceWriter::started(const Comm& comm, std::uint64_t ticket, const OpCost& cost, double buffer_bytes) {
  const int index = comm_index(comm);
  tickets_[static_cast<std::size_t>(index)] = ticket;
  trace_.start({cost.name, buffer_bytes, cost.bytes, index, comm.lane()});
}

void TraceWriter::waited(const Comm& comm, std::uint64_t ticket) {
  const int index = comm_index(comm);
  const std::uint64_t latest = tickets_[static_cast<std::size_t>(index)];
  if (ticket > latest) return;  // started before the trace
  trace_.events.push_back({TraceEvent::Kind::wait, index, static_cast<std::int32_t>(latest - ticket)});
}

bool TraceWriter::is_update(const TraceEvent& event) const {
  return event.kind == TraceEvent::Kind::op &&
         trace_.ops[static_cast<std::size_t>(event.index)].op_class == OpClass::optimizer;
}

Trace TraceWriter::take(std::int64_t repeats) {
  if (trace_.micro_steps.size() > 2) {
    trace_.repeat_begin = trace_.micro_steps[1];
    trace_.repeat_end = trace_.micro_steps[2];
    trace_.repeats = repeats;
  }
  std::size_t& update = trace_.update_begin;
  while (update < trace_.events.size() && !is_update(trace_.events[update])) ++update;
  while (update > 0 && trace_.events[update - 1].kind == TraceEvent::Kind::wait) --update;
  numbers_.clear();
  tickets_.clear();
  known_.clear();
  next_ = {-1};
  last_ = 0;
  return std::exchange(trace_, {});
}

void Trace::start(TraceCollective collective) {
  auto known = std::find(collectives.begin(), collectives.end(), collective);
  if (known == collectives.end()) known = collectives.insert(known, std::move(collective));
  events.push_back({TraceEvent::Kind::start, static_cast<std::int32_t>(known - collectives.begin()), 0});
}

std::vector<CountedOp> Trace::counted() const {
  std::vector<CountedOp> counts;
  counts.reserve(ops.size() + collectives.size());
  for (const OpCost& op : ops) counts.push_back({op, 0});
  for (const TraceCollective& collective : collectives) counts.push_back({cost_of(collective), 0});
  for (std::size_t i = 0; i < events.size(); ++i) {
    const auto index = static_cast<std::size_t>(events[i].index);
    if (events[i].kind == TraceEvent::Kind::op) counts[index].calls += times(i);
    if (events[i].kind == TraceEvent::Kind::start) counts[ops.size() + index].calls += times(i);
  }
  return counts;
}

std::vector<OpCost> Trace::calls() const {
  std::vector<OpCost> all;
  const auto add = [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      const auto index = static_cast<std::size_t>(events[i].index);
      if (events[i].kind == TraceEvent::Kind::op) all.push_back(ops[index]);
      if (events[i].kind == TraceEvent::Kind::start) all.push_back(cost_of(collectives[index]));
    }
  };
  add(0, repeat_begin);
  for (std::int64_t n = 0; n < repeats; ++n) add(repeat_begin, repeat_end);
  add(repeat_end, events.size());
  return all;
}

}  // namespace precbench
