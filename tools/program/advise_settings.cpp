// Searches micro-batches and recomputation for each recipe. See advise_settings.h.
#include "tools/program/advise_settings.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <future>

#include "bench/case/case.h"
#include "bench/case/supported.h"
#include "bench/cli/fit.h"
#include "bench/cli/predictions.h"
#include "bench/machine/machine.h"
#include "bench/predict/predict.h"
#include "kernels/base/errors.h"
#include "kernels/base/parse_number.h"
#include "kernels/numerics/native_formats.h"

namespace precbench {
namespace {

/// Recomputation from the least to the most.
constexpr std::array kRecompute = {"none", "norm", "ffn+norm", "block"};

/// Dtypes of optimizer state and gradients from the usual ones to those that take least memory, tried where nothing fits.
struct StateDtypes {
  const char *moments, *grads;
};
constexpr std::array kStates = {StateDtypes{"fp32", "fp32"}, StateDtypes{"bf16", "fp32"},
                                StateDtypes{"bf16", "bf16"}};

/// A case that runs, with its memory and its step as a mean over the run.
struct TriedSetting {
  Plan plan;
  std::int64_t bytes = 0;
  std::optional<StepEstimate> step;
  double tokens_per_s() const { return static_cast<double>(plan.tokens_per_step()) / step->seconds; }
};

bool has_schedule(const Case& c) {
  if (!c.switch_recipe.empty()) return false;
  const std::vector<Recipe>& all = named_recipes();
  return std::any_of(all.begin(), all.end(),
                     [&](const Recipe& one) { return one.name == c.recipe && !one.schedule.empty(); });
}

/// Returns the step of `plan`, whose first recipe takes `first`, as a mean over the run.
std::optional<StepEstimate> mean_over_run(const std::string& gpu, const Plan& plan, StepEstimate first) {
  if (plan.later.empty() || plan.fields.steps <= 0) return first;
  const auto steps = static_cast<double>(plan.fields.steps);
  double seconds = first.seconds * static_cast<double>(plan.later.front().from) / steps;
  for (std::size_t i = 0; i < plan.later.size(); ++i) {
    const std::int64_t end = i + 1 < plan.later.size() ? plan.later[i + 1].from : plan.fields.steps;
    Case later = plan.fields;
    later.recipe = plan.later[i].recipe.name;
    later.switch_recipe = "none";
    const auto own = estimated_step(gpu, resolve(later, Refusals::kept));
    if (!own) return std::nullopt;
    seconds += own->seconds * static_cast<double>(end - plan.later[i].from) / steps;
  }
  first.seconds = seconds;
  return first;
}

/// Searches one recipe's settings on one machine.
class SettingSearch {
 public:
  SettingSearch(const AdviseHost::SettingQuestion& question, const CostModel& model)
      : question_(question), model_(model) {}

  RecipeSetting best(const std::string& recipe, std::optional<TriedSetting>& found) {
    RecipeSetting setting{recipe};
    Case c;
    for (const auto& [name, text] : question_.given) set_text(c, *find_field(name), text);
    c.recipe = recipe;
    c.device = "cuda";
    c = with_steps_of_schedule(c);
    if (c.gpus > 1 && !is_given("parallel")) c.parallel = "fsdp";
    for (const StateDtypes& states : kStates) {
      if (found || (is_given("moments") && is_given("grads") && &states != kStates.data())) break;
      if (!is_given("moments")) c.moments = states.moments;
      if (!is_given("grads")) c.grads = states.grads;
      for (const std::string& gather : gathers(c)) {
        c.gather = gather;
        search(c, found);
      }
    }
    if (found) {
      setting.fields = case_to_json(found->plan.fields);
      setting.tokens_per_s = found->tokens_per_s();
      setting.peak_bytes = static_cast<double>(found->bytes);
    } else {
      setting.too_large = least_ > 0;
      setting.peak_bytes = static_cast<double>(least_);
      setting.reason = least_ > 0 ? "too large" : reason_.empty() ? "no rates of such a GPU" : reason_;
    }
    return setting;
  }

 private:
  bool is_given(const char* field) const { return question_.given.contains(field); }

  std::vector<std::string> gathers(const Case& c) const {
    if (is_given("gather") || c.recipe == "bf16" || c.gpus == 1 || c.parallel == "ddp" || c.lora_rank > 0)
      return {c.gather};
    return {"bf16", "fp8"};
  }

  std::vector<Case> batches(const Case& c) const {
    const std::int64_t own = std::max<std::int64_t>(1, c.seq / std::max<std::int64_t>(1, c.context));
    const std::int64_t all = std::max<std::int64_t>(1, kTokensOfStepPerGpu / own);
    if (is_given("batch")) return {c};
    std::vector<Case> cases;
    for (auto batch = static_cast<std::int64_t>(std::exp2(std::floor(std::log2(all)))); batch >= 1;
         batch /= 2) {
      Case one = c;
      one.batch = batch;
      if (!is_given("accumulation")) one.accumulation = std::max<std::int64_t>(1, all / batch);
      cases.push_back(one);
    }
    return cases;
  }

  /// Tries each recomputation with the largest batch that fits, until one fits with the largest of all.
  void search(const Case& c, std::optional<TriedSetting>& found) {
    for (const char* recompute : kRecompute) {
      Case again = c;
      if (!is_given("recompute")) again.recompute = recompute;
      const std::vector<Case> all = batches(again);
      for (const Case& one : all) {
        std::optional<TriedSetting> tried = attempt(one);
        if (!tried) continue;
        if (!found || tried->tokens_per_s() > found->tokens_per_s()) found = std::move(tried);
        if (&one == &all.front()) return;
        break;
      }
      if (is_given("recompute")) return;
    }
  }

  /// Returns the setting if it runs and fits.
  std::optional<TriedSetting> attempt(const Case& c) {
    try {
      TriedSetting tried{resolve(c, Refusals::kept), 0, std::nullopt};
      if (tried.plan.refusal) return refuse(*tried.plan.refusal);
      if (const auto why = unsupported_reason(tried.plan)) return refuse(*why);
      if (!runs_natively(tried.plan, model_.machine())) return refuse("no native formats on such a GPU");
      const DryRun accounts = dry_run(tried.plan, nullptr);
      tried.bytes = accounts.most();
      if (tried.bytes > question_.bytes) {
        least_ = least_ > 0 ? std::min(least_, tried.bytes) : tried.bytes;
        return std::nullopt;
      }
      tried.step =
          mean_over_run(question_.gpu, tried.plan, estimate_step(model_, accounts.trace, tried.plan.ranks));
      return tried.step ? std::optional(std::move(tried)) : refuse("a later recipe has no rates");
    } catch (const InvalidInput& error) {
      return refuse(error.what());
    } catch (const Unsupported& error) {
      return refuse(error.what());
    } catch (const OutOfMemory& error) {
      return refuse(error.what());
    }
  }

  std::optional<TriedSetting> refuse(const std::string& why) {
    if (reason_.empty()) reason_ = why;
    return std::nullopt;
  }

  const AdviseHost::SettingQuestion& question_;
  const CostModel& model_;
  std::int64_t least_ = 0;  // bytes of the smallest setting that was too large
  std::string reason_;      // why the first setting cannot run
};

}  // namespace

Case with_steps_of_schedule(Case c) {
  if (has_schedule(c) && c.steps <= 0) c.steps = kScheduleSteps;
  return c;
}

std::optional<StepEstimate> mean_step(const std::string& gpu, const Plan& plan) {
  auto first = estimated_step(gpu, plan);
  return first ? mean_over_run(gpu, plan, std::move(*first)) : std::nullopt;
}

std::vector<RecipeSetting> best_settings(const AdviseHost::SettingQuestion& question) {
  const Machine* machine = find_machine_of_gpu(question.gpu);
  if (!machine) return {};
  std::optional<CostModel> model;
  try {
    model.emplace(*machine);
  } catch (const InvalidInput&) {
    return {};
  }
  const std::size_t count = question.recipes.size();
  std::vector<RecipeSetting> settings(count);
  std::vector<std::optional<TriedSetting>> found(count);
  std::vector<std::future<void>> searches;
  for (std::size_t i = 0; i < count; ++i)
    searches.push_back(std::async(std::launch::async, [&, i] {
      settings[i] = SettingSearch(question, *model).best(question.recipes[i], found[i]);
    }));
  for (std::future<void>& one : searches) one.get();
  for (std::size_t i = 0; i < count; ++i) {
    if (!found[i] || !found.front()) continue;
    const TriedSetting &own = *found[i], &base = *found.front();
    const SpeedUp over = speedup_of(*own.step, *base.step);
    const double ratio = own.tokens_per_s() / base.tokens_per_s();
    settings[i].over_bf16 = {ratio, ratio * over.low / over.ratio, ratio * over.high / over.ratio};
  }
  return settings;
}

std::optional<std::int64_t> case_bytes(const GpuModel& gpu) {
  std::optional<std::int64_t> usable = gpu.memory;
  if (const Machine* machine = find_machine_of_gpu(gpu.name)) usable = usable_bytes(*machine);
  if (!usable) return std::nullopt;
  return static_cast<std::int64_t>(kTight * static_cast<double>(*usable)) - kContextBytes;
}

std::optional<std::vector<std::string>> native_recipes(const GpuModel& gpu) {
  NativeFormats formats;
  if (const Machine* machine = find_machine_of_gpu(gpu.name))
    formats = machine->native;
  else if (const auto cc = gpu.cc ? parse_number<double>(*gpu.cc) : std::nullopt)
    formats = native_formats(static_cast<int>(std::lround(10 * *cc)));
  if (formats.none()) return std::nullopt;
  std::vector<std::string> names;
  for (const Recipe& recipe : named_recipes())
    if (is_native(formats, recipe)) names.push_back(recipe.name);
  return names;
}

}  // namespace precbench
