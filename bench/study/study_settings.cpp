// Reads study files: the meaning of their keys, and the case fields that they may set. See study_settings.h.
#include "bench/study/study_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <type_traits>

#include "bench/case/sensitivity_groups.h"
#include "bench/cli/config_file.h"
#include "bench/cli/toml.h"
#include "bench/study/defaults_text.h"
#include "bench/study/token_count.h"
#include "kernels/base/errors.h"
#include "kernels/base/near_words.h"
#include "kernels/base/parse_count.h"
#include "kernels/base/parse_number.h"
#include "kernels/base/standard_input.h"
#include "kernels/numerics/recipe.h"

namespace precbench {
namespace {

using Words = std::vector<std::string>;

constexpr std::int64_t kMost = 1'000'000'000;

/// Parses a number. Throws InvalidInput unless it is in [low, high].
template <class T>
T number_in(const std::string& word, T low, T high) {
  const auto value = [&] {
    if constexpr (std::is_integral_v<T>)
      return parse_whole(word);
    else
      return parse_number<T>(word);
  }();
  if (!value) {
    const auto plain = plain_forms(word);
    throw InvalidInput(fmt::format("\"{}\" is not a {}number{}", word, std::is_integral_v<T> ? "whole " : "",
                                   plain ? fmt::format("; write {}", *plain) : ""));
  }
  if (!(*value >= low && *value <= high))
    throw InvalidInput(fmt::format("{} is not in [{}, {}]", word, low, high));
  return *value;
}

/// Returns a setter for one number.
template <class T>
auto one(T StudySettings::*member, T low, T high) {
  return [=](StudySettings& settings, const Words& words) {
    if (words.size() != 1) throw InvalidInput("takes one value");
    settings.*member = number_in<T>(words.front(), low, high);
  };
}

/// Returns a setter for a list of numbers, sorted and without repeats; the list may be empty.
template <class T>
auto several(std::vector<T> StudySettings::*member, T low, T high) {
  return [=](StudySettings& settings, const Words& words) {
    std::vector<T> values;
    for (const std::string& word : words) values.push_back(number_in<T>(word, low, high));
    std::sort(values.begin(), values.end());
    values.erase(std::unique(values.begin(), values.end()), values.end());
    settings.*member = std::move(values);
  };
}

void set_ages(StudySettings& settings, const Words& words) {
  settings.steady = words == Words{"steady"};
  if (settings.steady) return;
  several(&StudySettings::ages, std::int64_t{1}, kMost)(settings, words);
  if (settings.ages.empty()) throw InvalidInput("no steps; forks begin after at least one step of a trunk");
}

void set_trained_tokens(StudySettings& settings, const Words& words) {
  if (words.size() != 1) throw InvalidInput("takes one value");
  settings.trained_tokens = parse_token_count(words.front());
}

void set_readings(StudySettings& settings, const Words& words) {
  static constexpr std::pair<const char*, Readings> kWords[] = {
      {"none", Readings::none}, {"own", Readings::own}, {"all", Readings::all}};
  const auto word = std::find_if(std::begin(kWords), std::end(kWords),
                                 [&](const auto& one) { return words == Words{one.first}; });
  if (word == std::end(kWords))
    throw InvalidInput(fmt::format("\"{}\" is none of none, own, all", fmt::join(words, ",")));
  settings.readings = word->second;
}

void set_apart(StudySettings& settings, const Words& words) {
  settings.apart.clear();
  for (const std::string& word : words) {
    const Words pair = split(word, ':');
    if (pair.size() != 2 || pair[0].empty() || pair[1].empty())
      throw InvalidInput(fmt::format("\"{}\" is not CONTROL:RECIPE", word));
    for (const std::string& recipe : pair) find_recipe(recipe);
    settings.apart.emplace_back(pair[0], pair[1]);
  }
}

void set_breaks(StudySettings& settings, const Words& words) {
  for (const std::string& recipe : words) find_recipe(recipe);
  settings.breaks = words;
}

void set_against(StudySettings& settings, const Words& words) {
  if (words.size() > 1) throw InvalidInput("takes one recipe, or none");
  for (const std::string& recipe : words) find_recipe(recipe);
  settings.against = words.empty() ? "" : words.front();
}

using Setter = std::function<void(StudySettings&, const Words&)>;

/// Returns the keys that are not case fields, by section.
const std::map<std::string, std::map<std::string, Setter>>& study_keys() {
  using S = StudySettings;
  constexpr std::int64_t kOne = 1, kNone = 0;
  static const std::map<std::string, std::map<std::string, Setter>> keys = {
      {"work", {}},
      {"trunk",
       {{"trunks", one(&S::trunks, kOne, std::int64_t{1000})},
        {"ages", set_ages},
        {"trained_tokens", set_trained_tokens}}},
      {"rewarm",
       {{"first", one(&S::rewarm_first, kOne, kMost)}, {"most", one(&S::rewarm_most, kOne, kMost)}}},
      {"fork",
       {{"steps", one(&S::fork_steps, std::int64_t{12}, kMost)},
        {"seeds", one(&S::seeds, kOne, std::int64_t{1000})}}},
      {"deployment", {{"readings", set_readings}}},
      {"fidelity", {{"batches", one(&S::fidelity_batches, kNone, std::int64_t{10000})}}},
      {"sensitivity",
       {{"cells", set_sensitivity}, {"batches", one(&S::sensitivity_batches, kOne, std::int64_t{10000})}}},
      {"ladder",
       {{"trunks", one(&S::ladder_trunks, kOne, std::int64_t{1000})},
        {"channels", one(&S::channels, kOne, kMost)},
        {"outlier_ffn", several(&S::outlier_ffn, std::int64_t{-30}, std::int64_t{30})},
        {"outlier_norm", several(&S::outlier_norm, std::int64_t{-30}, std::int64_t{30})},
        {"outlier_vo", several(&S::outlier_vo, std::int64_t{-30}, std::int64_t{30})},
        {"learning_rate", several(&S::learning_rate, 1e-6, 1e6)},
        {"bits", one(&S::bits, kNone, std::int64_t{2})},
        {"exponent_bits", one(&S::exponent_bits, kNone, std::int64_t{2})},
        {"batch", several(&S::batch, kOne, kMost)}}},
      {"control", {{"apart", set_apart}, {"break", set_breaks}}},
      {"verdict",
       {{"margin", one(&S::margin, 1e-6, 1.0)},
        {"level", one(&S::level, 1e-6, 0.5)},
        {"against", set_against}}},
  };
  return keys;
}

/// Returns the sections that may contain case fields.
const std::map<std::string, Axes StudySettings::*>& field_sections() {
  static const std::map<std::string, Axes StudySettings::*> sections = {
      {"work", &StudySettings::work}, {"trunk", &StudySettings::trunk}, {"fork", &StudySettings::fork}};
  return sections;
}

/// True for fields that trunks and forks set separately.
bool of_schedule(const std::string& name) { return name == "lr" || name == "warmup" || name == "schedule"; }

std::string known_key(const std::string& section, const std::string& key) {
  const auto own = study_keys().find(section);
  if (own == study_keys().end())
    throw InvalidInput(key + " belongs in a section: [work] has what all runs share");
  if (own->second.contains(key)) return key;
  const bool takes_fields = field_sections().contains(section);
  if (const Field* field = takes_fields ? find_field(key) : nullptr) return field->name;
  std::vector<std::string> valid;
  for (const auto& [name, setter] : own->second) valid.push_back(name);
  if (takes_fields)
    for (const Field& one_field : case_fields()) valid.push_back(one_field.name);
  const std::string near = nearest(key, valid);
  throw InvalidInput(fmt::format("unknown key {} in [{}]{}", key, section,
                                 near.empty() ? "" : "; did you mean " + near + "?"));
}

void read_study(const std::string& name, const std::string& text, StudySettings& settings) {
  TomlHandler handler;
  handler.section = [](const std::string& section) {
    if (study_keys().contains(section)) return;
    std::vector<std::string> valid;
    for (const auto& [known, keys] : study_keys()) valid.push_back(known);
    throw InvalidInput(fmt::format("unknown section [{}]; there are {}", section, fmt::join(valid, ", ")));
  };
  handler.known = known_key;
  handler.key = [&](const std::string& section, const std::string& key, const Words& words,
                    const std::string& place) {
    if (section == "ladder" && key == "channels") settings.channels_place = place;
    if (const auto own = study_keys().at(section).find(key); own != study_keys().at(section).end()) {
      try {
        return own->second(settings, words);
      } catch (const InvalidInput& error) {
        throw InvalidInput(fmt::format("{}: {}", key, error.what()));
      }
    }
    const Field& field = *find_field(key);
    if (section == "work" || !of_schedule(key)) check_study_field(key);
    check_study_words(field, words);
    (settings.*field_sections().at(section))[key] = words;
  };
  read_toml(name, text, handler);
}

bool set_by_study(const std::string& name) {
  static const std::set<std::string> kItsOwn = {"steps",
                                                "seed",
                                                "lr",
                                                "warmup",
                                                "schedule",
                                                "fork_from",
                                                "perturb",
                                                "stress",
                                                "save_init",
                                                "save_final",
                                                "save_grads",
                                                "checkpoint_every",
                                                "checkpoint_at",
                                                "checkpoint_dir",
                                                "checkpoint_keep",
                                                "eval_recipes",
                                                "fidelity_batches",
                                                "fidelity_stress",
                                                "sensitivity"};
  return kItsOwn.contains(name);
}

}  // namespace

void set_sensitivity(StudySettings& settings, const std::vector<std::string>& words) {
  const std::string text = fmt::format("{}", fmt::join(words, ","));
  parse_sensitivity(text);
  settings.sensitivity = text == "none" ? "" : text;
}

std::optional<std::string> default_of_study(const Field& field) {
  if (field.name == std::string("sensitivity")) return "";
  if (set_by_study(field.name)) return std::nullopt;
  if (field.name == std::string("recipe")) return "";  // always given by the user
  static const StudySettings kElsewhere = default_study({.on_gpu = false}),
                             kOnGpu = default_study({.on_gpu = true});
  const auto value_in = [&](const StudySettings& settings) {
    const auto set = settings.work.find(field.name);
    return set == settings.work.end() ? get_text(Case{}, field) : set->second.front();
  };
  const std::string elsewhere = value_in(kElsewhere), on_gpu = value_in(kOnGpu);
  return elsewhere == on_gpu ? on_gpu : fmt::format("{} on a GPU, {} elsewhere", on_gpu, elsewhere);
}

void check_study_field(const std::string& name) {
  if (!set_by_study(name)) return;
  const char* where = of_schedule(name) || name == "steps" ? "see [trunk] and [fork] of its --config"
                      : name == "seed"                     ? "see trunks and seeds of its --config"
                                                           : "a study sets it itself";
  throw InvalidInput(fmt::format("{}: not available in a study: {}", flag_of(*find_field(name)), where));
}

void check_study_words(const Field& field, const std::vector<std::string>& words) {
  check_words(field, words);
  if (field.name == std::string("model") || field.name == std::string("recipe")) return;
  if (words.size() == 1 && !(field.axis && expand_axis(field, words).size() != 1)) return;
  const std::string hint = comma_hint(field, words);
  throw InvalidInput(
      fmt::format("{}: a study takes one value{}{}", flag_of(field), hint.empty() ? "" : "; ", hint));
}

std::vector<std::int64_t> StudySettings::kept_ages() const {
  if (!steady) return ages;
  std::vector<std::int64_t> doublings;
  for (std::int64_t age = rewarm_first; age <= rewarm_most; age *= 2) doublings.push_back(age);
  if (doublings.size() < 2 || rewarm_first < 2)
    throw InvalidInput(fmt::format(
        "[rewarm]: first = {} and most = {} leave no step to compare with: most must be twice first, and first 2",
        rewarm_first, rewarm_most));
  return doublings;
}

bool StudySettings::starts_trained() const {
  const auto names = [](const Axes& axes) {
    const auto field = axes.find("init_from");
    return field != axes.end() && !field->second.front().empty();
  };
  return names(work) || names(trunk);
}

StudySettings default_study(const StudyKind& kind) {
  const bool on_gpu = kind.on_gpu;
  StudySettings settings;
  read_study(on_gpu ? "gpu.toml" : "cpu.toml", on_gpu ? kGpuStudyText : kCpuStudyText, settings);
  if (kind.trained)
    read_study(on_gpu ? "init_gpu.toml" : "init_cpu.toml", on_gpu ? kGpuInitStudyText : kCpuInitStudyText,
               settings);
  return settings;
}

void read_study_file(const std::string& path, StudySettings& settings) {
  read_study(name_of_input(path), config_text(path), settings);
}

std::string study_flag_hint(const std::string& command, const std::string& flag) {
  if (command != "study") return "";
  std::string key = flag;
  std::replace(key.begin(), key.end(), '-', '_');
  std::vector<std::string> sections;
  for (const auto& [section, keys] : study_keys())
    if (keys.contains(key)) sections.push_back(fmt::format("[{}]", section));
  if (sections.empty()) return "";
  return fmt::format("{} is a key of {} in the file of --config", key, joined_with_or(sections));
}

}  // namespace precbench
