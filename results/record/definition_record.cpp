// Definitions as lists of values. See definition_record.h.
#include "results/record/definition_record.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace precbench {
namespace {

using Json = nlohmann::ordered_json;
/// Dotted names and values as a user would write them, in the order of the definition.
using Values = std::vector<std::pair<std::string, std::string>>;

void add_values(const std::string& name, const Json& json, Values& values) {
  if (json.is_object()) {
    for (const auto& item : json.items()) add_values(name + "." + item.key(), item.value(), values);
  } else if (json.is_array()) {
    for (std::size_t i = 0; i < json.size(); ++i) add_values(name + "." + std::to_string(i), json[i], values);
  } else if (name != "recipe.reference") {
    const std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
    values.emplace_back(name, json.is_string() ? text.substr(1, text.size() - 2) : text);
  }
}

Values values_of(const DefinitionRecord& definition) {
  Values values;
  add_values("model", *definition.model, values);
  add_values("recipe", *definition.recipe, values);
  add_values("data", *definition.data, values);
  add_values("init", *definition.init, values);
  return values;
}

const std::string& value_in(const Values& values, const std::string& name) {
  static const std::string kNone = "none";
  const auto found =
      std::find_if(values.begin(), values.end(), [&](const auto& value) { return value.first == name; });
  return found == values.end() ? kNone : found->second;
}

}  // namespace

std::string canonical_text(const DefinitionRecord& definition) {
  Values values = values_of(definition);
  std::sort(values.begin(), values.end());
  std::string text;
  for (const auto& [name, value] : values) text += name + "=" + value + "\n";
  return text;
}

std::optional<DefinitionDifference> first_difference(const DefinitionRecord& baseline,
                                                     const DefinitionRecord& current) {
  const bool shared = baseline.model == current.model && baseline.recipe == current.recipe &&
                      baseline.data == current.data && baseline.init == current.init;
  if (shared) return std::nullopt;
  const Values was = values_of(baseline), is = values_of(current);
  for (const Values* values : {&was, &is})
    for (const auto& [name, value] : *values)
      if (value_in(was, name) != value_in(is, name))
        return DefinitionDifference{name, value_in(was, name), value_in(is, name)};
  return std::nullopt;
}

}  // namespace precbench
