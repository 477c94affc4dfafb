// Indexes and pairs rows. See study_rows.h.
#include "tools/analysis/study_rows.h"

#include <cmath>
#include <tuple>

#include "results/record/statistics.h"
#include "tools/analysis/model_age.h"

namespace precbench {
namespace {

/// Returns a string of a part of the definition; empty if it has none.
std::string text_in(const DefinitionPart& part, const char* key) {
  if (!part) return "";
  const auto found = part->find(key);
  return found != part->end() && found->is_string() ? found->get<std::string>() : "";
}

/// Checks a place, because records are untrusted input.
bool is_sound(const StudyPlace& place) {
  return std::isfinite(place.rung) && place.margin > 0 && place.margin <= 1 && place.level > 0 &&
         place.level < 1;
}

void add(StudyRows& rows, const Record& record) {
  const StudyPlace& place = *record.study;
  if (place.trained_tokens) rows.trained_tokens = place.trained_tokens;
  if (place.steady) rows.steady = place.steady;
  if (place.part == StudyPart::trunk) {
    if (!rows.trunk && record.status == Status::ok) rows.trunk = &record;
    return;
  }
  rows.margin = place.margin, rows.level = place.level;
  const std::string recipe = text_in(record.definition->recipe, "name");
  const DefinitionPart& init = record.definition->init;
  const StudyCell cell = {place.trunk, place.age, place.seed, place.rung, text_in(init, "fingerprint")};
  if (place.asked && place.part == StudyPart::fork) rows.asked.insert(recipe);
  if (place.apart_from) rows.apart[recipe] = *place.apart_from;
  if (place.breaks) rows.breaks.insert(recipe);
  StudyCells& cells = init && init->contains("perturb")
                          ? rows.perturbed
                          : rows.cells[{place.part, place.base.value_or(recipe)}];
  cells.try_emplace(cell, &record);
}

}  // namespace

std::optional<double> StudyRows::tokens_per_parameter(std::int64_t age) const {
  if (!trunk) return std::nullopt;
  const auto* init_from = trunk->case_fields.find("init_from");
  const bool from_others = init_from && init_from->is_string() && !init_from->get<std::string>().empty();
  if (from_others && !trained_tokens) return std::nullopt;
  return precbench::tokens_per_parameter(*trunk, static_cast<double>(age),
                                         static_cast<double>(trained_tokens.value_or(0)));
}

const StudyCells& StudyRows::of(StudyPart part, const std::string& recipe) const {
  static const StudyCells kNone;
  const auto found = cells.find({part, recipe});
  return found == cells.end() ? kNone : found->second;
}

std::vector<StudyPair> StudyRows::pairs(StudyPart part, const StudyCells& recipe) const {
  const bool bits = takes_bits(part);
  const StudyCells& bf16 = of(bits ? StudyPart::fork : part, "bf16");
  std::vector<StudyPair> pairs;
  for (const auto& [cell, record] : recipe) {
    StudyCell same = cell;
    if (bits) same.rung = 0;
    if (const auto other = bf16.find(same); other != bf16.end())
      pairs.push_back({cell, *record, *other->second});
  }
  return pairs;
}

std::vector<StudyRows> study_rows(const RecordRefs& records) {
  std::map<std::tuple<std::string, std::string, std::string>, StudyRows> studies;
  for (const LocatedRecord* located : records) {
    const Record& record = located->record;
    if (!record.study || !record.definition || !is_sound(*record.study)) continue;
    const std::string model = text_in(record.definition->model, "name"), machine = machine_of(located->env());
    StudyRows& rows = studies[{model, record.study->study, machine}];
    rows.model = model, rows.study = record.study->study, rows.machine = machine;
    add(rows, record);
  }
  std::vector<StudyRows> sorted;
  for (auto& [key, rows] : studies) sorted.push_back(std::move(rows));
  return sorted;
}

std::optional<double> trailing_loss(const Record& record) {
  return record.training ? trailing_loss(record, record.training->loss.size()) : std::nullopt;
}

std::optional<double> trailing_loss(const Record& record, std::size_t steps) {
  if (record.status != Status::ok || !record.training || record.training->loss.size() < steps || steps < 2)
    return std::nullopt;
  const auto end = record.training->loss.begin() + static_cast<std::ptrdiff_t>(steps);
  const double mean = mean_and_spread({end - static_cast<std::ptrdiff_t>(steps / 2), end}).mean;
  return std::isfinite(mean) ? std::optional(mean) : std::nullopt;
}

}  // namespace precbench
