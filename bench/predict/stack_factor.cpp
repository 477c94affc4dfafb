// Random-effects model of stack factors. See stack_factor.h.
#include "bench/predict/stack_factor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "bench/predict/rates.h"
#include "bench/predict/stack_covariance.h"
#include "bench/predict/stacks_text.h"
#include "kernels/base/errors.h"
#include "kernels/base/number_range.h"

namespace precbench {
namespace {

constexpr const char* kStackNames[kStacks] = {"precbench", "pytorch", "megatron"};
constexpr const char* kEffectNames[kStackEffects] = {"mean",
                                                     "low_precision",
                                                     "recipe",
                                                     "several_gpus",
                                                     "several_low",
                                                     "architecture",
                                                     "gpu",
                                                     "gpu_low",
                                                     "source",
                                                     "source_low",
                                                     "model",
                                                     "small_step",
                                                     "small_low",
                                                     "small_several",
                                                     "small_source",
                                                     "experts",
                                                     "experts_several",
                                                     "rest",
                                                     "rest_experts_several"};

/// Source of a step that nobody has measured: equal to no other.
constexpr const char* kNewSource = "(new)";

std::string_view family_of(std::string_view recipe) { return recipe.substr(0, recipe.find('_')); }

struct SignedStep {
  double sign;
  StackStep step;
};

StackSetting base_of(const StackEvidence& e) {
  StackSetting base = e.setting;
  base.recipe = "bf16";
  base.micro_step_s = e.base_micro_step_s;
  return base;
}

/// Returns the steps that evidence compares, with their signs: the logarithm of a speed-up is a difference.
std::vector<SignedStep> steps_of(const StackEvidence& e) {
  std::vector<SignedStep> steps = {{1, {e.stack, e.setting, e.source}}};
  if (e.speedup) steps.push_back({-1, {e.stack, base_of(e), e.source}});
  return steps;
}

double weighed(const StackBases& bases, const StackSpreads& spreads) {
  double sum = 0;
  for (std::size_t i = 0; i < bases.size(); ++i) sum += bases[i] * spreads[i] * spreads[i];
  return sum;
}

StackEvidence evidence_of(Stack stack, const StackSetting& setting) {
  StackEvidence e;
  e.stack = stack, e.setting = setting, e.source = kNewSource;
  return e;
}

Stack stack_of_name(const std::string& name, const std::string& where) {
  for (int i = 0; i < kStacks; ++i)
    if (name == kStackNames[i]) return static_cast<Stack>(i);
  throw InvalidInput(
      fmt::format("{}: unknown stack \"{}\"; known: {}", where, name, fmt::join(kStackNames, ", ")));
}

StackEvidence evidence_from_json(const nlohmann::json& json, const std::string& where) {
  constexpr NumberRange kStepSeconds{1e-9, 1e9}, kValue{1e-9, 1e15}, kError{0, 10};
  StackEvidence e;
  e.stack = stack_of_name(json.at("stack"), where + ": stack");
  e.measured = json.at("kind") == "measured";
  e.speedup = json.at("compares") == "speed-up";
  e.source = json.at("source"), e.id = json.at("id"), e.name = json.at("model");
  StackSetting& s = e.setting;
  s.recipe = json.at("recipe"), s.gpu = json.at("gpu"), s.architecture = json.at("architecture");
  s.model = json.at("widths"), s.several_gpus = json.at("several_gpus"), s.experts = json.at("experts");
  s.micro_step_s = number_within(json.at("micro_step_s"), kStepSeconds, where + ": micro_step_s");
  if (e.speedup)
    e.base_micro_step_s =
        number_within(json.at("bf16_micro_step_s"), kStepSeconds, where + ": bf16_micro_step_s");
  e.ours = number_within(json.at("ours"), kValue, where + ": ours");
  e.theirs = number_within(json.at("theirs"), kValue, where + ": theirs");
  e.log_error = number_within(json.at("log_error"), kError, where + ": log_error");
  e.assumed = json.value("assumed", "");
  return e;
}

/// Returns "mxfp8 with experts", the recipe's family and what tells apart its evidence.
std::string words_of(const StackSetting& setting) {
  return stack_recipe(setting.recipe) + (setting.experts ? " with experts" : "");
}

/// Returns what no evidence of the stack has in common with a step. `as_base`: the step is what a speed-up is over, so
/// that its recipe alone counts, and evidence of speed-ups too.
std::vector<std::string> missing_evidence(const std::vector<StackEvidence>& evidence, Stack stack,
                                          const StackSetting& setting, bool as_base) {
  constexpr double kShorter = 0.8;  // of the shortest step with evidence: not told apart from it
  bool recipe = false, on_gpu = false;
  std::optional<double> shortest;
  for (const StackEvidence& e : evidence) {
    if (e.stack != stack) continue;
    if (e.setting.several_gpus == setting.several_gpus)
      shortest = std::min(shortest.value_or(e.setting.micro_step_s), e.setting.micro_step_s);
    const bool same = stack_recipe(e.setting.recipe) == stack_recipe(setting.recipe) ||
                      (as_base && e.speedup && stack_recipe(setting.recipe) == "bf16");
    if (!same || e.setting.experts != setting.experts) continue;
    recipe = true;
    on_gpu = on_gpu || e.setting.gpu == setting.gpu;
  }
  std::vector<std::string> lines;
  if (!recipe)
    lines.push_back(fmt::format("no evidence for {} with {}", words_of(setting), name_of(stack)));
  else if (!on_gpu && !as_base)
    lines.push_back(
        fmt::format("no evidence for {} on {} with {}", words_of(setting), setting.gpu, name_of(stack)));
  if (as_base) return lines;
  if (!shortest || setting.micro_step_s < kShorter * *shortest)
    lines.push_back(shortest
                        ? fmt::format("no evidence for micro-steps of less than {:.0f} ms on {} with {}",
                                      1e3 * *shortest, setting.several_gpus ? "several GPUs" : "one GPU",
                                      name_of(stack))
                        : fmt::format("no evidence for {} with {}",
                                      setting.several_gpus ? "several GPUs" : "one GPU", name_of(stack)));
  return lines;
}

}  // namespace

const char* name_of(Stack stack) { return kStackNames[static_cast<int>(stack)]; }
const char* name_of(StackEffect effect) { return kEffectNames[static_cast<int>(effect)]; }

Stack find_stack(const std::string& name) { return stack_of_name(name, "--stack"); }

std::string architecture_name(int capability) {
  switch (capability / 10) {
    case 8:
      return capability >= 89 ? "Ada" : "Ampere";
    case 9:
      return "Hopper";
    case 10:
    case 12:
      return "Blackwell";
    default:
      return "";
  }
}

std::string stack_model_key(const ModelConfig& model) { return fmt::format("{}x{}", model.width, model.ffn); }

std::string stack_recipe(const std::string& recipe) { return std::string(family_of(recipe)); }

double smallness(const StackSetting& setting) {
  constexpr double kUnit = 5;
  const double large = setting.several_gpus ? kLargeMicroStepOfSeveral : kLargeMicroStep;
  return std::max(0.0, std::log(large / setting.micro_step_s) / std::log(kUnit));
}

StackSetting stack_setting(const Plan& plan, const Machine& machine, double our_step_s) {
  return {plan.fields.recipe,
          machine.name,
          architecture_name(machine.capability),
          stack_model_key(plan.model),
          our_step_s / static_cast<double>(plan.fields.micro_steps()),
          plan.ranks > 1,
          static_cast<bool>(plan.model.moe)};
}

double StackFactor::low() const { return factor * std::exp(-kInterval80 * log_error); }
double StackFactor::high() const { return factor * std::exp(kInterval80 * log_error); }

StackBases stack_covariance(const StackEvidence& a, const StackEvidence& b, bool same) {
  StackBases sums{};
  if (a.stack != b.stack) return sums;
  const auto of_a = steps_of(a), of_b = steps_of(b);
  for (std::size_t i = 0; i < of_a.size(); ++i)
    for (std::size_t j = 0; j < of_b.size(); ++j) {
      const double sign = of_a[i].sign * of_b[j].sign;
      const StackStep &x = of_a[i].step, &y = of_b[j].step;
      const std::string_view family = family_of(x.setting.recipe), other = family_of(y.setting.recipe);
      const bool low = family != "bf16" && other != "bf16", source = x.source == y.source;
      const bool several = x.setting.several_gpus && y.setting.several_gpus;
      const bool experts = x.setting.experts && y.setting.experts, gpu = x.setting.gpu == y.setting.gpu;
      const bool one = same && i == j;
      const double small = smallness(x.setting) * smallness(y.setting);
      const auto add = [&](StackEffect effect, double value) {
        sums[static_cast<std::size_t>(effect)] += sign * value;
      };
      add(StackEffect::mean, 1);
      add(StackEffect::low_precision, low);
      add(StackEffect::recipe, low && family == other);
      add(StackEffect::several_gpus, several);
      add(StackEffect::several_low, several && low);
      add(StackEffect::architecture, x.setting.architecture == y.setting.architecture);
      add(StackEffect::gpu, gpu);
      add(StackEffect::gpu_low, gpu && low);
      add(StackEffect::source, source);
      add(StackEffect::source_low, source && low);
      add(StackEffect::model, x.setting.model == y.setting.model);
      add(StackEffect::small_step, small);
      add(StackEffect::small_low, low ? small : 0);
      add(StackEffect::small_several, several ? small : 0);
      add(StackEffect::small_source, source ? small : 0);
      add(StackEffect::experts, experts);
      add(StackEffect::experts_several, experts && several);
      add(StackEffect::rest, one);
      add(StackEffect::rest_experts_several, one && experts && several);
    }
  return sums;
}

bool factorize(std::vector<std::vector<double>>& rows) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::vector<double>& row = rows[i];
    for (std::size_t j = 0; j < i; ++j) {
      const std::vector<double>& other = rows[j];
      double value = row[j];
      for (std::size_t k = 0; k < j; ++k) value -= row[k] * other[k];
      row[j] = value / other[j];
    }
    double rest = row[i];
    for (std::size_t k = 0; k < i; ++k) rest -= row[k] * row[k];
    if (!(rest > 0)) return false;
    row[i] = std::sqrt(rest);
  }
  return true;
}

std::vector<double> solve_lower(const std::vector<std::vector<double>>& rows, std::vector<double> values) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) values[i] -= rows[i][j] * values[j];
    values[i] /= rows[i][i];
  }
  return values;
}

double log_likelihood_of(const std::vector<std::vector<double>>& factor, const std::vector<double>& values) {
  double sum = 0;
  for (const double value : solve_lower(factor, values)) sum -= value * value / 2;
  for (std::size_t i = 0; i < factor.size(); ++i) sum -= std::log(factor[i][i]);
  return sum;
}

std::vector<double> log_factors(const std::vector<StackEvidence>& evidence) {
  std::vector<double> logs;
  logs.reserve(evidence.size());
  for (const StackEvidence& e : evidence) logs.push_back(std::log(e.theirs / e.ours));
  return logs;
}

StackModel::StackModel(std::vector<StackEvidence> evidence, const StackSpreads& spreads)
    : evidence_(std::move(evidence)), spreads_(spreads) {
  for (std::size_t i = 0; i < evidence_.size(); ++i) {
    factor_.emplace_back();
    for (std::size_t j = 0; j <= i; ++j)
      factor_[i].push_back(weighed(stack_covariance(evidence_[i], evidence_[j], i == j), spreads_));
    factor_[i][i] += evidence_[i].log_error * evidence_[i].log_error;
  }
  if (!factorize(factor_))
    throw InvalidInput("stacks: the spreads and errors of the evidence leave no variance");
  weights_ = solve_lower(factor_, log_factors(evidence_));
  for (std::size_t i = weights_.size(); i-- > 0;) {
    weights_[i] /= factor_[i][i];
    for (std::size_t j = 0; j < i; ++j) weights_[j] -= factor_[i][j] * weights_[i];
  }
}

StackFactor StackModel::factor_of(const StackEvidence& evidence) const {
  StackEvidence target = evidence;
  target.source = kNewSource;
  std::vector<double> common;
  common.reserve(evidence_.size());
  for (const StackEvidence& known : evidence_)
    common.push_back(weighed(stack_covariance(target, known, false), spreads_));
  double mean = 0;
  for (std::size_t i = 0; i < common.size(); ++i) mean += common[i] * weights_[i];
  double variance = weighed(stack_covariance(target, target, true), spreads_);
  for (const double value : solve_lower(factor_, std::move(common))) variance -= value * value;
  return {std::exp(mean), std::sqrt(std::max(variance, 0.0))};
}

StackFactor StackModel::factor(Stack stack, const StackSetting& setting) const {
  if (stack == Stack::precbench) return {};
  StackFactor result = factor_of(evidence_of(stack, setting));
  result.no_evidence = missing_evidence(evidence_, stack, setting, false);
  return result;
}

StackFactor StackModel::speedup_factor(Stack stack, const StackSetting& own, const StackSetting& base) const {
  if (stack == Stack::precbench) return {};
  StackEvidence target = evidence_of(stack, own);
  target.speedup = true;
  target.base_micro_step_s = base.micro_step_s;
  StackFactor result = factor_of(target);
  result.no_evidence = missing_evidence(evidence_, stack, own, false);
  for (std::string& line : missing_evidence(evidence_, stack, base, true))
    if (std::find(result.no_evidence.begin(), result.no_evidence.end(), line) == result.no_evidence.end())
      result.no_evidence.push_back(std::move(line));
  return result;
}

double StackModel::log_likelihood() const { return log_likelihood_of(factor_, log_factors(evidence_)); }

StackModel stack_model_from_json(const nlohmann::json& json, const std::string& where) {
  constexpr NumberRange kSpread{1e-6, 10};
  try {
    StackSpreads spreads{};
    for (int i = 0; i < kStackEffects; ++i)
      spreads[static_cast<std::size_t>(i)] = number_within(json.at("spreads").at(kEffectNames[i]), kSpread,
                                                           fmt::format("{}: {}", where, kEffectNames[i]));
    std::vector<StackEvidence> evidence;
    for (const auto& row : json.at("evidence")) evidence.push_back(evidence_from_json(row, where));
    return {std::move(evidence), spreads};
  } catch (const nlohmann::json::exception& error) {
    throw InvalidInput(fmt::format("{}: {}", where, error.what()));
  }
}

const StackModel& stack_model() {
  static const StackModel model = stack_model_from_json(nlohmann::json::parse(kStacksText), "stacks");
  return model;
}

const StackModel& stack_model_without(const std::string& source) {
  static std::map<std::string, StackModel> models;
  const bool known = std::any_of(stack_model().evidence().begin(), stack_model().evidence().end(),
                                 [&](const StackEvidence& e) { return e.source == source; });
  if (!known) return stack_model();
  if (const auto made = models.find(source); made != models.end()) return made->second;
  std::vector<StackEvidence> others;
  for (const StackEvidence& e : stack_model().evidence())
    if (e.source != source) others.push_back(e);
  return models.emplace(source, StackModel(std::move(others), stack_model().spreads())).first->second;
}

StackFactor stack_factor(Stack stack, const StackSetting& setting) {
  return stack_model().factor(stack, setting);
}

StackFactor stack_speedup_factor(Stack stack, const StackSetting& own, const StackSetting& base) {
  return stack_model().speedup_factor(stack, own, base);
}

}  // namespace precbench
