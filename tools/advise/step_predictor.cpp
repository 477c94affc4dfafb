// Chooses records and sums times. See step_predictor.h.
#include "tools/advise/step_predictor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "results/record/statistics.h"
#include "results/record/step_time.h"
#include "tools/advise/numerics_label.h"

namespace precbench {
namespace {

/// Collectives that send less than this in a step (a gradient norm) take no time worth predicting.
constexpr double kNegligibleBytes = 1e6;
/// Smallest buffer of a call whose bandwidth is that of the links and not of the latency.
constexpr double kLargeBuffer = 16e6;

bool usable(const Record& record) {
  return record.status == Status::ok && !record.study && record.support && record.env.gpu &&
         record.support->path() == ExecutionPath::native && record.breakdown &&
         step_ms_of_speed(record).value_or(0) > 0;
}

std::string state_formats(const Record& record) {
  std::string text;
  for (const char* field : {"master", "moments", "second_moment", "weights", "grads", "optimizer"})
    text += case_text(record, field) + " ";
  return text;
}

/// Returns the fields that distinguish settings: all that change the work, except the recipe and its modifiers.
std::string setting_key(const Record& record) {
  nlohmann::ordered_json key = nlohmann::ordered_json::object();
  for (const auto& item : record.case_fields.items())
    if (changes_work(item.key()) && item.key() != "recipe" && item.key() != "seed" && item.key() != "gather")
      key[item.key()] = item.value();
  return key.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::optional<StepPredictor::Accuracy> accuracy_of(const std::vector<double>& ratios) {
  if (ratios.empty()) return std::nullopt;
  std::vector<double> errors;
  for (const double ratio : ratios) errors.push_back(std::fabs(ratio - 1));
  std::sort(errors.begin(), errors.end());
  return StepPredictor::Accuracy{errors.size(), quantile(errors, 0.5), errors.back(), quantile(errors, 0.95)};
}

std::optional<double> median_of(std::vector<double> values) {
  const auto statistics = sample_statistics(std::move(values));
  return statistics ? std::optional(statistics->median) : std::nullopt;
}

}  // namespace

double gpus_of(const Record& record) {
  const auto gpus = record.case_fields.value("gpus", nullptr);
  return gpus.is_number() ? gpus.get<double>() : 1;
}

StepPredictor::StepPredictor(const std::vector<const Record*>& records, const GpuModel& target)
    : target_(target) {
  std::map<std::string, std::vector<const Record*>> by_gpu;
  for (const Record* record : records)
    if (usable(*record)) by_gpu[record->env.gpu->name].push_back(record);
  const auto peaks_of = [](const Record& record) {
    return record.metrics && record.metrics->peaks ? *record.metrics->peaks : DeviceRates{};
  };
  std::size_t most = 0;
  for (const auto& [name, own] : by_gpu) {
    const bool same = name == target.name;
    const DeviceRates peaks = peaks_of(*own.front());
    const bool alike = target.cc && own.front()->env.gpu->cc == target.cc && target.bf16_tflops &&
                       target.memory_gb_per_s && peaks.bf16_tflops && peaks.memory_gb_per_s;
    if (!same && (!alike || own.size() <= most)) continue;
    source_gpu_ = name;
    most = same ? records.size() + 1 : own.size();
    scale_ = same ? Scale{}
                  : Scale{*peaks.bf16_tflops / *target.bf16_tflops,
                          *peaks.memory_gb_per_s / *target.memory_gb_per_s};
  }
  if (source_gpu_.empty()) return;
  for (const Record* record : by_gpu.at(source_gpu_)) {
    (gpus_of(*record) > 1 ? several_ : singles_).push_back(record);
    most_gpus_ = std::max(most_gpus_, gpus_of(*record));
  }
}

const OpRateTable& StepPredictor::rates(const Key& key) const {
  const auto known = rates_.find(key);
  if (known != rates_.end()) return known->second;
  const auto& [recipe, state, without_model] = key;
  std::vector<const Record*> steps;
  for (const Record* record : singles_)
    if (numerics_label(record->case_fields) == recipe && (state.empty() || state_formats(*record) == state) &&
        (without_model.empty() || case_text(*record, "model") != without_model))
      steps.push_back(record);
  return rates_.emplace(key, OpRateTable(steps)).first->second;
}

std::optional<double> StepPredictor::compute_ms(const Record& counts, const std::string& without_model,
                                                Scale scale) const {
  if (!counts.breakdown) return std::nullopt;
  const std::string recipe = numerics_label(counts.case_fields);
  const OpRateTable &alike = rates({recipe, state_formats(counts), without_model}),
                    &any = rates({recipe, "", without_model});
  double ms = 0;
  for (const OpRecord& op : ops_of_all_shapes(*counts.breakdown)) {
    if (op.op_class == "communication") continue;
    auto own = alike.near_ms(op);
    if (!own) own = any.ms(op);
    if (!own) return std::nullopt;
    ms += *own * (op.flops > 0 ? scale.flops : scale.bytes) + static_cast<double>(op.calls) * any.gap_ms();
  }
  return ms;
}

std::optional<double> StepPredictor::bus_gb_per_s(const CollectiveRecord& collective, double gpus,
                                                  const std::string& without_model) const {
  std::map<double, std::vector<double>> by_distance;
  for (const Record* record : several_) {
    if (!record->communication || (!without_model.empty() && case_text(*record, "model") == without_model))
      continue;
    for (const CollectiveRecord& one : record->communication->collectives)
      if (one.name == collective.name && one.calls > 0 && one.bus_gb_per_s && *one.bus_gb_per_s > 0 &&
          one.buffer_bytes >= kLargeBuffer * static_cast<double>(one.calls))
        by_distance[std::fabs(std::log(gpus_of(*record) / gpus))].push_back(*one.bus_gb_per_s);
  }
  return by_distance.empty() ? std::nullopt : median_of(by_distance.begin()->second);
}

std::optional<double> StepPredictor::communication_ms(const Record& counts,
                                                      const std::string& without_model) const {
  if (gpus_of(counts) <= 1) return 0;
  if (!counts.communication) return std::nullopt;
  double ms = 0;
  for (const CollectiveRecord& collective : counts.communication->collectives) {
    if (collective.wire_bytes < kNegligibleBytes) continue;
    const auto bandwidth = bus_gb_per_s(collective, gpus_of(counts), without_model);
    if (!bandwidth) return std::nullopt;
    ms += collective.wire_bytes / *bandwidth / 1e6;
  }
  return ms;
}

std::optional<double> StepPredictor::step_ms(const Record& counts, const std::string& without_model,
                                             Scale scale) const {
  const auto compute = compute_ms(counts, without_model, scale),
             communication = communication_ms(counts, without_model);
  if (!compute || !communication || !(*compute > 0)) return std::nullopt;
  return *compute + kHiddenCost * *communication;
}

std::optional<double> StepPredictor::from_other_models(const Record& record) const {
  return step_ms(record, case_text(record, "model"), {});
}

std::optional<double> StepPredictor::power_w(const Record& counts) const {
  std::vector<double> powers;
  for (const Record* record : singles_)
    if (numerics_label(record->case_fields) == numerics_label(counts.case_fields) && record->telemetry &&
        record->telemetry->power_w)
      powers.push_back(*record->telemetry->power_w);
  return median_of(std::move(powers));
}

std::optional<StepPredictor::Accuracy> StepPredictor::step_accuracy(bool several) const {
  std::vector<double> ratios;
  for (const Record* record : several ? several_ : singles_)
    if (const auto predicted = from_other_models(*record))
      ratios.push_back(*predicted / *step_ms_of_speed(*record));
  return accuracy_of(ratios);
}

std::optional<StepPredictor::Accuracy> StepPredictor::speedup_accuracy(bool several) const {
  struct Step {
    double predicted, measured;
  };
  std::map<std::string, Step> bf16;
  std::vector<std::pair<std::string, Step>> others;
  for (const Record* record : several ? several_ : singles_) {
    const auto predicted = from_other_models(*record);
    if (!predicted) continue;
    const Step step{*predicted, *step_ms_of_speed(*record)};
    if (case_text(*record, "recipe") == "bf16")
      bf16.try_emplace(setting_key(*record), step);
    else
      others.emplace_back(setting_key(*record), step);
  }
  std::vector<double> ratios;
  for (const auto& [key, step] : others)
    if (const auto base = bf16.find(key); base != bf16.end())
      ratios.push_back((base->second.predicted / step.predicted) / (base->second.measured / step.measured));
  return accuracy_of(ratios);
}

}  // namespace precbench
