// Plans cases for advise. See advise_program.h.
#include "tools/program/advise_program.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "bench/case/plan.h"
#include "bench/cli/cli.h"
#include "bench/cli/fit.h"
#include "bench/machine/datasheet.h"
#include "bench/machine/machine.h"
#include "bench/machine/machine_names.h"
#include "bench/measure/dry_record.h"
#include "bench/predict/cost_model.h"
#include "bench/predict/stack_factor.h"
#include "bench/study/token_count.h"
#include "kernels/base/errors.h"
#include "kernels/gpu/device_info.h"
#include "tools/program/advise_settings.h"

namespace precbench {
namespace {

using Json = nlohmann::ordered_json;

/// Fields whose value changes memory or speed and that a user may fix; without them, advise chooses.
constexpr const char* kFields[] = {"model",           "layers",       "recipe",   "seq",
                                   "batch",           "accumulation", "gpus",     "parallel",
                                   "shard_group",     "context",      "gather",   "reshard",
                                   "grad_sync",       "recompute",    "master",   "moments",
                                   "second_moment",   "weights",      "grads",    "optimizer",
                                   "routing",         "ep",           "exchange", "lora_rank",
                                   "lora_alpha",      "tensor",       "pipeline", "virtual_stages",
                                   "shard_optimizer", "overlap",      "kept"};
/// Fields whose help shows no default: matching records or advise choose them. The model must be given.
constexpr const char* kChosen[] = {"model",   "recipe",        "seq",     "batch", "parallel",  "master",
                                   "moments", "second_moment", "weights", "grads", "optimizer", "gather"};

template <std::size_t kCount>
bool is_one_of(const char* const (&names)[kCount], const std::string& name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

/// Hides fields that do not matter here, and defaults that advise chooses.
std::optional<std::string> default_of_advice(const Field& field) {
  if (!is_one_of(kFields, field.name)) return std::nullopt;
  return is_one_of(kChosen, field.name) ? "" : default_of_case(field);
}

/// Returns "--lora-rank (--lora)": a user may have typed either name.
std::string names_of_flag(const Field& field) {
  const std::string alias = alias_flag_of(field);
  return alias.empty() ? flag_of(field) : fmt::format("{} ({})", flag_of(field), alias);
}

std::string single_value(const Field& field, const std::vector<std::string>& words) {
  const std::vector<std::string> values = field.axis ? expand_axis(field, words) : words;
  if (values.size() > 1)
    throw InvalidInput(
        fmt::format("{}: advise takes one value, not {}", flag_of(field), fmt::join(values, ",")));
  return values.front();
}

Case case_of_words(const AdviseHost::Words& words) {
  Case c;
  for (const auto& [name, text] : words) set_text(c, *find_field(name), text);
  return c;
}

GpuModel gpu_model(const GpuProperties& gpu) {
  return {gpu.name,
          fmt::format("{}.{}", gpu.compute_capability / 10, gpu.compute_capability % 10),
          gpu.memory_bytes,
          {},
          {}};
}

Plan plan_of(const Json& fields) {
  return validate(with_steps_of_schedule(case_from_json(fields)), Refusals::kept);
}

std::optional<PredictedSpeed> predicted_speed(const Plan& plan, const Plan& bf16, const std::string& gpu) {
  const auto base = mean_step(gpu, bf16);
  if (!base) return std::nullopt;
  if (plan.id == bf16.id) return PredictedSpeed{1e3 * base->seconds, {1, 1, 1}};
  const auto own = mean_step(gpu, plan);
  if (!own) return std::nullopt;
  const SpeedUp over = speedup_of(*own, *base);
  return PredictedSpeed{1e3 * own->seconds, {over.ratio, over.low, over.high}};
}

MeanWithInterval with_interval(const StackFactor& factor) {
  return {factor.factor, factor.low(), factor.high()};
}

std::optional<StackSpeed> stack_speed(const AdviseHost::StackQuestion& question) {
  const Machine* machine = find_machine_of_gpu(question.gpu);
  if (!machine) return std::nullopt;
  const Stack stack = find_stack(question.stack);
  const auto setting_of = [&](const Json& fields, double tokens_per_s) {
    const Plan plan = plan_of(fields);
    return stack_setting(plan, *machine, static_cast<double>(plan.tokens_per_step()) / tokens_per_s);
  };
  const StackSetting own = setting_of(question.fields, question.tokens_per_s);
  const StackSetting base = setting_of(question.bf16_fields, question.bf16_tokens_per_s);
  const StackFactor ratio = stack_speedup_factor(stack, own, base);
  return StackSpeed{with_interval(stack_factor(stack, own)), with_interval(ratio), ratio.no_evidence};
}

}  // namespace

AdviseHost advise_host() {
  AdviseHost host;
  host.case_of = [](const AdviseHost::Words& words) {
    const Case c = case_of_words(words);
    return case_to_json(validate(c, Refusals::kept).fields);
  };
  host.dry_run = [](const Json& fields) { return dry_record(plan_of(fields)); };
  host.predict = [](const Json& fields, const Json& bf16_fields, const std::string& gpu) {
    return predicted_speed(plan_of(fields), plan_of(bf16_fields), gpu);
  };
  host.nearest_change = [](const Json& fields, std::int64_t bytes) -> std::optional<std::string> {
    const auto change =
        nearest_change(plan_of(fields), {.name = {}, .bytes = bytes + kContextBytes, .source = {}});
    return change ? std::optional(change->text()) : std::nullopt;
  };
  host.best_settings = best_settings;
  host.stack_speed = stack_speed;
  host.native_recipes = native_recipes;
  host.case_bytes = case_bytes;
  host.rates_borrowed_from = [](const GpuModel& gpu) -> std::optional<std::string> {
    const Machine* machine = find_machine_of_gpu(gpu.name);
    if (!machine) return std::nullopt;
    const CostModel model(*machine);
    if (!model.borrowed() || model.ratios()) return std::nullopt;
    return gpu_name_of(find_machine(model.rates().machine));
  };
  for (const std::string& name : datasheet_names()) {
    const DatasheetRates rates = datasheet_rates(name).value();
    host.known_gpus.push_back(
        {name, {}, find_datasheet_gpu(name).bytes, rates.bf16_tflops, rates.memory_gb_per_s});
  }
  if (find_gpus().count > 0) {
    host.gpu_here = gpu_model(gpu_properties(0));
    if (const auto rates = known_peaks(host.gpu_here->name)) {
      host.gpu_here->bf16_tflops = rates->bf16_tflops;
      host.gpu_here->memory_gb_per_s = rates->memory_gb_per_s;
    }
  }
  return host;
}

CLI::App* add_advise_command(CLI::App& app, AdviseCommand& command) {
  CLI::App* sub =
      app.add_subcommand("advise", "which recipe for a model on given GPUs, and at what loss gap");
  sub->footer(
      "Answers from your records, the records that come with the program, and predictions; runs nothing.\n"
      "\n"
      "Exit status: 0 with a recommendation, which may be bf16 or LoRA\n"
      "             1 nothing fits\n"
      "             2 bad input\n"
      "             3 no recipe has both a speed on such a GPU and evidence of its loss\n"
      "\n"
      "Examples:\n"
      "  # a run of 1T tokens on four H200\n"
      "  precbench advise --model llama3.1-8b --gpus 4 --gpu h200 --tokens 1T\n"
      "  # with your own measurements, and the slope of your own runs\n"
      "  precbench advise --model llama3.1-8b --gpus 4 --tokens 1T --records out/advise --base run.csv");
  add_fields(*sub, command.axes, true, default_of_advice);
  sub->add_option("--tokens", command.tokens, "length of the planned run, as in 300B or 15T")
      ->type_name("N")
      ->group("Advice");
  add_advise_flags(*sub, command.options);
  return sub;
}

int advise(const AdviseCommand& command) {
  AdviseOptions options = command.options;
  for (const auto& [name, words] : command.axes) {
    const Field& field = *find_field(name);
    if (!is_one_of(kFields, name))
      throw InvalidInput(
          fmt::format("{}: does not matter to advise{}", names_of_flag(field),
                      name == "steps" ? "; give the length of the run in tokens, as in --tokens 1T" : ""));
    if (name == "recipe")
      options.recipes = expand_axis(field, words);
    else
      options.given[name] = single_value(field, words);
  }
  for (const Machine& machine : machine_presets())
    if (machine.name == options.gpu) options.gpu = gpu_name_of(machine);
  if (!options.given.contains("model"))
    throw InvalidInput("--model: advise needs a model; see precbench list models");
  try {
    if (!command.tokens.empty()) options.tokens = static_cast<double>(parse_token_count(command.tokens));
  } catch (const InvalidInput& error) {
    throw InvalidInput(fmt::format("--tokens: {}", error.what()));
  }
  return advise(options, advise_host());
}

}  // namespace precbench
