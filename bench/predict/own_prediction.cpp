// Predicts measured steps from the rates of other models and recipes. See own_prediction.h.
#include "bench/predict/own_prediction.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>

#include "bench/case/plan.h"
#include "bench/predict/cost_model.h"
#include "bench/predict/predict.h"
#include "kernels/base/errors.h"
#include "results/record/expert_load.h"
#include "results/record/statistics.h"
#include "results/record/step_time.h"

namespace precbench {
namespace {

/// Returns the machine of a GPU whose own rates the program has; null if there is none.
const Machine* machine_with_rates(const std::string& gpu) {
  const Machine* machine = find_machine_of_gpu(gpu);
  return machine && embedded_rates(machine->name) ? machine : nullptr;
}

StepEstimate estimate_without_own(const Machine& machine, const Plan& plan, bool has_cudnn) {
  const Rates& rates = *embedded_rates(machine.name);
  const OpTimer timer = timer_without(plan.fields.model + "/" + plan.fields.recipe, rates, peaks_of(machine));
  Trace trace = dry_run(plan, nullptr).trace;
  trace.attention = attention_setting(plan, has_cudnn);
  return estimate_step(CostModel(machine, rates, timer), trace, plan.ranks);
}

/// Returns why a record's step is not predicted; null, and the prediction in `result`, if it is.
std::optional<std::string> predict_record(const Record& record, OwnPrediction& result) {
  if (record.status != Status::ok || !record.metrics || !record.metrics->tokens_per_s)
    return "no speed of its own";
  if (!record.env.gpu) return "not on a GPU";
  if (record.source) return "of another program";
  if (!record.support || record.support->path() != ExecutionPath::native) return "emulated";
  const double measured_ms = step_ms_of_speed(record).value_or(0);
  if (measured_ms <= 0) return "no step time";
  const Machine* preset = machine_with_rates(record.env.gpu->name);
  if (!preset) return fmt::format("no rates of {}", record.env.gpu->name);
  try {
    const Plan plan = validate(case_from_json(record.case_fields));
    const auto machine = with_nodes(*preset, plan.ranks, record.env.nodes.value_or(1));
    if (!machine) return "no network between nodes";
    if (unsupported_reason(plan)) return "does not run any more";
    if (!runs_natively(plan, *machine)) return "emulated";
    if (plan.packs()) return "packed documents";
    const StepEstimate step = estimate_without_own(*machine, plan, record.env.cudnn.has_value());
    result.record = &record, result.gpus = plan.ranks;
    result.uneven = record.moe && record.moe->ep && is_uneven(record.moe->load);
    result.measured_ms = measured_ms;
    result.predicted_ms = 1e3 * step.seconds, result.low_ms = 1e3 * step.low(),
    result.high_ms = 1e3 * step.high();
    return std::nullopt;
  } catch (const InvalidInput&) {
    return "its model, recipe or data is not here";
  } catch (const OutOfMemory&) {
    return "does not fit as predicted";
  } catch (const Unsupported&) {
    return "does not run any more";
  }
}

/// Returns the errors of the steps that `chosen` takes; 0 steps if there is none.
template <class Chosen>
OwnErrors errors_of(const std::vector<OwnPrediction>& steps, Chosen&& chosen) {
  OwnErrors result;
  std::vector<double> errors;
  for (const OwnPrediction& step : steps) {
    if (!chosen(step)) continue;
    errors.push_back(step.error());
    result.inside += step.inside();
  }
  if (errors.empty()) return result;
  std::sort(errors.begin(), errors.end());
  result.steps = errors.size(), result.median = quantile(errors, 0.5);
  result.within_95 = quantile(errors, 0.95), result.worst = errors.back();
  return result;
}

}  // namespace

double OwnPrediction::error() const { return std::fabs(std::log(predicted_ms / measured_ms)); }

OwnPredictions predict_records(const RecordSet& records) {
  OwnPredictions result;
  for (const LocatedRecord& located : records.records) {
    OwnPrediction step;
    if (const auto why = predict_record(located.record, step))
      ++result.reasons[*why];
    else
      result.steps.push_back(step);
  }
  return result;
}

std::vector<OwnErrors> errors_by_gpus(const std::vector<OwnPrediction>& steps) {
  const auto key_of = [](const OwnPrediction& step) {
    return std::tuple(step.record->env.gpu->name, step.gpus, step.uneven);
  };
  std::set<std::tuple<std::string, std::int64_t, bool>> keys;
  for (const OwnPrediction& step : steps) keys.insert(key_of(step));
  std::vector<OwnErrors> result;
  for (const auto& key : keys) {
    OwnErrors group = errors_of(steps, [&](const OwnPrediction& step) { return key_of(step) == key; });
    std::tie(group.gpu, group.gpus, group.uneven) = key;
    result.push_back(group);
  }
  OwnErrors all = errors_of(steps, [](const OwnPrediction& step) { return !step.uneven; });
  all.gpu = "all";
  if (all.steps > 0) result.push_back(all);
  return result;
}

}  // namespace precbench
