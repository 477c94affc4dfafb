// Verdicts of the regression gate. See gate.h.
#include "tools/gate/gate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/base/errors.h"
#include "results/record/host_time.h"
#include "results/record/step_time.h"
#include "tools/analysis/analysis.h"
#include "tools/gate/gate_loss.h"
#include "tools/gate/gate_match.h"
#include "tools/gate/gate_notes.h"
#include "tools/text/distinct.h"

namespace precbench {
namespace {

using Json = nlohmann::ordered_json;

const char* const kSpeed = "tokens/s";
const char* const kMemory = "peak memory";

/// Returns the GPU model; empty if unknown, as for a case that failed early.
std::string gpu_of(const LocatedRecord& located) {
  if (located.env().gpu) return machine_of(located.env());
  return located.env().cpu || located.record.status == Status::ok ? "none (the CPU device)" : "";
}

/// Returns the GPU models of a set, joined.
std::string gpus_of(const RecordSet& set) {
  Distinct names;
  for (const LocatedRecord& located : set.records) names.add(gpu_of(located));
  return names.joined();
}

std::string methods_of(const RecordSet& set) {
  Distinct versions;
  for (const LocatedRecord& located : set.records)
    versions.add(std::to_string(located.record.method_version));
  return versions.joined();
}

/// Marks a metric that one side alone has.
MetricResult of_one_side(MetricResult result) {
  result.verdict = GateVerdict::missing;
  result.reason = result.baseline ? kLackedByRun : kLackedByBaseline;
  return result;
}

std::optional<double> speed_of(const Record& record) {
  if (record.status != Status::ok || path_of(record) != ExecutionPath::native || !record.metrics ||
      !record.timing || record.timing->samples_ms.empty())
    return std::nullopt;
  return record.metrics->tokens_per_s;
}

SpeedSample speed_sample(const Record& record, const Record& baseline) {
  SpeedSample sample{record.timing->samples_ms, std::nullopt, record.timing->stop_reason};
  if (record.telemetry) {
    sample.sm_clock_mhz = record.telemetry->sm_clock_mhz;
    sample.throttle_reasons = record.telemetry->throttle_reasons;
  }
  sample.between_ms = between_steps_ms(*record.timing);
  if (record.env.gpu) sample.power_limit_w = record.env.gpu->power_limit;
  sample.on_cpu = !record.env.gpu;
  sample.imported = record.source.has_value();
  sample.busy = busy_reason(record, baseline);
  return sample;
}

/// Returns why speeds on one GPU model, or on the CPU device, must still not be compared; empty if they may.
std::string other_machine(const Match& match) {
  const Environment &was = match.baseline->env(), &is = match.current->env();
  if (was.gpu || is.gpu) return "";
  if (was.cpu != is.cpu)
    return fmt::format("speed not judged: the baseline ran on {}, this on {}", machine_of(was),
                       machine_of(is));
  if (was.threads != is.threads)
    return fmt::format("speed not judged: the baseline ran with {} CPU threads, this with {}",
                       was.threads.value_or(0), is.threads.value_or(0));
  // Older records do not contain the CPUs.
  const auto was_cpus = cpus_for_threads(was), is_cpus = cpus_for_threads(is);
  if (was_cpus && is_cpus && was_cpus != is_cpus)
    return fmt::format(
        "speed not judged: the baseline's {} CPU threads shared {:.3g} CPUs, this run's {:.3g}",
        was.threads.value_or(0), *was_cpus, *is_cpus);
  return "";
}

/// Speed of one case: the metric, and the samples if they can be judged.
struct SpeedTask {
  std::optional<MetricResult> metric{};  ///< null if the case has no speed to judge
  std::optional<SpeedCase> samples{};
};

SpeedTask speed_task(const Match& match, double tolerance, const std::string& label, Distinct& notes) {
  const Record &baseline = match.baseline->record, &current = match.current->record;
  SpeedTask task;
  const auto path = path_of(baseline);
  if (path && *path != ExecutionPath::native) return task;
  const auto was = speed_of(baseline), is = speed_of(current);
  if (path && !was && !is) {
    notes.add(fmt::format("{}: speed not judged: neither side has one", label));
    return task;
  }
  MetricResult result{kSpeed, "tokens/s"};
  result.baseline = was;
  result.current = is;
  result.tolerance = tolerance;
  if (!was || !is) {
    task.metric = of_one_side(result);
    return task;
  }
  if (const std::string why = other_machine(match); !why.empty()) {
    notes.add(why);
    return task;
  }
  SpeedCase samples{{}, speed_sample(current, baseline)};
  for (const LocatedRecord* record : match.repeats)
    if (speed_of(record->record)) samples.baseline.push_back(speed_sample(record->record, record->record));
  task.metric = result;
  task.samples = std::move(samples);
  return task;
}

/// Returns the metric of the speed of each match; null where there is none to judge.
std::vector<std::optional<MetricResult>> gate_speeds(const std::vector<Match>& matches, double tolerance,
                                                     const std::vector<std::string>& labels,
                                                     Distinct& notes) {
  std::vector<std::optional<MetricResult>> results(matches.size());
  std::vector<std::size_t> places;
  std::vector<SpeedCase> cases;
  for (std::size_t i = 0; i < matches.size(); ++i) {
    if (matches[i].unfit) continue;
    SpeedTask task = speed_task(matches[i], tolerance, labels[i], notes);
    results[i] = task.metric;
    if (!task.samples) continue;
    places.push_back(i);
    cases.push_back(std::move(*task.samples));
  }
  const std::vector<MetricResult> judged = judge_speeds(cases, tolerance);
  for (std::size_t i = 0; i < places.size(); ++i) {
    MetricResult& result = *results[places[i]];
    result.verdict = judged[i].verdict;
    result.change = judged[i].change;
    result.reason = judged[i].reason;
  }
  return results;
}

/// Returns the kind of an imported record's memory; empty for own records and without one.
std::string memory_kind(const Record& record) {
  return record.source && record.source->memory_bytes ? record.source->memory.value_or("") : "";
}

std::optional<double> peak_of(const Record& record) {
  if (record.status == Status::ok && record.source && record.source->memory_bytes.value_or(0) > 0)
    return static_cast<double>(*record.source->memory_bytes);
  if (record.status != Status::ok || !record.memory || !record.memory->measured ||
      record.memory->measured->peak <= 0)
    return std::nullopt;
  return static_cast<double>(record.memory->measured->peak);
}

std::optional<MetricResult> gate_memory(const Match& match, double tolerance, const std::string& label,
                                        Distinct& notes) {
  const auto was = peak_of(match.baseline->record), is = peak_of(match.current->record);
  if (!was && !is) {
    notes.add(fmt::format("{}: memory not judged: neither side has a measured peak", label));
    return std::nullopt;
  }
  const std::string was_kind = memory_kind(match.baseline->record), is_kind = memory_kind(match.current->record);
  MetricResult result{was_kind.empty() ? kMemory : was_kind + " memory", "bytes"};
  if (was && is && was_kind != is_kind) {
    notes.add(fmt::format("{}: memory not judged: {} in the baseline, {} in this run", label, was_kind, is_kind));
    return std::nullopt;
  }
  result.baseline = was;
  result.current = is;
  result.tolerance = tolerance;
  if (!was || !is) return of_one_side(result);
  result.change = *is / *was - 1;
  if (!(*result.change <= tolerance)) {
    result.verdict = GateVerdict::bigger;
    result.reason = fmt::format("{:+.2f}%, {:.2f}% are allowed", 100 * *result.change, 100 * tolerance);
  }
  return result;
}

/// Returns the labels of the cases: model, recipe and all fields that differ between cases.
std::vector<std::string> labels_of(const std::vector<Match>& matches, const Workloads& workloads) {
  std::vector<std::string> keys = {"model", "recipe"};
  for (const Match& match : matches) {
    const CaseFields fields = workloads.fields(match.baseline);
    for (const auto& item : fields.items())
      if (!std::count(keys.begin(), keys.end(), item.key())) keys.push_back(item.key());
  }
  const auto value = [&](const Match& match, const std::string& key) {
    return workloads.fields(match.baseline).value(key, Json());
  };
  std::vector<std::string> labels(matches.size());
  for (const std::string& key : keys) {
    const bool varies = std::any_of(matches.begin(), matches.end(), [&](const Match& match) {
      return value(match, key) != value(matches.front(), key);
    });
    const bool always = key == "model" || key == "recipe";
    if (!varies && !always) continue;
    for (std::size_t i = 0; i < matches.size(); ++i) {
      const std::string text = field_text(value(matches[i], key));
      if (text.empty()) continue;
      labels[i] += (labels[i].empty() ? "" : ", ") + (always ? text : key + " " + text);
    }
  }
  return labels;
}

/// Returns the time that the run's process took for a case.
std::optional<double> seconds_of(const Match& match) {
  if (!match.current || match.current->record.durations.empty()) return std::nullopt;
  double seconds = 0;
  for (const WorkTime& work : match.current->record.durations) seconds += work.s;
  return seconds;
}

/// Notes the number of records of the baseline's cases if it has repeats.
void note_repeats(const std::vector<Match>& matches, Distinct& notes) {
  std::size_t fewest = 0, most = 0;
  for (const Match& match : matches) {
    fewest = fewest == 0 ? match.repeats.size() : std::min(fewest, match.repeats.size());
    most = std::max(most, match.repeats.size());
  }
  if (most < 2) return;
  notes.add(fewest == most ? fmt::format("the baseline has {} records of each case", most)
                           : fmt::format("the baseline has {} to {} records of a case", fewest, most));
}

}  // namespace

std::optional<std::string> difference_in_kind(const RecordSet& baseline, const RecordSet& current) {
  struct Kind {
    const char* name;
    std::string (*of)(const RecordSet&);
  };
  for (const auto& [name, of] : {Kind{"GPU model", gpus_of}, Kind{"method version", methods_of}}) {
    const std::string was = of(baseline), is = of(current);
    for (const auto& [whose, kinds] : {std::pair{"the baseline", was}, std::pair{"this run", is}})
      if (kinds.find(", ") != std::string::npos)
        throw InvalidInput(fmt::format("{} mixes {}s {}; check one at a time", whose, name, kinds));
    if (!was.empty() && !is.empty() && was != is)
      return fmt::format("the baseline is of {} {}, this run of {}: they are not compared", name, was, is);
  }
  return std::nullopt;
}

GateResult judge(const RecordSet& all, const RecordSet& current, const GateRules& rules) {
  if (const auto difference = difference_in_kind(all, current))
    throw InvalidInput(*difference + "; --accept --replace makes a baseline of this run");
  Distinct notes;
  const BaselineRepeats repeats(all);
  const RecordSet& baseline = repeats.newest();
  const std::vector<Match> matches = match_cases(repeats, current, notes);
  const bool any = std::any_of(matches.begin(), matches.end(), [](const Match& m) { return m.current; });
  if (!any) notes.add("no case of the baseline was measured in this run");
  const Workloads workloads(all_of(baseline));
  for (const std::string& note : workloads.notes()) notes.add("in the baseline " + note);
  const std::vector<std::string> labels = labels_of(matches, workloads);
  const LossJudge losses(matches, workloads, rules.loss_tolerance, LossQuantity::final_loss);
  const LossJudge held_out(matches, workloads, rules.loss_tolerance, LossQuantity::held_out);
  std::vector<std::optional<MetricResult>> speeds(matches.size());
  if (rules.tokens_per_s) speeds = gate_speeds(matches, *rules.tokens_per_s, labels, notes);
  GateResult result;
  for (std::size_t i = 0; i < matches.size(); ++i) {
    const Match& match = matches[i];
    if (match.current) note_environment(match, notes);
    const Record& of = match.baseline->record;
    CaseResult judged{of.id, of.case_fields, labels[i], {}, seconds_of(match), match.repeats.size()};
    const auto add = [&](const std::optional<MetricResult>& one) {
      if (one) judged.metrics.push_back(*one);
    };
    if (match.unfit) {
      judged.metrics = {*match.unfit};
      result.cases.push_back(std::move(judged));
      continue;
    }
    add(speeds[i]);
    if (rules.memory) add(gate_memory(match, *rules.memory, labels[i], notes));
    if (rules.loss) {
      add(losses.judge(match, labels[i], notes));
      add(held_out.judge(match, labels[i], notes));
    }
    if (rules.numerics)
      for (const MetricResult& one : judge_numerics(of, match.current->record)) judged.metrics.push_back(one);
    if (judged.metrics.empty())
      add(Match::whole(GateVerdict::missing, "neither speed, memory nor loss can be judged"));
    add(judge_formats(of, match.current->record));
    add(judge_updates(of, match.current->record));
    if (rules.loss) add(judge_curve(of, match.current->record));
    note_not_judged(match, labels[i], rules, notes);
    result.cases.push_back(std::move(judged));
  }
  note_repeats(matches, notes);
  note_commits(matches, notes);
  result.notes = notes.texts;
  return result;
}

}  // namespace precbench
