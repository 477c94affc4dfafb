// Times layouts. See layout_estimate.h.
#include "bench/predict/layout_estimate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "bench/predict/pipeline.h"
#include "bench/predict/predict.h"

namespace precbench {

// LayoutEstimator::Known has these as members, so they are not in the unnamed namespace.

/// Linear function of a number of layers.
struct PerLayer {
  double one = 0, rest = 0;
  double at(double layers) const { return rest + one * layers; }
};

/// Linear function of a number of layers, of a time and all its parts.
struct TimePerLayer {
  StepTime one, rest;
};

/// Bytes of one rank at their peak. Buffers are those of collectives, of GEMMs, and quantized copies.
struct RankMemory {
  std::int64_t activations = 0, states = 0, buffers = 0;
  std::int64_t weights = 0, gradients = 0;  // of states

  std::int64_t others() const { return states + buffers; }
  std::int64_t total() const { return activations + others(); }
};

/// The kinds of a model's blocks: with and without experts, with and without a window.
struct BlockKinds {
  std::vector<ModelConfig> models;  ///< all of whose blocks are of one kind
  std::vector<std::size_t> of_layer;

  /// Returns the number of layers [begin, end) of each kind.
  std::vector<double> counts(std::int64_t begin, std::int64_t end) const {
    std::vector<double> counts(models.size());
    for (std::int64_t layer = begin; layer < end; ++layer)
      ++counts[of_layer[static_cast<std::size_t>(layer)]];
    return counts;
  }
  /// Returns the kind that most layers have.
  std::size_t most_common() const {
    const std::vector<double> all = counts(0, static_cast<std::int64_t>(of_layer.size()));
    return static_cast<std::size_t>(std::max_element(all.begin(), all.end()) - all.begin());
  }
};

/// Times of one micro-batch and of what surrounds all of them, as functions of a stage's layers.
struct StageTimes {
  TimePerLayer forward, backward, around;
  double embedding_forward = 0, embedding_backward = 0;
  StepEstimate step;
  std::vector<std::vector<int>> comms;
  std::vector<bool> own_lane;        // of comms: its collectives run beside those of data ranks
  std::array<RankMemory, 2> memory;  // with few and with many layers
  std::int64_t few = 0, many = 0;
};

/// Times of the layers of each kind, whose communicators are numbered alike.
struct KindTimes {
  std::vector<StageTimes> kinds;
  std::size_t ends = 0;                 ///< kind whose times of embedding, head and update are used
  std::vector<std::vector<int>> comms;  ///< of all kinds

  const StageTimes& of_ends() const { return kinds[ends]; }
};

/// Bytes of a rank as functions of a stage's layers.
struct MemoryPerLayer {
  PerLayer activations, states, buffers;
};

namespace {

/// Returns the line through the values at few and at many layers.
PerLayer line_through(std::int64_t few, double at_few, std::int64_t many, double at_many) {
  const double one = (at_many - at_few) / static_cast<double>(many - few);
  return {one, at_few - one * static_cast<double>(few)};
}

/// Adds a number of times, which may be negative or a fraction.
void add(StepTime& sum, const StepTime& time, double count) {
  sum.seconds += count * time.seconds;
  for (std::size_t c = 0; c < sum.class_seconds.size(); ++c)
    sum.class_seconds[c] += count * time.class_seconds[c];
  sum.contention += count * time.contention;
  sum.exposed.resize(std::max(sum.exposed.size(), time.exposed.size()));
  for (std::size_t i = 0; i < time.exposed.size(); ++i) sum.exposed[i] += count * time.exposed[i];
}

StepTime weighted(const StepTime& a, double count_of_a, const StepTime& b, double count_of_b) {
  StepTime sum;
  add(sum, a, count_of_a);
  add(sum, b, count_of_b);
  return sum;
}

/// Returns a time without some of its seconds, of which each part loses its share; nothing if there are not so many.
StepTime without(const StepTime& time, double seconds) {
  if (time.seconds <= seconds) return {};
  return weighted(time, 1 - seconds / time.seconds, {}, 0);
}

TimePerLayer line_through(std::int64_t few, const StepTime& at_few, std::int64_t many,
                          const StepTime& at_many) {
  const double layers = static_cast<double>(many - few);
  const StepTime one = weighted(at_many, 1 / layers, at_few, -1 / layers);
  return {one, weighted(at_few, 1, one, -static_cast<double>(few))};
}

TimePerLayer mixed(const TimePerLayer& a, double share, const TimePerLayer& b) {
  return {weighted(a.one, share, b.one, 1 - share), weighted(a.rest, share, b.rest, 1 - share)};
}

/// Trace and memory of one rank with a number of layers.
struct Traced {
  Trace trace;
  StepEstimate step;
  TimelineRates rates;
  RankMemory memory;
};

/// Returns the bytes of activations that a tensor rank holds. Sequence parallelism divides all of them, those of norms
/// and residuals by tokens, those between GEMMs by columns, except two matrices that are gathered for a GEMM or wait to
/// be scattered. `experts`: the dry run of expert_plan(), if there is one.
std::int64_t activations_of_tensor_rank(const Case& c, const ModelConfig& model, const ParallelLayout& layout,
                                        const DryRun* experts) {
  ParallelLayout whole = layout;
  whole.tensor = 1;
  const auto peak = [&] {
    return experts ? experts->peak
                   : dry_run(layout.divides_expert_rows() ? expert_plan(c, model, layout)
                                                          : local_plan(c, model, whole),
                             nullptr)
                         .peak;
  };
  const std::int64_t bytes = peak().bytes[static_cast<int>(Segment::activations)];
  const std::int64_t gathered = c.batch * c.seq / layout.context * model.width * 2;
  return (layout.divides_expert_rows() ? bytes : bytes / layout.tensor) + 2 * gathered;
}

RankMemory memory_of(const DryRun& run, const Plan& plan, const Case& c, const ModelConfig& model,
                     const ParallelLayout& layout, const DryRun* experts = nullptr) {
  const auto bytes = [&](Segment segment) { return run.peak.bytes[static_cast<int>(segment)]; };
  RankMemory memory;
  memory.activations = bytes(Segment::activations);
  for (const Segment segment : {Segment::weights, Segment::master, Segment::gradients, Segment::moments})
    memory.states += bytes(segment);
  memory.weights = bytes(Segment::weights);
  memory.gradients = bytes(Segment::gradients);
  memory.buffers = run.most() - memory.activations - memory.states;
  if (layout.tensor > 1) memory.activations = activations_of_tensor_rank(c, model, layout, experts);
  if (layout.sharded_optimizer) {
    const std::int64_t shared = bytes(Segment::master) + bytes(Segment::moments);
    memory.states -=
        shared - static_cast<std::int64_t>(static_cast<double>(shared) / optimizer_shards(plan, layout));
  }
  return memory;
}

Traced traced(const Case& c, const ModelConfig& model, const ParallelLayout& layout,
              const RecomputeShare& recompute, const CostModel& cost_model) {
  const Plan plan = local_plan(c, model, layout);
  const DryRun run = dry_run(plan, nullptr);
  const std::optional<DryRun> experts =
      layout.divides_expert_rows() ? std::optional(dry_run(expert_plan(c, model, layout), nullptr))
                                   : std::nullopt;
  Traced t;
  t.trace = parallel_trace(run.trace, plan, layout, recompute, experts ? &experts->trace : nullptr);
  t.rates = cost_model.rates_of(t.trace);
  t.step = estimate_step(cost_model, t.trace, t.rates, layout.ranks());
  t.memory = memory_of(run, plan, c, model, layout, experts ? &*experts : nullptr);
  return t;
}

/// Returns a model all of whose blocks are like one of its own.
ModelConfig uniform_model(ModelConfig model, std::int64_t layer) {
  if (model.moe && !model.has_experts(layer)) model.moe = {};
  model.moe.dense_layers = 0, model.moe.layer_interval = 1;
  model.sliding_window = model.window(layer);
  model.block.local_layers.clear();
  model.block.local_rope_theta = 0;
  return model;
}

BlockKinds block_kinds(const ModelConfig& model) {
  BlockKinds kinds;
  std::vector<std::pair<bool, std::int64_t>> known;
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    const std::pair kind = {model.has_experts(layer), model.window(layer)};
    const auto at = std::find(known.begin(), known.end(), kind);
    kinds.of_layer.push_back(static_cast<std::size_t>(at - known.begin()));
    if (at != known.end()) continue;
    known.push_back(kind);
    kinds.models.push_back(uniform_model(model, layer));
  }
  if (kinds.models.size() == 1) kinds.models.front() = model;
  return kinds;
}

/// A case and a layout of a model all of whose blocks are of one kind: without experts, no ranks share them.
std::pair<Case, ParallelLayout> of_kind(Case c, ParallelLayout layout, const ModelConfig& kind) {
  if (!kind.moe) {
    const Case defaults;
    c.ep = defaults.ep, c.exchange = defaults.exchange, c.slots = defaults.slots,
    c.dispatch = defaults.dispatch;
    c.routing = defaults.routing, c.capacity = defaults.capacity;
    c.aux = defaults.aux, c.z_loss = defaults.z_loss;
    layout.experts = 1;
  }
  return {std::move(c), layout};
}

double seconds_of(const Traced& t, const char* name) {
  for (std::size_t i = 0; i < t.trace.ops.size(); ++i)
    if (std::strcmp(t.trace.ops[i].name, name) == 0) return t.rates.op_seconds[i];
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

MicroStep micro_step_of(const Traced& t) {
  // Three micro-steps are traced: the second has no traffic between data ranks.
  const Trace& trace = t.trace;
  const std::size_t begin = trace.micro_steps.at(1), end = trace.micro_steps.at(2);
  const std::size_t head = head_begin(trace, begin, end);
  MicroStep m;
  m.forward = time_of_events(trace, t.rates, begin, head);
  m.backward = time_of_events(trace, t.rates, head, end);
  const StepTime both = weighted(m.forward, 1, m.backward, 1);
  if (t.step.time.seconds > 3 * both.seconds) m.around = weighted(t.step.time, 1, both, -3);
  return m;
}

/// Returns a model with at least so many blocks, all like its own, for traces that stages are extrapolated from.
ModelConfig deepened(ModelConfig model, std::int64_t layers) {
  model.layers = std::max(model.layers, layers);
  return model;
}

/// Micro-steps of such a trace: the first, one that stands for those between, the last.
constexpr std::int64_t kTracedMicroSteps = 3;

StageTimes stage_times(Case c, const ModelConfig& model, const ParallelLayout& layout,
                       const RecomputeShare& recompute, const CostModel& cost_model) {
  constexpr std::int64_t kFew = 1, kMany = 3;
  c.accumulation = kTracedMicroSteps;
  std::array<Traced, 2> at;
  std::array<MicroStep, 2> micro;
  for (const std::size_t i : {0, 1}) {
    c.layers = i == 0 ? kFew : kMany;
    at[i] = traced(c, deepened(model, kMany), layout, recompute, cost_model);
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
  times.memory = {at[0].memory, at[1].memory};
  times.few = kFew, times.many = kMany;
  return times;
}

StageTimes stage_times_mixed(const Case& c, const ModelConfig& model, const ParallelLayout& layout,
                             const RecomputeShare& recompute, const CostModel& cost_model) {
  if (recompute.blocks <= 0 || recompute.blocks >= 1)
    return stage_times(c, model, layout, recompute, cost_model);
  const StageTimes all = stage_times(c, model, layout, recompute, cost_model);
  Case without = c;
  without.recompute = "none";
  StageTimes times = stage_times(without, model, layout, {}, cost_model);
  const double share = recompute.blocks;
  times.backward = mixed(all.backward, share, times.backward);
  return times;
}

/// Numbers the exposed seconds of a time by other communicators.
void renumber(StepTime& time, const std::vector<std::size_t>& numbers, std::size_t count) {
  std::vector<double> exposed(count);
  for (std::size_t i = 0; i < time.exposed.size(); ++i) exposed[numbers[i]] += time.exposed[i];
  time.exposed = std::move(exposed);
}

KindTimes kind_times(const Case& c, const BlockKinds& kinds, const ParallelLayout& layout,
                     const RecomputeShare& recompute, const CostModel& cost_model) {
  KindTimes times;
  times.ends = kinds.most_common();
  for (const ModelConfig& model : kinds.models) {
    const auto [own, ranks] = of_kind(c, layout, model);
    times.kinds.push_back(stage_times_mixed(own, model, ranks, recompute, cost_model));
  }
  times.comms = times.of_ends().comms;
  for (StageTimes& kind : times.kinds) {
    std::vector<std::size_t> numbers;
    for (const std::vector<int>& ranks : kind.comms) {
      const auto at = std::find(times.comms.begin(), times.comms.end(), ranks);
      numbers.push_back(static_cast<std::size_t>(at - times.comms.begin()));
      if (at == times.comms.end()) times.comms.push_back(ranks);
    }
    if (kinds.models.size() == 1) break;
    for (TimePerLayer* line : {&kind.forward, &kind.backward, &kind.around})
      for (StepTime* time : {&line->one, &line->rest}) renumber(*time, numbers, times.comms.size());
  }
  return times;
}

/// Returns the layers of each group of a stage by kind: [stage][group][kind].
std::vector<std::vector<std::vector<double>>> kinds_by_group(const BlockKinds& kinds,
                                                             const ParallelLayout& layout) {
  const auto layers = static_cast<std::int64_t>(kinds.of_layer.size());
  const auto counts = layers_by_group(layers, layout.pipeline, layout.interleave);
  std::vector<std::vector<std::vector<double>>> found(counts.size());
  std::int64_t begin = 0;
  for (std::size_t group = 0; group < static_cast<std::size_t>(layout.interleave); ++group)
    for (std::size_t stage = 0; stage < counts.size(); ++stage) {
      const std::int64_t end = begin + counts[stage][group];
      found[stage].push_back(kinds.counts(begin, end));
      begin = end;
    }
  return found;
}

/// Returns the network's seconds for a micro-batch's activations between two stages.
double transfer_seconds(const Case& c, const ModelConfig& model, const ParallelLayout& layout,
                        const CostModel& cost_model) {
  const std::int64_t tokens = c.batch * c.seq / layout.context / layout.tensor;
  const std::int64_t stride = std::int64_t{layout.tensor} * layout.context * layout.data;
  return cost_model.network().seconds(Collective::send_recv, {layout.pipeline, stride},
                                      static_cast<double>(tokens * model.width) * 2);
}

MemoryPerLayer memory_per_layer(Case c, const ModelConfig& model, const ParallelLayout& layout) {
  constexpr std::int64_t kFew = 3, kMany = 5;  // from three layers on, a layer's buffers are reused
  c.accumulation = std::min(c.accumulation, kTracedMicroSteps);
  const auto at = [&](std::int64_t layers) {
    Case own = c;
    own.layers = layers;
    const ModelConfig deep = deepened(model, kMany);
    const Plan plan = local_plan(own, deep, layout);
    return memory_of(dry_run(plan, nullptr), plan, own, deep, layout);
  };
  const RankMemory few = at(kFew), many = at(kMany);
  const auto line = [](std::int64_t at_few, std::int64_t at_many) {
    return line_through(kFew, static_cast<double>(at_few), kMany, static_cast<double>(at_many));
  };
  return {line(few.activations, many.activations), line(few.states, many.states),
          line(few.buffers, many.buffers)};
}

std::vector<MemoryPerLayer> memory_of_kinds(const Case& c, const BlockKinds& kinds,
                                            const ParallelLayout& layout) {
  std::vector<MemoryPerLayer> bytes;
  for (const ModelConfig& model : kinds.models) {
    const auto [own, ranks] = of_kind(c, layout, model);
    bytes.push_back(memory_per_layer(own, model, ranks));
  }
  return bytes;
}

/// Returns the memory of each pipeline stage. States outside of blocks are those of the embedding, on the first stage, and
/// of the head, on the last one, half each, or both if they share their weights. Every stage has the buffers.
std::vector<StageMemory> memory_of_stages(const std::vector<MemoryPerLayer>& bytes, const BlockKinds& kinds,
                                          const ParallelLayout& layout, std::int64_t micro_batches) {
  const auto groups = kinds_by_group(kinds, layout);
  const std::size_t common = kinds.most_common();
  std::vector<StageMemory> stages;
  for (int stage = 0; stage < layout.pipeline; ++stage) {
    StageMemory memory;
    std::vector<double> layers(kinds.models.size());
    for (const std::vector<double>& own : groups[static_cast<std::size_t>(stage)])
      for (std::size_t kind = 0; kind < own.size(); ++kind) layers[kind] += own[kind];
    for (const double own : layers) memory.layers += static_cast<std::int64_t>(own);
    memory.micro_batches = micro_batches_in_flight(layout.pipeline, layout.interleave, stage, micro_batches);
    const bool ends = stage == 0 || stage == layout.pipeline - 1;
    const double own_rest = !ends ? 0 : kinds.models[common].tied ? 1 : 0.5;
    double states = 0, activations = bytes[common].activations.rest;
    for (std::size_t kind = 0; kind < layers.size(); ++kind) {
      states += bytes[kind].states.one * layers[kind];
      activations += bytes[kind].activations.one * (layers[kind] * memory.micro_batches);
      if (layers[kind] > 0)
        memory.buffers =
            std::max(memory.buffers, static_cast<std::int64_t>(bytes[kind].buffers.at(layers[kind])));
    }
    memory.states = static_cast<std::int64_t>(states + bytes[common].states.rest * own_rest);
    memory.activations = static_cast<std::int64_t>(activations);
    stages.push_back(memory);
  }
  return stages;
}

/// Returns the memory of one stage that has the whole model.
StageMemory memory_of_whole(const RankMemory& memory, const ModelConfig& model) {
  return {model.layers, 1, memory.states, memory.buffers, memory.activations};
}

/// Returns the activations' bytes of a rank whose blocks recompute for this share.
std::int64_t mixed_bytes(std::int64_t all, double share, std::int64_t none) {
  return static_cast<std::int64_t>(static_cast<double>(all) * share +
                                   static_cast<double>(none) * (1 - share));
}

/// Returns the estimate of a pipeline whose micro-batches take `times` and whose stages need `stages`.
LayoutEstimate estimate_pipeline(const Case& c, const BlockKinds& kinds, const ParallelLayout& layout,
                                 const KindTimes& times, std::vector<StageMemory> memory,
                                 const CostModel& cost_model) {
  const auto groups = kinds_by_group(kinds, layout);
  const StageTimes& of_ends = times.of_ends();
  PipelineTimes pipeline;
  double around = 0;
  StepTime busiest;  // of the stage that works longest
  const int last = layout.pipeline - 1;
  for (int stage = 0; stage <= last; ++stage) {
    std::vector<ChunkSeconds> chunks;
    std::vector<double> layers(times.kinds.size());
    for (const std::vector<double>& own : groups[static_cast<std::size_t>(stage)]) {
      ChunkSeconds chunk;
      for (std::size_t kind = 0; kind < own.size(); ++kind) {
        layers[kind] += own[kind];
        chunk.forward += times.kinds[kind].forward.one.seconds * own[kind];
        chunk.backward += times.kinds[kind].backward.one.seconds * own[kind];
      }
      chunks.push_back(chunk);
    }
    StepTime micro_batch, own_around;
    for (std::size_t kind = 0; kind < layers.size(); ++kind) {
      add(micro_batch, times.kinds[kind].forward.one, layers[kind]);
      add(micro_batch, times.kinds[kind].backward.one, layers[kind]);
      add(own_around, times.kinds[kind].around.one, layers[kind]);
    }
    if (stage == 0) {
      chunks.front().forward += of_ends.embedding_forward;
      chunks.front().backward += of_ends.embedding_backward;
    }
    if (stage == last) {
      const StepTime head_forward = without(of_ends.forward.rest, of_ends.embedding_forward);
      const StepTime head_backward = without(of_ends.backward.rest, of_ends.embedding_backward);
      chunks.back().forward += head_forward.seconds;
      chunks.back().backward += head_backward.seconds;
      add(micro_batch, weighted(head_forward, 1, head_backward, 1), 1);
    }
    pipeline.chunks.push_back(std::move(chunks));
    const bool ends = stage == 0 || stage == last;
    add(own_around, of_ends.around.rest, ends ? 0.5 : 0);
    around = std::max(around, own_around.seconds);
    StepTime own = weighted(micro_batch, static_cast<double>(c.accumulation), own_around, 1);
    if (own.seconds > busiest.seconds) busiest = std::move(own);
  }
  pipeline.transfer = transfer_seconds(c, kinds.models[times.ends], layout, cost_model);
  const double busy = busiest_stage_seconds(pipeline, c.accumulation);
  const double all = pipeline_seconds(pipeline, c.accumulation);
  LayoutEstimate estimate{of_ends.step, all - busy, 0, std::move(memory), times.comms};
  for (const StageMemory& stage : estimate.stages)
    estimate.peak_bytes = std::max(estimate.peak_bytes, stage.peak());
  estimate.step.time = std::move(busiest);
  estimate.step.time.seconds = all + around;
  estimate.step.seconds = estimate.step.time.seconds * estimate.step.straggler_factor;
  return estimate;
}

LayoutEstimate estimate_whole(const Case& c, const ModelConfig& model, const ParallelLayout& layout,
                              const RecomputeShare& recompute, const CostModel& cost_model) {
  const Traced all = traced(c, model, layout, recompute, cost_model);
  LayoutEstimate estimate{
      all.step, 0, all.memory.total(), {memory_of_whole(all.memory, model)}, all.trace.comms};
  if (recompute.blocks <= 0 || recompute.blocks >= 1) return estimate;
  Case without = c;
  without.recompute = "none";
  const Traced none = traced(without, model, layout, {}, cost_model);
  const double share = recompute.blocks;
  const auto mix = [&](double a, double b) { return a * share + b * (1 - share); };
  estimate.step.seconds = mix(all.step.seconds, none.step.seconds);
  estimate.step.time.seconds = mix(all.step.time.seconds, none.step.time.seconds);
  estimate.peak_bytes = mixed_bytes(all.memory.total(), share, none.memory.total());
  StageMemory& stage = estimate.stages.front();
  stage.activations = estimate.peak_bytes - stage.states - stage.buffers;
  return estimate;
}

}  // namespace

std::vector<StageMemory> layout_memory(const Case& c, const ModelConfig& model, const ParallelLayout& layout,
                                       const RecomputeShare& recompute) {
  const BlockKinds kinds = block_kinds(model);
  const auto memory_with = [&](const Case& own) {
    if (layout.pipeline > 1)
      return memory_of_stages(memory_of_kinds(own, kinds, layout), kinds, layout, c.accumulation);
    const Plan plan = local_plan(own, model, layout);
    return std::vector{memory_of_whole(memory_of(dry_run(plan, nullptr), plan, own, model, layout), model)};
  };
  std::vector<StageMemory> stages = memory_with(c);
  if (recompute.blocks <= 0 || recompute.blocks >= 1) return stages;
  Case without = c;
  without.recompute = "none";
  const std::vector<StageMemory> none = memory_with(without);
  for (std::size_t stage = 0; stage < stages.size(); ++stage)
    stages[stage].activations =
        mixed_bytes(stages[stage].activations, recompute.blocks, none[stage].activations);
  return stages;
}

namespace {

MicroBatchCost cost_of_kind(const StageTimes& times) {
  MicroBatchCost cost;
  cost.forward = times.forward.one.seconds;
  cost.backward = times.backward.one.seconds;
  for (const StepTime* time : {&times.forward.one, &times.backward.one})
    for (std::size_t comm = 0; comm < time->exposed.size(); ++comm)
      if (times.own_lane[comm]) cost.exposed += time->exposed[comm];
  for (const StepTime* time : {&times.forward.one, &times.backward.one})
    cost.quantize += time->class_seconds[static_cast<std::size_t>(OpClass::quantize)];
  cost.embedding_forward = times.embedding_forward;
  cost.embedding_backward = times.embedding_backward;
  cost.head_forward = std::max(0.0, times.forward.rest.seconds - times.embedding_forward);
  cost.head_backward = std::max(0.0, times.backward.rest.seconds - times.embedding_backward);
  const auto per_layer = [&](std::int64_t RankMemory::*part) {
    return static_cast<double>(times.memory[1].*part - times.memory[0].*part) /
           static_cast<double>(times.many - times.few);
  };
  cost.activation_bytes = per_layer(&RankMemory::activations);
  cost.weight_bytes = per_layer(&RankMemory::weights);
  cost.gradient_bytes = per_layer(&RankMemory::gradients);
  cost.optimizer_bytes = per_layer(&RankMemory::states) - cost.weight_bytes - cost.gradient_bytes;
  const auto rest = [&](std::int64_t RankMemory::*part, double one) {
    return std::max(0.0, static_cast<double>(times.memory[0].*part) - one * static_cast<double>(times.few));
  };
  cost.ends_weight_bytes = rest(&RankMemory::weights, cost.weight_bytes);
  cost.ends_gradient_bytes = rest(&RankMemory::gradients, cost.gradient_bytes);
  cost.ends_optimizer_bytes = rest(&RankMemory::states, per_layer(&RankMemory::states)) -
                              cost.ends_weight_bytes - cost.ends_gradient_bytes;
  cost.activation_rest_bytes = rest(&RankMemory::activations, cost.activation_bytes);
  cost.buffer_bytes = static_cast<double>(std::min(times.memory[0].buffers, times.memory[1].buffers));
  return cost;
}

}  // namespace

std::vector<MicroBatchCost> micro_batch_costs(const Case& c, const ModelConfig& model,
                                              const ParallelLayout& layout, const CostModel& cost_model) {
  const BlockKinds kinds = block_kinds(model);
  std::vector<MicroBatchCost> of_kinds;
  for (const ModelConfig& kind : kinds.models) {
    const auto [own, ranks] = of_kind(c, layout, kind);
    of_kinds.push_back(cost_of_kind(stage_times(own, kind, ranks, {}, cost_model)));
    if (!kind.moe || of_kinds.back().weight_bytes <= 0) continue;
    const std::int64_t share_experts = std::max<std::int64_t>(c.ep, layout.experts);
    const auto experts =
        static_cast<double>(kind.moe.rule.experts / share_experts * 3 * kind.width * kind.moe.expert_ffn);
    of_kinds.back().expert_share = std::min(1.0, 2 * experts / of_kinds.back().weight_bytes);
  }
  std::vector<MicroBatchCost> of_layers;
  for (const std::size_t kind : kinds.of_layer) of_layers.push_back(of_kinds[kind]);
  return of_layers;
}

LayoutEstimate estimate_layout(const Case& c, const ModelConfig& model, const ParallelLayout& layout,
                               const RecomputeShare& recompute, const CostModel& cost_model) {
  if (layout.pipeline == 1) return estimate_whole(c, model, layout, recompute, cost_model);
  const BlockKinds kinds = block_kinds(model);
  return estimate_pipeline(c, kinds, layout, kind_times(c, kinds, layout, recompute, cost_model),
                           layout_memory(c, model, layout, recompute), cost_model);
}

struct LayoutEstimator::Known {
  BlockKinds kinds;
  std::map<std::string, KindTimes> times;
  std::map<std::string, std::vector<MemoryPerLayer>> memory;
};

LayoutEstimator::LayoutEstimator(const ModelConfig& model, const CostModel& cost_model)
    : model_(model), cost_model_(cost_model), known_(new Known{block_kinds(model), {}, {}}) {}
LayoutEstimator::~LayoutEstimator() = default;

namespace {

/// Returns a text of everything that decides the times and the memory of a stage's layers.
std::string stage_key(Case c, const ParallelLayout& layout) {
  c.accumulation = std::min(c.accumulation, kTracedMicroSteps);
  return fmt::format("{} {} {} {} {} {}{}{} {}", layout.tensor, layout.context, layout.data, layout.pipeline,
                     layout.experts, int{layout.tensor_overlap}, int{layout.context_overlap},
                     int{layout.sharded_optimizer},
                     case_to_json(c).dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

}  // namespace

std::vector<StageMemory> LayoutEstimator::memory(const Case& c, const ParallelLayout& layout) {
  if (layout.pipeline == 1) return layout_memory(c, model_, layout, {});
  const std::string key = stage_key(c, layout);
  auto known = known_->memory.find(key);
  if (known == known_->memory.end())
    known = known_->memory.emplace(key, memory_of_kinds(c, known_->kinds, layout)).first;
  return memory_of_stages(known->second, known_->kinds, layout, c.accumulation);
}

LayoutEstimate LayoutEstimator::estimate(const Case& c, const ParallelLayout& layout) {
  if (layout.pipeline == 1) return estimate_layout(c, model_, layout, {}, cost_model_);
  const std::string key = stage_key(c, layout);
  auto known = known_->times.find(key);
  if (known == known_->times.end())
    known = known_->times.emplace(key, kind_times(c, known_->kinds, layout, {}, cost_model_)).first;
  return estimate_pipeline(c, known_->kinds, layout, known->second, memory(c, layout), cost_model_);
}

}  // namespace precbench
