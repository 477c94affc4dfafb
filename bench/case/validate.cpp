// Judges cases and turns them into plans: names are looked up, words become enums, and rules are asked. See plan.h and
// rules.h.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>

#include "bench/case/plan.h"
#include "bench/case/recompute.h"
#include "bench/case/rules.h"
#include "kernels/base/errors.h"
#include "kernels/gpu/device_info.h"
#include "models/config/hub_names.h"
#include "models/data/documents.h"
#include "results/record/provenance.h"

namespace precbench {
namespace {

/// Returns the value of a word that define() has checked.
template <class Enum, std::size_t kCount>
Enum value_of(const EnumNames<Enum, kCount>& words, const std::string& word) {
  return words.find(word).value();
}

OptimizerOptions optimizer_of(const Case& c) {
  OptimizerOptions o;
  o.optimizer = &optimizer_named(c.optimizer);
  const OptimizerConstants& own = o.optimizer->constants;
  const auto choose = [](const std::optional<double>& set, const std::optional<double>& known, float& value) {
    if (known) value = static_cast<float>(set.value_or(*known));
  };
  choose(c.beta1, own.beta1, o.beta1);
  choose(c.beta2, own.beta2, o.beta2);
  choose(c.eps, own.eps, o.eps);
  choose(c.momentum, own.momentum, o.momentum);
  o.lr = static_cast<float>(c.lr);
  o.warmup = c.warmup;
  o.schedule = value_of(kScheduleWords, c.schedule);
  o.total_steps = c.steps;
  o.weight_decay = static_cast<float>(c.weight_decay);
  o.max_norm = static_cast<float>(c.clip);
  o.seed = static_cast<std::uint64_t>(c.seed);
  return o;
}

DType gradients_of(const std::string& name) {
  return name == "fp32" ? DType::f32 : name == "bf16" ? DType::bf16 : DType::e4m3;
}

/// Returns the axes of a case's ranks. Where they do not divide each other the rules of support say so.
ParallelDims dims_of(const Case& c, DataParallel parallel) {
  const std::int64_t batch_ranks = std::max<std::int64_t>(1, c.gpus / c.context / c.tensor / c.pipeline);
  const std::int64_t shards = parallel == DataParallel::ddp ? 1
                              : parallel == DataParallel::fsdp
                                  ? batch_ranks
                                  : std::clamp<std::int64_t>(c.shard_group / c.context, 1, batch_ranks);
  return {.data = static_cast<int>(batch_ranks / shards),
          .shard = static_cast<int>(shards),
          .context = static_cast<int>(std::min(c.context, c.gpus)),
          .tensor = static_cast<int>(std::min(c.tensor, c.gpus)),
          .context_shards = parallel != DataParallel::ddp};
}

/// Returns the formats of the blocks' frozen weights; empty if they change during the run.
std::vector<FrozenFormats> frozen_formats_of(const Plan& plan) {
  if (!plan.later.empty()) return {};
  std::vector<FrozenFormats> formats(static_cast<std::size_t>(plan.model.layers));
  BlockSpec blocks[2];  // without and with experts, of which many take long to list
  for (const std::int64_t layer : plan.model.layer_of_each_kind())
    blocks[plan.model.has_experts(layer)] = block_of(plan.model, layer);
  for (std::int64_t layer = 0; layer < plan.model.layers; ++layer)
    for (const LinearSpec& linear : blocks[plan.model.has_experts(layer)].linears)
      if (linear.role != LinearRole::router)
        formats[layer].set(linear.role, plan.recipe_of(plan, layer, recipe_role(linear.role)));
  return formats;
}

/// Returns the lengths of a case's packed documents; null without packing, or if they cannot be read.
std::shared_ptr<const PackedLengths> packed_lengths_of(const Plan& plan) {
  if (!plan.packs()) return nullptr;
  // A sweep resolves many cases of one file.
  using Key =
      std::tuple<std::string, std::optional<std::uint64_t>, std::int64_t, std::int64_t, std::uint64_t>;
  static std::mutex mutex;
  static std::map<Key, std::shared_ptr<const PackedLengths>> known;
  const std::lock_guard lock(mutex);
  const DataOptions options = data_options(plan.fields, plan.model);
  const auto [entry, added] =
      known.try_emplace({options.path, plan.data.fingerprint, options.vocab, options.T, options.seed});
  if (!added) return entry->second;
  try {
    const std::unique_ptr<DataSource> data = open_data(options);
    if (const auto* documents = dynamic_cast<const Documents*>(data.get()))
      entry->second = std::make_shared<PackedLengths>(
          PackedLengths{documents->positions(), documents->sequences(options.T)});
  } catch (const InvalidInput&) {  // the run opens the file again
    entry->second = nullptr;
  }
  return entry->second;
}

}  // namespace

Plan validate(const Case& c, Refusals refusals, const ModelConfig* model) {
  Plan plan;
  plan.fields = c;
  define(plan, model, refusals);
  plan.fields.model = preset_name(c.model);
  plan.fields.recompute = recompute_text(parse_recompute(c.recompute));
  if (!model) plan.id = case_id(plan.fields, plan);
  plan.bf16 = builtin_recipes().front();
  plan.data_parallel = value_of(kParallelWords, c.parallel);
  plan.parameters.parallel = dims_of(c, plan.data_parallel);
  const KeptWords kept = kept_words(c, plan.recipe);
  plan.fp8_gather = value_of(kSentInFp8Words, c.gather);
  plan.fp8_weights = kept.weights == "e4m3";
  if ((plan.fp8_gather || plan.fp8_weights) && plan.recipe.quantized()) {
    plan.parameters.gather_format = plan.recipe.fprop.b;
    // FP8 weights are quantized from the updated weights, whose amax is known.
    if (plan.fp8_weights) plan.parameters.gather_format.history = {};
    for (std::int64_t layer = 0; layer < plan.model.layers; ++layer)
      plan.parameters.gather_fp8.push_back(plan.converts_block(layer));
  }
  if (const std::int64_t first = first_delayed_step(plan); first >= 0)
    plan.parameters.delayed = layers_at(plan, first).recipe;
  plan.parameters.weight_amaxes =
      !plan.parameters.gather_format.quantized() &&
      (has_weight_amaxes(plan.recipe) ||
       std::any_of(plan.later.begin(), plan.later.end(),
                   [](const LaterLayers& later) { return has_weight_amaxes(later.recipe); }));
  if (c.lora_rank > 0)
    plan.parameters.lora = {c.lora_rank, c.lora_alpha.value_or(2 * static_cast<double>(c.lora_rank))};
  if (plan.parameters.lora) plan.parameters.frozen_formats = frozen_formats_of(plan);
  // The fidelity probe and --eval-recipes compare with BF16, and a change of the first weights rounds them to BF16
  // again.
  plan.parameters.keep_frozen_values =
      c.fidelity_batches > 0 || plan.init.perturbed || plan.init.stress.has_value() || !plan.readings.empty();
  plan.reshard = value_of(kReshardWords, c.reshard);
  plan.parameters.keep_gathered =
      plan.parameters.parallel.weight_shards() > 1 && plan.reshard == Reshard::off;
  plan.reduce_amax = value_of(kReduceAmaxWords, c.reduce_amax);
  plan.on_gpu = is_gpu(c.device);
  plan.parameters.master = value_of(kMasterWords, kept.master);
  plan.parameters.moments = {state_format_named(kept.m), state_format_named(kept.v)};
  plan.parameters.gradients = gradients_of(kept.gradients);
  plan.parameters.round_gradient_sums = !kept.gradient_sum.empty();
  plan.parameters.accumulation = static_cast<int>(c.micro_steps());

  plan.optimizer = optimizer_of(c);
  plan.parameters.optimizer = plan.optimizer.optimizer;

  plan.B = c.batch;
  plan.T = c.seq;
  plan.ranks = static_cast<int>(c.gpus);
  plan.accumulation = static_cast<int>(c.micro_steps());
  plan.grad_sync = value_of(kGradSyncWords, c.grad_sync);
  plan.parameters.sync_last = plan.has_grad_sync() && plan.grad_sync == GradSync::last;
  plan.recompute = parse_recompute(c.recompute);
  plan.graph = value_of(kGraphWords, c.graph);
  plan.deterministic = value_of(kSwitchWords, c.deterministic);
  plan.checkpoint_keep = value_of(kCheckpointKeepWords, c.checkpoint_keep);
  plan.seed = static_cast<std::uint64_t>(c.seed);
  plan.packed = packed_lengths_of(plan);
  if (!plan.model.moe) return plan;
  plan.routing = parse_routing(c.routing);
  plan.capacity = c.capacity.value_or(0);
  plan.parameters.expert_ranks =
      static_cast<int>(std::min<std::int64_t>(c.ep, std::numeric_limits<int>::max()));
  using Mode = ExchangeOptions::Mode;
  plan.exchange.mode = value_of(kExchangeWords, c.exchange);
  plan.exchange.codes = value_of(kSentInFp8Words, c.dispatch);
  if (plan.exchange.mode == Mode::slots)
    plan.exchange.slots = c.slots ? c.slots : plan.tokens_per_micro_step();
  plan.parameters.expert_slots = plan.exchange.mode == Mode::slots;
  plan.balance = static_cast<float>(c.aux);
  plan.z_loss = static_cast<float>(c.z_loss);
  return plan;
}

std::vector<Plan> validate(const std::vector<Case>& cases) {
  std::vector<Plan> plans;
  for (const Case& c : cases) plans.push_back(validate(c, Refusals::kept));
  const auto is_refused = [](const Plan& plan) { return plan.refusal.has_value(); };
  if (!plans.empty() && std::all_of(plans.begin(), plans.end(), is_refused))
    throw InvalidInput(*plans.front().refusal);
  return plans;
}

Record start_record(const Plan& plan) {
  Record record;
  record.id = plan.id;
  record.created = utc_text(std::time(nullptr));
  record.case_fields = case_to_json(plan.fields);
  record.definition = definition_record(plan);
  return record;
}

}  // namespace precbench
