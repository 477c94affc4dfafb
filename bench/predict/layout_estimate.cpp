// Times layouts. See layout_estimate.h.
#include "bench/predict/layout_estimate.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "bench/predict/pipeline.h"
#include "bench/predict/rank_estimate.h"

namespace precbench {
namespace {

/// Returns a time without some of its seconds, of which each part loses its share; nothing if there are not so many.
StepTime without(const StepTime& time, double seconds) {
  if (time.seconds <= seconds) return {};
  return weighted(time, 1 - seconds / time.seconds, {}, 0);
}

/// Returns the network's seconds for a micro-batch's activations between two stages.
double transfer_seconds(const Case& c, const ModelConfig& model, const ParallelLayout& layout,
                        const CostModel& cost_model) {
  const std::int64_t tokens = c.batch * c.seq / layout.context / layout.tensor;
  const std::int64_t stride = std::int64_t{layout.tensor} * layout.context * layout.data;
  return cost_model.network().seconds(Collective::send_recv, {layout.pipeline, stride},
                                      static_cast<double>(tokens * model.width) * 2);
}

/// Work of one pipeline stage.
struct StageWork {
  std::vector<ChunkSeconds> chunks;  ///< of a micro-batch, by group of layers
  StepTime micro_batch;
  StepTime around;  ///< what a step takes beside its micro-batches
};

/// Returns the work of a stage whose groups have these layers of each kind.
StageWork work_of_stage(const KindTimes& times, const std::vector<KindCounts>& groups, bool is_first,
                        bool is_last) {
  StageWork work;
  for (const KindCounts& own : groups) {
    ChunkSeconds chunk;
    for (std::size_t kind = 0; kind < own.size(); ++kind) {
      chunk.forward += times.kinds[kind].forward.one.seconds * own[kind];
      chunk.backward += times.kinds[kind].backward.one.seconds * own[kind];
    }
    work.chunks.push_back(chunk);
  }
  const KindCounts layers = layers_of_stage(groups);
  for (std::size_t kind = 0; kind < layers.size(); ++kind) {
    work.micro_batch.add(times.kinds[kind].forward.one, layers[kind]);
    work.micro_batch.add(times.kinds[kind].backward.one, layers[kind]);
    work.around.add(times.kinds[kind].around.one, layers[kind]);
  }
  const StageTimes& ends = times.of_ends();
  if (is_first) {
    work.chunks.front().forward += ends.embedding_forward;
    work.chunks.front().backward += ends.embedding_backward;
  }
  if (is_last) {
    const StepTime head_forward = without(ends.forward.rest, ends.embedding_forward);
    const StepTime head_backward = without(ends.backward.rest, ends.embedding_backward);
    work.chunks.back().forward += head_forward.seconds;
    work.chunks.back().backward += head_backward.seconds;
    work.micro_batch.add(weighted(head_forward, 1, head_backward, 1), 1);
  }
  work.around.add(ends.around.rest, is_first || is_last ? 0.5 : 0);
  return work;
}

/// Returns the estimate of a pipeline whose micro-batches take `times` and whose stages need `memory`.
LayoutEstimate estimate_pipeline(const Case& c, const BlockKinds& kinds, const ParallelLayout& layout,
                                 const KindTimes& times, std::vector<StageMemory> memory,
                                 const CostModel& cost_model) {
  const auto groups = kinds_by_group(kinds, layout);
  PipelineTimes pipeline;
  double around = 0;
  StepTime busiest;  // of the stage that works longest
  const int last = layout.pipeline - 1;
  for (int stage = 0; stage <= last; ++stage) {
    StageWork work = work_of_stage(times, groups[static_cast<std::size_t>(stage)], stage == 0, stage == last);
    pipeline.chunks.push_back(std::move(work.chunks));
    around = std::max(around, work.around.seconds);
    StepTime own = weighted(work.micro_batch, static_cast<double>(c.accumulation), work.around, 1);
    if (own.seconds > busiest.seconds) busiest = std::move(own);
  }
  pipeline.transfer = transfer_seconds(c, kinds.kinds[times.ends].model, layout, cost_model);
  const double busy = busiest_stage_seconds(pipeline, c.accumulation);
  const double all = pipeline_seconds(pipeline, c.accumulation);
  LayoutEstimate estimate{times.of_ends().step, all - busy, 0, std::move(memory), times.comms};
  for (const StageMemory& stage : estimate.stages)
    estimate.peak_bytes = std::max(estimate.peak_bytes, stage.peak());
  estimate.step.time = std::move(busiest);
  estimate.step.time.seconds = all + around;
  estimate.step.seconds = estimate.step.time.seconds * estimate.step.straggler_factor;
  return estimate;
}

/// Returns the estimate of a layout without pipeline stages: that of one rank.
LayoutEstimate estimate_whole(const Case& c, const ModelConfig& model, const ParallelLayout& layout,
                              const RecomputeShare& recompute, const CostModel& cost_model) {
  RankEstimate rank = estimate_rank(c, model, layout, recompute, cost_model);
  if (recompute.is_partial()) {
    const RankEstimate none = estimate_rank(without_recompute(c), model, layout, {}, cost_model);
    rank.step.seconds = recompute.mixed(rank.step.seconds, none.step.seconds);
    rank.step.time.seconds = recompute.mixed(rank.step.time.seconds, none.step.time.seconds);
    rank.memory.activations = recompute.mixed(rank.memory.activations, none.memory.activations);
  }
  return {rank.step, 0, rank.memory.total(), {memory_of_whole(rank.memory, model)}, rank.trace.comms};
}

}  // namespace

LayoutEstimate LayoutEstimator::estimate(const Case& c, const ParallelLayout& layout,
                                         const RecomputeShare& recompute) {
  if (layout.pipeline == 1) return estimate_whole(c, model_, layout, recompute, cost_model_);
  return estimate_pipeline(c, kinds_, layout, times_of(c, layout, recompute), memory(c, layout, recompute),
                           cost_model_);
}

const KindTimes& LayoutEstimator::times_of(const Case& c, const ParallelLayout& layout,
                                           const RecomputeShare& recompute) {
  const std::string key = fmt::format("{} {} {} {}", recompute.blocks, recompute.gemms, recompute.attention,
                                      stage_key(c, layout));
  if (const auto known = times_.find(key); known != times_.end()) return known->second;
  return times_.emplace(key, kind_times(c, kinds_, layout, recompute, cost_model_)).first->second;
}

LayoutEstimate estimate_layout(const Case& c, const ModelConfig& model, const ParallelLayout& layout,
                               const RecomputeShare& recompute, const CostModel& cost_model) {
  return LayoutEstimator(c, model, cost_model).estimate(c, layout, recompute);
}

}  // namespace precbench
