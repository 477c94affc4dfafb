// Bounds layouts from below. See layout_bound.h.
#include "bench/predict/layout_bound.h"

#include <algorithm>

#include "bench/predict/pipeline.h"

namespace precbench {
namespace {

/// Traffic of data ranks for a layer: of every micro-batch, and of a step beside that. Seconds of the collectives, and
/// how much longer ops beside them take.
struct LayerTraffic {
  double seconds = 0, slowed = 0, once_seconds = 0, once_slowed = 0;
};

/// Sums over the layers of a pipeline stage.
struct StageSums {
  double first = 0, all = 0;  ///< seconds of a micro-batch in the first group of layers and in all groups
  double exposed = 0;         ///< seconds of these, as LayerCost::exposed
  double states = 0, activations = 0;  ///< bytes, the latter of a micro-batch
  double buffers = 0;                  ///< bytes, of the layer that needs most
  int layers = 0;
};

/// Bounds one layout.
class Bounds {
 public:
  Bounds(const Case& c, const ModelConfig& model, const MicroBatchCost& cost, const CostModel& cost_model)
      : c_(c), model_(model), cost_(cost), cost_model_(cost_model) {
    if (c.shard_optimizer != "on") return;
    optimizer_shards_ = static_cast<double>(c.gpus) / static_cast<double>(c.tensor * c.pipeline);
    expert_replicas_ = optimizer_shards_ * static_cast<double>(c.tensor) / static_cast<double>(c.ep);
  }

  LayoutBound of_step() const {
    const auto micro_batches = static_cast<double>(c_.micro_steps());
    const LayerTraffic traffic = least_traffic();
    const std::vector<StageSums> stages = stage_sums();
    LayoutBound bound;
    // Stages before a stage fill its first micro-batch and drain its last one, one group of layers each.
    double fill = embedding_seconds();
    for (std::size_t i = 0; i < stages.size(); ++i) {
      const StageSums& stage = stages[i];
      const double micro_batch =
          micro_batch_seconds(stages, i) + slowed(stage, traffic.seconds, traffic.slowed);
      const double once = slowed(stage, traffic.once_seconds, traffic.once_slowed);
      const double traffic_seconds =
          static_cast<double>(stage.layers) * (micro_batches * traffic.seconds + traffic.once_seconds);
      bound.seconds = std::max(
          {bound.seconds, (i == 0 ? 0 : fill) + micro_batches * micro_batch + once, traffic_seconds});
      fill += stage.first;
      bound.bytes = std::max(bound.bytes, stage_bytes(stages, i));
    }
    bound.seconds *= straggler_factor(c_.gpus);
    return bound;
  }

 private:
  double embedding_seconds() const { return cost_.embedding_forward + cost_.embedding_backward; }

  /// Returns the share of a layer's weights that data ranks move. Ranks that share experts hold theirs whole, however
  /// many replicas there are.
  double moved_share(const LayerCost& layer) const { return 1 - whole_share(layer.expert_share); }
  double whole_share(double expert_share) const { return c_.ep > 1 ? expert_share : 0; }

  /// Returns the seconds of a layer's casts that the shard makes once, not every micro-batch: those of weights gathered
  /// in FP8. They are at most what reading the weights in BF16 and writing two FP8 copies takes at 60% of the memory
  /// bandwidth.
  double cast_by_shards(const LayerCost& layer) const {
    constexpr double kAchieved = 0.6;
    return in_fp8_ ? std::min(layer.quantize, 2 * layer.weight_bytes /
                                                  (kAchieved * 1e9 * cost_model_.machine().memory_gb_per_s))
                   : 0.0;
  }

  /// Returns the bytes of states that a rank holds.
  double state_bytes(double weights, double gradients, double optimizer, double expert_share) const {
    const double whole = whole_share(expert_share);
    const double own_gradients = c_.grad_sync == "every" && sharded_
                                     ? gradients * whole + gradients * (1 - whole) / shards_
                                     : gradients;
    return optimizer * whole / expert_replicas_ + optimizer * (1 - whole) / optimizer_shards_ +
           own_gradients + weights * (sharded_ && c_.reshard == "on" ? whole : 1) * (in_fp8_ ? 0.5 : 1);
  }

  /// Returns the traffic of a layer. Collectives of data ranks run one after the other, whatever else runs beside them,
  /// and slow down what does.
  LayerTraffic traffic_of(const LayerCost& layer) const {
    LayerTraffic traffic;
    if (!sharded_) return traffic;
    const RankGroup group{static_cast<std::int64_t>(shards_), c_.tensor};
    const double share = moved_share(layer);
    const auto add = [&](Collective kind, double bytes, bool often, double calls) {
      const double seconds = cost_model_.network().seconds(kind, group, bytes * share);
      const double slowed = seconds * cost_model_.contention(kind, group);
      (often ? traffic.seconds : traffic.once_seconds) += seconds * (often ? calls : 1);
      (often ? traffic.slowed : traffic.once_slowed) += slowed * (often ? calls : 1);
    };
    add(Collective::all_gather, layer.weight_bytes * (in_fp8_ ? 0.5 : 1), c_.reshard == "on", 2);
    add(Collective::reduce_scatter, std::min(layer.weight_bytes, layer.gradient_bytes),
        c_.grad_sync == "every", 1);
    return traffic;
  }

  /// Returns the traffic of the layer that moves least, which stands for all.
  LayerTraffic least_traffic() const {
    return traffic_of(
        *std::min_element(cost_.layers.begin(), cost_.layers.end(), [&](const auto& a, const auto& b) {
          return a.weight_bytes * moved_share(a) < b.weight_bytes * moved_share(b);
        }));
  }

  std::vector<StageSums> stage_sums() const {
    const auto stages = static_cast<std::size_t>(c_.pipeline);
    const auto groups =
        layers_by_group(model_.layers, static_cast<int>(stages), static_cast<int>(c_.virtual_stages));
    std::vector<StageSums> sums(stages);
    std::size_t next = 0;
    for (std::size_t g = 0; g < groups.front().size(); ++g)
      for (std::size_t stage = 0; stage < stages; ++stage)
        for (std::int64_t i = 0; i < groups[stage][g]; ++i) {
          const LayerCost& layer = cost_.layers[next++];
          StageSums& own = sums[stage];
          const double seconds = layer.forward + layer.backward - cast_by_shards(layer);
          own.all += seconds;
          if (g == 0) own.first += seconds;
          own.exposed += layer.exposed;
          own.states += state_bytes(layer.weight_bytes, layer.gradient_bytes, layer.optimizer_bytes,
                                    layer.expert_share);
          own.activations += layer.activation_bytes;
          own.buffers = std::max(own.buffers, layer.buffer_bytes);
          ++own.layers;
        }
    return sums;
  }

  /// Returns the seconds of a stage's micro-batch without traffic of data ranks.
  double micro_batch_seconds(const std::vector<StageSums>& stages, std::size_t stage) const {
    double seconds = stages[stage].all;
    if (stage == 0) seconds += embedding_seconds();
    if (stage == stages.size() - 1) seconds += cost_.head_forward + cost_.head_backward;
    return seconds;
  }

  /// Returns how much longer a stage computes beside its layers' traffic. Compute is slowed, except while it waits for
  /// other collectives. Where those run beside GEMMs, slower GEMMs also leave less to wait for.
  double slowed(const StageSums& stage, double seconds_of_layer, double slowed_of_layer) const {
    const auto layers = static_cast<double>(stage.layers);
    const double all = layers * seconds_of_layer, longer = layers * slowed_of_layer;
    if (all <= 0) return 0.0;
    const double hidden = c_.overlap == "none" ? longer * stage.exposed / all : stage.exposed;
    return std::max(0.0, longer - hidden);
  }

  /// Returns the bytes that a rank of a stage needs.
  double stage_bytes(const std::vector<StageSums>& stages, std::size_t stage) const {
    // Lines through few layers are below the memory of more layers, and above that of fewer.
    constexpr double kEnoughLayers = 3;
    const double in_flight =
        micro_batches_in_flight(static_cast<int>(stages.size()), static_cast<int>(c_.virtual_stages),
                                static_cast<int>(stage), c_.micro_steps());
    double bytes = stages[stage].states + stages[stage].activations * in_flight;
    if (stage == 0 || stage == stages.size() - 1)
      bytes += state_bytes(cost_.weight_bytes, cost_.gradient_bytes, cost_.optimizer_bytes, 0) *
               (stages.size() == 1 || model_.tied ? 1 : 0.5);
    if (stages[stage].layers >= kEnoughLayers) bytes += cost_.activation_bytes + stages[stage].buffers;
    return bytes;
  }

  const Case& c_;
  const ModelConfig& model_;
  const MicroBatchCost& cost_;
  const CostModel& cost_model_;
  const double shards_ = static_cast<double>(state_shards(c_));
  const bool sharded_ = c_.parallel != "ddp" && shards_ > 1;
  const bool in_fp8_ = sharded_ && c_.gather == "fp8";  // weights are gathered in FP8
  // Ranks among which the optimizer of weights, and of this rank's experts, is divided.
  double optimizer_shards_ = sharded_ ? shards_ : 1, expert_replicas_ = 1;
};

}  // namespace

std::int64_t state_shards(const Case& c) {
  const std::int64_t ranks = c.gpus / (c.tensor * c.pipeline);
  return c.parallel == "fsdp" ? ranks : c.parallel == "hsdp" ? c.shard_group : c.context;
}

LayoutBound layout_bound(const Case& c, const ModelConfig& model, const MicroBatchCost& cost,
                         const CostModel& cost_model) {
  return Bounds(c, model, cost, cost_model).of_step();
}

}  // namespace precbench
