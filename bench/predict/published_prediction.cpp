// Predicts and judges published points. See published_prediction.h.
#include "bench/predict/published_prediction.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "kernels/base/errors.h"
#include "kernels/numerics/native_formats.h"
#include "results/record/statistics.h"

namespace precbench {
namespace {

struct Floor {
  const char* name;
  double median;
};
constexpr Floor kFloors[kErrorGroups] = {{"native, Hopper", 0.05},   {"native, Blackwell", 0.15},
                                         {"native, Ada", 0.20},      {"stack", 0.12},
                                         {"all absolute", 0.10},     {"speed-up", 0.05},
                                         {"speed-up, Hopper", 0.05}, {"speed-up, Blackwell", 0.05},
                                         {"speed-up, Ada", 0.05},    {"scaling", 0.025}};

bool has_stack_factor(const PublishedPoint& point) { return stack_of(point) == Stack::pytorch; }

StackSetting stack_setting(const PublishedSetting& s, double step_s) {
  return {s.c.recipe,
          s.machine.name,
          architecture_name(s.machine.capability),
          stack_model_key(s.model),
          step_s / static_cast<double>(s.c.accumulation),
          s.layout.ranks() > 1,
          static_cast<bool>(s.model.moe)};
}

/// Returns the cost model of a machine, valid until the next call; models are kept, since points share machines. A
/// model holds thousands of rates, so that no file of points may make any number of them.
const CostModel& cost_model_of(const Machine& machine) {
  constexpr std::size_t kMostKept = 64;
  static std::map<std::string, CostModel> models;
  if (models.size() >= kMostKept) models.clear();
  std::string key = machine.name;
  for (const NetworkLevel& level : machine.levels)
    key += '/' + std::to_string(level.gpus) + ':' + std::to_string(level.gb_per_s);
  return models.try_emplace(key, machine).first->second;
}

double median_of(std::vector<double> values) {
  const auto statistics = sample_statistics(std::move(values));
  return statistics ? statistics->median : 0;
}

/// Comparison of two predictions of one source, whose common errors cancel.
Judgement judged_ratio(const PublishedPoint& point, JudgedAs as, double published, const PointPrediction& of,
                       const PointPrediction& over) {
  Judgement j{point.id, as, architecture_name(published_machine(point).capability), published, 0, 0, 0};
  j.predicted = of.own_tokens_per_s_per_gpu / over.own_tokens_per_s_per_gpu;
  double error = speedup_log_error(*of.step, *over.step);
  if (as == JudgedAs::speedup && has_stack_factor(point)) {
    const StackFactor factor =
        stack_model_without(source_of(point)).speedup_factor(Stack::pytorch, of.setting, over.setting);
    j.predicted *= factor.factor;
    error = std::hypot(error, factor.log_error);
  }
  j.low = j.predicted * std::exp(-kInterval80 * error);
  j.high = j.predicted * std::exp(kInterval80 * error);
  return j;
}

bool belongs(const Judgement& j, ErrorGroup group) {
  switch (group) {
    case ErrorGroup::hopper_native:
      return j.as == JudgedAs::absolute_native && j.architecture == "Hopper";
    case ErrorGroup::blackwell_native:
      return j.as == JudgedAs::absolute_native && j.architecture == "Blackwell";
    case ErrorGroup::ada_native:
      return j.as == JudgedAs::absolute_native && j.architecture == "Ada";
    case ErrorGroup::stack:
      return j.as == JudgedAs::absolute_stack;
    case ErrorGroup::all_absolute:
      return j.as == JudgedAs::absolute_native || j.as == JudgedAs::absolute_stack;
    case ErrorGroup::speedup:
      return j.as == JudgedAs::speedup;
    case ErrorGroup::hopper_speedup:
      return j.as == JudgedAs::speedup && j.architecture == "Hopper";
    case ErrorGroup::blackwell_speedup:
      return j.as == JudgedAs::speedup && j.architecture == "Blackwell";
    case ErrorGroup::ada_speedup:
      return j.as == JudgedAs::speedup && j.architecture == "Ada";
    case ErrorGroup::scaling:
      return j.as == JudgedAs::scaling;
  }
  return false;
}

/// The same point in BF16, for ratios whose source gives no BF16 point.
PointPrediction in_bf16(PublishedPoint point) {
  point.precision = "bf16";
  return predict_point(point);
}

/// Returns a value with as many digits as a page shows, so that other compilers' last bits do not matter.
double rounded(double value, int digits) {
  if (value == 0 || !std::isfinite(value)) return value;
  const double scale = std::pow(10, digits - 1 - static_cast<int>(std::floor(std::log10(std::abs(value)))));
  return std::round(value * scale) / scale;
}

}  // namespace

const char* name_of(ErrorGroup group) { return kFloors[static_cast<int>(group)].name; }
double floor_of(ErrorGroup group) { return kFloors[static_cast<int>(group)].median; }

double Judgement::signed_error() const {
  return is_ratio(as) ? predicted - published : predicted / published - 1;
}

double Judgement::error() const { return std::abs(signed_error()); }

const char* GroupResult::interval_verdict() const {
  if (points == 0) return "good";
  const double share = static_cast<double>(covered) / points;
  return share < kLeastCoverage ? "too narrow" : share > kMostCoverage ? "too wide" : "good";
}

PointPrediction predict_point(const PublishedPoint& point) {
  PointPrediction p;
  p.id = point.id;
  try {
    const PublishedSetting setting = published_setting(point);
    p.assumed = setting.assumed;
    if (!is_native(setting.machine.native, find_recipe(setting.c.recipe)))
      throw InvalidInput(setting.c.recipe + " is emulated on " + setting.machine.name);
    const LayoutEstimate e = estimate_layout(setting.c, setting.model, setting.layout, setting.recompute,
                                             cost_model_of(setting.machine));
    p.setting = stack_setting(setting, e.step.seconds);
    if (has_stack_factor(point))
      p.stack_factor = stack_model_without(source_of(point)).factor(Stack::pytorch, p.setting);
    const StackFactor factor = p.stack_factor.value_or(StackFactor{});
    p.own_tokens_per_s_per_gpu =
        static_cast<double>(setting.c.batch * setting.c.seq * setting.c.accumulation) * setting.layout.data /
        setting.layout.ranks() / e.step.seconds;
    p.step_s = e.step.seconds / factor.factor;
    p.tokens_per_s_per_gpu = p.own_tokens_per_s_per_gpu * factor.factor;
    const double error =
        p.stack_factor ? std::hypot(e.step.log_error, factor.log_error) : kWidening * e.step.log_error;
    const double width = std::exp(kInterval80 * error);
    p.low = p.tokens_per_s_per_gpu / width;
    p.high = p.tokens_per_s_per_gpu * width;
    p.bubble_share = e.bubble_seconds / e.step.time.seconds;
    p.exposed_share = e.step.time.exposed_seconds() / e.step.time.seconds;
    p.contention_share = e.step.time.contention / e.step.time.seconds;
    p.borrowed_share = e.step.borrowed_share();
    p.step = e.step;
    p.memory_gb = static_cast<double>(e.peak_bytes) / 1e9;
    p.fits = e.peak_bytes <= usable_bytes(setting.machine);
  } catch (const InvalidInput& error) {
    p.reason = error.what();
  } catch (const Unsupported& error) {
    p.reason = error.what();
  }
  return p;
}

std::vector<PointPrediction> predict_points(const std::vector<PublishedPoint>& points) {
  std::vector<PointPrediction> predictions;
  predictions.reserve(points.size());
  for (const PublishedPoint& point : points) predictions.push_back(predict_point(point));
  return predictions;
}

std::vector<Judgement> judge(const std::vector<PublishedPoint>& points,
                             const std::vector<PointPrediction>& predictions) {
  std::map<std::string, const PointPrediction*> by_id;
  for (const PointPrediction& p : predictions)
    if (p.reason.empty()) by_id[p.id] = &p;
  std::vector<Judgement> judgements;
  for (const PublishedPoint& point : points) {
    const auto own = by_id.find(point.id);
    if (own == by_id.end()) continue;
    const PointPrediction& p = *own->second;
    for (const JudgedAs as : point.judged_as) {
      if (as == JudgedAs::shown) continue;
      if (as == JudgedAs::absolute_native || as == JudgedAs::absolute_stack) {
        if (!point.tokens_per_s_per_gpu) continue;
        judgements.push_back({point.id, as, architecture_name(published_machine(point).capability),
                              *point.tokens_per_s_per_gpu, p.tokens_per_s_per_gpu, p.low, p.high});
        continue;
      }
      const std::string& partner = as == JudgedAs::speedup ? point.speedup_over_id : point.scaling_from_id;
      if (partner.empty() && as == JudgedAs::speedup && point.speedup_over_bf16) {
        const PointPrediction bf16 = in_bf16(point);
        if (bf16.reason.empty())
          judgements.push_back(judged_ratio(point, as, *point.speedup_over_bf16, p, bf16));
        continue;
      }
      const PublishedPoint* other = find_point(points, partner);
      const auto over = by_id.find(partner);
      if (!other || over == by_id.end()) continue;
      if (as == JudgedAs::scaling && point.scaling_ratio)
        judgements.push_back(judged_ratio(point, as, *point.scaling_ratio, p, *over->second));
      else if (point.tokens_per_s_per_gpu && other->tokens_per_s_per_gpu)
        judgements.push_back(judged_ratio(
            point, as, *point.tokens_per_s_per_gpu / *other->tokens_per_s_per_gpu, p, *over->second));
    }
  }
  return judgements;
}

std::vector<GroupResult> group_results(const std::vector<Judgement>& judgements) {
  std::vector<GroupResult> results;
  for (int i = 0; i < kErrorGroups; ++i) {
    GroupResult result{static_cast<ErrorGroup>(i)};
    std::vector<double> errors, widths;
    for (const Judgement& j : judgements) {
      if (!belongs(j, result.group)) continue;
      errors.push_back(j.error());
      result.bias += j.signed_error();
      widths.push_back((j.high - j.low) / 2 / j.predicted);
      result.covered += j.covered();
    }
    result.points = static_cast<int>(errors.size());
    if (!errors.empty()) result.bias /= static_cast<double>(errors.size());
    result.worst = errors.empty() ? 0 : *std::max_element(errors.begin(), errors.end());
    result.median = median_of(std::move(errors));
    result.half_width = median_of(std::move(widths));
    results.push_back(result);
  }
  return results;
}

nlohmann::ordered_json prediction_json(const PublishedPoint& point, const PointPrediction& p,
                                       const std::vector<Judgement>& judgements) {
  constexpr int kDigits = 4;
  nlohmann::ordered_json json = {{"id", point.id}};
  if (point.tokens_per_s_per_gpu) json["published_tokens_per_s_per_gpu"] = *point.tokens_per_s_per_gpu;
  if (!p.reason.empty()) {
    json["not_predicted"] = p.reason;
    return json;
  }
  json["tokens_per_s_per_gpu"] = rounded(p.tokens_per_s_per_gpu, kDigits);
  json["tokens_per_s_per_gpu_80"] = {rounded(p.low, kDigits), rounded(p.high, kDigits)};
  json["step_s"] = rounded(p.step_s, kDigits);
  if (p.stack_factor) {
    const StackFactor& factor = *p.stack_factor;
    json["stack_factor"] = rounded(factor.factor, kDigits);
    json["stack_factor_80"] = {rounded(factor.low(), kDigits), rounded(factor.high(), kDigits)};
  }
  if (p.bubble_share > 0) json["bubble_share"] = rounded(p.bubble_share, 2);
  if (p.exposed_share > 0) json["exposed_share"] = rounded(p.exposed_share, 2);
  if (p.contention_share > 0) json["contention_share"] = rounded(p.contention_share, 2);
  json["borrowed_share"] = rounded(p.borrowed_share, 2);
  if (point.peak_gb) json["published_memory_gb"] = *point.peak_gb;
  json["memory_gb"] = rounded(p.memory_gb, 3);
  if (!p.fits) json["fits"] = false;
  if (!p.assumed.empty()) json["assumed"] = p.assumed;
  for (const Judgement& j : judgements) {
    if (j.id != point.id) continue;
    json["judged"].push_back({{"as", name_of(j.as)},
                              {"architecture", j.architecture},
                              {"published", rounded(j.published, kDigits)},
                              {"predicted", rounded(j.predicted, kDigits)},
                              {"interval_80", {rounded(j.low, kDigits), rounded(j.high, kDigits)}},
                              {"error", rounded(j.error(), 3)}});
  }
  return json;
}

std::optional<double> coverage(const std::vector<Judgement>& judgements) {
  if (judgements.empty()) return std::nullopt;
  const auto covered =
      std::count_if(judgements.begin(), judgements.end(), [](const Judgement& j) { return j.covered(); });
  return static_cast<double>(covered) / static_cast<double>(judgements.size());
}

nlohmann::ordered_json groups_json(const std::vector<Judgement>& judgements) {
  nlohmann::ordered_json json = {{"groups", nlohmann::ordered_json::array()}};
  for (const GroupResult& r : group_results(judgements))
    json["groups"].push_back({{"group", name_of(r.group)},
                              {"points", r.points},
                              {"median_error", rounded(r.median, 3)},
                              {"floor", floor_of(r.group)},
                              {"met", r.met()},
                              {"worst_error", rounded(r.worst, 3)},
                              {"mean_signed_error", std::round(r.bias * 1e3) / 1e3},
                              {"covered", r.covered},
                              {"intervals", r.interval_verdict()},
                              {"half_width", rounded(r.half_width, 2)}});
  const auto covered = coverage(judgements);
  json["coverage"] = covered ? nlohmann::ordered_json(rounded(*covered, 2)) : nlohmann::ordered_json();
  return json;
}

}  // namespace precbench
