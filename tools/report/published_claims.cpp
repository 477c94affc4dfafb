// Reads published figures and finds the nearest cases. See published_claims.h.
#include "tools/report/published_claims.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <regex>

#include "tools/analysis/columns.h"

namespace precbench {
namespace {

/// Size ratio up to which tokens/s of two models are compared.
constexpr double kSameSize = 1.3;
/// Size ratio up to which speedups of two models are compared.
constexpr double kSameOrder = 10;

/// Returns the distance of the logarithms, |log2(ours / theirs)|. 0 if nothing is claimed; larger than any
/// known distance if ours is unknown.
double distance(const std::optional<double>& theirs, const std::optional<double>& ours) {
  constexpr double kUnknown = 1e3;
  if (!theirs || *theirs <= 0) return 0;
  return ours && *ours > 0 ? std::abs(std::log2(*ours / *theirs)) : kUnknown;
}

/// Returns the claim's size in billions of parameters, else the size in its model's name.
std::optional<double> claimed_billions(const Claim& claim) {
  const auto said = number_in(claim, "billions");
  return said ? said : billions_of(text_in(claim, "model"));
}

double distance(const Claim& claim, const Counterpart& ours) {
  const Row& row = *ours.row;
  const auto of = [&](const char* key) { return distance(number_in(claim, key), number_of(row, key)); };
  // Model size matters most, then sequence length, then batch and GPU count: all affect the share of GEMMs in
  // the step. The master dtype decides whether small updates are lost.
  double sum =
      4 * distance(claimed_billions(claim), ours.billions) + 2 * of("seq") + of("batch") + of("gpus");
  const std::string master = text_in(claim, "master");
  sum += !master.empty() && master != text_of(row, "master") ? 2 : 0;
  if (const MoeRecord* moe = ours.moe()) {
    sum += distance(number_in(claim, "ep"), static_cast<double>(moe->ep.value_or(1)));
    const std::string routing = text_in(claim, "routing");
    sum += !routing.empty() && routing != moe->routing ? 1 : 0;
  }
  return sum;
}

}  // namespace

std::string text_in(const Claim& claim, const char* key) { return field_text(claim.value(key, Claim())); }

std::optional<double> number_in(const Claim& claim, const char* key) {
  const Claim value = claim.value(key, Claim());
  return value.is_number() ? std::optional(value.get<double>()) : std::nullopt;
}

std::vector<std::string> recipes_in(const Claim& claim) {
  const Claim value = claim.value("recipe", Claim());
  if (value.is_array()) return value.get<std::vector<std::string>>();
  return value.is_string() ? std::vector{value.get<std::string>()} : std::vector<std::string>();
}

std::string claimed_recipe_of(const Row& row) {
  return recipe_of(row) + (text_of(row, "flow") == "on" ? "_flow" : "");
}

std::string figure_text(double value, int digits) {
  return digits > 0 ? fmt::format("{:.{}f}", value, digits) : rate_text(value);
}

std::string claimed(const Claim& claim, const std::string& key, const std::string& unit, int digits) {
  if (const auto value = number_in(claim, key.c_str())) return figure_text(*value, digits) + unit;
  const auto low = number_in(claim, (key + "_min").c_str()), high = number_in(claim, (key + "_max").c_str());
  return low && high ? fmt::format("{} to {}{}", figure_text(*low, digits), figure_text(*high, digits), unit)
                     : "";
}

std::optional<double> billions_of(const std::string& model) {
  static const std::regex size("([0-9]{1,6}(\\.[0-9]{1,6})?)([bm])($|[^a-z0-9])");
  std::smatch match;
  if (!std::regex_search(model, match, size)) return std::nullopt;
  return std::stod(match[1]) * (match[3] == "m" ? 1e-3 : 1);
}

std::optional<double> billions_of(const Row& row, const Record& record) {
  if (record.params) return static_cast<double>(record.params->total) / 1e9;
  // Only MoE records count parameters. The size of a dense model with layers removed is unknown.
  return text_of(row, "layers").empty() ? billions_of(text_of(row, "model")) : std::nullopt;
}

bool same_kind(const Claim& claim, const Counterpart& ours) {
  return number_in(claim, "experts").has_value() == (ours.moe() != nullptr);
}

bool about_as_large(const Claim& claim, const Counterpart& ours) {
  const auto size = claimed_billions(claim);
  return size && distance(size, ours.billions) <= std::log2(kSameSize);
}

bool within_ten_times(const Claim& claim, const Counterpart& ours) {
  return !ours.billions || distance(claimed_billions(claim), ours.billions) <= std::log2(kSameOrder);
}

bool as_many_gpus(const Claim& claim, const Counterpart& ours) {
  const auto theirs = number_in(claim, "gpus");
  return !theirs || theirs == number_of(*ours.row, "gpus");
}

bool of_part_of_step(const Claim& claim) { return claim.value("part_of_step", false); }

bool same_blocks(const Claim& claim, const Counterpart& ours) {
  const std::string theirs = text_in(claim, "model"), name = text_of(*ours.row, "model");
  return !theirs.empty() && (name == theirs || name == theirs + "-gqa");
}

Nearness nearness(const Claim& claim, const Counterpart& ours) {
  const Row& row = *ours.row;
  return {distance(claim, ours), modifiers_of(row.fields).size(),
          -number_of(row, "seq").value_or(0) * number_of(row, "batch").value_or(1)};
}

CasesByRecipe::CasesByRecipe(const ReportInput& input) {
  for (const MachineRecords& machine : input.machines)
    for (const Group& group : machine.analysis.groups)
      for (const Row& row : group.rows) {
        if (row.status != Status::ok) continue;
        cases_[claimed_recipe_of(row)].push_back(
            {&machine, &row, &row.record(), billions_of(row, row.record())});
      }
}

std::vector<const Counterpart*> CasesByRecipe::of(const Claim& claim) const {
  std::vector<const Counterpart*> found;
  for (const std::string& recipe : recipes_in(claim))
    if (const auto some = cases_.find(recipe); some != cases_.end())
      for (const Counterpart& ours : some->second)
        if (same_kind(claim, ours)) found.push_back(&ours);
  return found;
}

Counterpart CasesByRecipe::nearest(const Claim& claim,
                                   const std::function<bool(const Counterpart&)>& usable) const {
  Counterpart best;
  Nearness best_nearness;
  for (const Counterpart* ours : of(claim)) {
    if (!usable(*ours)) continue;
    const Nearness its_own = nearness(claim, *ours);
    if (best.row && its_own >= best_nearness) continue;
    best = *ours;
    best_nearness = its_own;
  }
  return best;
}

bool CasesByRecipe::ran(const Claim& claim) const { return !of(claim).empty(); }

bool CasesByRecipe::ran_natively_on_gpu(const Claim& claim) const {
  const std::vector<const Counterpart*> cases = of(claim);
  return std::any_of(cases.begin(), cases.end(), [](const Counterpart* ours) {
    return ours->row->comparable() && text_of(*ours->row, "device") == "cuda";
  });
}

bool CasesByRecipe::only_emulated_on_gpu(const Claim& claim) const {
  bool on_gpu = false;
  for (const Counterpart* ours : of(claim)) {
    if (ours->row->path != ExecutionPath::emulated) return false;
    on_gpu |= text_of(*ours->row, "device") == "cuda";
  }
  return on_gpu;
}

}  // namespace precbench
