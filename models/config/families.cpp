// Reads the rows of families.json. See families.h and tensor_layout.h.
#include "models/config/families.h"

#include <algorithm>

#include "models/config/config_keys.h"
#include "models/config/families_text.h"
#include "models/config/tensor_layout.h"

namespace precbench {
namespace config_keys {
namespace {

using nlohmann::json;

const auto* find_row(const auto& rows, const auto& matches) {
  const auto found = std::find_if(rows.begin(), rows.end(), matches);
  return found == rows.end() ? nullptr : &*found;
}

Family family_of_row(const json& row, const json& of_class) {
  const json& shared = family_file().at("every_family");
  Family family{row.at("model_type"), row, shared.at("model"), shared.at("keys"), {}, {}};
  family.model.update(row.at("model"));
  for (const auto& [ours, theirs] : rule_of(row, "keys").items()) family.names[ours] = theirs;
  for (const json* keys : {&rule_of(of_class, "keys"), &rule_of(row, "also_reads")})
    for (const json& key : *keys) family.keys.insert(key.get<std::string>());
  for (const auto& [key, others] : rule_of(row, "aliases").items())
    for (const json& other : others) family.aliases.emplace_back(key, other);
  for (const auto& [other, key] : rule_of(of_class, "aliases").items())
    if (!find_row(family.aliases, [&, &from = other](const auto& alias) { return alias.first == from; }))
      family.aliases.emplace_back(key, other);
  return family;
}

}  // namespace

bool Family::reads(std::string_view key) const {
  return keys.count(key) > 0 || find_row(aliases, [&](const auto& alias) {
           return alias.second == key && keys.count(alias.first) > 0;
         });
}

std::string Family::name_in(const json& object, const std::string& key) const {
  const auto* alias =
      find_row(aliases, [&](const auto& a) { return a.first == key && given(object, a.second.c_str()); });
  return given(object, key.c_str()) || !alias ? key : alias->second;
}

const json& family_file() {
  static const json file = json::parse(kFamilies);
  return file;
}

const std::vector<Family>& families() {
  static const std::vector<Family> all = [] {
    const json classes = json::parse(kFamilyKeys).at("families");
    std::vector<Family> rows;
    for (const json& row : family_file().at("families"))
      rows.push_back(family_of_row(row, rule_of(classes, row.at("model_type").get<std::string>().c_str())));
    return rows;
  }();
  return all;
}

const Family* find_family(std::string_view model_type) {
  return find_row(families(), [&](const Family& family) { return family.model_type == model_type; });
}

bool every_family_reads(std::string_view key) {
  static const std::set<std::string, std::less<>> keys = family_file().at("every_family").at("reads");
  return keys.count(key) > 0;
}

const json* missing_family_of_type(std::string_view model_type) {
  return find_row(family_file().at("missing"),
                  [&](const json& row) { return row.at("model_type") == model_type; });
}

const json* missing_family_of_name(const std::string& name) {
  return find_row(family_file().at("missing"), [&](const json& row) {
    return row.contains("hub") && name.starts_with(row.at("hub").get<std::string>());
  });
}

}  // namespace config_keys

const std::vector<TensorLayout>& tensor_layouts() {
  using nlohmann::json;
  static const std::vector<TensorLayout> all = [] {
    std::vector<TensorLayout> layouts(1);
    for (const char* rows : {"families", "same"})
      for (const json& row : config_keys::family_file().at(rows))
        if (const json t = row.value("tensors", json()); t.is_object())
          layouts.push_back({t.at("name"), t.value("gated", true), t.value("blocks", ""),
                             t.value("transposed", false), t.value("by_head", false),
                             t.value("only", std::vector<std::string>()), t.at("modules")});
    return layouts;
  }();
  return all;
}

const TensorLayout& tensor_layout(std::string_view name) {
  const TensorLayout* found = config_keys::find_row(
      tensor_layouts(), [&](const TensorLayout& layout) { return layout.name == name; });
  return found ? *found : tensor_layouts().front();
}

}  // namespace precbench
