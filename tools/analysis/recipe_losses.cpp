// Collects and pairs the loss curves of a group's recipes. See recipe_losses.h.
#include "tools/analysis/recipe_losses.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <unordered_map>

namespace precbench {
namespace {

using Json = nlohmann::ordered_json;

/// A run's losses and those of BF16's run of the same seed; null without one.
struct PairedCurve {
  std::span<const double> own;
  const std::vector<double>* bf16 = nullptr;
};

bool has_curve(const Record& record) {
  return (record.status == Status::ok || record.status == Status::diverged) && record.training &&
         !record.training->loss.empty();
}

bool is_sound(const Record& record) {
  const std::vector<double>& loss = record.training->loss;
  return record.status == Status::ok &&
         std::all_of(loss.begin(), loss.end(), [](double value) { return std::isfinite(value); });
}

RecordRefs sound_of(const RecordRefs& members) {
  RecordRefs sound;
  for (const LocatedRecord* member : members)
    if (is_sound(member->record) && trailing_mean(member->record.training->loss)) sound.push_back(member);
  return sound;
}

/// Returns the sound runs with a partner; all sound runs, unpaired, if none has one.
std::vector<PairedCurve> curves_of(const RecordRefs& members, const RecordRefs& bf16) {
  const SeedPairs partners(sound_of(bf16));
  std::vector<PairedCurve> paired, alone;
  for (const LocatedRecord* member : sound_of(members)) {
    alone.push_back({member->record.training->loss});
    if (const LocatedRecord* partner = partners.of(*member))
      paired.push_back({member->record.training->loss, &partner->record.training->loss});
  }
  return paired.empty() ? alone : paired;
}

void add_losses(RecipeLosses& recipe, const RecordRefs& bf16) {
  recipe.diverged = static_cast<int>(std::count_if(
      recipe.members.begin(), recipe.members.end(), [](const LocatedRecord* one) { return !is_sound(one->record); }));
  const std::vector<PairedCurve> curves = curves_of(recipe.members, bf16);
  if (curves.empty()) return;
  recipe.steps = curves.front().own.size();
  for (const PairedCurve& curve : curves) {
    recipe.steps = std::min(recipe.steps, curve.own.size());
    if (curve.bf16) recipe.steps = std::min(recipe.steps, curve.bf16->size());
  }
  std::vector<double> ends, gaps;
  for (const PairedCurve& curve : curves) {
    const auto end = trailing_mean(curve.own.first(recipe.steps));
    if (!end) continue;
    ends.push_back(*end);
    if (!curve.bf16) continue;
    if (const auto theirs = trailing_mean(std::span(*curve.bf16).first(recipe.steps))) gaps.push_back(*end - *theirs);
  }
  recipe.seeds = static_cast<int>(ends.size());
  if (ends.empty()) return;
  recipe.final_loss = mean_and_spread(ends).mean;
  recipe.final_interval = mean_with_interval(ends);
  if (const auto entropy = recipe.members.front()->record.training->entropy_floor)
    recipe.excess_loss = *recipe.final_loss - *entropy;
  if (gaps.empty()) return;
  recipe.gap = mean_and_spread(gaps).mean;
  recipe.gap_interval = mean_with_interval(gaps);
}

/// Returns the entries of a group, without their losses. Rows of one recipe form one entry, whatever their status.
std::vector<RecipeLosses> entries_of(const Group& group) {
  std::vector<RecipeLosses> entries;
  std::unordered_map<std::string, std::size_t> places;  // by fields
  for (const Row& row : group.rows) {
    RecordRefs members;
    for (const LocatedRecord* member : row.members)
      if (has_curve(member->record)) members.push_back(member);
    if (members.empty()) continue;
    Json fields = row.fields;
    fields.erase("seed");
    const std::string text = fields.dump(-1, ' ', false, Json::error_handler_t::replace);
    const auto [place, is_new] = places.try_emplace(text, entries.size());
    if (is_new) entries.emplace_back(), entries.back().fields = fields, entries.back().is_bf16 = row.is_bf16();
    RecipeLosses& entry = entries[place->second];
    entry.members.insert(entry.members.end(), members.begin(), members.end());
  }
  return entries;
}

}  // namespace

std::vector<double> ema(std::span<const double> loss) {
  constexpr double kPast = 0.9;
  std::vector<double> smooth;
  double sum = 0, weight = 0;
  for (const double value : loss) {
    sum = kPast * sum + (1 - kPast) * value;
    weight = kPast * weight + (1 - kPast);
    smooth.push_back(sum / weight);
  }
  return smooth;
}

std::vector<RecipeLosses> recipe_losses(const Group& group) {
  std::vector<RecipeLosses> entries = entries_of(group);
  Bf16Rows bf16;
  for (std::size_t i = 0; i < entries.size(); ++i)
    if (entries[i].is_bf16) bf16.add(i, entries[i].fields);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    RecipeLosses& entry = entries[i];
    entry.baseline = bf16.of(entry.fields).value_or(i);
    add_losses(entry, entry.is_bf16 || entry.baseline == i ? RecordRefs{} : entries[entry.baseline].members);
  }
  const bool any = std::any_of(entries.begin(), entries.end(),
                               [](const RecipeLosses& e) { return e.final_loss || e.diverged > 0; });
  return any ? entries : std::vector<RecipeLosses>{};
}

}  // namespace precbench
