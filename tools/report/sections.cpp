// Shared functions of the report's sections. See sections.h.
#include "tools/report/sections.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "tools/analysis/columns.h"
#include "tools/text/distinct.h"

namespace precbench {

namespace {

using Json = nlohmann::ordered_json;

/// Assigns line types: 1 to BF16, the next ones to other recipes in order of appearance.
class Styles {
 public:
  int of(const Row& row) {
    const int recipe = row.is_bf16() ? 0 : 1 + place(recipes_, recipe_of(row)) % (kRecipeStyles - 1);
    const auto modifiers = modifiers_of(row.fields);
    const int way = modifiers.empty() ? 0
                                      : 1 + place(modifiers_, fmt::format("{}", fmt::join(modifiers, ", "))) %
                                                (kModifierStyles - 1);
    return 1 + recipe + kRecipeStyles * way;
  }

 private:
  using Places = std::unordered_map<std::string, int>;

  static int place(Places& known, const std::string& text) {
    return known.try_emplace(text, static_cast<int>(known.size())).first->second;
  }

  Places recipes_, modifiers_;
};

void add_environments(MachineRecords& machine) {
  std::map<std::vector<std::string>, std::size_t> known;
  for (const LocatedRecord* located : machine.records) {
    const Environment& env = located->env();
    if (machine.places.contains(&env)) continue;
    const auto [place, is_new] = known.try_emplace(details_of(env), known.size());
    if (is_new) machine.environments.push_back(env);
    machine.places.emplace(&env, place->second);
  }
}

}  // namespace

ReportInput make_input(const RecordSet& set, const std::optional<std::string>& against) {
  RecordRefs of_studies, others;
  for (const LocatedRecord& located : set.records)
    (located.record.study ? of_studies : others).push_back(&located);
  ReportInput input{set, all_of(set), Workloads(others), {}, study_cards(of_studies, against), {}};
  Styles styles;
  std::vector<RecordRefs> parts = by_machine(others);
  others = {};
  for (RecordRefs& records : parts) {
    const Environment& env = records.front()->env();
    MachineRecords machine{{}, analyze(records, input.workloads), machine_of(env)};
    if (!env.gpu) machine.rank = "rank";
    machine.records = std::move(records);
    for (const LocatedRecord* located : machine.records)
      machine.all_ok = machine.all_ok && located->record.status == Status::ok;
    for (const Group& group : machine.analysis.groups)
      for (const Row& row : group.rows) input.styles.emplace(label_of(row), styles.of(row));
    add_environments(machine);
    machine.trained = trained_groups(machine);
    input.machines.push_back(std::move(machine));
  }
  for (const StudyCard& card : input.cards) {
    Row row;
    row.fields = Json{{"recipe", card.verdict.recipe}};
    input.styles.emplace(card.verdict.recipe, styles.of(row));
  }
  return input;
}

std::string mean_text(const MeanWithInterval& value, int digits) {
  return fmt::format("{0:+.{3}f} [{1:+.{3}f}, {2:+.{3}f}]", value.mean, value.low, value.high, digits);
}

std::string percent_text(const std::optional<MeanWithInterval>& fraction) {
  if (!fraction) return "-";
  return fmt::format("{:+.3g}% [{:+.3g}, {:+.3g}]", 100 * fraction->mean, 100 * fraction->low, 100 * fraction->high);
}

std::string interval_or_dash(const std::optional<MeanWithInterval>& value) {
  return value ? mean_text(*value) : "-";
}

std::string difference_text(const AgeInterval* age) {
  if (age && age->difference) return mean_text(*age->difference);
  return age && age->mean ? fmt::format("{:+.5f} [one trunk]", *age->mean) : "-";
}

std::optional<double> number_of(const Row& row, const std::string& key) {
  const Json value = row.fields.value(key, Json());
  return value.is_number() ? std::optional(value.get<double>()) : std::nullopt;
}

std::string text_of(const Row& row, const std::string& key) {
  const std::string text = field_text(row.fields.value(key, Json()));
  // Cases name forced routing only; otherwise the record of an MoE model names the router's own.
  if (text.empty() && key == "routing" && !row.members.empty() && row.record().moe)
    return row.record().moe->routing;
  return text;
}

std::string recipe_of(const Row& row) { return text_of(row, "recipe"); }

std::string label_of(const Row& row) {
  std::string label = recipe_of(row);
  for (const std::string& modifier : modifiers_of(row.fields)) label += " + " + modifier;
  return label;
}

std::string label_of(const StudyCard& card) {
  Row row;
  row.fields = card.fork->case_fields;
  return label_of(row);
}

Tone tone_of_verdict(const std::string& cell) {
  const auto begins = [&](const char* word) { return cell.rfind(word, 0) == 0; };
  if (begins("worse") || begins("diverged") || begins("known to fail"))
    return Tone::bad;
  return begins("equivalent") || begins("better") ? Tone::good : Tone::plain;
}

std::string name_of_environment(std::size_t index) {
  return std::string(1, static_cast<char>('A' + index % 26)) + (index < 26 ? "" : std::to_string(index / 26));
}

Row row_of(const RecipeLosses& recipe) {
  Row row;
  row.fields = recipe.fields;
  return row;
}

std::string setting_of(const MachineRecords& machine, const Row& row,
                       const std::vector<std::string>& without) {
  const auto named = [&](const std::string& key) {
    return std::find(without.begin(), without.end(), key) == without.end();
  };
  struct Field {
    std::string keys, value;
  };
  std::vector<Field> fields;
  for (const std::string& key : machine.analysis.group_keys) {
    const std::string value = text_of(row, key);
    if (!named(key) || value.empty() || key == "model") continue;
    if (key == "steps" && value == "auto") continue;  // only affects when the timing ended
    // Merge adjacent fields of equal value, except numbers, which have different meanings.
    if (!fields.empty() && fields.back().value == value && !number_of(row, key))
      fields.back().keys += "/" + key;
    else
      fields.push_back({key, value});
  }
  Distinct names;
  if (named("model")) names.add(text_of(row, "model"));
  for (const Field& field : fields) names.add(field.keys + " " + field.value);
  return names.joined();
}

std::vector<const Group*> typical_groups(const MachineRecords& machine) {
  const auto merit = [](const Group& group) {
    const Row& row = group.rows.front();
    const auto ran = std::count_if(group.rows.begin(), group.rows.end(),
                                   [](const Row& r) { return r.status == Status::ok; });
    const double tokens = number_of(row, "seq").value_or(0) * number_of(row, "batch").value_or(1);
    return std::tuple(ran, tokens, -number_of(row, "gpus").value_or(1));
  };
  std::vector<const Group*> chosen;
  std::unordered_map<std::string, std::size_t> places;  // by model
  for (const Group& group : machine.analysis.groups) {
    const auto [place, is_new] = places.try_emplace(text_of(group.rows.front(), "model"), chosen.size());
    if (is_new)
      chosen.push_back(&group);
    else if (merit(group) > merit(*chosen[place->second]))
      chosen[place->second] = &group;
  }
  return chosen;
}

std::string title_on(const ReportInput& input, const MachineRecords& machine, const std::string& title) {
  return input.several_machines() ? title + " on " + machine.name : title;
}

std::string figure_heading(const MachineRecords& machine, const std::string& setting) {
  return setting + ", " + machine.name;
}

RowTable::RowTable(const MachineRecords& machine) : keys(machine.analysis.group_keys) {
  keys.push_back("recipe");
  keys.insert(keys.end(), machine.analysis.row_keys.begin(), machine.analysis.row_keys.end());
  for (const std::string& key : keys) {
    const std::string unit = case_unit(key);
    const bool names = key == "model" || key == "recipe";
    table.columns.push_back({unit.empty() ? key : fmt::format("{} ({})", key, unit), true, false,
                             names ? kKeyRank : kOrdinaryRank + 10});
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

void RowTable::move_to(Section& section) {
  const std::string constants = take_constants(table, {"recipe", "verdict"});
  if (!constants.empty()) section.lines.push_back("In all rows: " + constants);
  section.table = std::move(table);
}

}  // namespace precbench
