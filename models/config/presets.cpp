// Presets and the repositories that they come from, rows of presets.json, and suggestions for unknown names. A row has the
// config.json that was published, or a model of our own keys. See config.h and hub_names.h.
#include "models/config/hub_names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <string_view>

#include "kernels/base/errors.h"
#include "kernels/base/near_words.h"
#include "models/config/config.h"
#include "models/config/families.h"
#include "models/config/families_text.h"

namespace precbench {
namespace {

using nlohmann::json;

std::string lower_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

std::string without_owner(const std::string& repository) {
  return repository.substr(repository.find('/') + 1);
}

/// Returns the longest runs of characters for which is_part(index) is true.
template <typename IsPart>
std::vector<std::string> runs_of(const std::string& text, const IsPart& is_part) {
  std::vector<std::string> runs;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (!is_part(i)) continue;
    if (i == 0 || !is_part(i - 1)) runs.emplace_back();
    runs.back() += text[i];
  }
  return runs;
}

/// Returns the numbers in a name: 3 and 8 for qwen3-8b, 3.1 and 70 for llama3.1-70b.
std::vector<std::string> numbers_in(const std::string& name) {
  const auto digit = [&](std::size_t i) {
    return i < name.size() && std::isdigit(static_cast<unsigned char>(name[i])) != 0;
  };
  return runs_of(name, [&](std::size_t i) {
    return digit(i) || (name[i] == '.' && i > 0 && digit(i - 1) && digit(i + 1));
  });
}

bool is_lower(char c) { return c >= 'a' && c <= 'z'; }

/// Returns the runs of letters in a name without its owner, in lower case.
std::vector<std::string> words_in(const std::string& name) {
  const std::string text = lower_case(without_owner(name));
  return runs_of(text, [&](std::size_t i) { return is_lower(text[i]); });
}

/// Returns the letters that a name begins with: "qwen" for Qwen/Qwen3-8B.
std::string family_of(const std::string& name) {
  const std::string text = lower_case(without_owner(name));
  return {text.begin(), std::find_if_not(text.begin(), text.end(), is_lower)};
}

/// Returns true if every word of `name` that tells models apart is, perhaps with a typo, one of the candidate's. So
/// Qwen2.5-Math-7B does not lead to Qwen2.5-7B.
bool has_all_words(const std::string& name, const std::string& candidate) {
  constexpr std::string_view kEditions[] = {"instruct", "chat", "base", "thinking", "it", "pt", "hf", "fp"};
  const std::vector<std::string> known = words_in(candidate), words = words_in(name);
  return std::all_of(words.begin(), words.end(), [&](const std::string& word) {
    if (std::find(known.begin(), known.end(), word) != known.end()) return true;
    if (std::find(std::begin(kEditions), std::end(kEditions), word) != std::end(kEditions)) return true;
    return word.size() > 2 && !nearest(word, known).empty();
  });
}

const json& rows() {
  static const json all = json::parse(kPresets);
  return all;
}

std::vector<std::string> names_of_presets() {
  std::vector<std::string> names;
  for (const ModelConfig& preset : model_presets()) names.push_back(preset.name);
  return names;
}

/// Returns the known name nearest to `name` among those with the same numbers and nearly the same family;
/// empty if there is none. So gemma3-4b does not lead to qwen3-4b, nor qwen3-9b to qwen3-8b.
std::string near_model(const std::string& name) {
  std::vector<std::string> known = names_of_presets();
  for (const HubName& hub : hub_names())
    known.push_back(name.find('/') == name.npos ? without_owner(hub.repository) : hub.repository);
  const std::vector<std::string> numbers = numbers_in(name);
  const std::string family = family_of(name);
  std::erase_if(known, [&](const std::string& candidate) {
    return numbers_in(candidate) != numbers || nearest(family, {family_of(candidate)}).empty() ||
           !has_all_words(name, candidate);
  });
  return nearest(name, known);
}

}  // namespace

const std::vector<ModelConfig>& model_presets() {
  static const std::vector<ModelConfig> presets = [] {
    std::vector<ModelConfig> all;
    for (const json& row : rows()) {
      ModelConfig& config = all.emplace_back(model_from_json(row.at("config")));
      config.name = row.at("name");
      // The definitions of presets that have committed records stay as they are.
      if (row.value("without_positions", false)) config.max_positions = 0;
    }
    return all;
  }();
  return presets;
}

const std::vector<HubName>& hub_names() {
  static const std::vector<HubName> names = [] {
    std::vector<HubName> all;
    for (const json& row : rows())
      for (const json& repository : row.value("hub", json::array()))
        all.push_back({repository, row.at("name")});
    return all;
  }();
  return names;
}

std::string preset_name(const std::string& name) {
  std::string word = lower_case(name);
  const std::vector<std::string> presets = names_of_presets();
  if (std::find(presets.begin(), presets.end(), word) != presets.end()) return word;
  // An edition whose weights are stored in FP8 is the same model.
  if (constexpr std::string_view kFp8 = "-fp8"; word.ends_with(kFp8)) word.resize(word.size() - kFp8.size());
  for (const HubName& hub : hub_names())
    if (word == lower_case(hub.repository) || word == lower_case(without_owner(hub.repository)))
      return hub.preset;
  return name;
}

std::string unknown_model(const std::string& name) {
  constexpr std::size_t kShown = 3;
  const std::string what = fmt::format("unknown model \"{}\"", name);
  if (const std::string near = near_model(name); !near.empty())
    return fmt::format("{}; did you mean {}?", what, near);
  if (const auto* missing = config_keys::missing_family_of_name(lower_case(without_owner(name)))) {
    const std::string preset = missing->value("preset", "");
    return fmt::format("{}; its family needs {}, which is not supported{}", what,
                       missing->at("needs").get<std::string>(),
                       preset.empty() ? "" : "; the nearest preset is " + preset);
  }
  std::vector<std::string> presets = names_of_presets();
  const std::string family = family_of(name);
  std::erase_if(presets, [&](const std::string& preset) { return family_of(preset) != family; });
  const bool known_family = family.size() > 2 && !presets.empty();
  return fmt::format("{}; {}precbench list models has all, or give the path of its config.json", what,
                     known_family ? fmt::format("the nearest of {} are {}; ", family,
                                                fmt::join(nearest_few(name, presets, kShown), ", "))
                                  : "");
}

}  // namespace precbench
