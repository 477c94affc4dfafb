// What the sections of a report share.
#include "tools/sections.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "tools/columns.h"
#include "tools/distinct.h"

namespace precbench {

using Json = nlohmann::ordered_json;

ReportInput make_input(const RecordSet& set) {
  ReportInput input{set, {}, {{"bf16", 1}}};
  for (const RecordRefs& records : by_machine(set)) {
    Part part{records, analyze(records), machine_of(records.front()->env)};
    for (const LocatedRecord* located : records)
      part.all_ok = part.all_ok && located->record.status == Status::ok;
    for (const Group& group : part.analysis.groups)
      for (const Row& row : group.rows)
        input.styles.emplace(recipe_of(part, row), static_cast<int>(input.styles.size()) + 1);
    input.parts.push_back(std::move(part));
  }
  return input;
}

std::string plural(std::size_t count, const char* noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::optional<double> number_of(const Row& row, const std::string& key) {
  const Json value = row.fields.value(key, Json());
  return value.is_number() ? std::optional(value.get<double>()) : std::nullopt;
}

std::string text_of(const Row& row, const std::string& key) {
  return field_text(row.fields.value(key, Json()));
}

std::string recipe_of(const Row& row) { return text_of(row, "recipe"); }

std::string recipe_of(const Part& part, const Row& row) {
  Distinct names;
  names.add(recipe_of(row));
  for (const std::string& key : part.analysis.row_keys)
    if (const std::string value = text_of(row, key); !value.empty()) names.add(key + " " + value);
  return names.joined();
}

Row row_of(const RecipeConvergence& recipe) {
  Row row;
  row.fields = recipe.fields;
  return row;
}

std::string setting_of(const Part& part, const Row& row, const std::vector<std::string>& without) {
  Distinct names;
  const auto& keys = part.analysis.group_keys;
  if (std::find(keys.begin(), keys.end(), "model") == keys.end() &&
      std::find(without.begin(), without.end(), "model") == without.end())
    names.add(text_of(row, "model"));
  for (const std::string& key : keys) {
    if (std::find(without.begin(), without.end(), key) != without.end()) continue;
    const std::string value = text_of(row, key);
    if (key == "steps" && value == "auto") continue;  // says only how the timing ended
    if (!value.empty()) names.add(key == "model" ? value : key + " " + value);
  }
  return names.joined();
}

std::vector<const Group*> typical_groups(const Part& part) {
  const auto merit = [](const Group& group) {
    const Row& row = group.rows.front();
    const auto ran = std::count_if(group.rows.begin(), group.rows.end(),
                                   [](const Row& r) { return r.status == Status::ok; });
    const double tokens = number_of(row, "seq").value_or(0) * number_of(row, "batch").value_or(1);
    return std::tuple(ran, tokens, -number_of(row, "gpus").value_or(1));
  };
  std::vector<const Group*> chosen;
  for (const Group& group : part.analysis.groups) {
    const std::string model = text_of(group.rows.front(), "model");
    const auto known = std::find_if(chosen.begin(), chosen.end(), [&](const Group* other) {
      return text_of(other->rows.front(), "model") == model;
    });
    if (known == chosen.end())
      chosen.push_back(&group);
    else if (merit(group) > merit(**known))
      *known = &group;
  }
  return chosen;
}

std::string title_on(const ReportInput& input, const Part& part, const std::string& title) {
  return input.several_machines() ? title + " on " + part.machine : title;
}

std::string figure_heading(const Part& part, const std::string& setting) {
  return setting + ", " + part.machine;
}

std::string file_name(const std::string& text) {
  std::string result;
  for (char c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    const bool kept = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.';
    if (kept || (!result.empty() && result.back() != '-')) result += kept ? c : '-';
  }
  while (!result.empty() && result.back() == '-') result.pop_back();
  return result;
}

RowTable::RowTable(const Part& part) : keys(part.analysis.group_keys) {
  keys.push_back("recipe");
  keys.insert(keys.end(), part.analysis.row_keys.begin(), part.analysis.row_keys.end());
  for (const std::string& key : keys) {
    const std::string unit = case_unit(key);
    table.columns.push_back({unit.empty() ? key : fmt::format("{} ({})", key, unit), true});
  }
}

std::vector<std::string>& RowTable::begin(const Row& row) {
  std::vector<std::string>& line = table.rows.emplace_back();
  for (const std::string& key : keys) {
    const std::string text = text_of(row, key);
    line.push_back(text.empty() ? std::string("-") : text);
  }
  return line;
}

}  // namespace precbench
