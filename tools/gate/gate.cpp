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
#include "tools/text/distinct.h"

namespace precbench {
namespace {

using Json = nlohmann::ordered_json;

const char* const kSpeed = "tokens/s";
const char* const kMemory = "peak memory";

/// Returns the GPU model; empty if unknown, as for a case that failed early.
std::string gpu_of(const LocatedRecord& located) {
  if (located.env().gpu) return located.env().gpu->name;
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

/// Marks a metric that the baseline has and the run lacks.
MetricResult lacking(MetricResult result) {
  result.verdict = GateVerdict::missing;
  result.reason = "the record of this run lacks it";
  return result;
}

std::optional<double> speed_of(const Record& record) {
  if (record.status != Status::ok || path_of(record) != ExecutionPath::native || !record.metrics ||
      !record.timing || record.timing->samples_ms.empty())
    return std::nullopt;
  return record.metrics->tokens_per_s;
}

SpeedSample speed_sample(const Record& record) {
  SpeedSample sample{record.timing->samples_ms, std::nullopt, record.timing->stop_reason};
  if (record.telemetry) {
    sample.sm_clock_mhz = record.telemetry->sm_clock_mhz;
    sample.throttle_reasons = record.telemetry->throttle_reasons;
  }
  sample.between_ms = between_steps_ms(*record.timing);
  if (record.env.gpu) sample.power_limit_w = record.env.gpu->power_limit;
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

std::optional<MetricResult> gate_speed(const Match& match, double tolerance, Distinct& notes) {
  const auto was = speed_of(match.baseline->record);
  if (!was) return std::nullopt;
  MetricResult result{kSpeed, "tokens/s"};
  result.baseline = was;
  result.tolerance = tolerance;
  const auto is = speed_of(match.current->record);
  if (!is) return lacking(result);
  if (const std::string why = other_machine(match); !why.empty()) {
    notes.add(why);
    return std::nullopt;
  }
  const MetricResult judged =
      judge_speed(speed_sample(match.baseline->record), speed_sample(match.current->record), tolerance);
  result.current = is;
  result.verdict = judged.verdict;
  result.change = judged.change;
  result.reason = judged.reason;
  return result;
}

std::optional<double> peak_of(const Record& record) {
  if (record.status != Status::ok || !record.memory || !record.memory->measured ||
      record.memory->measured->peak <= 0)
    return std::nullopt;
  return static_cast<double>(record.memory->measured->peak);
}

std::optional<MetricResult> gate_memory(const Match& match, double tolerance) {
  const auto was = peak_of(match.baseline->record);
  if (!was) return std::nullopt;
  MetricResult result{kMemory, "bytes"};
  result.baseline = was;
  result.tolerance = tolerance;
  const auto is = peak_of(match.current->record);
  if (!is) return lacking(result);
  result.current = is;
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

/// Notes changed software versions: no failure, but the first thing to know about one.
void note_software(const Match& match, Distinct& notes) {
  const Environment &was = match.baseline->env(), &is = match.current->env();
  const auto add = [&](const char* what, const std::optional<std::string>& a,
                       const std::optional<std::string>& b) {
    if (a && b && *a != *b) notes.add(fmt::format("{} {} in the baseline, {} here", what, *a, *b));
  };
  if (was.gpu && is.gpu) add("driver", was.gpu->driver, is.gpu->driver);
  add("CUDA", was.cuda, is.cuda);
  add("cuBLASLt", was.cublaslt, is.cublaslt);
  add("cuDNN", was.cudnn, is.cudnn);
  add("NCCL", was.nccl, is.nccl);
  add("compiler", was.compiler, is.compiler);
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

GateResult judge(const RecordSet& baseline, const RecordSet& current, const GateRules& rules) {
  if (const auto difference = difference_in_kind(baseline, current))
    throw InvalidInput(*difference + "; --accept makes a baseline of this run");
  Distinct notes;
  const std::vector<Match> matches = match_cases(baseline, current, notes);
  const bool any = std::any_of(matches.begin(), matches.end(), [](const Match& m) { return m.current; });
  if (!any) notes.add("no case of the baseline was measured in this run");
  const Workloads workloads(all_of(baseline));
  for (const std::string& note : workloads.notes()) notes.add("in the baseline " + note);
  const std::vector<std::string> labels = labels_of(matches, workloads);
  const LossJudge losses(matches, workloads, rules.loss_tolerance);
  GateResult result;
  for (std::size_t i = 0; i < matches.size(); ++i) {
    const Match& match = matches[i];
    if (match.current) note_software(match, notes);
    const Record& of = match.baseline->record;
    CaseResult judged{of.id, of.case_fields, labels[i], {}};
    const auto add = [&](const std::optional<MetricResult>& one) {
      if (one) judged.metrics.push_back(*one);
    };
    if (match.unfit) {
      judged.metrics = {*match.unfit};
      result.cases.push_back(std::move(judged));
      continue;
    }
    if (rules.tokens_per_s) add(gate_speed(match, *rules.tokens_per_s, notes));
    if (rules.memory) add(gate_memory(match, *rules.memory));
    if (rules.loss) add(losses.judge(match));
    if (rules.numerics)
      for (const MetricResult& one : judge_numerics(of, match.current->record)) judged.metrics.push_back(one);
    if (judged.metrics.empty())
      add(Match::whole(GateVerdict::missing, "neither speed, memory nor loss can be judged"));
    add(judge_formats(of, match.current->record));
    add(judge_updates(of, match.current->record));
    result.cases.push_back(std::move(judged));
  }
  result.notes = notes.texts;
  return result;
}

}  // namespace precbench
