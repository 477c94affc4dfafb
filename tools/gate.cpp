// The verdicts of the regression gate.
#include "tools/gate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "kernels/errors.h"
#include "results/statistics.h"
#include "tools/analysis.h"
#include "tools/distinct.h"
#include "tools/text.h"

namespace precbench {
namespace {

using Json = nlohmann::ordered_json;

/// Chance that the mean difference of repeats of one commit leaves its interval, both sides together.
constexpr double kLossLevel = 0.01;

const std::string kSpeed = "tokens/s", kMemory = "peak memory", kLoss = "final loss", kRun = "run";

struct Match {
  const LocatedRecord* baseline;
  const LocatedRecord* current;  ///< null: not measured
};

std::optional<ExecutionPath> path_of(const Record& record) {
  return record.support ? std::optional(record.support->path()) : std::nullopt;
}

/// Empty where nobody knows: a case that failed before it could tell.
std::string gpu_of(const LocatedRecord& located) {
  if (located.env.gpu) return located.env.gpu->name;
  return located.env.cpu || located.record.status == Status::ok ? "none (the CPU device)" : "";
}

/// The GPU models, or the method versions, of a set in words.
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

void refuse_other_path(const Match& match) {
  const auto was = path_of(match.baseline->record), is = path_of(match.current->record);
  if (!was || !is || *was == *is || match.current->record.status != Status::ok) return;
  throw InvalidInput(fmt::format("case {} is {} at {}, but {} at {}: they are not compared",
                                 match.baseline->record.id, name_of(*was), match.baseline->origin,
                                 name_of(*is), match.current->origin));
}

/// A case that left no measurement. Out of memory is as big as can be, and diverged as bad.
MetricResult without_measurement(const LocatedRecord* current) {
  if (!current) return {kRun, "", GateVerdict::missing, {}, {}, {}, {}, "no record of this case"};
  const Record& record = current->record;
  const std::string reason =
      fmt::format("the run ended {}: {}", name_of(record.status), record.error.value_or("no reason known"));
  if (record.status == Status::oom) return {kMemory, "bytes", GateVerdict::bigger, {}, {}, {}, {}, reason};
  if (record.status == Status::diverged) return {kLoss, "nats", GateVerdict::worse, {}, {}, {}, {}, reason};
  return {kRun, "", GateVerdict::missing, {}, {}, {}, {}, reason};
}

/// A metric that the baseline has and the record of the run has not.
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
  if (record.env.gpu) sample.power_limit_w = record.env.gpu->power_limit;
  return sample;
}

/// Why speeds of the two must not be compared, though they are of one GPU model or both of the CPU device.
std::string other_machine(const Match& match) {
  const Environment &was = match.baseline->env, &is = match.current->env;
  if (was.gpu || is.gpu) return "";
  if (was.cpu != is.cpu)
    return fmt::format("speed not judged: the baseline ran on {}, this on {}", machine_of(was),
                       machine_of(is));
  if (was.threads != is.threads)
    return fmt::format("speed not judged: the baseline ran with {} CPU threads, this with {}",
                       was.threads.value_or(0), is.threads.value_or(0));
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
  if (record.status != Status::ok || !record.memory || !record.memory->measured) return std::nullopt;
  return static_cast<double>(record.memory->measured->peak);
}

std::optional<MetricResult> gate_memory(const Match& match, double tolerance) {
  const auto was = peak_of(match.baseline->record);
  if (!was || *was <= 0) return std::nullopt;
  MetricResult result{kMemory, "bytes"};
  result.baseline = was;
  result.tolerance = tolerance;
  const auto is = peak_of(match.current->record);
  if (!is) return lacking(result);
  result.current = is;
  result.change = *is / *was - 1;
  if (*result.change > tolerance) {
    result.verdict = GateVerdict::bigger;
    result.reason = fmt::format("{:+.2f}%, {:.2f}% are allowed", 100 * *result.change, 100 * tolerance);
  }
  return result;
}

std::optional<std::pair<double, double>> losses_of(const Match& match) {
  const auto &was = match.baseline->record.training, &is = match.current->record.training;
  return was && is ? trailing_means_at_equal_steps(was->loss, is->loss) : std::nullopt;
}

/// What the loss of one case is judged by: its own difference, or the mean over its seeds.
struct LossDifference {
  double baseline, current, delta, band;
  int seeds;
};

LossDifference judge_seeds(const std::vector<std::pair<double, double>>& pairs, std::size_t own,
                           const std::optional<double>& stated_band) {
  const auto [was, is] = pairs[own];
  const double band = stated_band.value_or(kEmaTolerance) * was;
  const int n = static_cast<int>(pairs.size());
  if (stated_band || n < kFewestSeeds) return {was, is, is - was, band, 1};
  std::vector<double> deltas;
  for (const auto& [a, b] : pairs) deltas.push_back(b - a);
  const auto [mean, sd] = mean_and_spread(deltas);
  const double half = student_t_quantile(1 - kLossLevel / 2, n - 1) * sd / std::sqrt(n);
  return {was, is, mean, std::max(band, half), n};
}

/// `seeds`: the matches whose work differs from this one's in the seed at most, itself among them.
std::optional<MetricResult> gate_loss(const Match& match, const std::vector<const Match*>& seeds,
                                      const std::optional<double>& stated_band) {
  const Record& baseline = match.baseline->record;
  if (!baseline.training || !trailing_mean(baseline.training->loss)) return std::nullopt;
  MetricResult result{kLoss, "nats"};
  result.baseline = trailing_mean(baseline.training->loss);
  if (!losses_of(match)) return lacking(result);
  std::vector<std::pair<double, double>> pairs;
  std::size_t own = 0;
  for (const Match* seed : seeds) {
    if (!seed->current || seed->current->record.status != Status::ok) continue;
    const auto ends = losses_of(*seed);
    if (!ends) continue;
    if (seed == &match) own = pairs.size();
    pairs.push_back(*ends);
  }
  const LossDifference d = judge_seeds(pairs, own, stated_band);
  result.baseline = d.baseline;
  result.current = d.current;
  result.change = d.delta / d.baseline;
  result.tolerance = d.band / d.baseline;
  const std::string size =
      fmt::format("{:+.4g} nats{}; the noise band is +-{:.3g}", d.delta,
                  d.seeds > 1 ? fmt::format(", mean over {} seeds", d.seeds) : "", d.band);
  if (d.delta > d.band) {
    result.verdict = GateVerdict::worse;
    result.reason = size;
  } else if (d.delta < -d.band) {
    result.verdict = GateVerdict::noisy;
    result.reason = size + ". Lower, but no repeat of the same computation; --accept it if it is meant";
  }
  return result;
}

/// Matches whose work differs in the seed at most.
std::vector<const Match*> seeds_of(const std::vector<Match>& matches, const Match& of, const Works& works) {
  const auto without_seed = [&](const Match& match) {
    Json fields = works.fields(match.baseline);
    fields.erase("seed");
    return fields;
  };
  std::vector<const Match*> seeds;
  for (const Match& match : matches)
    if (without_seed(match) == without_seed(of)) seeds.push_back(&match);
  return seeds;
}

/// The fields in which the cases' work differs, recipe first; the model and recipe if none does.
std::vector<std::string> labels_of(const std::vector<Match>& matches, const Works& works) {
  std::vector<std::string> keys = {"model", "recipe"};
  for (const Match& match : matches)
    for (const auto& item : works.fields(match.baseline).items())
      if (!std::count(keys.begin(), keys.end(), item.key())) keys.push_back(item.key());
  const auto value = [&](const Match& match, const std::string& key) {
    return works.fields(match.baseline).value(key, Json());
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

/// Versions that differ between the two: not a failure, but the first thing to know about one.
void note_software(const Match& match, Distinct& notes) {
  const Environment &was = match.baseline->env, &is = match.current->env;
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

std::vector<Match> match_cases(const RecordSet& baseline, const RecordSet& current, Distinct& notes) {
  std::map<std::string, const LocatedRecord*> by_id;
  for (const LocatedRecord& located : current.records) {
    const auto [known, is_new] = by_id.emplace(located.record.id, &located);
    if (!is_new)  // of one id and GPU model the reader keeps one; this is the CPU device on two kinds of CPU
      throw InvalidInput(fmt::format("{} and {} are one case on two machines: check them one after the other",
                                     known->second->origin, located.origin));
  }
  std::vector<Match> matches;
  for (const LocatedRecord& located : baseline.records) {
    if (located.record.status != Status::ok) {
      notes.add(fmt::format("{}: case {} was {} in the baseline, so there is nothing to compare with",
                            located.origin, located.record.id, name_of(located.record.status)));
      by_id.erase(located.record.id);
      continue;
    }
    const auto found = by_id.find(located.record.id);
    matches.push_back({&located, found == by_id.end() ? nullptr : found->second});
    if (found != by_id.end()) by_id.erase(found);
  }
  if (!by_id.empty())
    notes.add(fmt::format("{} of this run {} no baseline", plural(by_id.size(), "case"),
                          by_id.size() == 1 ? "has" : "have"));
  return matches;
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
  const Works works(all_of(baseline));
  for (const std::string& note : works.notes()) notes.add("in the baseline " + note);
  const std::vector<std::string> labels = labels_of(matches, works);
  GateResult result;
  for (std::size_t i = 0; i < matches.size(); ++i) {
    const Match& match = matches[i];
    if (match.current) {
      refuse_other_path(match);
      note_software(match, notes);
    }
    const Record& of = match.baseline->record;
    CaseResult judged{of.id, of.case_fields, labels[i], {}};
    const auto add = [&](const std::optional<MetricResult>& one) {
      if (one) judged.metrics.push_back(*one);
    };
    if (!match.current || match.current->record.status != Status::ok) {
      judged.metrics = {without_measurement(match.current)};
      result.cases.push_back(std::move(judged));
      continue;
    }
    if (rules.tokens_per_s) add(gate_speed(match, *rules.tokens_per_s, notes));
    if (rules.memory) add(gate_memory(match, *rules.memory));
    if (rules.loss) add(gate_loss(match, seeds_of(matches, match, works), rules.loss_band));
    if (rules.numerics)
      for (const MetricResult& one : judge_numerics(of, match.current->record)) judged.metrics.push_back(one);
    if (judged.metrics.empty()) {
      judged.metrics.push_back(
          {kRun, "", GateVerdict::missing, {}, {}, {}, {}, "neither speed, memory nor loss can be judged"});
    }
    result.cases.push_back(std::move(judged));
  }
  result.notes = notes.texts;
  return result;
}

}  // namespace precbench
