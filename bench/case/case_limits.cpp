// Validation of cases. See case_limits.h.
#include "bench/case/case_limits.h"

#include <fmt/format.h>

#include <string_view>
#include <tuple>
#include <utility>

#include "bench/case/case_words.h"
#include "bench/case/layout_support.h"
#include "bench/case/sensitivity_groups.h"
#include "bench/case/stress.h"
#include "kernels/base/enum_names.h"
#include "kernels/base/errors.h"
#include "kernels/base/parse_number.h"
#include "kernels/numerics/selection.h"
#include "kernels/numerics/state_formats.h"
#include "models/data/documents.h"
#include "models/transformer/optimizer/optimizers.h"

namespace precbench {

namespace {

/// Largest number of ranks: a dry run lists those of each communicator, for a case of a record, too.
constexpr std::int64_t kMaxRanks = std::int64_t{1} << 20;

}  // namespace

void check_word(const Field& field, const std::string& text) {
  Case scratch;
  set_text(scratch, field, text);
  const std::string_view name = field.name;
  if (name == "stress") parse_stress(text);
  if (name == "fidelity_stress") parse_fidelity_stress(text);
  if (name == "sensitivity") parse_sensitivity(text);
  try {
    if (name == "keep_bf16") parse_keep_bf16(text);
    if (name == "switch_recipe") parse_switches(text);
    if (name == "routing") parse_routing(text);
  } catch (const InvalidInput& error) {
    throw InvalidInput(fmt::format("{}: {}", flag_of(field), error.what()));
  }
}

// Numbers above these are typing errors, and counts of bytes and FLOPs could overflow.
void check_size(const Case& c) {
  for (const auto& [flag, micro_steps] :
       {std::pair{"--accumulation", c.accumulation}, {"--micro-batches", c.micro_batches}})
    if (micro_steps > kMaxAccumulation)
      throw InvalidInput(fmt::format("{}: must be at most {}, not {}", flag, kMaxAccumulation, micro_steps));
  for (const auto& [flag, ranks] : {std::pair{"--gpus", c.gpus},
                                    {"--shard-group", c.shard_group},
                                    {"--context", c.context},
                                    {"--tensor", c.tensor},
                                    {"--pipeline", c.pipeline},
                                    {"--virtual-stages", c.virtual_stages}})
    if (ranks > kMaxRanks)
      throw InvalidInput(fmt::format("{}: must be at most {}, not {}", flag, kMaxRanks, ranks));
  double tokens = 1;  // floating point, because the product may overflow
  for (const std::int64_t factor : {c.batch, c.seq, c.micro_steps(), c.gpus})
    tokens *= static_cast<double>(factor);
  for (const std::int64_t ranks : {c.context, c.tensor, c.pipeline})  // that work on the same tokens
    tokens /= static_cast<double>(ranks);
  if (tokens > static_cast<double>(kMaxTokensPerStep))
    throw InvalidInput(fmt::format("--batch, --seq, {}, --gpus: {:.3g} tokens per step; the limit is {}",
                                   micro_steps_flag(c), tokens, kMaxTokensPerStep));
  if (c.steps > kMaxSteps)
    throw InvalidInput(fmt::format("--steps: must be at most {}, not {}: a record lists every step of a run",
                                   kMaxSteps, c.steps));
  if (c.eval_every > 0 && c.steps / c.eval_every > kMaxEvaluations)
    throw InvalidInput(fmt::format("--eval-every: {} evaluations in {} steps; the limit is {}",
                                   c.steps / c.eval_every, c.steps, kMaxEvaluations));
}

KeptWords kept_words(const Case& c, const Recipe& recipe) {
  static const Case defaults;
  const RecipeState& own = recipe.optimizer;
  const auto choose = [](const std::string& word, const std::string& unset, const std::string& recipes) {
    return word == unset && !recipes.empty() ? recipes : word;
  };
  KeptWords words{.m = c.moments,
                  .v = c.second_moment == defaults.second_moment ? c.moments : c.second_moment,
                  .master = choose(c.master, defaults.master, own.master),
                  .weights = choose(c.weights, defaults.weights, own.weights),
                  .gradients = choose(c.grads, defaults.grads, own.gradients),
                  .gradient_sum = {}};
  if (words.gradients == "e4m3") words.gradient_sum = own.gradient_sum;
  if (c.moments != defaults.moments || c.second_moment != defaults.second_moment) return words;
  if (!own.m.empty()) words.m = own.m;
  if (!own.v.empty()) words.v = own.v;
  return words;
}

void check_optimizer(const Case& c, const Recipe& recipe) {
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
    if (!constant.known)
      throw InvalidInput(fmt::format("{}: {} has no such constant", constant.flag, spec.name));
    if (constant.below_one && *constant.set >= 1)
      throw InvalidInput(fmt::format("{}: must be below 1, not {}", constant.flag, *constant.set));
  }
  const KeptWords words = kept_words(c, recipe);
  for (const std::string& format : {words.m, words.v})
    if (scaled(state_format_named(format)) && c.optimizer != optimizers().front().name)
      throw InvalidInput(
          fmt::format("--optimizer {}: optimizer state in {} needs scales, which only {} supports", spec.name,
                      format, optimizers().front().name));
  for (const auto& [flag, word, scaled_word] :
       {std::tuple{"--master", words.master, "fp16"}, std::tuple{"--grads", words.gradients, "e4m3"}})
    if (word == scaled_word && c.optimizer != optimizers().front().name)
      throw InvalidInput(fmt::format("{} {}: needs scales, which {} does not support; {} does", flag, word,
                                     spec.name, optimizers().front().name));
  if (words.v != words.m && !spec.others.v)
    throw InvalidInput(fmt::format("--second-moment: {} has no second moment", spec.name));
  if (!spec.has_moments() && words.m != Case{}.moments)
    throw InvalidInput(
        fmt::format("--moments: {} keeps row and column sums, in {} only", spec.name, Case{}.moments));
}

void check_combinations(const Case& c) {
  const auto check_choice = [&](const char* flag, const std::string& which) {
    if (c.device == "cpu" && which != "auto")
      throw InvalidInput(fmt::format("--{} {}: selects GPU kernels, but --device is cpu", flag, which));
  };
  check_choice("attention", c.attention);
  check_choice("gemm", c.gemm);
  if ((kParallelWords.find(c.parallel) == DataParallel::hsdp) != (c.shard_group > 1))
    throw InvalidInput("--shard-group: hsdp needs groups of 2 or more ranks, and only hsdp has groups");
  const bool decays = kScheduleWords.find(c.schedule).value_or(Schedule::constant) != Schedule::constant;
  if (decays && c.steps == 0)
    throw InvalidInput(fmt::format("--schedule {} needs a number of steps: add --steps N", c.schedule));
  if (decays && c.warmup >= c.steps)
    throw InvalidInput(fmt::format("--warmup: {} steps leave no steps of --steps {} for the {} schedule",
                                   c.warmup, c.steps, c.schedule));
  if (kSwitchWords.find(c.packing).value() && !is_documents(c.data))
    throw InvalidInput(fmt::format(
        "--packing on: packs documents of prompt and answer (.jsonl), which --data {} is not", c.data));
  if (c.lora_alpha && c.lora_rank == 0)
    throw InvalidInput("--lora-alpha: scales the output of adapters; add --lora RANK");
  if (c.lora_rank > kMaxLoraRank)
    throw InvalidInput(fmt::format("--lora-rank: must be at most {}, not {}", kMaxLoraRank, c.lora_rank));
  if (c.lora_rank > 0 && kSwitchWords.find(c.flow).value())
    throw InvalidInput(
        "--flow on: chooses the operands of wgrad, which frozen weights (--lora-rank) do not have");
  if (!c.init_from.empty() && !c.fork_from.empty())
    throw InvalidInput("--fork-from and --init-from: both set the initial weights; choose one");
  if (writes_checkpoints(c) && c.steps == 0)
    throw InvalidInput(fmt::format("{} needs a number of steps: add --steps N",
                                   c.checkpoint_every > 0 ? "--checkpoint-every" : "--checkpoint-at"));
  for (const std::int64_t step : parse_checkpoint_at(c.checkpoint_at))
    if (step > c.steps)
      throw InvalidInput(fmt::format("--checkpoint-at: {} is beyond --steps {}", step, c.steps));
  if (!c.fidelity_stress.empty() && c.fidelity_batches == 0)
    throw InvalidInput("--fidelity-stress needs batches to compare gradients of: add --fidelity-batches K");
  if (!c.eval_recipes.empty() && c.eval_data.empty())
    throw InvalidInput("--eval-recipes: needs held-out text to evaluate on: add --eval-data");
  if (!c.sensitivity.empty() && c.fidelity_batches == 0)
    throw InvalidInput("--sensitivity needs batches to measure on: add --fidelity-batches K");
}

void check_experts(const Case& c, const ModelConfig& model) {
  static const Case defaults;
  if (model.moe) return;
  for (const char* name : {"routing", "capacity", "aux", "z_loss", "ep", "exchange", "slots", "dispatch"}) {
    const Field& field = *find_field(name);
    if (get_text(c, field) != get_text(defaults, field))
      throw InvalidInput(fmt::format("{}: {} has no experts", flag_of(field), model.name));
  }
}

RoutingChoice parse_routing(const std::string& text) {
  constexpr EnumNames<Routing, 4> kNames{{"learned", "balanced", "zipf", "one"}};
  const std::size_t colon = text.find(':');
  const auto found = kNames.find(std::string_view(text).substr(0, colon));
  const bool zipf = found == Routing::zipf;
  RoutingChoice choice{found.value_or(Routing::learned)};
  bool right = found && zipf == (colon != std::string::npos);
  if (right && zipf) {
    constexpr double kMost = 16;
    const auto exponent = parse_number<double>(std::string_view(text).substr(colon + 1));
    right = exponent && *exponent >= 0 && *exponent <= kMost;
    choice.exponent = exponent.value_or(0);
  }
  if (!right)
    throw InvalidInput(
        fmt::format("\"{}\" is not learned, balanced, zipf:A with A from 0 to 16, or one", text));
  return choice;
}

}  // namespace precbench
