// Families of models, a row of families.json each, with the keys that transformers reads (keys.json). Internal to models/config.
//
// A row has what data can say of a family: constants and defaults under our own keys ("model"), the names of our keys in its
// files ("keys"), other names that its files may use ("aliases"), keys that ask for another model ("refuse"), its windows, its
// RoPE and its tensors. "forms" names readers in hugging_face_forms.cpp for the rest. README.md describes all members.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace precbench::config_keys {

/// A model_type whose config.json is read.
struct Family {
  std::string model_type;
  nlohmann::json row;
  nlohmann::json model;                                   ///< constants and defaults, under our own keys
  std::map<std::string, std::string, std::less<>> names;  ///< of our keys in its files; "1/" before a divisor
  std::set<std::string, std::less<>> keys;  ///< read or without effect, besides those of every family
  std::vector<std::pair<std::string, std::string>> aliases;  ///< two names of one number

  /// Returns true for keys that this model_type, unlike others, reads or may ignore.
  bool reads(std::string_view key) const;
  /// Returns the name under which the file gives a key: its own, or an alias.
  std::string name_in(const nlohmann::json& object, const std::string& key) const;
};

/// Returns a member of a row; an empty object if the row has none.
inline const nlohmann::json& rule_of(const nlohmann::json& row, const char* name) {
  static const nlohmann::json none = nlohmann::json::object();
  const auto found = row.find(name);
  return found == row.end() ? none : *found;
}
/// Returns the contents of families.json.
const nlohmann::json& family_file();
const std::vector<Family>& families();
/// Returns the family of a model_type, or null.
const Family* find_family(std::string_view model_type);
/// Return the row of a family that is not supported, with what it needs and the nearest that is supported: that of a model_type,
/// and that of a repository's name without its owner, in lower case; null if there is none.
const nlohmann::json* missing_family_of_type(std::string_view model_type);
const nlohmann::json* missing_family_of_name(const std::string& name);
/// Returns true for keys that files of every family may have.
bool every_family_reads(std::string_view key);

}  // namespace precbench::config_keys
