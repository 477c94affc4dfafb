// Runs a rank of a layout dry. See rank_estimate.h.
#include "bench/predict/rank_estimate.h"

#include <optional>

#include "bench/predict/predict.h"

namespace precbench {
namespace {

/// Dry runs of a rank: of traced_plan(), and of expert_plan() if tensor ranks share experts.
struct RankRuns {
  Plan plan;
  DryRun own;
  std::optional<DryRun> experts;
};

RankRuns run_dry(const Case& c, const ModelConfig& model, const ParallelLayout& layout) {
  RankRuns runs{traced_plan(c, model, layout), {}, std::nullopt};
  runs.own = dry_run(runs.plan, nullptr);
  if (layout.divides_expert_rows()) runs.experts = dry_run(expert_plan(c, model, layout), nullptr);
  return runs;
}

std::int64_t segment_bytes(const DryRun& run, Segment segment) {
  return run.peak.bytes[static_cast<int>(segment)];
}

/// Returns the bytes of activations that a tensor rank holds. Sequence parallelism divides all of them, those of norms
/// and residuals by tokens, those between GEMMs by columns, except two matrices that are gathered for a GEMM or wait to
/// be scattered. The ranks of expert_plan() have their share of the tokens already.
std::int64_t activations_of_tensor_rank(const RankRuns& runs, const Case& c, const ModelConfig& model,
                                        const ParallelLayout& layout) {
  const std::int64_t gathered = 2 * (c.batch * c.seq / layout.context * model.width * 2);
  if (runs.experts) return segment_bytes(*runs.experts, Segment::activations) + gathered;
  ParallelLayout whole = layout;
  whole.tensor = 1;
  const DryRun run = dry_run(local_plan(c, model, whole), nullptr);
  return segment_bytes(run, Segment::activations) / layout.tensor + gathered;
}

RankMemory memory_of(const RankRuns& runs, const Case& c, const ModelConfig& model,
                     const ParallelLayout& of_rank) {
  const ParallelLayout layout = lacking(of_rank, runs.plan);
  const auto bytes = [&](Segment segment) { return segment_bytes(runs.own, segment); };
  RankMemory memory;
  memory.activations = bytes(Segment::activations);
  for (const Segment segment : {Segment::weights, Segment::master, Segment::gradients, Segment::moments})
    memory.states += bytes(segment);
  memory.weights = bytes(Segment::weights);
  memory.gradients = bytes(Segment::gradients);
  memory.buffers = runs.own.most() - memory.activations - memory.states;
  if (layout.tensor > 1) memory.activations = activations_of_tensor_rank(runs, c, model, layout);
  // Gradients that take the place of activations during backward may be more than what tensor ranks have of these.
  const std::int64_t later = runs.own.highest.bytes[static_cast<int>(Segment::gradients)] - memory.gradients;
  if (layout.tensor > 1 && later > memory.activations) {
    memory.activations = 0;
    memory.gradients += later;
    memory.states += later;
  }
  if (layout.sharded_optimizer) {
    const std::int64_t shared = bytes(Segment::master) + bytes(Segment::moments);
    memory.states -=
        shared - static_cast<std::int64_t>(static_cast<double>(shared) / optimizer_shards(runs.plan, layout));
  }
  return memory;
}

}  // namespace

RankMemory rank_memory(const Case& c, const ModelConfig& model, const ParallelLayout& layout) {
  return memory_of(run_dry(c, model, layout), c, model, layout);
}

RankEstimate estimate_rank(const Case& c, const ModelConfig& model, const ParallelLayout& layout,
                           const RecomputeShare& recompute, const CostModel& cost_model) {
  const RankRuns runs = run_dry(c, model, layout);
  RankEstimate rank;
  rank.trace = parallel_trace(runs.own.trace, runs.plan, layout, recompute,
                              runs.experts ? &runs.experts->trace : nullptr);
  rank.rates = cost_model.rates_of(rank.trace);
  rank.step = estimate_step(cost_model, rank.trace, rank.rates, layout.ranks());
  rank.memory = memory_of(runs, c, model, layout);
  return rank;
}

}  // namespace precbench
