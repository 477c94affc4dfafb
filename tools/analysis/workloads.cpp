// Distinguishes versions by definition, or without one by contradictions between records. See workloads.h.
#include "tools/analysis/workloads.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace precbench {
namespace {

using Json = nlohmann::ordered_json;

/// Number of latest versions of a file searched for a record's. A record of an older one is taken for a new
/// version: fewer ratios, none wrong.
constexpr std::size_t kVersionsSearched = 100;
/// Maximum number of versions listed in a note.
constexpr std::size_t kVersionsNamed = 10;

/// Properties that a record shows of a file. Two records that differ in a value of the same key are of
/// different versions.
using Traits = std::map<std::string, std::string>;

struct Version {
  Traits traits;
  RecordRefs records;
};

bool contradict(const Traits& version, const Traits& record) {
  return std::any_of(record.begin(), record.end(), [&](const auto& trait) {  // a version has many more traits
    const auto other = version.find(trait.first);
    return other != version.end() && other->second != trait.second;
  });
}

std::optional<Json> field_of_work(const std::string& key, const Json& value) {
  if (!changes_work(key)) return std::nullopt;
  return value == "" ? Json() : value;
}

std::string without(Json fields, const std::vector<std::string>& keys) {
  for (const std::string& key : keys) fields.erase(key);
  return fields.dump();
}

Traits traits_of_model(const Record& record, const CaseFields& fields) {
  Traits traits;
  if (record.flops)
    traits["FLOPs at " + fields.value("seq", Json()).dump()] = fmt::format("{}", record.flops->per_token);
  if (record.training && record.training->params_total)
    traits["tensors"] = fmt::format("{}", *record.training->params_total);
  if (record.training && record.training->uniform_loss)
    traits["ln V"] = fmt::format("{}", *record.training->uniform_loss);
  return traits;
}

Traits traits_of_recipe(const Record& record, const CaseFields& fields) {
  Traits traits;
  if (record.status != Status::ok) return traits;
  std::string all;
  for (const QuantizationStats& stats : record.quantization) {
    traits[stats.role] = stats.format;
    all += stats.role + ' ' + stats.format + '\n';
  }
  traits["all of " + without(fields, {"seed", "model"})] = all;
  return traits;
}

/// Returns the part of a definition that a case field names.
DefinitionPart DefinitionRecord::*part_of(const std::string& key) {
  if (key == "model") return &DefinitionRecord::model;
  if (key == "recipe") return &DefinitionRecord::recipe;
  return key == "data" ? &DefinitionRecord::data : &DefinitionRecord::init;
}

/// Text of a definition part without what other case fields state; cached per shared part.
class PartTexts {
 public:
  const std::string& of(const DefinitionPart& part) {
    const auto [known, is_new] = texts_.try_emplace(part.get());
    if (is_new)
      known->second =
          without(*part, {"reference", "blocks", "linears", "head", "schedule", "flow", "kept", "seed"});
    return known->second;
  }

 private:
  std::unordered_map<const Json*, std::string> texts_;
};

/// Returns the name that the case gives; the field's own name if it gives none.
std::string name_in(const CaseFields& fields, const std::string& key) {
  const Json* word = fields.find(key);
  return word && word->is_string() && *word != "" ? word->get<std::string>() : key;
}

/// Returns true if the field names its part of the definition: initial weights have two candidate fields.
bool names_its_part(const CaseFields& fields, const std::string& key) {
  const bool forked = name_in(fields, "fork_from") != "fork_from";
  return key == "init_from" ? !forked : key != "fork_from" || forked;
}

}  // namespace

bool is_file(const CaseFields& fields, const std::string& key) {
  const Json* name = fields.find(key);
  if (!name || !name->is_string()) return false;
  const std::string_view text = name->get_ref<const std::string&>();
  if (key == "data") return text != "synthetic";
  return key == "init_from" || key == "fork_from" || text.ends_with(".json");
}

Workloads::Workloads(const RecordRefs& records) : work_(field_of_work) {
  for (const LocatedRecord* located : records) work_.prepare(located->record.case_fields);
  RecordRefs by_time = records;
  std::stable_sort(by_time.begin(), by_time.end(), [](const LocatedRecord* a, const LocatedRecord* b) {
    return a->record.created < b->record.created;
  });
  for (const char* key : {"model", "recipe", "data", "init_from", "fork_from"}) tell_apart(by_time, key);
}

void Workloads::tell_apart(const RecordRefs& by_time, const std::string& key) {
  std::map<std::string, std::vector<Version>> files;
  std::map<std::pair<std::string, std::string>, std::size_t> latest;  // by record file and name
  PartTexts texts;
  const auto text_of = [&](const Record& record) -> const std::string& {
    return texts.of((*record.definition).*part_of(key));
  };
  // Built-ins rarely change; then their many records are skipped.
  std::unordered_map<std::string, const std::string*> built_in;
  const bool changed = std::any_of(by_time.begin(), by_time.end(), [&](const LocatedRecord* located) {
    const CaseFields fields = this->fields(located);
    if (!located->record.definition || is_file(fields, key) || !names_its_part(fields, key)) return false;
    const std::string& text = text_of(located->record);
    return *built_in.try_emplace(name_in(fields, key), &text).first->second != text;
  });
  for (const LocatedRecord* located : by_time) {
    const CaseFields fields = this->fields(located);
    const Record& record = located->record;
    if (!names_its_part(fields, key)) continue;
    if (!is_file(fields, key) && !(changed && record.definition)) continue;
    Traits traits;  // for data and initial weights only the id is evidence
    if (is_file(fields, key) && key == "model") traits = traits_of_model(record, fields);
    if (is_file(fields, key) && key == "recipe") traits = traits_of_recipe(record, fields);
    if (record.definition) {
      // Different globs select different files of one folder.
      traits["definition" + (key == "data" ? fields.value("glob", Json()).dump() : "")] = text_of(record);
    } else {
      std::string same_work =
          fmt::format("id by method {} of {}", record.method_version, Json(fields).dump());
      if (key == "model" && is_file(fields, "recipe"))  // changed formats explain another id
        for (const auto& [role, format] : traits_of_recipe(record, fields)) same_work += role + format;
      traits[same_work] = record.id;
    }

    const std::string name = name_in(fields, key);
    std::vector<Version>& versions = files[name];
    auto [last, is_new] = latest.try_emplace({located->origin.file, name}, versions.size());
    const auto fits = [&](std::size_t i) {
      return i < versions.size() && !contradict(versions[i].traits, traits);
    };
    std::size_t chosen = is_new && !versions.empty() ? versions.size() - 1 : last->second;
    const std::size_t oldest = versions.size() - std::min(versions.size(), kVersionsSearched);
    for (std::size_t i = versions.size(); i-- > oldest && !fits(chosen);) chosen = i;
    if (!fits(chosen)) chosen = versions.size(), versions.emplace_back();
    last->second = chosen;
    versions[chosen].traits.merge(traits);
    versions[chosen].records.push_back(located);
  }
  for (const auto& [name, versions] : files) {
    if (versions.size() < 2) continue;
    std::vector<std::string> since;
    for (std::size_t i = 0; i < versions.size(); ++i) {
      if (i < kVersionsNamed)
        since.push_back(
            fmt::format("version {} from {}", i + 1, versions[i].records.front()->record.created));
      for (const LocatedRecord* located : versions[i].records)
        fields_.try_emplace(located, fields(located)).first->second[key] =
            fmt::format("{} (version {})", name, i + 1);
    }
    if (versions.size() > kVersionsNamed)
      since.push_back(fmt::format("and {} more", versions.size() - kVersionsNamed));
    notes_.push_back(
        fmt::format("{} changed between these cases: {}; they are different work, never averaged or compared",
                    name, fmt::join(since, ", ")));
  }
}

}  // namespace precbench
