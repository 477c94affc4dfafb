// Extrapolates the times of pipeline stages. See stage_times.h.
#include "bench/predict/stage_times.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "bench/predict/rank_estimate.h"

namespace precbench {
namespace {

TimePerLayer line_through(std::int64_t few, const StepTime& at_few, std::int64_t many,
                          const StepTime& at_many) {
  const double layers = static_cast<double>(many - few);
  const StepTime one = weighted(at_many, 1 / layers, at_few, -1 / layers);
  return {one, weighted(at_few, 1, one, -static_cast<double>(few))};
}

TimePerLayer mixed(const TimePerLayer& a, double share, const TimePerLayer& b) {
  return {weighted(a.one, share, b.one, 1 - share), weighted(a.rest, share, b.rest, 1 - share)};
}

double seconds_of(const RankEstimate& rank, const char* name) {
  for (std::size_t i = 0; i < rank.trace.ops.size(); ++i)
    if (std::strcmp(rank.trace.ops[i].name, name) == 0) return rank.rates.op_seconds[i];
  return 0;
}

/// Returns the first event of class head_loss in [begin, end).
std::size_t head_begin(const Trace& trace, std::size_t begin, std::size_t end) {
  for (std::size_t i = begin; i < end; ++i)
    if (trace.events[i].kind == TraceEvent::Kind::op &&
        trace.ops[static_cast<std::size_t>(trace.events[i].index)].op_class == OpClass::head_loss)
      return i;
  return end;
}

/// Forward and backward of a middle micro-step, and what the first and the last one and the update take beside.
struct MicroStep {
  StepTime forward, backward, around;
};

MicroStep micro_step_of(const RankEstimate& rank) {
  static_assert(kTracedMicroSteps == 3);  // the second has no traffic between data ranks
  const Trace& trace = rank.trace;
  const std::size_t begin = trace.micro_steps.at(1), end = trace.micro_steps.at(2);
  const std::size_t head = head_begin(trace, begin, end);
  MicroStep m;
  m.forward = time_of_events(trace, rank.rates, begin, head);
  m.backward = time_of_events(trace, rank.rates, head, end);
  const StepTime both = weighted(m.forward, 1, m.backward, 1);
  if (rank.step.time.seconds > 3 * both.seconds) m.around = weighted(rank.step.time, 1, both, -3);
  return m;
}

/// Returns the times of blocks that recompute as the case says, all alike.
StageTimes uniform_stage_times(Case c, const ModelConfig& model, const ParallelLayout& layout,
                               const RecomputeShare& recompute, const CostModel& cost_model) {
  constexpr std::int64_t kFew = 1, kMany = 3;
  c.accumulation = kTracedMicroSteps;
  std::array<RankEstimate, 2> at;
  std::array<MicroStep, 2> micro;
  for (const std::size_t i : {0, 1}) {
    c.layers = i == 0 ? kFew : kMany;
    at[i] = estimate_rank(c, deepened(model, kMany), layout, recompute, cost_model);
    micro[i] = micro_step_of(at[i]);
  }
  const auto line = [&](const auto& few, const auto& many) { return line_through(kFew, few, kMany, many); };
  StageTimes times;
  times.forward = line(micro[0].forward, micro[1].forward);
  times.backward = line(micro[0].backward, micro[1].backward);
  times.around = line(micro[0].around, micro[1].around);
  times.embedding_forward = seconds_of(at[0], "embedding");
  times.embedding_backward = seconds_of(at[0], "embedding_backward");
  times.step = at[1].step;
  times.comms = at[1].trace.comms;
  times.own_lane.resize(times.comms.size());
  for (const TraceCollective& one : at[1].trace.collectives)
    times.own_lane[static_cast<std::size_t>(one.comm)] = one.lane != kSharedLane;
  times.memory = line(at[0].memory, at[1].memory);
  times.least_buffers = static_cast<double>(std::min(at[0].memory.buffers, at[1].memory.buffers));
  return times;
}

/// Numbers the exposed seconds of a time by other communicators.
void renumber(StepTime& time, const std::vector<std::size_t>& numbers, std::size_t count) {
  std::vector<double> exposed(count);
  for (std::size_t i = 0; i < time.exposed.size(); ++i) exposed[numbers[i]] += time.exposed[i];
  time.exposed = std::move(exposed);
}

}  // namespace

StageTimes stage_times(const Case& c, const ModelConfig& model, const ParallelLayout& layout,
                       const RecomputeShare& recompute, const CostModel& cost_model) {
  const StageTimes all = uniform_stage_times(c, model, layout, recompute, cost_model);
  if (!recompute.is_partial()) return all;
  StageTimes times = uniform_stage_times(without_recompute(c), model, layout, {}, cost_model);
  times.backward = mixed(all.backward, recompute.blocks, times.backward);
  return times;
}

KindTimes kind_times(const Case& c, const BlockKinds& kinds, const ParallelLayout& layout,
                     const RecomputeShare& recompute, const CostModel& cost_model) {
  KindTimes times;
  times.ends = kinds.most_common();
  for (const BlockKind& kind : kinds.kinds) {
    const auto [own, ranks] = case_of_kind(c, layout, kind);
    times.kinds.push_back(stage_times(own, kind.model, ranks, recompute, cost_model));
  }
  times.comms = times.of_ends().comms;
  for (StageTimes& kind : times.kinds) {
    std::vector<std::size_t> numbers;
    for (const std::vector<int>& ranks : kind.comms) {
      const auto at = std::find(times.comms.begin(), times.comms.end(), ranks);
      numbers.push_back(static_cast<std::size_t>(at - times.comms.begin()));
      if (at == times.comms.end()) times.comms.push_back(ranks);
    }
    if (kinds.kinds.size() == 1) break;
    for (TimePerLayer* line : {&kind.forward, &kind.backward, &kind.around})
      for (StepTime* time : {&line->one, &line->rest}) renumber(*time, numbers, times.comms.size());
  }
  return times;
}

}  // namespace precbench
