// Rules of what a user types: sizes, fields that need or exclude each other, and options without effect. See rules.h.
#include <fmt/format.h>

#include <filesystem>
#include <system_error>
#include <tuple>
#include <utility>

#include "bench/case/rules.h"
#include "models/data/documents.h"
#include "models/transformer/optimizer/optimizers.h"

namespace precbench {
namespace {

using Why = std::optional<std::string>;

/// Checks the largest values of single fields: numbers above these are typing errors, and counts of bytes and FLOPs could
/// overflow.
Why above_maximum(const Plan& plan) {
  for (const Field& field : case_fields()) {
    if (field.maximum == 0) continue;
    const std::int64_t value = plan.fields.*std::get<std::int64_t Case::*>(field.member);
    if (value > field.maximum)
      return fmt::format("{}: must be at most {}, not {}", flag_of(field), field.maximum, value);
  }
  return std::nullopt;
}

Why too_many_tokens(const Plan& plan) {
  const Case& c = plan.fields;
  double tokens = 1;  // floating point, because the product may overflow
  for (const std::int64_t factor : {c.batch, c.seq, c.micro_steps(), c.gpus})
    tokens *= static_cast<double>(factor);
  for (const std::int64_t ranks : {c.context, c.tensor, c.pipeline})  // that work on the same tokens
    tokens /= static_cast<double>(ranks);
  if (tokens <= static_cast<double>(kMaxTokensPerStep)) return std::nullopt;
  return fmt::format("--batch, --seq, {}, --gpus: {:.3g} tokens per step; the limit is {}",
                     c.micro_steps_flag(), tokens, kMaxTokensPerStep);
}

Why too_many_steps(const Plan& plan) {
  const Case& c = plan.fields;
  if (c.steps > kMaxSteps)
    return fmt::format("--steps: must be at most {}, not {}: a record lists every step of a run", kMaxSteps,
                       c.steps);
  if (c.eval_every > 0 && c.steps / c.eval_every > kMaxEvaluations)
    return fmt::format("--eval-every: {} evaluations in {} steps; the limit is {}", c.steps / c.eval_every,
                       c.steps, kMaxEvaluations);
  return std::nullopt;
}

bool on_cpu(const Plan& plan) { return plan.fields.device == "cpu"; }
bool without_steps(const Plan& plan) { return plan.fields.steps == 0; }
bool without_text(const Plan& plan) { return plan.fields.eval_data.empty(); }
bool without_batches(const Plan& plan) { return plan.fields.fidelity_batches == 0; }

Why beyond_last_step(const Plan& plan) {
  for (const std::int64_t step : parse_checkpoint_at(plan.fields.checkpoint_at))
    if (step > plan.fields.steps)
      return fmt::format("--checkpoint-at: {} is beyond --steps {}", step, plan.fields.steps);
  return std::nullopt;
}

Why without_experts(const Plan& plan) {
  for (const Field& field : case_fields())
    if (field.group == kExperts && !plan.model.moe && is_set(plan.fields, field.member))
      return fmt::format("{}: {} has no experts", flag_of(field), plan.model.name);
  return std::nullopt;
}

Why impossible_stress(const char* flag, const std::vector<Stress>& stresses, const ModelConfig& model) {
  for (const Stress& stress : stresses)
    if (const auto why = stress_unsupported_reason(stress, model)) return fmt::format("{}: {}", flag, *why);
  return std::nullopt;
}

/// Checks the constants of the optimizer.
Why unknown_constant(const Plan& plan) {
  const Case& c = plan.fields;
  const OptimizerSpec& spec = optimizer_named(c.optimizer);
  const OptimizerConstants& has = spec.constants;
  struct Constant {
    const char* flag;
    std::optional<double> set, known;
    bool below_one;
  };
  for (const Constant& constant :
       {Constant{"--beta1", c.beta1, has.beta1, true}, Constant{"--beta2", c.beta2, has.beta2, true},
        Constant{"--eps", c.eps, has.eps, false}, Constant{"--momentum", c.momentum, has.momentum, true}}) {
    if (!constant.set) continue;
    if (!constant.known) return fmt::format("{}: {} has no such constant", constant.flag, spec.name);
    if (constant.below_one && *constant.set >= 1)
      return fmt::format("{}: must be below 1, not {}", constant.flag, *constant.set);
  }
  return std::nullopt;
}

/// Checks the dtypes of the state, which the recipe may choose.
Why unknown_state(const Plan& plan) {
  const KeptWords words = kept_words(plan.fields, plan.recipe);
  const OptimizerSpec &spec = optimizer_named(plan.fields.optimizer), &scaling = optimizers().front();
  for (const std::string& format : {words.m, words.v})
    if (scaled(state_format_named(format)) && &spec != &scaling)
      return fmt::format("--optimizer {}: optimizer state in {} needs scales, which only {} supports",
                         spec.name, format, scaling.name);
  for (const auto& [flag, word, scaled_word] :
       {std::tuple{"--master", words.master, "fp16"}, std::tuple{"--grads", words.gradients, "e4m3"}})
    if (word == scaled_word && &spec != &scaling)
      return fmt::format("{} {}: needs scales, which {} does not support; {} does", flag, word, spec.name,
                         scaling.name);
  if (words.v != words.m && !spec.others.v)
    return fmt::format("--second-moment: {} has no second moment", spec.name);
  if (!spec.has_moments() && words.m != Case{}.moments)
    return fmt::format("--moments: {} keeps row and column sums, in {} only", spec.name, Case{}.moments);
  return std::nullopt;
}

bool is_folder(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error);
}

bool writes_none(const Plan& plan) { return !writes_checkpoints(plan.fields); }
bool never_sharded(const Plan& plan) { return plan.fields.parallel == "ddp" || plan.fields.gpus == 1; }

constexpr Rule kInputRules[] = {
    {kEveryCase, above_maximum},
    {kEveryCase, too_many_tokens},
    {kEveryCase, too_many_steps},
    {&Case::attention, "--attention {attention}: selects GPU kernels, but --device is cpu", on_cpu},
    {&Case::gemm, "--gemm {gemm}: selects GPU kernels, but --device is cpu", on_cpu},
    {kEveryCase, "--shard-group: hsdp needs groups of 2 or more ranks, and only hsdp has groups",
     [](const Plan& p) { return (p.fields.parallel == "hsdp") != (p.fields.shard_group > 1); }},
    {&Case::schedule, "--schedule {schedule} needs a number of steps: add --steps N", without_steps},
    {&Case::schedule,
     "--warmup: {warmup} steps leave no steps of --steps {steps} for the {schedule} schedule",
     [](const Plan& p) { return p.fields.warmup >= p.fields.steps; }},
    {&Case::packing,
     "--packing on: packs documents of prompt and answer (.jsonl), which --data {data} is not",
     [](const Plan& p) { return !is_documents(p.fields.data); }},
    {&Case::lora_alpha, "--lora-alpha: scales the output of adapters; add --lora RANK",
     [](const Plan& p) { return p.fields.lora_rank == 0; }},
    {&Case::flow, "--flow on: chooses the operands of wgrad, which frozen weights (--lora-rank) do not have",
     [](const Plan& p) { return p.fields.lora_rank > 0; }},
    {&Case::fork_from, "--fork-from and --init-from: both set the initial weights; choose one",
     [](const Plan& p) { return !p.fields.init_from.empty(); }},
    {&Case::checkpoint_every, "--checkpoint-every needs a number of steps: add --steps N", without_steps},
    {&Case::checkpoint_at, "--checkpoint-at needs a number of steps: add --steps N", without_steps},
    {&Case::checkpoint_at, beyond_last_step},
    {&Case::fidelity_stress,
     "--fidelity-stress needs batches to compare gradients of: add --fidelity-batches K", without_batches},
    {&Case::eval_recipes, "--eval-recipes: needs held-out text to evaluate on: add --eval-data",
     without_text},
    {&Case::sensitivity, "--sensitivity needs batches to measure on: add --fidelity-batches K",
     without_batches},
    {kEveryCase, without_experts},
    {&Case::stress,
     [](const Plan& p) { return impossible_stress("--stress", {*parse_stress(p.fields.stress)}, p.model); }},
    {&Case::fidelity_stress,
     [](const Plan& p) {
       return impossible_stress("--fidelity-stress", parse_fidelity_stress(p.fields.fidelity_stress),
                                p.model);
     }},
};

constexpr Rule kRefusalRules[] = {{kEveryCase, unknown_constant}, {kEveryCase, unknown_state}};

// clang-format off
constexpr Rule kUnusedRules[] = {
    {&Case::glob, "--glob: applies to folders only, and neither --data nor --eval-data is a folder", {"data", "eval_data"},
     [](const Plan& p) { return !is_folder(p.fields.data) && !is_folder(p.fields.eval_data); }},
    {&Case::eval_every, "--eval-every: needs held-out text: add --eval-data FILE", {"eval_data"}, without_text},
    {&Case::eval_tokens, "--eval-tokens: needs held-out text: add --eval-data FILE", {"eval_data"}, without_text},
    {&Case::checkpoint_dir, "--checkpoint-dir: no checkpoint is written: add --checkpoint-every N",
     {"checkpoint_every", "checkpoint_at"}, writes_none},
    {&Case::checkpoint_keep, "--checkpoint-keep: no checkpoint is written: add --checkpoint-every N",
     {"checkpoint_every", "checkpoint_at"}, writes_none},
    {&Case::reshard, "--reshard: only sharded ranks gather weights: add --parallel fsdp and --gpus N",
     {"parallel", "gpus"}, never_sharded},
    {&Case::grad_sync,
     "--grad-sync: only sharded ranks with several micro-steps have a choice: add --parallel fsdp, --gpus N and "
     "--accumulation M",
     {"parallel", "gpus", "accumulation", "micro_batches"},
     [](const Plan& p) { return never_sharded(p) || p.fields.micro_steps() == 1; }},
    {&Case::reduce_amax, "--reduce-amax: there is one rank: add --gpus N", {"gpus"},
     [](const Plan& p) { return p.fields.gpus == 1; }},
    {&Case::warmup, "--warmup: no run reaches its --lr; use a warmup of at most --steps", {"steps"},
     [](const Plan& p) { return p.fields.steps > 0 && p.fields.warmup > p.fields.steps; }},
    {&Case::time_limit, "--time-limit: applies to --steps auto only, but --steps is a number", {"steps"},
     [](const Plan& p) { return p.fields.steps > 0; }},
};
// clang-format on

}  // namespace

std::span<const Rule> input_rules() { return kInputRules; }
std::span<const Rule> refusal_rules() { return kRefusalRules; }
std::span<const Rule> unused_rules() { return kUnusedRules; }

}  // namespace precbench
