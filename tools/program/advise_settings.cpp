// Searches micro-batches and recomputation for each recipe. See advise_settings.h.
#include "tools/program/advise_settings.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <future>
#include <limits>
#include <map>

#include "bench/case/case.h"
#include "bench/case/plan.h"
#include "bench/cli/fit.h"
#include "bench/cli/predictions.h"
#include "bench/machine/machine.h"
#include "bench/predict/layout_search.h"
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

/// Returns the case of a plan with a later recipe alone.
Case later_case(const Plan& plan, std::size_t i) {
  Case c = plan.fields;
  c.recipe = plan.later[i].recipe.name;
  c.switch_recipe = "none";
  return c;
}

/// Returns the step of `plan`, whose first recipe takes `first`, as a mean over the run. `estimate`: of a later case.
template <typename Estimate>
std::optional<StepEstimate> mean_over_run(const Plan& plan, StepEstimate first, const Estimate& estimate) {
  if (plan.later.empty() || plan.fields.steps <= 0) return first;
  const auto steps = static_cast<double>(plan.fields.steps);
  double seconds = first.seconds * static_cast<double>(plan.later.front().from) / steps;
  for (std::size_t i = 0; i < plan.later.size(); ++i) {
    const std::int64_t end = i + 1 < plan.later.size() ? plan.later[i + 1].from : plan.fields.steps;
    const std::optional<StepEstimate> own = estimate(later_case(plan, i));
    if (!own) return std::nullopt;
    seconds += own->seconds * static_cast<double>(end - plan.later[i].from) / steps;
  }
  first.seconds = seconds;
  return first;
}

std::optional<StepEstimate> estimated_case(const std::string& gpu, const Case& c) {
  return estimated_step(gpu, validate(c, Refusals::kept));
}

/// Values of the fields that a search of layouts may try.
using LayoutValues = std::map<std::string, std::vector<std::string>>;

/// Returns the coarse space in which the layout of BF16 is searched: `precbench plan` searches all.
LayoutValues coarse_space(const Case& c, bool experts) {
  LayoutValues values = {{"batch", {"1", "2", "4"}}, {"recompute", {"none", "block"}},
                         {"grad_sync", {"last"}},    {"virtual_stages", {"1", "4"}},
                         {"gather", {"bf16"}},       {"shard_group", {"8"}}};
  constexpr std::int64_t kLongSequence = 16384;
  if (c.seq <= kLongSequence) values["context"] = {"1"};
  if (experts) {
    values["tensor"] = {"1"};
    values["reshard"] = {"off"};
    values["ep"] = {"1", "8", "16", "32", "64"};
  } else {
    values["parallel"] = {"ddp", "fsdp"};
    values["reshard"] = {"off", "on"};
  }
  return values;
}

/// Fields of a layout that all recipes take from BF16's proposals.
constexpr std::array kCommonFields = {"tensor",  "context",  "pipeline",    "virtual_stages",
                                      "ep",      "parallel", "shard_group", "shard_optimizer",
                                      "reshard", "grad_sync"};

std::string text_of(const Case& c, const char* field) { return get_text(c, *find_field(field)); }

/// Searches the settings of recipes on one machine.
class SettingSearch {
 public:
  SettingSearch(const AdviseHost::SettingQuestion& question, const CostModel& model)
      : question_(question), model_(model) {}

  /// Returns the recipe's case before a search, with the usual dtypes of states or those given.
  Case case_of(const std::string& recipe, const StateDtypes& states) const {
    Case c;
    for (const auto& [name, text] : question_.given) set_text(c, *find_field(name), text);
    c.recipe = recipe;
    c.device = "cuda";
    c = with_steps_of_schedule(c);
    if (c.gpus > 1 && !is_given("parallel")) c.parallel = "fsdp";
    if (!is_given("moments")) c.moments = states.moments;
    if (!is_given("grads")) c.grads = states.grads;
    return c;
  }

  bool has_states(const StateDtypes& states) const {
    return &states == kStates.data() || !is_given("moments") || !is_given("grads");
  }

  /// Tries micro-batches, recomputation and gathers of cases that precbench runs.
  void search_runnable(const std::string& recipe, const StateDtypes& states) {
    Case c = case_of(recipe, states);
    for (const std::string& gather : gathers(c)) {
      c.gather = gather;
      search(c);
    }
  }

  /// Searches layouts of ranks. `values`: those tried where the user gave none. Returns the proposals' plans.
  std::vector<Plan> search_layouts_of(const std::string& recipe, const LayoutValues& values) {
    const Case c = case_of(recipe, kStates.front());
    LayoutQuestion question{c, 0, question_.bytes, 2, values};
    const Case first = batches(c).front();
    question.global_batch = std::max<std::int64_t>(
        1, first.batch * first.accumulation * c.gpus / std::max<std::int64_t>(1, first.context));
    for (const auto& [field, text] : question_.given)
      if (is_searched(field)) question.given[field] = {text_of(c, field.c_str())};
    std::vector<Plan> plans;
    try {
      const LayoutSearch search = best_layouts(question, model_);
      if (search.proposals.empty()) {
        if (search.least_bytes) note_too_large(*search.least_bytes);
        if (!search.unsupported_reason.empty()) refuse(search.unsupported_reason);
      }
      for (const LayoutProposal& one : search.proposals) plans.push_back(one.plan);
      if (!search.proposals.empty()) take(search.proposals.front());
    } catch (const InvalidInput& error) {
      refuse(error.what());
    } catch (const Unsupported& error) {
      refuse(error.what());
    } catch (const OutOfMemory& error) {
      refuse(error.what());
    }
    return plans;
  }

  RecipeSetting result(const std::string& recipe) const {
    RecipeSetting setting{recipe};
    if (found_) {
      setting.fields = case_to_json(found_->plan.fields);
      setting.tokens_per_s = found_->tokens_per_s();
      setting.peak_bytes = static_cast<double>(found_->bytes);
      setting.runs = !unsupported_reason(found_->plan);
    } else {
      setting.too_large = too_large();
      setting.peak_bytes = static_cast<double>(least_);
      setting.reason = too_large() ? "too large" : reason_.empty() ? "no rates of such a GPU" : reason_;
    }
    return setting;
  }

  const std::optional<TriedSetting>& found() const { return found_; }
  bool too_large() const { return least_ > 0; }

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

  /// Returns true if even a step that recomputes all takes far too much memory, both in one micro-batch, which accumulates no
  /// gradients, and in the smallest ones: then so do all others.
  bool never_fits(Case c) {
    if (!is_given("recompute")) c.recompute = kRecompute.back();
    const std::vector<Case> all = batches(c);
    return is_far_too_large(all.back()) && is_far_too_large(all.front());
  }

  bool is_far_too_large(const Case& c) {
    constexpr double kFar = 1.1;  // other settings differ by less
    last_bytes_ = 0;
    return !attempt(c) && static_cast<double>(last_bytes_) > kFar * static_cast<double>(question_.bytes);
  }

  /// Tries each recomputation with the largest batch that fits, until one fits with the largest of all.
  void search(const Case& c) {
    for (const char* recompute : kRecompute) {
      Case again = c;
      if (!is_given("recompute")) again.recompute = recompute;
      const std::vector<Case> all = batches(again);
      for (const Case& one : all) {
        std::optional<TriedSetting> tried = attempt(one);
        if (!tried) {
          if (!question_.wants_least && recompute == kRecompute.front() && &one == &all.front() &&
              never_fits(c))
            return;
          continue;
        }
        if (!found_ || tried->tokens_per_s() > found_->tokens_per_s()) found_ = std::move(tried);
        if (&one == &all.front()) return;
        break;
      }
      if (is_given("recompute")) return;
    }
  }

  /// Returns the setting if it runs and fits.
  std::optional<TriedSetting> attempt(const Case& c) {
    try {
      TriedSetting tried{validate(c, Refusals::kept), 0, std::nullopt};
      if (const auto why = unsupported_reason(tried.plan)) return refuse(*why);
      if (!runs_natively(tried.plan, model_.machine())) return refuse("no native formats on such a GPU");
      const DryRun accounts = dry_run(tried.plan, nullptr);
      tried.bytes = accounts.most();
      if (tried.bytes > question_.bytes) {
        note_too_large(tried.bytes);
        return std::nullopt;
      }
      tried.step = mean_over_run(tried.plan, estimate_step(model_, accounts.trace, tried.plan.ranks),
                                 [&](const Case& later) { return estimated_case(question_.gpu, later); });
      return tried.step ? std::optional(std::move(tried)) : refuse("a later recipe has no rates");
    } catch (const InvalidInput& error) {
      return refuse(error.what());
    } catch (const Unsupported& error) {
      return refuse(error.what());
    } catch (const OutOfMemory& error) {
      return refuse(error.what());
    }
  }

  /// Takes a proposal, with its step as a mean over the run.
  void take(const LayoutProposal& proposal) {
    TriedSetting tried{proposal.plan, proposal.estimate.peak_bytes, std::nullopt};
    tried.step = mean_over_run(tried.plan, proposal.estimate.step, [&](const Case& later) {
      LayoutQuestion same{later, 0, std::numeric_limits<std::int64_t>::max(), 1, {}};
      same.global_batch = proposal.plan.tokens_per_step() / later.seq;
      for (const char* field : kSearchedFields) same.given[field] = {text_of(later, field)};
      const LayoutSearch search = best_layouts(same, model_);
      return search.proposals.empty() ? std::nullopt : std::optional(search.proposals.front().estimate.step);
    });
    if (!tried.step) refuse("a later recipe has no rates");
    if (tried.step && (!found_ || tried.tokens_per_s() > found_->tokens_per_s())) found_ = std::move(tried);
  }

  void note_too_large(std::int64_t bytes) {
    least_ = least_ > 0 ? std::min(least_, bytes) : bytes;
    last_bytes_ = bytes;
  }

  std::optional<TriedSetting> refuse(const std::string& why) {
    if (reason_.empty()) reason_ = why;
    return std::nullopt;
  }

  const AdviseHost::SettingQuestion& question_;
  const CostModel& model_;
  std::optional<TriedSetting> found_;
  std::int64_t least_ = 0;       // bytes of the smallest setting that was too large
  std::int64_t last_bytes_ = 0;  // of the last setting that was too large
  std::string reason_;           // why the first setting cannot run
};

/// GPUs up to which data parallelism suffices and layouts are not searched.
constexpr std::int64_t kGpusOfOneHost = 8;

bool gives_layout(const AdviseHost::SettingQuestion& question) {
  return std::any_of(question.given.begin(), question.given.end(), [](const auto& field) {
    return find_field(field.first)->identity == Identity::predicted;
  });
}

/// Returns true if layouts of ranks are searched: for experts, on several hosts, and where the user gives one.
bool searches_layouts(const AdviseHost::SettingQuestion& question, const Case& c, bool experts) {
  if (question.runnable_only || c.lora_rank > 0 || c.gpus < 2) return false;
  return experts || c.gpus > kGpusOfOneHost || gives_layout(question);
}

/// Does the work for each index in threads.
template <typename Work>
void for_each_at_once(std::size_t first, std::size_t count, const Work& work) {
  std::vector<std::future<void>> running;
  for (std::size_t i = first; i < count; ++i) running.push_back(std::async(std::launch::async, work, i));
  for (std::future<void>& one : running) one.get();
}

/// Searches layouts: first BF16's, whose ranks the other recipes take. Returns false if BF16 has none.
bool search_all_layouts(std::vector<SettingSearch>& searches, const std::vector<std::string>& recipes,
                        bool experts, const Case& c) {
  const LayoutValues coarse = coarse_space(c, experts);
  const std::vector<Plan> plans = searches.front().search_layouts_of(recipes.front(), coarse);
  if (plans.empty()) return false;
  LayoutValues common = coarse;
  for (const char* field : kCommonFields) {
    std::vector<std::string>& values = common[field];
    values.clear();
    for (const Plan& plan : plans)
      if (const std::string text = text_of(plan.fields, field);
          std::find(values.begin(), values.end(), text) == values.end())
        values.push_back(text);
  }
  common["gather"] = {"bf16", "fp8"};
  for_each_at_once(1, recipes.size(),
                   [&](std::size_t i) { searches[i].search_layouts_of(recipes[i], common); });
  return true;
}

}  // namespace

Case with_steps_of_schedule(Case c) {
  if (has_schedule(c) && c.steps <= 0) c.steps = kScheduleSteps;
  return c;
}

std::optional<StepEstimate> mean_step(const std::string& gpu, const Plan& plan) {
  auto first = estimated_step(gpu, plan);
  return first ? mean_over_run(plan, std::move(*first),
                               [&](const Case& later) { return estimated_case(gpu, later); })
               : std::nullopt;
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
  std::vector<SettingSearch> searches(count, SettingSearch(question, *model));
  const Case bf16 = searches.front().case_of("bf16", kStates.front());
  const bool experts = static_cast<bool>(validate(bf16, Refusals::kept).model.moe);
  if (!searches_layouts(question, bf16, experts) ||
      !search_all_layouts(searches, question.recipes, experts, bf16))
    for (const StateDtypes& states : kStates) {
      if (!searches.front().has_states(states)) break;
      for_each_at_once(0, count,
                       [&](std::size_t i) { searches[i].search_runnable(question.recipes[i], states); });
      if (std::any_of(searches.begin(), searches.end(),
                      [](const SettingSearch& one) { return one.found().has_value(); }))
        break;
    }
  if (const RecipeSetting base = searches.front().result("bf16");
      gives_layout(question) && !searches.front().found() && !base.too_large)
    throw InvalidInput(base.reason);
  std::vector<RecipeSetting> settings;
  for (std::size_t i = 0; i < count; ++i) {
    RecipeSetting& setting = settings.emplace_back(searches[i].result(question.recipes[i]));
    if (!searches[i].found() || !searches.front().found()) continue;
    const TriedSetting &own = *searches[i].found(), &base = *searches.front().found();
    const SpeedUp over = speedup_of(*own.step, *base.step);
    const double ratio = own.tokens_per_s() / base.tokens_per_s();
    setting.over_bf16 = {ratio, ratio * over.low / over.ratio, ratio * over.high / over.ratio};
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
