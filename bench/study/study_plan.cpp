// Generates the cases of a study. See study_plan.h.
#include "bench/study/study_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <span>
#include <string_view>
#include <utility>

#include "bench/case/case_words.h"
#include "bench/case/plan.h"
#include "bench/case/stress.h"
#include "bench/step/checkpoint.h"
#include "kernels/base/error_text.h"
#include "kernels/base/errors.h"
#include "kernels/base/fnv1a.h"

namespace precbench {
namespace {

namespace fs = std::filesystem;

constexpr const char* kReference = "bf16";

void set_fields(Case& c, const Axes& axes) {
  for (const auto& [name, words] : axes)
    if (name != "model" && name != "recipe") set_text(c, *find_field(name), words.front());
}

/// Returns an id of what makes the forks of two rows comparable: everything that defines a trunk and a BF16
/// fork, including their model and text, and the rules of the verdict.
std::string study_id(const Case& trunk, const Case& fork, const StudySettings& settings) {
  std::uint64_t state = kFingerprintStart;
  for (const Case& c : {trunk, fork}) add_to_fingerprint(state, validate(c).id);
  add_to_fingerprint(state, fmt::format("{} {}", settings.margin, settings.level));
  return fmt::format("{:016x}", state);
}

/// Removes one mantissa or exponent bit from an operand's format. Returns false if no such format exists.
bool take_bit(QuantFormat& format, StudyPart part) {
  struct Step {
    const char* from;
    DType dtype;
    std::uint8_t dropped_bits;
  };
  static constexpr Step kMantissa[] = {{"e4m3", DType::e4m3, 1}, {"e4m2", DType::e4m3, 2},
                                       {"e5m3", DType::e5m2, 0}, {"e5m2", DType::e5m2, 1},
                                       {"e4m4", DType::e4m3, 0}, {"e3m4", DType::e3m3, 0}};
  static constexpr Step kExponent[] = {{"e5m3", DType::e4m3, 0},
                                       {"e4m4", DType::e3m4, 0},
                                       {"e4m3", DType::e3m3, 0},
                                       {"e5m2", DType::e4m3, 1},
                                       {"e5m1", DType::e4m3, 2}};
  const std::span<const Step> steps =
      part == StudyPart::bits ? std::span<const Step>(kMantissa) : std::span<const Step>(kExponent);
  const auto step = std::find_if(steps.begin(), steps.end(), [&](const Step& one) {
    return std::string_view(one.from) == element_name(format);
  });
  if (step == steps.end()) return false;
  format.dtype = step->dtype, format.dropped_bits = step->dropped_bits;
  return true;
}

/// Returns the recipe with `bits` bits removed from every operand, or as many as an operand has. Null if no
/// operand has that many, and for FP8-Flow, which transposes E4M3 data only.
std::optional<Recipe> without_bits(const Recipe& recipe, StudyPart part, int bits) {
  Recipe poorer = recipe;
  bool possible = false;
  for (GemmRecipe* gemm : {&poorer.fprop, &poorer.dgrad, &poorer.wgrad})
    for (QuantFormat* operand : {&gemm->a, &gemm->b}) {
      int taken = 0;
      while (taken < bits && take_bit(*operand, part)) ++taken;
      possible = possible || taken == bits;
    }
  const char* what = part == StudyPart::bits ? "mantissa" : "exponent";
  poorer.name = fmt::format("{}_minus{}{}", recipe.name, bits, part == StudyPart::bits ? "" : "_exponent");
  poorer.reference = fmt::format("{} without {} {} {}", recipe.name, bits, what, bits == 1 ? "bit" : "bits");
  if (poorer.flow && flow_unsupported_reason(poorer)) possible = false;
  return possible ? std::optional(poorer) : std::nullopt;
}

/// Returns true if GEMMs or the optimizer's state differ from BF16.
bool differs_from_bf16(const Recipe& recipe) { return recipe.quantized() || !recipe.optimizer.empty(); }

/// Returns true if the case can measure sensitivity: its gradients can be compared, and its recipe quantizes
/// something.
bool measures_sensitivity(Case c) {
  c.fork_from.clear();
  const Plan plan = validate(c);
  return plan.recipe.quantized() && !fidelity_unsupported_reason(plan);
}

/// Returns the stresses of the outlier ladders, without those that the model cannot have.
std::vector<Stress> stresses_of(const StudySettings& settings, const ModelConfig& model) {
  std::vector<Stress> all;
  for (const auto& [kind, exponents] :
       {std::pair(StressKind::ffn, &settings.outlier_ffn),
        std::pair(StressKind::norm, &settings.outlier_norm), std::pair(StressKind::vo, &settings.outlier_vo)})
    for (const std::int64_t exponent : *exponents)
      if (!stress_unsupported_reason(kind, model))
        all.push_back({kind, static_cast<int>(exponent), settings.channels});
  return all;
}

/// Returns them as text: "ffn:8:4 ffn:12:4 norm:8:4".
std::string stress_words(const StudySettings& settings, const ModelConfig& model) {
  std::string words;
  for (const Stress& stress : stresses_of(settings, model))
    words += fmt::format("{}{}", words.empty() ? "" : " ", to_text(stress));
  return words;
}

/// Checks the ladders' channels before the trunks run, because the ladders' forks come last.
void check_channels(const StudySettings& settings, const ModelConfig& model) {
  if (settings.fidelity_batches == 0) return;
  const std::string where = settings.channels_place + ": channels";
  for (const Stress& stress : stresses_of(settings, model))
    if (const auto why = stress_unsupported_reason(stress, model))
      throw InvalidInput(fmt::format("{}: {}", where, *why));
}

}  // namespace

StudyPlan::StudyPlan(const StudySettings& settings, const std::string& model, std::string out)
    : settings_(settings), out_(std::move(out)) {
  set_fields(base_, settings.work);
  base_.model = model;
  base_.recipe = kReference;
  Case trunk = base_;
  set_fields(trunk, settings.trunk);
  if (settings.steady && !settings.starts_trained())
    throw InvalidInput(
        "[trunk] ages: \"steady\" is for weights that were trained before; add --init-from, or give the steps");
  const std::vector<std::int64_t> kept = settings.kept_ages();
  trunk.steps = kept.back();
  trunk.checkpoint_every = kept.back();
  trunk.checkpoint_at = fmt::format("{}", fmt::join(kept.begin(), std::prev(kept.end()), ","));
  trunk.checkpoint_keep = kCheckpointKeepWords.of(CheckpointKeep::all);
  fork_base_ = base_;
  set_fields(fork_base_, settings.fork);
  fork_base_.init_from.clear();
  fork_base_.steps = settings.fork_steps;
  study_ = study_id(trunk, fork_base_, settings);
  check_channels(settings, validate(fork_base_).model);
  trunk.checkpoint_dir = (fs::path(out_) / "checkpoints").string();
  for (std::int64_t number = 1; number <= settings.trunks; ++number) {
    trunk.seed = number;
    trunks_.push_back({trunk, place(StudyPart::trunk, number)});
  }
  const auto asked = settings.work.find("recipe");
  choose_variants(asked == settings.work.end() ? std::vector<std::string>{}
                                               : expand_axis(*find_field("recipe"), asked->second));
  make_rungs();
}

StudyPlace StudyPlan::place(StudyPart part, std::int64_t trunk, std::int64_t age, std::int64_t seed) const {
  StudyPlace place;
  place.study = study_, place.part = part, place.trunk = trunk, place.age = age, place.seed = seed;
  place.margin = settings_.margin, place.level = settings_.level;
  place.trained_tokens = settings_.trained_tokens;
  return place;
}

StudyPlan::Variant& StudyPlan::variant(const std::string& recipe) {
  const auto known = std::find_if(variants_.begin(), variants_.end(),
                                  [&](const Variant& v) { return v.recipe == recipe && !v.perturbed; });
  return known != variants_.end() ? *known : variants_.emplace_back(Variant{recipe});
}

void StudyPlan::choose_variants(const std::vector<std::string>& asked) {
  variants_ = {{.recipe = kReference}, {.recipe = kReference, .perturbed = true}};
  for (const std::string& recipe : asked)
    if (differs_from_bf16(find_recipe(recipe))) variant(recipe).asked = true;
  if (variants_.size() == 2)
    throw InvalidInput("--recipe: a study compares recipes with bf16: name at least one other");
  if (!settings_.against.empty()) add_incumbent();
  for (const auto& [control, other] : settings_.apart) {
    variant(other);
    variant(control).apart_from = find_recipe(other).name;
  }
  for (const std::string& control : settings_.breaks) variant(control).breaks = true;
}

void StudyPlan::add_incumbent() {
  const Recipe incumbent = find_recipe(settings_.against);
  if (!differs_from_bf16(incumbent))
    throw InvalidInput(fmt::format("--against: {}: every recipe is compared with bf16 anyway; name another",
                                   settings_.against));
  const auto is_incumbent = [&](const Variant& v) { return find_recipe(v.recipe).name == incumbent.name; };
  bool compared = false;
  for (Variant& v : variants_)
    if (v.asked && !is_incumbent(v)) v.against = incumbent.name, compared = true;
  if (!compared)
    throw InvalidInput(fmt::format("--against: {} is the only recipe; name the ones to compare in --recipe",
                                   settings_.against));
  if (std::none_of(variants_.begin(), variants_.end(), is_incumbent)) variant(settings_.against).asked = true;
}

const std::string& StudyPlan::first_recipe() const {
  return std::find_if(variants_.begin(), variants_.end(), [](const Variant& v) { return v.asked; })->recipe;
}

void StudyPlan::make_rungs() {
  for (const Variant& variant : variants_)
    for (const auto& [part, most] : {std::pair(StudyPart::bits, settings_.bits),
                                     std::pair(StudyPart::exponent_bits, settings_.exponent_bits)})
      for (int bits = 1; variant.asked && bits <= most; ++bits)
        if (const Recipe full = find_recipe(variant.recipe); auto poorer = without_bits(full, part, bits)) {
          const std::string path = (fs::path(out_) / "recipes" / (poorer->name + ".json")).string();
          rungs_.push_back({part, path, full.name, *std::move(poorer), bits});
        }
}

void StudyPlan::write_recipes() const {
  for (const Rung& rung : rungs_) {
    std::error_code error;
    fs::create_directories(fs::path(rung.path).parent_path(), error);
    errno = 0;
    std::ofstream file(rung.path, std::ios::trunc);
    file << recipe_to_json(rung.recipe).dump(1) << "\n";
    if (!file.flush())
      throw InvalidInput(
          fmt::format("--out: cannot write {}: {}", rung.path, error_text(errno ? errno : EIO)));
  }
}

StudyCase StudyPlan::fork(const std::string& checkpoint, StudyPart part, std::int64_t trunk, std::int64_t age,
                          std::int64_t seed, const Variant& variant) const {
  constexpr std::int64_t kSeedsOfTrunk = 1000;  // no two forks share their data, nor with a trunk
  Case c = fork_base_;
  c.recipe = variant.recipe;
  c.perturb = kPerturbWords.of(variant.perturbed);
  c.fork_from = checkpoint;
  c.seed = kSeedsOfTrunk * trunk + seed;
  StudyPlace where = place(part, trunk, age, seed);
  where.asked = variant.asked, where.apart_from = variant.apart_from, where.breaks = variant.breaks;
  if (part == StudyPart::fork) where.against = variant.against;
  return {c, where};
}

bool StudyPlan::compares_gradients(const Variant& variant) const {
  Case c = fork_base_;
  c.recipe = variant.recipe;
  const Plan plan = validate(c);
  // A recipe with BF16 GEMMs has BF16's gradient.
  return settings_.fidelity_batches > 0 && plan.recipe.quantized() && !fidelity_unsupported_reason(plan);
}

std::string StudyPlan::readings_of(const Variant& variant) const {
  if (settings_.readings == Readings::none || fork_base_.eval_data.empty()) return "";
  Case c = fork_base_;
  c.recipe = variant.recipe;
  const Plan run = validate(c);
  if (run.parameters.expert_ranks > 1) return "";
  const bool all = settings_.readings == Readings::all || variant.recipe == kReference;
  std::vector<std::string> names;
  for (const Variant& other : variants_) {
    if (other.recipe != variant.recipe && !(all && other.asked)) continue;
    c.eval_recipes = other.recipe;
    for (const ConvertedLayers& reading : validate(c).readings)  // none for BF16, in which every fork is read
      if (!reading_unsupported_reason(run, reading)) names.push_back(other.recipe);
  }
  return fmt::format("{}", fmt::join(names, ","));
}

void StudyPlan::add_forks(const Plan& trunk, std::int64_t number, const ForkAges& ages,
                          const std::map<std::string, std::string>& readings,
                          std::vector<StudyCase>& cases) const {
  for (const std::int64_t age : ages.ages)
    for (std::int64_t seed = 1; seed <= settings_.seeds; ++seed)
      for (const Variant& variant : variants_) {
        StudyCase one = fork(checkpoint_at(trunk, age), StudyPart::fork, number, age, seed, variant);
        one.fields.eval_recipes = readings.at(variant.recipe);
        if (seed == 1 && compares_gradients(variant)) {
          one.fields.fidelity_batches = settings_.fidelity_batches;
          const bool stressed = settings_.fidelity_batches > 0 && variant.asked && age == ages.ages.back() &&
                                number <= settings_.ladder_trunks;
          if (stressed) one.fields.fidelity_stress = stress_words(settings_, trunk.model);
        }
        cases.push_back(std::move(one));
      }
}

void StudyPlan::add_ladders(const Plan& trunk, std::int64_t number, const ForkAges& ages,
                            std::vector<StudyCase>& cases) const {
  const std::int64_t age = ages.ages.back();
  const auto add = [&](StudyPart part, double rung, const Variant& variant, const auto& change) {
    StudyCase one = fork(checkpoint_at(trunk, age), part, number, age, 1, variant);
    one.place.rung = rung;
    change(one);
    cases.push_back(std::move(one));
  };
  for (const Variant& variant : variants_) {
    if (const bool reference = variant.recipe == kReference && !variant.perturbed;
        !variant.asked && !reference)
      continue;
    // A rung at the forks' own value is among the forks already.
    for (const double factor : settings_.learning_rate)
      if (factor != 1)
        add(StudyPart::learning_rate, factor, variant, [&](StudyCase& one) { one.fields.lr *= factor; });
    for (const std::int64_t batch : settings_.batch)
      if (batch != fork_base_.batch)
        add(StudyPart::batch, static_cast<double>(batch), variant,
            [&](StudyCase& one) { one.fields.batch = batch; });
  }
  for (const Rung& rung : rungs_)
    add(rung.part, rung.bits, {.recipe = rung.path}, [&](StudyCase& one) { one.place.base = rung.base; });
}

void StudyPlan::add_sensitivity(const Plan& trunk, std::int64_t number, const ForkAges& ages,
                                std::vector<StudyCase>& cases) const {
  if (settings_.sensitivity.empty()) return;
  const std::int64_t age = ages.ages.back();
  for (const Variant& variant : variants_) {
    if (!variant.asked) continue;
    StudyCase one = fork(checkpoint_at(trunk, age), StudyPart::sensitivity, number, age, 1, variant);
    one.fields.steps = 1;  // the measurement comes before the step
    one.fields.warmup = 0;
    one.fields.schedule = kScheduleWords.of(Schedule::constant);
    one.fields.fidelity_batches = settings_.sensitivity_batches;
    one.fields.sensitivity = settings_.sensitivity;
    if (measures_sensitivity(one.fields)) cases.push_back(std::move(one));
  }
}

std::vector<StudyCase> StudyPlan::forks(const std::vector<Plan>& trunks) const {
  const std::vector<std::int64_t> kept = settings_.kept_ages();
  return forks(trunks, settings_.steady ? ForkAges{{kept.back()}, {}} : ForkAges{kept, {}});
}

std::vector<StudyCase> StudyPlan::forks(const std::vector<Plan>& trunks, const ForkAges& ages) const {
  std::vector<StudyCase> cases;
  std::map<std::string, std::string> readings;
  if (!settings_.sensitivity_only)
    for (const Variant& variant : variants_) readings[variant.recipe] = readings_of(variant);
  for (std::size_t i = 0; i < trunks.size(); ++i) {
    const auto number = static_cast<std::int64_t>(i) + 1;
    if (!settings_.sensitivity_only) add_forks(trunks[i], number, ages, readings, cases);
    if (number > settings_.ladder_trunks) continue;
    if (!settings_.sensitivity_only) add_ladders(trunks[i], number, ages, cases);
    add_sensitivity(trunks[i], number, ages, cases);
  }
  const StudySize size{std::ssize(trunks), settings_.seeds, std::ssize(ages.ages)};
  for (StudyCase& one : cases) {
    one.place.steady = ages.steady;
    if (one.place.part == StudyPart::fork) one.place.sizes = std::vector{size};
  }
  return cases;
}

std::vector<Plan> validate(const std::vector<StudyCase>& cases) {
  std::vector<Plan> plans;
  for (const StudyCase& one : cases) {
    plans.push_back(validate(one.fields));
    plans.back().study = one.place;
  }
  return plans;
}

}  // namespace precbench
