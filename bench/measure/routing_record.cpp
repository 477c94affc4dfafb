// Records the routing of an MoE model: rows, loads and losses of a step. See record_builder.h.
#include <algorithm>
#include <numeric>

#include "bench/measure/record_builder.h"
#include "models/transformer/routing/expected_load.h"
#include "results/record/statistics.h"

namespace precbench {
namespace {

/// Returns the load of the busiest expert over the mean load.
double load_of(const RouterLoad& layer) {
  const double sum = std::accumulate(layer.slots.begin(), layer.slots.end(), 0.0);
  return sum > 0 ? *std::max_element(layer.slots.begin(), layer.slots.end()) *
                       static_cast<double>(layer.slots.size()) / sum
                 : 0;
}

}  // namespace

void RecordBuilder::add_routing(const Routers& routers, const Device& device,
                                const ExpertTraffic& predicted) {
  const std::vector<RouterLoad> layers = routers.load();
  const MoeConfig& config = plan_.model.moe;
  const RoutingRule& rule = config.rule;
  MoeRecord moe;
  moe.experts = rule.experts, moe.top_k = rule.top_k;
  moe.expert_ffn = config.expert_ffn, moe.shared_ffn = config.shared_ffn;
  moe.score = rule.score == RouterScore::softmax ? "softmax" : "sigmoid";
  moe.routing = plan_.fields.routing;
  if (const std::string name = device.grouped_name(); !name.empty()) moe.grouped = name;
  if (plan_.capacity > 0) moe.capacity = plan_.capacity;
  const std::int64_t at_once = plan_.tokens_per_micro_step();
  const double tokens = static_cast<double>(at_once * plan_.accumulation);
  for (const RouterLoad& layer : layers) {
    moe.rows.actual += layer.rows, moe.rows.padded += layer.padded;
    moe.rows.dropped += layer.dropped;
    moe.load.layers.push_back(load_of(layer));
    moe.load.empty_experts += std::count(layer.slots.begin(), layer.slots.end(), 0.0);
    moe.aux_loss.push_back(layer.balance), moe.z_loss.push_back(layer.z_loss);
  }
  const double blocks = static_cast<double>(layers.size());
  moe.rows.expected =
      blocks * static_cast<double>(plan_.accumulation * rows_at_even_load(rule, at_once, plan_.capacity,
                                                                          plan_.parameters.expert_ranks,
                                                                          plan_.exchange.slots));
  if (moe.rows.padded > 0) moe.padding_fraction = 1 - moe.rows.actual / moe.rows.padded;
  std::vector<double> sorted = moe.load.layers;
  std::sort(sorted.begin(), sorted.end());
  moe.load.median = quantile(sorted, 0.5), moe.load.max = sorted.back();
  // Three GEMMs (gate, up, down), each as forward, dX and dW; two FLOPs per multiply-add.
  const double width = static_cast<double>(plan_.model.width);
  const double of_row = 3 * 3 * 2 * width * static_cast<double>(config.expert_ffn);
  moe.flops = {moe.rows.expected * of_row, moe.rows.actual * of_row,
               blocks * tokens * 3 * 2 * width * static_cast<double>(rule.experts)};
  if (const std::vector<float> bias = routers.biases(); !bias.empty()) {
    const auto [least, most] = std::minmax_element(bias.begin(), bias.end());
    moe.bias_min = *least, moe.bias_max = *most;
  }
  if (const int ranks = plan_.parameters.expert_ranks; ranks > 1) {
    moe.ep = ranks, moe.exchange = plan_.fields.exchange, moe.dispatch = plan_.fields.dispatch;
    if (plan_.exchange.slots > 0) moe.slots = plan_.exchange.slots;
    if (plan_.exchange.codes)
      moe.columns = plan_.recipe.flow                                         ? "transposed"
                    : plan_.recipe.fprop.a.granularity == Granularity::tensor ? "exact"
                                                                              : "requantized";
    moe.bytes = ExchangeBytes{routers.traffic().dispatch, routers.traffic().combine, predicted.dispatch,
                              predicted.combine};
  }
  const std::lock_guard lock(mutex_);
  record_.moe = std::move(moe);
}

}  // namespace precbench
