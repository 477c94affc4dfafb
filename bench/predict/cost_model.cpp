// Times a trace and estimates its error. See cost_model.h.
#include "bench/predict/cost_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "bench/case/plan.h"
#include "bench/predict/predict.h"
#include "kernels/base/errors.h"
#include "kernels/numerics/native_formats.h"

namespace precbench {
namespace {

/// Rates of the machine that a model borrows from: its own, those that it names, or those of an H200.
const Rates& rates_for(const Machine& machine) {
  constexpr const char* kMostMeasured = "h200";
  if (!machine.rates_from.empty()) {
    if (const Rates* named = embedded_rates(machine.rates_from)) return *named;
    std::vector<std::string> known;
    for (const Machine& preset : machine_presets())
      if (embedded_rates(preset.name)) known.push_back(preset.name);
    throw InvalidInput(fmt::format("machine {}: rates: from: no rates of \"{}\"; known: {}", machine.name,
                                   machine.rates_from, fmt::join(known, ", ")));
  }
  if (const Rates* own = embedded_rates(machine.name)) return *own;
  if (const Rates* most = embedded_rates(kMostMeasured)) return *most;
  throw InvalidInput(fmt::format("{}: this program has no measured rates", machine.name));
}

/// Returns peaks of a machine on which fractions of the source's peaks are reached: where both sustain a known
/// rate under their power limits, the fractions are of that.
OpPeaks scaled_peaks(const Machine& machine, const Machine& source) {
  OpPeaks peaks = peaks_of(machine);
  const OpPeaks reference = peaks_of(source);
  const auto scale = [](double& peak, const std::optional<double>& sustained, double source_peak,
                        const std::optional<double>& source_sustained) {
    if (sustained && source_sustained) peak = source_peak * *sustained / *source_sustained;
  };
  scale(peaks.bf16_flops, machine.sustained.bf16, reference.bf16_flops, source.sustained.bf16);
  scale(peaks.fp8_flops, machine.sustained.fp8, reference.fp8_flops, source.sustained.fp8);
  // No source multiplies FP4: peaks_of() gives it the FP8 peak, so the FP8 rate is what it sustains.
  scale(peaks.fp4_flops, machine.sustained.fp4, reference.fp4_flops, source.sustained.fp8);
  return peaks;
}

bool same_gpu(const Machine& machine, const Rates& rates) {
  return machine.name == rates.machine ||
         (!machine.driver_name.empty() && machine.driver_name == find_machine(rates.machine).driver_name);
}

double square(double x) { return x * x; }

/// Relative error of the time that collectives cost: exposed, and taken from ops beside them. Assumed, not measured.
constexpr double kCommunicationError = 0.25;

}  // namespace

/// Times by all that they depend on. Searches time the same calls in thousands of layouts, and looking for the nearest
/// measured points takes longest.
class CostModel::KnownTimes {
 public:
  /// Returns the time of a call, from `make` if it is new.
  template <class Make>
  Time find(const OpCost& op, const AttentionSetting& attention, const Make& make) {
    const std::size_t hash = hash_of(op);
    std::unique_lock lock(mutex_);
    for (auto [at, end] = known_.equal_range(hash); at != end; ++at)
      if (same_call(at->second.op, op) && at->second.attention == attention) return at->second.time;
    lock.unlock();
    const Time time = make();
    lock.lock();
    Call& call = known_.emplace(hash, Call{op.name, op, attention, time})->second;
    call.op.name = call.name.c_str();
    return time;
  }

 private:
  struct Call {
    std::string name;
    OpCost op;
    AttentionSetting attention;
    Time time;
  };
  std::mutex mutex_;
  std::unordered_multimap<std::size_t, Call> known_;
};

CostModel::CostModel(Machine machine)
    : machine_(std::move(machine)),
      network_(machine_),
      rates_(&rates_for(machine_)),
      borrowed_(!same_gpu(machine_, *rates_)),
      timer_(*rates_, borrowed_ ? scaled_peaks(machine_, find_machine(rates_->machine)) : peaks_of(machine_)),
      known_(std::make_shared<KnownTimes>()) {
  const SpeedRatios* ratios = borrowed_ ? embedded_speed_ratios(machine_.name) : nullptr;
  if (!ratios || ratios->over != rates_->machine) return;
  ratios_ = ratios;
  const Machine source = find_machine(rates_->machine), preset = find_machine(machine_.name);
  ratio_timer_.emplace(*rates_, peaks_of(source));
  peaks_ = scaled_peaks(machine_, source);
  preset_peaks_ = scaled_peaks(preset, source);
  // A machine file of the same name that states other achieved fractions keeps those.
  if (machine_.levels.empty() || preset.levels.empty() ||
      machine_.levels.front().achieved != preset.levels.front().achieved)
    return;
  BusRates bus = ratios->bus;
  for (auto& [collective, by_ranks] : bus)
    for (auto& [ranks, sizes] : by_ranks)
      for (auto& size : sizes)
        size.second *= machine_.levels.front().gb_per_s / preset.levels.front().gb_per_s;
  network_ = Network(machine_, std::move(bus));
}

CostModel::CostModel(Machine machine, const Rates& rates, const OpTimer& timer)
    : machine_(std::move(machine)),
      network_(machine_),
      rates_(&rates),
      borrowed_(false),
      timer_(timer),
      known_(std::make_shared<KnownTimes>()) {}

double CostModel::contention(Collective kind, const RankGroup& group) const {
  // Over a slower network the kernels wait more than they move: memory traffic falls with the rate of the ring, in
  // which all members of a domain take part, and the multiprocessors stay occupied.
  constexpr double kProcessors = 16.0 / 132;  // of NCCL's channels; assumed, not measured
  if (network_.level(group) == 0 || network_.levels().empty()) return kNvlinkContention;
  const double share = network_.bus_rate(kind, group) / network_.rate(kind, 0, group.ranks);
  return std::min(kNvlinkContention, kNvlinkContention * share + kProcessors);
}

double CostModel::backward_error(const OpCost& op, std::string formats, double seconds) const {
  constexpr std::string_view kForward = "fprop", kWide = "e5m2", kNarrow = "e4m3";
  const std::string_view name = op.name;
  if (rate_class_of(op) != RateClass::gemm || name.ends_with(kForward) || seconds <= 0) return 0;
  OpCost forward = op;
  forward.name = name.starts_with("grouped_") ? "grouped_matmul fprop" : "matmul fprop";
  for (auto at = formats.find(kWide); at != std::string::npos; at = formats.find(kWide))
    formats.replace(at, kWide.size(), kNarrow);
  return std::abs(std::log(ratio_timer_->time(forward, formats, "").seconds / seconds)) / kInterval80;
}

CostModel::Time CostModel::time(const OpCost& op, const AttentionSetting& attention) const {
  if (const auto ratio = ratios_ ? ratios_->of(op, attention.softcap) : std::nullopt) {
    OpCost over = op;
    if (over.math == DType::e2m1) over.math = DType::e4m3;
    const OpTimer::Time base =
        ratio_timer_->time(over, ratio->over_formats, ratio_timer_->kernel_of(over, attention));
    // A preset with other peaks is faster by as much.
    const double changed = peaks_.ideal_seconds(op.flops, op.bytes, op.math) /
                           preset_peaks_.ideal_seconds(op.flops, op.bytes, op.math);
    return {base.seconds / ratio->ratio * (base.seconds > 0 ? changed : 1), !ratio->measured,
            std::hypot(ratio->spread, backward_error(over, ratio->over_formats, base.seconds))};
  }
  const OpTimer::Time own = timer_.time(op, attention);
  return {own.seconds, borrowed_ || own.other_formats, std::nullopt};
}

TimelineRates CostModel::rates_of(const Trace& trace) const {
  TimelineRates rates;
  rates.op_seconds.reserve(trace.ops.size());
  for (const OpCost& op : trace.ops) {
    const Time time = known_->find(op, trace.attention, [&] { return this->time(op, trace.attention); });
    rates.op_seconds.push_back(time.seconds);
    rates.borrowed.push_back(time.borrowed);
    rates.ratio_errors.push_back(time.ratio_error);
  }
  std::vector<RankGroup> groups;
  for (const std::vector<int>& ranks : trace.comms) groups.push_back(group_of_ranks(ranks));
  for (const TraceCollective& one : trace.collectives) {
    const RankGroup& group = groups[static_cast<std::size_t>(one.comm)];
    const Collective kind = collective_of(one.name);
    rates.collective_seconds.push_back(network_.seconds(kind, group, one.buffer_bytes));
    rates.contention.push_back(contention(kind, group));
  }
  return rates;
}

double StepEstimate::low() const { return seconds * std::exp(-kInterval80 * log_error); }
double StepEstimate::high() const { return seconds * std::exp(kInterval80 * log_error); }

double StepEstimate::borrowed_share() const {
  double ops = 0;
  for (const double one : rate_seconds) ops += one;
  return ops > 0 ? borrowed_seconds / ops : 0;
}

StepEstimate estimate_step(const CostModel& model, const Trace& trace, std::int64_t ranks) {
  return estimate_step(model, trace, model.rates_of(trace), ranks);
}

StepEstimate estimate_step(const CostModel& model, const Trace& trace, const TimelineRates& rates,
                           std::int64_t ranks) {
  StepEstimate estimate;
  estimate.time = step_time(trace, rates);
  estimate.straggler_factor = straggler_factor(ranks);
  estimate.seconds = estimate.time.seconds * estimate.straggler_factor;
  const RateErrors& errors = model.rates().errors;
  std::array<double, kRateClasses> borrowed{}, by_ratio{}, ratio_errors{};
  const std::vector<CountedOp> counts = trace.counted();
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const auto calls = static_cast<double>(counts[i].calls);
    if (i >= trace.ops.size()) {
      estimate.communication_seconds += calls * rates.collective_seconds[i - trace.ops.size()];
      continue;
    }
    const auto at = static_cast<std::size_t>(rate_class_of(trace.ops[i]));
    const double seconds = calls * rates.op_seconds[i];
    estimate.rate_seconds[at] += seconds;
    if (rates.borrowed[i])
      borrowed[at] += seconds;
    else if (rates.ratio_errors[i]) {
      by_ratio[at] += seconds;
      ratio_errors[at] += seconds * std::hypot(errors.by_class[at], *rates.ratio_errors[i]);
    }
  }
  double variance = square(errors.step);
  for (std::size_t i = 0; i < kRateClasses; ++i) {
    estimate.borrowed_seconds += borrowed[i];
    estimate.class_errors[i] = ((estimate.rate_seconds[i] - borrowed[i] - by_ratio[i]) * errors.by_class[i] +
                                borrowed[i] * errors.borrowed[i] + ratio_errors[i]) /
                               estimate.time.seconds;
    variance += square(estimate.class_errors[i]);
  }
  estimate.communication_error = kCommunicationError *
                                 (estimate.time.exposed_seconds() + estimate.time.contention) /
                                 estimate.time.seconds;
  estimate.log_error = std::sqrt(variance + square(estimate.communication_error));
  return estimate;
}

std::optional<PredictedStep> predicted_step(const std::string& gpu_name, const Trace& trace,
                                            std::int64_t ranks, std::int64_t nodes) {
  const Machine* preset = find_machine_of_gpu(gpu_name);
  const auto machine = preset ? with_nodes(*preset, ranks, nodes) : std::nullopt;
  if (!machine) return std::nullopt;
  try {
    const CostModel model(*machine);
    const StepEstimate step = estimate_step(model, trace, ranks);
    return PredictedStep{1e3 * step.seconds, 1e3 * step.low(), 1e3 * step.high(), step.borrowed_share(),
                         model.rates().machine};
  } catch (const InvalidInput&) {
    return std::nullopt;  // no rates, or more GPUs than the network joins
  }
}

std::optional<StepEstimate> estimated_step(const std::string& gpu_name, const Plan& plan) {
  const Machine* machine = find_machine_of_gpu(gpu_name);
  if (!machine || unsupported_reason(plan) || !runs_natively(plan, *machine)) return std::nullopt;
  if (plan.packs()) return std::nullopt;  // the rates are those of attention over whole sequences
  try {
    return estimate_step(CostModel(*machine), dry_run(plan, nullptr).trace, plan.ranks);
  } catch (const InvalidInput&) {
    return std::nullopt;  // as above
  } catch (const OutOfMemory&) {
    return std::nullopt;
  } catch (const Unsupported&) {
    return std::nullopt;
  }
}

bool runs_natively(const Plan& plan, const Machine& machine) {
  const auto native = [&](const Recipe& recipe) { return is_native(machine.native, recipe); };
  return native(plan.recipe) && std::all_of(plan.later.begin(), plan.later.end(),
                                            [&](const LaterLayers& later) { return native(later.recipe); });
}

double speedup_log_error(const StepEstimate& a, const StepEstimate& b) {
  double variance = square(a.communication_error - b.communication_error);
  // GEMMs of two recipes have rates of their own; what is left of a class is common to both.
  for (std::size_t i = 0; i < kRateClasses; ++i) {
    const double x = a.class_errors[i], y = b.class_errors[i];
    variance +=
        i == static_cast<std::size_t>(RateClass::gemm) ? square(x) + square(y) - x * y : square(x - y);
  }
  return std::sqrt(variance);
}

SpeedUp speedup_of(const StepEstimate& own, const StepEstimate& base) {
  const double ratio = base.seconds / own.seconds;
  const double width = std::exp(&own == &base ? 0 : kInterval80 * speedup_log_error(own, base));
  return {ratio, ratio / width, ratio * width};
}

}  // namespace precbench
