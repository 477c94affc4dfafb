// Collects points and estimates their errors. See fit_rates.h.
#include "bench/predict/fit_rates.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "bench/case/plan.h"
#include "bench/predict/network.h"
#include "bench/predict/op_record.h"
#include "bench/predict/predict.h"
#include "kernels/base/errors.h"
#include "results/record/case_fields.h"
#include "results/record/step_time.h"

namespace precbench {
namespace {

bool alike(const OpRecord& a, const OpRecord& b) { return a.name == b.name && a.op_class == b.op_class; }

/// Returns the seconds that all calls of an op take by what holds on every GPU.
double expected_seconds(const OpRecord& op, const OpPeaks& peaks) {
  const OpCost one = op_cost(op);
  const double ideal = peaks.ideal_seconds(one.flops, one.bytes, one.math);
  return ideal > 0 ? static_cast<double>(op.calls) * ideal / expected_fraction(one, peaks) : 0;
}

std::vector<OpRecord> counted_ops(const Plan& plan) {
  std::vector<OpRecord> ops;
  const Trace trace = dry_run(plan, nullptr).trace;  // has the names of collectives
  for (const auto& [cost, calls] : trace.counted()) ops.push_back(op_record(cost, calls, 0));
  return ops;
}

/// Returns true for the ops of a record that has shapes.
bool have_shapes(const std::vector<OpRecord>& ops) {
  return std::any_of(ops.begin(), ops.end(), [](const OpRecord& op) { return op.shape.has_value(); });
}

/// Returns true if the recipe's casts drop mantissa bits, for which the formats of an op do not tell.
bool drops_bits(const Recipe& recipe) {
  return std::any_of(std::begin(kGemmRoles), std::end(kGemmRoles), [&](GemmRole role) {
    const GemmRecipe& gemm = recipe.gemm(role);
    return gemm.a.dropped_bits > 0 || gemm.b.dropped_bits > 0;
  });
}

double profiled_total(const Breakdown& b) {
  double sum = b.idle_ms;
  for (const OpRecord& op : b.ops) sum += op.ms;
  return sum;
}

/// Returns why a record gives no rates; null if it does.
std::optional<std::string> unusable_reason(const Record& record, const Machine& machine) {
  if (record.status != Status::ok || !record.breakdown) return "no profiled step";
  if (!record.env.gpu || record.env.gpu->name != machine.driver_name) return "another GPU";
  if (record.case_fields.value("gpus", 1) != 1) return "several GPUs";
  if (!record.support || record.support->path() != ExecutionPath::native) return "not native";
  if (record.study) return "of a study";
  if (record.moe && record.moe->routing != "balanced") return "experts of unequal load";
  const double step_ms = step_ms_of_speed(record).value_or(0);
  if (step_ms <= 0) return "no step time";
  // Events around its ops slow a short step down; a long one that differs ran at another clock, and not all of its ops.
  constexpr double kLong = 100, kMost = 0.07;
  if (step_ms > kLong && std::abs(step_ms / profiled_total(*record.breakdown) - 1) > kMost)
    return "its profiled step differs from its median step";
  return std::nullopt;
}

/// Returns true if the steps of a record ran before the clock had come down to what the power limit allows. Of such a
/// record only attention counts, whose rates differ more between lengths than between clocks.
bool is_brief(const Record& record) {
  constexpr double kBriefMs = 1000;
  if (!record.timing) return false;
  const auto steps = static_cast<double>(record.timing->samples_ms.size() + record.timing->warmup);
  return steps * step_ms_of_speed(record).value_or(0) < kBriefMs;
}

/// A record with its points: indices of Rates::points.
struct Step {
  std::size_t begin = 0, end = 0;
  std::vector<std::int64_t> calls;
};

/// Logarithms of predicted over measured times, by class.
class ClassErrors {
 public:
  void add(RateClass rate_class, double measured, double predicted) {
    measured_[static_cast<std::size_t>(rate_class)] += measured;
    predicted_[static_cast<std::size_t>(rate_class)] += predicted;
  }
  void end_step(const std::string& family) {
    const double step = std::accumulate(measured_.begin(), measured_.end(), 0.0);
    for (std::size_t i = 0; i < kRateClasses; ++i)
      if (measured_[i] > 0 && predicted_[i] > 0)
        errors_[i].push_back(
            {std::fabs(std::log(predicted_[i] / measured_[i])), measured_[i] / step, family});
    ++steps_[family];
    measured_ = predicted_ = {};
  }
  /// Returns the standard deviations of normal errors of which as many are within the 80% interval. Families count
  /// alike, and an error as much as the class's share of its step: that is what it does to the step.
  std::array<double, kRateClasses> deviations() {
    std::array<double, kRateClasses> result{};
    for (std::size_t i = 0; i < kRateClasses; ++i) {
      std::sort(errors_[i].begin(), errors_[i].end(),
                [](const Error& a, const Error& b) { return a.size < b.size; });
      const auto weight = [&](const Error& error) { return error.share / steps_.at(error.family); };
      double total = 0, sum = 0;
      for (const Error& error : errors_[i]) total += weight(error);
      for (const Error& error : errors_[i]) {
        sum += weight(error);
        result[i] = error.size / kInterval80;
        if (sum >= 0.8 * total) break;
      }
    }
    return result;
  }

 private:
  struct Error {
    double size = 0, share = 0;
    std::string family;
  };
  std::array<double, kRateClasses> measured_{}, predicted_{};
  std::array<std::vector<Error>, kRateClasses> errors_;
  std::map<std::string, double> steps_;  // by family
};

RateErrors estimate_errors(const Rates& rates, const std::vector<Step>& steps, const OpPeaks& peaks) {
  ClassErrors own, borrowed;
  std::map<std::string, OpTimer> timers;
  for (const Step& step : steps) {
    const RateSource& source = rates.sources[static_cast<std::size_t>(rates.points[step.begin].source)];
    auto known = timers.find(source.family());
    if (known == timers.end())
      known = timers.emplace(source.family(), timer_without(source.family(), rates, peaks)).first;
    const OpTimer& timer = known->second;
    for (std::size_t i = step.begin; i < step.end; ++i) {
      const OpCost cost = op_cost(rates.points[i]);
      const auto calls = static_cast<double>(step.calls[i - step.begin]);
      const double measured =
          calls * peaks.ideal_seconds(cost.flops, cost.bytes, cost.math) / rates.points[i].fraction;
      if (!timer.knows(rate_class_of(cost))) continue;  // all steps are of one family
      own.add(rate_class_of(cost), measured, calls * timer.time(rates.points[i]).seconds);
      if (cost.math != DType::bf16)
        borrowed.add(rate_class_of(cost), measured, calls * timer.time_at_bf16(rates.points[i]).seconds);
    }
    own.end_step(source.family());
    borrowed.end_step(source.family());
  }
  RateErrors errors{own.deviations(), borrowed.deviations(), 0};
  constexpr double kUnknown = 0.1;  // of a class that no two families have
  for (std::size_t i = 0; i < kRateClasses; ++i) {
    if (errors.by_class[i] == 0) errors.by_class[i] = kUnknown;
    errors.borrowed[i] = std::max(errors.borrowed[i], errors.by_class[i]);
  }
  return errors;
}

/// Returns the spread of the step times of equal cases, as a standard deviation of the logarithm; that of our H200
/// records without equal cases.
double repeat_error(const std::vector<const Record*>& records) {
  std::map<std::string, std::vector<double>> by_case;
  for (const Record* record : records)
    by_case[record->id].push_back(std::log(step_ms_of_speed(*record).value()));
  double squares = 0, degrees = 0;
  for (const auto& [id, logs] : by_case) {
    double mean = 0;
    for (const double one : logs) mean += one / static_cast<double>(logs.size());
    for (const double one : logs) squares += (one - mean) * (one - mean);
    degrees += static_cast<double>(logs.size()) - 1;
  }
  return degrees > 0 ? std::sqrt(squares / degrees) : kBoardSpread;
}

RateSource source_of(const Record& record) {
  RateSource source{record.id,
                    record.case_fields.value("model", ""),
                    record.case_fields.value("recipe", ""),
                    record.env.git.value_or("").substr(0, 7),
                    0,
                    0};
  if (record.telemetry) {
    source.clock_mhz = record.telemetry->sm_clock_mhz.value_or(0);
    source.power_w = std::round(record.telemetry->power_w.value_or(0));
  }
  return source;
}

/// Kernels of a record's attention: those that it names, and by today's rule where its layers differ, of which it names
/// the last.
class AttentionKernels {
 public:
  AttentionKernels() = default;
  AttentionKernels(const Record& record, AttentionSetting setting, const std::vector<OpRecord>& ops,
                   const OpPeaks& peaks)
      : setting_(setting), hopper_(peaks.hopper) {
    const std::string names = record.support->attention.value_or("");
    for (const bool backward : {false, true}) {
      std::set<std::string> by_rule;
      for (const OpRecord& op : ops)
        if (op.name == (backward ? "attention_backward" : "attention"))
          by_rule.insert(attention_kernel(op_cost(op), setting, hopper_));
      if (by_rule.size() == 1) recorded_[backward] = recorded_attention_kernel(names, backward);
    }
  }
  /// Returns the kernel of an op; empty for other ops than attention.
  std::string of(const OpCost& op) const {
    if (!is_attention(op.name)) return "";
    std::string kernel = attention_kernel(op, setting_, hopper_);
    const auto& recorded = recorded_[op.name == std::string_view("attention_backward")];
    return recorded ? *recorded + kernel.substr(std::min(kernel.find(' '), kernel.size())) : kernel;
  }

 private:
  AttentionSetting setting_;
  bool hopper_ = false;
  std::array<std::optional<std::string>, 2> recorded_;  // of forward and backward
};

/// Returns a number with four significant digits, so that files are short.
double rounded(double value) {
  if (!(value > 0)) return 0;
  const double unit = std::pow(10.0, std::floor(std::log10(value)) - 3);
  return std::round(value / unit) * unit;
}

}  // namespace

std::vector<OpRecord> ops_with_shapes(const std::vector<OpRecord>& measured,
                                      const std::vector<OpRecord>& counted, const OpPeaks& peaks) {
  if (have_shapes(measured)) return measured;
  std::vector<OpRecord> ops;
  for (const OpRecord& op : measured) {
    std::int64_t calls = 0;
    double expected = 0;
    for (const OpRecord& one : counted) {
      if (!alike(one, op)) continue;
      calls += one.calls;
      expected += expected_seconds(one, peaks);
    }
    if (calls != op.calls || !(expected > 0)) continue;
    for (const OpRecord& one : counted) {
      if (!alike(one, op)) continue;
      OpRecord part = one;
      part.ms = op.ms * expected_seconds(one, peaks) / expected;
      ops.push_back(std::move(part));
    }
  }
  return ops;
}

FittedRates fit_rates(const Machine& machine, const std::vector<const Record*>& records) {
  FittedRates fitted;
  Rates& rates = fitted.rates;
  rates.machine = machine.name;
  const OpPeaks peaks = peaks_of(machine);
  std::map<std::string, const Record*> latest;  // by case
  std::vector<const Record*> usable;
  for (const Record* record : records) {
    if (const auto why = unusable_reason(*record, machine)) {
      fitted.skipped.push_back(fmt::format("{}: {}", record->id, *why));
      continue;
    }
    usable.push_back(record);
    const Record*& known = latest[record->id];
    if (!known || known->created < record->created) known = record;
  }
  std::vector<Step> steps;
  for (const Record* record : usable) {
    if (latest.at(record->id) != record) continue;
    std::vector<OpRecord> ops;
    AttentionKernels kernels;
    try {
      const Plan plan = validate(case_from_json(record->case_fields));
      if (drops_bits(plan.recipe)) throw Unsupported("casts that drop mantissa bits");
      const std::vector<OpRecord>& measured = record->breakdown->ops;
      ops = have_shapes(measured) ? measured : ops_with_shapes(measured, counted_ops(plan), peaks);
      kernels = AttentionKernels(*record, attention_setting(plan, record->env.cudnn.has_value()), ops, peaks);
    } catch (const std::exception& error) {
      fitted.skipped.push_back(fmt::format("{}: {}", record->id, error.what()));
      continue;
    }
    const double scale = step_ms_of_speed(*record).value() / profiled_total(*record->breakdown);
    const bool brief = is_brief(*record);
    Step step{rates.points.size(), 0, {}};
    for (const OpRecord& op : ops) {
      const OpCost cost = op_cost(op);
      const double ideal = peaks.ideal_seconds(cost.flops, cost.bytes, cost.math);
      if (op.op_class == name_of(OpClass::communication) || !(op.ms > 0) || !(ideal > 0)) continue;
      if (brief && !is_attention(op.name)) continue;
      const double seconds = scale * op.ms / 1e3 / static_cast<double>(op.calls);
      rates.points.push_back({op.name, op.shape.value_or(std::vector<std::int64_t>{}),
                              op.formats.value_or(""), cost.flops, cost.bytes, rounded(ideal / seconds),
                              static_cast<int>(rates.sources.size()), kernels.of(cost)});
      step.calls.push_back(op.calls);
    }
    step.end = rates.points.size();
    if (step.end == step.begin) {
      fitted.skipped.push_back(fmt::format("{}: none of its ops is the dry run's", record->id));
      continue;
    }
    rates.sources.push_back(source_of(*record));
    fitted.used.push_back(record);
    steps.push_back(std::move(step));
  }
  rates.errors = estimate_errors(rates, steps, peaks);
  rates.errors.step = repeat_error(usable);
  return fitted;
}

}  // namespace precbench
