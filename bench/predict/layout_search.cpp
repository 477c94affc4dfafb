// Enumerates, bounds and predicts layouts. See layout_search.h.
#include "bench/predict/layout_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <tuple>
#include <utility>

#include "bench/case/plan.h"
#include "bench/predict/case_layout.h"
#include "bench/predict/micro_batch_cost.h"
#include "kernels/base/errors.h"
#include "kernels/device/ops.h"
#include "models/transformer/routing/expected_load.h"

namespace precbench {
namespace {

/// How the states of a layout are sharded. There are hundreds of thousands of layouts, so words are those of the space.
struct Sharding {
  const std::string *parallel = nullptr, *shard_optimizer = nullptr, *grad_sync = nullptr, *reshard = nullptr,
                    *gather = nullptr;
  std::int64_t shard_group = 1;

  void apply_to(Case& c) const {
    c.parallel = *parallel, c.shard_group = shard_group, c.shard_optimizer = *shard_optimizer;
    c.grad_sync = *grad_sync, c.reshard = *reshard, c.gather = *gather;
  }
};

/// A layout and its bound, or all layouts with these ranks, this micro-batch and this recomputation.
struct Candidate {
  std::int64_t tensor = 1, context = 1, pipeline = 1, virtual_stages = 1, batch = 1, ep = 1, slots = 0;
  std::int64_t accumulation = 1;
  const std::string* recompute = nullptr;  ///< of the space
  std::optional<Sharding> sharding = {};   ///< null: all layouts with these ranks
  double bound_seconds = 0;
  std::int64_t order = 0;  ///< in which candidates with equal bounds are predicted

  bool operator>(const Candidate& other) const {
    return std::tie(bound_seconds, order) > std::tie(other.bound_seconds, other.order);
  }

  /// Returns the case `base` with this layout.
  Case applied_to(Case base) const {
    base.tensor = tensor, base.context = context, base.pipeline = pipeline;
    base.virtual_stages = virtual_stages, base.batch = batch, base.ep = ep, base.slots = slots;
    if (ep > 1) base.exchange = "slots";
    base.accumulation = accumulation, base.recompute = *recompute;
    if (sharding) sharding->apply_to(base);
    return base;
  }
};

/// Fields that decide the cost of a micro-batch.
using Shape = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::string>;
Shape shape_of(const Case& c) { return {c.tensor, c.context, c.ep, c.batch, c.recompute}; }

/// Fields that decide whether weights can be gathered in another format than BF16.
using Gathered = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::string, std::string>;

/// Fields that decide whether a layout is supported, of those that are searched.
using Supported = std::tuple<Shape, std::int64_t, std::string, std::int64_t, std::string, std::string,
                             std::string, std::string>;
Supported supported_by(const Case& c) {
  return {shape_of(c),       c.pipeline, c.parallel,  c.shard_group,
          c.shard_optimizer, c.reshard,  c.grad_sync, c.gather};
}

/// Fields by which proposals differ.
using Ranks = std::array<std::int64_t, 4>;
Ranks ranks_of(const Case& c) { return {c.tensor, c.context, c.pipeline, c.ep}; }

/// Searches the layouts of one question.
class Search {
 public:
  Search(const LayoutQuestion& question, const LayoutSpace& space, const CostModel& cost_model)
      : question_(question), space_(space), cost_model_(cost_model) {}

  LayoutSearch run() {
    enumerate();
    if (found_.candidates == 0)
      throw InvalidInput(fmt::format("no layout is possible with --gpus {} and --global-batch {}{}",
                                     question_.c.gpus, question_.global_batch,
                                     rule_ ? "; the first rule broken: " + *rule_ : ""));
    std::make_heap(candidates_.begin(), candidates_.end(), std::greater<>());
    while (!candidates_.empty()) {
      std::pop_heap(candidates_.begin(), candidates_.end(), std::greater<>());
      const Candidate candidate = candidates_.back();
      candidates_.pop_back();
      if (candidate.bound_seconds >= slowest_proposal()) break;
      if (candidate.bound_seconds >= proposal_with(candidate)) continue;
      if (!candidate.sharding) {
        const std::size_t known = candidates_.size();
        enumerate_shards(candidate.applied_to(question_.c), *candidate.recompute, *model_, candidate.order);
        for (std::size_t end = known + 1; end <= candidates_.size(); ++end)
          std::push_heap(candidates_.begin(), candidates_.begin() + static_cast<std::ptrdiff_t>(end),
                         std::greater<>());
        continue;
      }
      if (found_.predicted == kMostPredictions) {
        found_.complete = false;
        break;
      }
      predict(candidate.applied_to(question_.c));
    }
    return std::move(found_);
  }

 private:
  double slowest_proposal() const {
    return found_.proposals.size() < question_.proposals ? std::numeric_limits<double>::infinity()
                                                         : found_.proposals.back().estimate.step.seconds;
  }

  /// Returns the seconds of the proposal with the ranks of a candidate, which it would have to beat.
  double proposal_with(const Candidate& candidate) const {
    for (const LayoutProposal& one : found_.proposals)
      if (ranks_of(one.plan.fields) ==
          Ranks{candidate.tensor, candidate.context, candidate.pipeline, candidate.ep})
        return one.estimate.step.seconds;
    return std::numeric_limits<double>::infinity();
  }

  void refuse(const std::string& reason) {
    if (found_.unsupported_reason.empty()) found_.unsupported_reason = reason;
  }

  void need(double bytes) {
    const auto whole = static_cast<std::int64_t>(bytes);
    found_.least_bytes = std::min(found_.least_bytes.value_or(whole), whole);
  }

  /// Returns the cost of a case's micro-batch; null if a rank cannot compute it.
  const MicroBatchCost* cost_of(const Case& c, const ModelConfig& model) {
    const auto [known, is_new] = costs_.try_emplace(shape_of(c));
    if (!is_new) return known->second.layers.empty() ? nullptr : &known->second;
    try {
      const Plan plan = validate(micro_batch_case(c));
      if (const auto why = layout_failure(plan, true)) {
        refuse(*why);
        return nullptr;
      }
      const auto [own, layout] = case_layout(plan);
      known->second = micro_batch_cost(own, model, layout, cost_model_);
    } catch (const InvalidInput& error) {
      refuse(error.what());
    } catch (const Unsupported& error) {
      refuse(error.what());
    } catch (const OutOfMemory& error) {
      refuse(error.what());
    }
    return known->second.layers.empty() ? nullptr : &known->second;
  }

  void enumerate() {
    for (const std::int64_t ep : space_.ep) {
      Case base = question_.c;
      base.ep = ep;
      if (ep > 1) base.exchange = "slots";
      Plan plan = validate(base, Refusals::kept);
      if (plan.refusal) throw InvalidInput(*plan.refusal);
      if (!model_) model_ = plan.model;
      for (const std::int64_t tensor : space_.tensor)
        for (const std::int64_t context : space_.context)
          for (const std::int64_t pipeline : space_.pipeline)
            for (const std::int64_t virtual_stages : space_.virtual_stages)
              for (const std::int64_t batch : space_.batch) {
                base.tensor = tensor, base.context = context, base.pipeline = pipeline;
                base.virtual_stages = virtual_stages, base.batch = batch;
                enumerate_shape(plan, base);
              }
    }
  }

  /// Adds the candidates with the ranks and the micro-batch of `c`, if it can be.
  void enumerate_shape(Plan& plan, Case c) {
    const std::int64_t replica = c.tensor * c.context * c.pipeline;
    if (c.gpus % replica != 0 || (c.pipeline == 1 && c.virtual_stages > 1)) return;
    const std::int64_t per_micro_step = c.gpus / replica * c.batch;
    if (question_.global_batch % per_micro_step != 0) return;
    const std::int64_t micro_batches = question_.global_batch / per_micro_step;
    if (micro_batches > kMaxAccumulation || (c.ep > 1 && (c.gpus / c.pipeline) % c.ep != 0)) return;
    c.accumulation = micro_batches;
    if (c.ep > 1 && c.tensor == 1)  // as many rows as even routing sends
      c.slots = tokens_to_rank(plan.model.moe.rule, plan.model.moe.rule.experts / c.ep,
                               c.batch * c.seq / c.context, 0);
    plan.fields = c;
    plan.accumulation = static_cast<int>(micro_batches);
    plan.B = c.batch;
    if (auto why = layout_unsupported_reason(plan)) {
      if (!rule_) rule_ = std::move(why);
      return;
    }
    // Recomputing adds to the time: what the same layouts take without it is a bound until they are looked at. Most
    // never are.
    const bool none_is_first = space_.recompute.front() == Case{}.recompute;
    Shards without;
    for (const std::string& recompute : space_.recompute) {
      const bool is_first = &recompute == &space_.recompute.front();
      order_ += kMostShards;
      c.recompute = recompute;
      if (!is_first && none_is_first && std::isfinite(without.least_seconds)) {
        Candidate group = candidate_of(c, recompute, order_);
        group.bound_seconds = without.least_seconds * (1 - kTimeTolerance);
        candidates_.push_back(group);
        found_.candidates += without.count;
        continue;
      }
      const Shards all = enumerate_shards(c, recompute, plan.model, order_);
      found_.candidates += all.count;
      if (is_first) without = all;
    }
  }

  static Candidate candidate_of(const Case& c, const std::string& recompute, std::int64_t order) {
    Candidate candidate;
    candidate.tensor = c.tensor, candidate.context = c.context, candidate.pipeline = c.pipeline;
    candidate.virtual_stages = c.virtual_stages, candidate.batch = c.batch, candidate.ep = c.ep;
    candidate.slots = c.slots, candidate.accumulation = c.accumulation;
    candidate.recompute = &recompute, candidate.order = order;
    return candidate;
  }

  /// Returns true if a case's optimizer, sharded or not, is to be tried. Where both can be and neither runs, a sharded
  /// one is no slower and needs less: its reduce-scatter and its BF16 gather move at most what an all-reduce moves.
  bool tries_optimizer(const Case& c, const ModelConfig& model) const {
    const bool on = c.shard_optimizer == "on";
    const bool only_predicted = c.tensor > 1 || c.pipeline > 1 || c.overlap != "none";
    if (c.ep > 1 && model.moe.expert_bias && !only_predicted && !on) return false;  // layout_failure()
    if (!has_optimizer_replicas(c, model)) return !on;
    return on || !only_predicted || space_.shard_optimizer.size() == 1;
  }

  /// Layouts that differ in how states are sharded alone.
  struct Shards {
    std::int64_t count = 0;
    double least_seconds = std::numeric_limits<double>::infinity();  ///< of their bounds
  };
  static constexpr std::int64_t kMostShards = 1 << 20;  ///< more than there are of these

  /// Adds those with the ranks and the recomputation of `c`. Their order begins with `order`.
  Shards enumerate_shards(Case c, const std::string& recompute, const ModelConfig& model,
                          std::int64_t order) {
    Shards all;
    const MicroBatchCost* cost = nullptr;
    for (const Sharding& sharding : shardings(c)) {
      sharding.apply_to(c);
      if (!tries_optimizer(c, model)) continue;
      ++all.count;
      if (!cost) cost = cost_of(c, model);
      if (!cost) {
        ++found_.unsupported;
        continue;
      }
      const LayoutBound bound = layout_bound(c, model, *cost, cost_model_);
      all.least_seconds = std::min(all.least_seconds, bound.seconds);
      if (bound.bytes * (1 - kMemoryTolerance) > static_cast<double>(question_.memory)) {
        ++found_.too_large;
        need(bound.bytes);
        continue;
      }
      Candidate candidate = candidate_of(c, recompute, order + all.count);
      candidate.sharding = sharding;
      candidate.bound_seconds = bound.seconds * (1 - kTimeTolerance);
      candidates_.push_back(candidate);
    }
    return all;
  }

  /// Returns the ways to shard the states of a case over its data and context ranks.
  std::vector<Sharding> shardings(const Case& c) const {
    const std::int64_t ranks = c.gpus / (c.tensor * c.pipeline);
    std::vector<Sharding> found;
    for (const std::string& parallel : space_.parallel) {
      if (parallel == "ddp" || (parallel == "fsdp" && ranks > 1))
        add_shardings(found, {.parallel = &parallel}, c);
      if (parallel != "hsdp") continue;
      for (const std::int64_t group : space_.shard_group)
        if (group > 1 && group < ranks && ranks % group == 0 && group % c.context == 0)
          add_shardings(found, {.parallel = &parallel, .shard_group = group}, c);
    }
    return found;
  }

  /// Adds the ways to shard the states of a case over these groups.
  void add_shardings(std::vector<Sharding>& all, Sharding one, const Case& c) const {
    // Without shards, or with one micro-batch, some words make no difference: the first of each stands for all.
    const auto tried = [](const std::vector<std::string>& words, bool matter) {
      return std::span(words).first(matter ? words.size() : 1);
    };
    const bool shards = *one.parallel != "ddp";
    for (const std::string& shard_optimizer : space_.shard_optimizer)
      for (const std::string& grad_sync : tried(space_.grad_sync, shards && c.accumulation > 1))
        for (const std::string& reshard : tried(space_.reshard, shards))
          for (const std::string& gather : tried(space_.gather, shards)) {
            one.shard_optimizer = &shard_optimizer, one.grad_sync = &grad_sync;
            one.reshard = &reshard, one.gather = &gather;
            all.push_back(one);
          }
  }

  void predict(const Case& c) {
    // The shards decide whether weights can be gathered in FP8, which takes longest to check.
    const std::optional<Gathered> gathered =
        c.gather == Case{}.gather
            ? std::nullopt
            : std::optional<Gathered>({c.tensor, c.ep, state_shards(c), c.recompute, c.gather});
    if (gathered && ungathered_.contains(*gathered)) {
      ++found_.unsupported;
      return;
    }
    ++found_.predicted;
    try {
      // Rules of virtual stages are checked in enumerate_shape().
      const auto [supported, is_new] = supported_.try_emplace(supported_by(c));
      if (is_new) {
        const Plan plan = validate(c);
        const auto why = layout_failure(plan);
        if (why) refuse(*why);
        supported->second = !why;
      }
      if (!supported->second) {
        ++found_.unsupported;
        if (gathered) ungathered_.insert(*gathered);
        return;
      }
      const auto [own, layout] = case_layout(c, *model_);
      LayoutEstimator& estimator =
          estimators_.try_emplace(c.recompute, c, *model_, cost_model_).first->second;
      std::int64_t peak = 0;
      for (const StageMemory& stage : estimator.memory(own, layout)) peak = std::max(peak, stage.peak());
      need(static_cast<double>(peak));
      if (peak > question_.memory) {
        ++found_.too_large;
        return;
      }
      propose(c, estimator.estimate(own, layout));
    } catch (const InvalidInput&) {
      ++found_.unsupported;
    } catch (const Unsupported&) {
      ++found_.unsupported;
    } catch (const OutOfMemory&) {
      ++found_.too_large;
    }
  }

  /// Takes a layout for a proposal if it is faster than the one with its ranks, or than the last one if none has.
  void propose(const Case& c, LayoutEstimate estimate) {
    std::vector<LayoutProposal>& all = found_.proposals;
    const double seconds = estimate.step.seconds;
    const auto same = std::find_if(all.begin(), all.end(), [&](const LayoutProposal& one) {
      return ranks_of(one.plan.fields) == ranks_of(c);
    });
    if (seconds >= (same == all.end() ? slowest_proposal() : same->estimate.step.seconds)) return;
    if (same != all.end()) all.erase(same);
    all.push_back({validate(c), std::move(estimate)});
    std::stable_sort(all.begin(), all.end(), [](const LayoutProposal& a, const LayoutProposal& b) {
      return a.estimate.step.seconds < b.estimate.step.seconds;
    });
    if (all.size() > question_.proposals) all.pop_back();
  }

  const LayoutQuestion& question_;
  const LayoutSpace& space_;
  const CostModel& cost_model_;
  LayoutSearch found_;
  std::optional<std::string> rule_;    // that the first refused layout breaks
  std::vector<Candidate> candidates_;  // a heap once all are enumerated
  std::int64_t order_ = 0;
  std::set<Gathered> ungathered_;
  std::map<Supported, bool> supported_;
  std::optional<ModelConfig> model_;
  std::map<std::string, LayoutEstimator> estimators_;  // by recomputation
  std::map<Shape, MicroBatchCost> costs_;
};

}  // namespace

LayoutSearch search_layouts(const LayoutQuestion& question, const LayoutSpace& space,
                            const CostModel& cost_model) {
  return Search(question, space, cost_model).run();
}

LayoutSearch best_layouts(const LayoutQuestion& question, const CostModel& cost_model) {
  Case one = question.c;
  one.gpus = 1;
  const Plan plan = validate(one, Refusals::kept);
  if (plan.refusal) throw InvalidInput(*plan.refusal);
  if (!runs_natively(plan, cost_model.machine()))
    throw InvalidInput(
        fmt::format("{} does not multiply the formats of {}", cost_model.machine().name, question.c.recipe));
  LayoutSpace space = layout_space(question, plan.model, cost_model.machine());
  if (plan.recipe.quantized()) space.gather = {"bf16", "fp8"};
  restrict_space(space, question);
  return search_layouts(question, space, cost_model);
}

}  // namespace precbench
