// Finds the parts of a trace that experts take. See expert_parts.h.
#include "bench/predict/expert_parts.h"

#include <algorithm>
#include <iterator>

namespace precbench {
namespace {

using Kind = TraceEvent::Kind;

}  // namespace

ExpertParts::ExpertParts(const Trace& trace) : trace_(trace) {
  find_traffic();
  find_parts();
}

void ExpertParts::find_traffic() {
  traffic_.resize(trace_.events.size());
  std::vector<std::vector<bool>> started(trace_.comms.size());  // by communicator: an exchange?
  for (std::size_t i = 0; i < trace_.events.size(); ++i) {
    const TraceEvent& event = trace_.events[i];
    if (event.kind == Kind::start) {
      const TraceCollective& one = trace_.collectives[static_cast<std::size_t>(event.index)];
      traffic_[i].exchange = one.name.starts_with("all_to_all");
      started[static_cast<std::size_t>(one.comm)].push_back(traffic_[i].exchange);
    } else if (event.kind == Kind::wait) {
      const std::vector<bool>& of_comm = started[static_cast<std::size_t>(event.index)];
      const auto awaited = static_cast<std::ptrdiff_t>(of_comm.size()) - 1 - event.later;
      if (awaited < 0) continue;
      const bool exchange = of_comm[static_cast<std::size_t>(awaited)];
      const auto after = std::count(of_comm.begin() + awaited + 1, of_comm.end(), exchange);
      traffic_[i] = {exchange, static_cast<std::int32_t>(after)};
    }
  }
}

void ExpertParts::find_parts() {
  std::size_t begin = 0, micro_step = 0;
  bool found = false;
  const auto end_part = [&](std::size_t end) {
    if (found) parts_.push_back({begin, end});
    begin = end;
    found = false;
  };
  for (std::size_t i = 0; i < trace_.events.size(); ++i) {
    const TraceEvent& event = trace_.events[i];
    const bool starts = micro_step < trace_.micro_steps.size() && trace_.micro_steps[micro_step] == i;
    micro_step += starts;
    if (starts || is_outside(event)) end_part(i);
    if (is_outside(event)) begin = i + 1;
    found = found || is_of_experts(event);
  }
  end_part(trace_.events.size());
}

std::optional<std::size_t> ExpertParts::part_of(std::size_t event) const {
  const auto after = std::upper_bound(parts_.begin(), parts_.end(), event,
                                      [](std::size_t at, const Part& part) { return at < part.begin; });
  if (after == parts_.begin() || event >= std::prev(after)->end) return std::nullopt;
  return static_cast<std::size_t>(std::prev(after) - parts_.begin());
}

bool ExpertParts::follows(std::size_t event) const {
  const auto passed_by = [&](std::size_t at) {
    return trace_.events[at].kind == Kind::op ? is_row_op(op_of(trace_.events[at])) : !is_exchange(at);
  };
  std::size_t next = event + 1;
  while (next < trace_.events.size() && passed_by(next)) ++next;
  return part_of(next).has_value();
}

bool ExpertParts::is_outside(const TraceEvent& event) const {
  if (event.kind != Kind::op) return false;
  const OpCost& op = op_of(event);
  return is_row_op(op) || is_gemm(op) || is_called(op, "embedding") || op.op_class == OpClass::attention ||
         op.op_class == OpClass::head_loss || op.op_class == OpClass::optimizer;
}

bool ExpertParts::is_of_experts(const TraceEvent& event) const {
  if (event.kind != Kind::op) return false;
  const OpCost& op = op_of(event);
  return op.op_class == OpClass::routing || std::strncmp(op.name, "grouped_", 8) == 0;
}

}  // namespace precbench
