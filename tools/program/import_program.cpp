// Closed forms of models, data sheets of GPUs and predicted steps of stacks. See import_program.h.
#include "tools/program/import_program.h"

#include <fmt/format.h>

#include <cmath>

#include "bench/case/case.h"
#include "bench/case/plan.h"
#include "bench/cli/toml.h"
#include "bench/machine/datasheet.h"
#include "bench/machine/machine.h"
#include "bench/machine/machine_names.h"
#include "bench/predict/cost_model.h"
#include "bench/predict/stack_factor.h"
#include "kernels/base/errors.h"
#include "kernels/base/untrusted_input.h"
#include "models/config/config.h"
#include "models/transformer/flops.h"

namespace precbench {
namespace {

ImportModel model_facts(const std::string& name, std::int64_t seq) {
  const ModelConfig config = find_model(name);
  const FlopCount causal = flops_per_token(config, seq);
  const double linear = static_cast<double>(causal.gemm + causal.head);
  ImportModel facts;
  facts.name = config.name;
  facts.parameters = parameter_count(config);
  facts.without_embedding = facts.parameters - config.vocab * config.width;
  facts.causal = static_cast<double>(causal.total());
  facts.full = linear + 2 * static_cast<double>(causal.attention);
  facts.full_with_norms =
      static_cast<double>(flops_per_token(config, seq, FlopConvention::torchtitan).total());
  return facts;
}

std::vector<std::string> models_of_size(std::int64_t parameters) {
  std::vector<std::string> names;
  for (const ModelConfig& config : model_presets())
    if (parameter_count(config) == parameters) names.push_back(config.name);
  return names;
}

ImportGpu gpu_facts(const std::string& words, bool exact) {
  ImportGpu facts{exact ? words : find_datasheet_gpu(words).name, {}};
  if (const auto peaks = datasheet_rates(facts.name)) {
    DeviceRates& rates = facts.peaks.emplace();
    rates.bf16_tflops = peaks->bf16_tflops;
    rates.fp8_tflops = peaks->fp8_tflops;
    rates.memory_gb_per_s = peaks->memory_gb_per_s;
    rates.source = peaks->source;
    rates.fp4_tflops = peaks->fp4_tflops;
  }
  return facts;
}

/// Returns the stack whose factors a program's speed is predicted with; null without one.
std::optional<Stack> stack_of(const std::string& program) {
  if (program == "torchtitan" || program == "pytorch_baseline") return Stack::pytorch;
  if (program == "Megatron-LM" || program == "Megatron-Bridge" || program == "NeMo") return Stack::megatron;
  return std::nullopt;
}

/// Predicts the step with FSDP and, where the log does not say the micro-batch, one sequence at a time.
std::optional<PredictedStep> predicted(const Record& record) {
  const auto stack = stack_of(record.source->program);
  const Machine* const machine = find_machine_of_gpu(machine_of(record.env));
  if (!stack || !machine) return std::nullopt;
  const CaseFields& fields = record.case_fields;
  const auto count = [&](const char* name) { return fields.at(name).get<std::int64_t>(); };
  const std::int64_t gpus = count("gpus"), batch = count("batch"), global = count("global_batch");
  if (global % (gpus * batch) != 0) return std::nullopt;  // other parallelism than data
  try {
    Case c;
    const auto set = [&](const char* name, const std::string& text) { set_text(c, *find_field(name), text); };
    for (const char* name : {"model", "recipe"}) set(name, fields.at(name).get<std::string>());
    for (const char* name : {"seq", "batch", "gpus"}) set(name, std::to_string(count(name)));
    set("accumulation", std::to_string(global / (gpus * batch)));
    if (gpus > 1) set("parallel", "fsdp");
    const Plan plan = validate(c, Refusals::kept);
    const auto own = estimated_step(gpu_name_of(*machine), plan);
    if (!own) return std::nullopt;
    const StackFactor factor = stack_factor(*stack, stack_setting(plan, *machine, own->seconds));
    constexpr double kEnd = 1.2816;  // of an 80% interval, in standard deviations
    const double ms = 1e3 * own->seconds / factor.factor,
                 error = std::hypot(own->log_error, factor.log_error);
    return PredictedStep{ms, ms * std::exp(-kEnd * error), ms * std::exp(kEnd * error),
                         own->borrowed_seconds / own->seconds, machine->name + " and " + name_of(*stack)};
  } catch (const InvalidInput&) {  // a recipe or a length that our step does not have
    return std::nullopt;
  }
}

std::vector<MapItem> read_map(const std::string& path) {
  constexpr std::size_t kMostBytes = std::size_t{64} << 10;
  std::vector<MapItem> items;
  TomlHandler handler;
  handler.section = [](const std::string& section) {
    throw InvalidInput(fmt::format("[{}]: the file has no sections", section));
  };
  handler.known = [](const std::string&, const std::string& key) { return key; };
  handler.key = [&](const std::string&, const std::string& key, const std::vector<std::string>& words,
                    const std::string& place) {
    items.push_back({key, words, place});
  };
  read_toml(path, read_regular_file(path, kMostBytes), handler);
  return items;
}

}  // namespace

ImportHost import_host() { return {model_facts, models_of_size, gpu_facts, predicted, read_map}; }

}  // namespace precbench
