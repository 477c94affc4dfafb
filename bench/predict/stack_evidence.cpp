// Compares other training software with our step, and estimates spreads. See stack_evidence.h.
#include "bench/predict/stack_evidence.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>
#include <tuple>
#include <utility>

#include "bench/predict/published_prediction.h"
#include "bench/predict/stack_covariance.h"
#include "kernels/base/errors.h"
#include "kernels/base/number_range.h"
#include "kernels/base/untrusted_input.h"
#include "results/record/record_file.h"

namespace precbench {
namespace {

constexpr const char* kBaselineFile = "pytorch.ndjson";

/// Names of tools/pytorch_baseline for models of this program.
constexpr std::pair<const char*, const char*> kBaselineModels[] = {{"8b", "llama3.1-8b"},
                                                                   {"3b", "llama3.2-3b"},
                                                                   {"1b", "llama3.2-1b"},
                                                                   {"7b", "qwen2.5-7b"},
                                                                   {"1.5b", "qwen2.5-1.5b"}};

/// Work of one step: model, layers (0: all), GPUs, sequences, their length, micro-steps, recipe, dtype of gathers.
using Work = std::tuple<std::string, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                        std::string, std::string>;

/// A line of pytorch.ndjson.
struct BaselineLine {
  Work work;
  std::string day;  ///< "2026-11-25"
  double tokens_per_s = 0;
};

BaselineLine baseline_line(const nlohmann::json& json) {
  BaselineLine line;
  std::string model = json.at("model"), recipe = json.at("recipe");
  std::int64_t layers = 0;
  if (const auto slash = model.find('/'); slash != std::string::npos) {
    layers = std::stoll(model.substr(slash + 1));
    model.resize(slash);
  }
  for (const auto& [theirs, ours] : kBaselineModels)
    if (model == theirs) model = ours;
  // "_auto": torchao's own choice of the linears to convert; "_ag": weights are gathered in FP8.
  if (recipe.ends_with("_auto")) recipe.resize(recipe.size() - std::string_view("_auto").size());
  const auto gathers = recipe.find('_');
  line.work = {model,
               layers,
               json.value("gpus", 1),
               json.at("batch"),
               json.at("seq"),
               json.value("accumulation", 1),
               recipe.substr(0, gathers),
               gathers == std::string::npos ? "bf16" : "fp8"};
  line.day = json.at("created").get<std::string>().substr(0, 10);
  constexpr NumberRange kSpeed{1e-3, 1e15};
  line.tokens_per_s = number_within(json.at("tokens_per_s"), kSpeed, "tokens_per_s");
  return line;
}

/// Returns the lines without an error, the fastest of each work and day.
std::vector<BaselineLine> read_baseline(const std::string& path) {
  constexpr std::size_t kMostBytes = 16 << 20;
  std::istringstream text(read_regular_file(path, kMostBytes));
  std::vector<BaselineLine> lines;
  int number = 0;
  for (std::string row; std::getline(text, row);) {
    ++number;
    if (row.empty()) continue;
    try {
      const auto json = nlohmann::json::parse(row);
      if (json.contains("error")) continue;
      BaselineLine line = baseline_line(json);
      const auto same = std::find_if(lines.begin(), lines.end(), [&](const BaselineLine& other) {
        return other.work == line.work && other.day == line.day;
      });
      if (same == lines.end())
        lines.push_back(std::move(line));
      else
        same->tokens_per_s = std::max(same->tokens_per_s, line.tokens_per_s);
    } catch (const std::exception& error) {  // of JSON, or of a number in a name
      throw InvalidInput(fmt::format("--stacks: {}:{}: {}", path, number, error.what()));
    }
  }
  return lines;
}

/// Returns the work of a record that can be compared; null for others.
std::optional<Work> work_of(const Record& record) {
  if (record.status != Status::ok || !record.env.gpu || !record.metrics || !record.metrics->tokens_per_s)
    return std::nullopt;
  const Case c = case_from_json(record.case_fields);
  if (record.env.nodes.value_or(1) > 1) return std::nullopt;
  if (c.gpus > 1 && (c.parallel != "fsdp" || c.reshard != "on")) return std::nullopt;
  return Work{c.model, c.layers, c.gpus, c.batch, c.seq, c.accumulation, c.recipe, c.gather};
}

/// Returns "h200/beside-pytorch" for ".../results/h200/beside-pytorch".
std::string folder_name(const std::filesystem::path& folder) {
  const std::filesystem::path normal = std::filesystem::absolute(folder).lexically_normal();
  const std::string name = normal.filename().string(), parent = normal.parent_path().filename().string();
  return parent == "results" ? name : parent + "/" + name;
}

StackEvidence measured_evidence(const Record& record, const BaselineLine& line, const std::string& folder) {
  const Plan plan = validate(case_from_json(record.case_fields));
  const Machine* machine = find_machine_of_gpu(record.env.gpu->name);
  if (!machine)
    throw InvalidInput(fmt::format("--stacks: no machine file of the GPU {}", record.env.gpu->name));
  StackEvidence e;
  e.stack = Stack::pytorch, e.measured = true;
  e.source = fmt::format("{} {}", folder, line.day), e.id = record.id, e.name = plan.fields.model;
  const double gpus = plan.ranks;
  e.ours = *record.metrics->tokens_per_s / gpus, e.theirs = line.tokens_per_s / gpus;
  e.setting = stack_setting(plan, *machine,
                            static_cast<double>(plan.tokens_per_step()) / *record.metrics->tokens_per_s);
  return e;
}

/// A published point and our prediction of its step.
struct PredictedPoint {
  const PublishedPoint* point = nullptr;
  PointPrediction prediction;

  bool ok() const { return prediction.reason.empty(); }
};

bool is_absolute(const PublishedPoint& point) {
  return point.is_judged(JudgedAs::absolute_native) || point.is_judged(JudgedAs::absolute_stack);
}

PublishedPoint in_precision(PublishedPoint point, const std::string& precision) {
  point.precision = precision;
  return point;
}

StackEvidence published_evidence(const PublishedPoint& point, const PointPrediction& prediction) {
  StackEvidence e;
  e.stack = stack_of(point);
  e.source = source_of(point), e.id = point.id, e.name = point.model;
  e.setting = prediction.setting;
  return e;
}

/// Returns a comparison of speed-ups over BF16, in the setting of `predicted_as`; null if BF16 is not predicted.
std::optional<StackEvidence> speedup_evidence(const PublishedPoint& point, const PublishedPoint& predicted_as,
                                              double published) {
  const PointPrediction own = predict_point(predicted_as),
                        bf16 = predict_point(in_precision(predicted_as, "bf16"));
  if (!own.reason.empty() || !bf16.reason.empty()) return std::nullopt;
  StackEvidence e = published_evidence(point, own);
  e.speedup = true;
  e.theirs = published, e.ours = bf16.step->seconds / own.step->seconds;
  e.base_micro_step_s = bf16.setting.micro_step_s;
  e.log_error = speedup_log_error(*own.step, *bf16.step);
  if (&point != &predicted_as) e.assumed = "setting of " + predicted_as.id;
  return e;
}

/// Returns the speed-up over BF16 that a source states, or that follows from two of its points.
std::optional<double> published_speedup(const PublishedPoint& point,
                                        const std::vector<PublishedPoint>& points) {
  if (!point.speedup_over_id.empty()) {
    const PublishedPoint* base = find_point(points, point.speedup_over_id);
    if (base && point.tokens_per_s_per_gpu && base->tokens_per_s_per_gpu)
      return *point.tokens_per_s_per_gpu / *base->tokens_per_s_per_gpu;
  }
  return point.speedup_over_bf16;
}

double to_digits(double value) {
  constexpr int kDigits = 4;
  if (value == 0) return 0;
  const double scale = std::pow(10, kDigits - 1 - static_cast<int>(std::floor(std::log10(std::abs(value)))));
  return std::round(value * scale) / scale;
}

nlohmann::ordered_json factor_json(const StackFactor& factor) {
  return {to_digits(factor.factor), to_digits(factor.low()), to_digits(factor.high())};
}

/// Returns the factor of each recipe, machine and kind of model with evidence, for large steps of a new model on
/// several GPUs.
nlohmann::ordered_json examples_json(const StackModel& model) {
  constexpr double kStep = 1;
  std::map<std::tuple<int, bool, std::string, std::string>, int> comparisons;
  for (const StackEvidence& e : model.evidence())
    ++comparisons[{static_cast<int>(e.stack), e.setting.experts, e.setting.gpu,
                   stack_recipe(e.setting.recipe)}];
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const auto& [key, count] : comparisons) {
    const auto& [stack, experts, gpu, recipe] = key;
    const Stack of = static_cast<Stack>(stack);
    StackSetting setting{recipe, gpu,    architecture_name(find_machine(gpu).capability), "", kStep,
                         true,   experts};
    StackSetting base = setting;
    base.recipe = "bf16";
    nlohmann::ordered_json row = {{"stack", name_of(of)},
                                  {"experts", experts},
                                  {"gpu", gpu},
                                  {"recipe", recipe},
                                  {"comparisons", count}};
    row["factor"] = factor_json(model.factor(of, setting));
    if (recipe != base.recipe) row["speedup_factor"] = factor_json(model.speedup_factor(of, setting, base));
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace

std::vector<StackEvidence> measured_stacks(const std::vector<std::string>& paths) {
  std::vector<StackEvidence> evidence;
  for (const std::string& path : paths) {
    const std::filesystem::path folder = std::filesystem::is_directory(path)
                                             ? std::filesystem::path(path)
                                             : std::filesystem::path(path).parent_path();
    const std::vector<BaselineLine> lines = read_baseline((folder / kBaselineFile).string());
    const RecordSet records = read_records({path});
    for (const BaselineLine& line : lines)
      for (const LocatedRecord& located : records.records)
        if (work_of(located.record) == line.work) {
          evidence.push_back(measured_evidence(located.record, line, folder_name(folder)));
          break;
        }
  }
  if (evidence.empty() && !paths.empty())
    throw InvalidInput(
        fmt::format("--stacks: no record of the same work as a line of {} beside it", kBaselineFile));
  return evidence;
}

std::vector<StackEvidence> published_stacks(const std::vector<PublishedPoint>& points) {
  std::vector<PredictedPoint> predicted;
  for (const PublishedPoint& point : points)
    if (stack_of(point) != Stack::precbench) predicted.push_back({&point, predict_point(point)});
  std::vector<StackEvidence> evidence;
  for (const PredictedPoint& p : predicted) {
    const PublishedPoint& point = *p.point;
    const std::optional<double> speedup = published_speedup(point, points);
    if (speedup && point.is_judged(JudgedAs::speedup)) {
      if (auto e = speedup_evidence(point, point, *speedup)) evidence.push_back(std::move(*e));
      continue;
    }
    if (point.speedup_over_bf16 && !point.gpus) {
      const auto setting = std::find_if(predicted.begin(), predicted.end(), [&](const PredictedPoint& other) {
        return other.ok() && stack_of(*other.point) == stack_of(point) && other.point->model == point.model &&
               other.point->gpu == point.gpu && other.point->precision == point.precision;
      });
      if (setting == predicted.end()) continue;
      if (auto e = speedup_evidence(point, *setting->point, *point.speedup_over_bf16))
        evidence.push_back(std::move(*e));
      continue;
    }
    if (!p.ok() || !point.tokens_per_s_per_gpu) continue;
    StackEvidence e = published_evidence(point, p.prediction);
    if (!is_absolute(point) && !(e.setting.experts && p.prediction.fits)) continue;
    e.ours = p.prediction.own_tokens_per_s_per_gpu, e.theirs = *point.tokens_per_s_per_gpu;
    e.log_error = p.prediction.step->log_error;
    for (const std::string& line : p.prediction.assumed) e.assumed += (e.assumed.empty() ? "" : "; ") + line;
    evidence.push_back(std::move(e));
  }
  return evidence;
}

StackSpreads first_spreads() {
  StackSpreads spreads;
  constexpr double kFirst = 0.01 * 1.5 * 1.5 * 1.5 * 1.5 * 1.5;
  spreads.fill(kFirst);
  spreads[static_cast<std::size_t>(StackEffect::mean)] = 1;
  return spreads;
}

StackSpreads fit_spreads(const std::vector<StackEvidence>& evidence, const StackSpreads& start) {
  constexpr double kLeast = 0.01, kRatio = 1.5;
  constexpr int kPasses = 4;
  std::vector<std::vector<StackBases>> bases(evidence.size());
  for (std::size_t i = 0; i < evidence.size(); ++i)
    for (std::size_t j = 0; j <= i; ++j)
      bases[i].push_back(stack_covariance(evidence[i], evidence[j], i == j));
  const std::vector<double> logs = log_factors(evidence);
  const auto penalized = [&](const StackSpreads& spreads) {
    StackSpreads squares{};
    double penalty = 0;
    for (std::size_t k = 0; k < spreads.size(); ++k) {
      squares[k] = spreads[k] * spreads[k];
      if (k != static_cast<std::size_t>(StackEffect::mean)) penalty += std::log(spreads[k]);
    }
    std::vector<std::vector<double>> rows(evidence.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      for (std::size_t j = 0; j <= i; ++j) {
        double sum = 0;
        for (std::size_t k = 0; k < squares.size(); ++k) sum += bases[i][j][k] * squares[k];
        rows[i].push_back(sum);
      }
      rows[i][i] += evidence[i].log_error * evidence[i].log_error;
    }
    return factorize(rows) ? log_likelihood_of(rows, logs) + penalty : -1e300;
  };
  StackSpreads spreads = start;
  double best = penalized(spreads);
  bool moved = true;
  for (int pass = 0; moved && pass < kPasses; ++pass) {
    moved = false;
    for (std::size_t k = 0; k < spreads.size(); ++k) {
      if (k == static_cast<std::size_t>(StackEffect::mean)) continue;
      for (const double step : {kRatio, 1 / kRatio}) {
        for (;;) {
          StackSpreads next = spreads;
          next[k] *= step;
          if (next[k] > kMostSpread || next[k] < kLeast * 0.999) break;
          const double value = penalized(next);
          if (!(value > best + 1e-9)) break;
          best = value, spreads = next, moved = true;
        }
      }
    }
  }
  return spreads;
}

std::vector<HeldOutFactor> held_out_factors(const std::vector<StackEvidence>& evidence,
                                            const StackSpreads& spreads) {
  std::vector<HeldOutFactor> factors(evidence.size());
  const auto leave_out = [&](const std::function<std::string(const StackEvidence&)>& group,
                             StackFactor HeldOutFactor::*result) {
    std::set<std::string> names;
    for (const StackEvidence& e : evidence) names.insert(group(e));
    for (const std::string& name : names) {
      std::vector<StackEvidence> others;
      for (const StackEvidence& e : evidence)
        if (group(e) != name) others.push_back(e);
      if (others.empty()) continue;
      const StackSpreads fitted = fit_spreads(others, spreads);
      const StackModel model(std::move(others), fitted);
      for (std::size_t i = 0; i < evidence.size(); ++i)
        if (group(evidence[i]) == name) factors[i].*result = model.factor_of(evidence[i]);
    }
  };
  leave_out([](const StackEvidence& e) { return e.source; }, &HeldOutFactor::without_source);
  leave_out([](const StackEvidence& e) { return e.setting.model; }, &HeldOutFactor::without_model);
  return factors;
}

nlohmann::ordered_json stacks_json(const std::vector<StackEvidence>& evidence, const StackSpreads& spreads,
                                   const std::vector<HeldOutFactor>& held_out) {
  nlohmann::ordered_json json;
  json["about"] =
      "Speed of other training software over ours, by bench/predict/stack_evidence.h. Comparisons that are measured "
      "have the folder of results/ and the day as source, and the id of our record; published ones have the id of "
      "their point in results/published/points.json, which has the source, over our predicted step. tokens/s are per "
      "GPU. log_error: of our prediction. without_source, without_model: the factor from other sources or models "
      "alone, with its 80% interval. examples: factors of micro-steps of 1 s on several GPUs.";
  for (int i = 0; i < kStackEffects; ++i)
    json["spreads"][name_of(static_cast<StackEffect>(i))] = to_digits(spreads[static_cast<std::size_t>(i)]);
  json["examples"] = examples_json(StackModel(evidence, spreads));
  json["evidence"] = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < evidence.size(); ++i) {
    const StackEvidence& e = evidence[i];
    nlohmann::ordered_json row = {{"stack", name_of(e.stack)},
                                  {"kind", e.measured ? "measured" : "published"},
                                  {"compares", e.speedup ? "speed-up" : "tokens/s"},
                                  {"source", e.source},
                                  {"id", e.id},
                                  {"model", e.name},
                                  {"widths", e.setting.model},
                                  {"experts", e.setting.experts},
                                  {"recipe", e.setting.recipe},
                                  {"gpu", e.setting.gpu},
                                  {"architecture", e.setting.architecture},
                                  {"several_gpus", e.setting.several_gpus},
                                  {"micro_step_s", to_digits(e.setting.micro_step_s)}};
    if (e.speedup) row["bf16_micro_step_s"] = to_digits(e.base_micro_step_s);
    row["ours"] = to_digits(e.ours), row["theirs"] = to_digits(e.theirs);
    row["log_error"] = to_digits(e.log_error);
    if (!e.assumed.empty()) row["assumed"] = e.assumed;
    row["without_source"] = factor_json(held_out[i].without_source);
    row["without_model"] = factor_json(held_out[i].without_model);
    json["evidence"].push_back(std::move(row));
  }
  return json;
}

}  // namespace precbench
