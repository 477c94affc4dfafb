// Published figures (results/published/published.json), and the search for the case of these
// records nearest to each.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "tools/report/sections.h"

namespace precbench {

using Claim = nlohmann::ordered_json;

/// Returns a text of the claim; empty if it has none.
std::string text_in(const Claim& claim, const char* key);
std::optional<double> number_in(const Claim& claim, const char* key);
/// Returns the recipes that the figure covers: none, one or several.
std::vector<std::string> recipes_in(const Claim& claim);
/// Returns a row's recipe as claims name it: --flow on counts as a separate recipe
/// (bench/sweeps/blockwise_pow2_flow.json).
std::string claimed_recipe_of(const Row& row);

/// Formats the claim's KEY, or its range KEY_min to KEY_max: "1.25x", "1.28 to 1.37x". Empty
/// if it has neither.
std::string claimed(const Claim& claim, const std::string& key, const std::string& unit, int digits);
/// Formats a value with `digits` decimals; 0: with thousands separators.
std::string figure_text(double value, int digits);

/// A candidate to show next to a claim: a row of these records, or a study's card with a row of
/// its forks' fields.
struct Counterpart {
  const MachineRecords* machine = nullptr;  ///< null for a card
  const Row* row = nullptr;                 ///< null if there is no candidate
  const Record* record = nullptr;           ///< record of the first seed
  std::optional<double> billions{};         ///< parameters, in billions
  const StudyCard* card = nullptr;

  const std::string& machine_name() const { return card ? card->machine : machine->name; }
  const MoeRecord* moe() const { return record && record->moe ? &*record->moe : nullptr; }
};

/// Returns the billions of parameters in a model's name: 8 for "llama3.1-8b", 0.125 for "mini-125m";
/// null if it has none.
std::optional<double> billions_of(const std::string& model);
/// Returns the billions of parameters of a case: from its record, which accounts for removed layers, else
/// from the model's name.
std::optional<double> billions_of(const Row& row, const Record& record);
/// Returns true if both are MoE models or both dense. The two kinds are never compared.
bool same_kind(const Claim& claim, const Counterpart& ours);
/// Returns true if the model sizes are close enough to compare tokens/s and memory.
bool about_as_large(const Claim& claim, const Counterpart& ours);
/// Returns true if the model sizes are within a factor of ten, so that speedups may be compared. True if
/// a size is unknown.
bool within_ten_times(const Claim& claim, const Counterpart& ours);
/// Returns true if both use the same number of GPUs, or if the claim does not say. Total
/// tokens/s depend on it.
bool as_many_gpus(const Claim& claim, const Counterpart& ours);
/// Returns true for a claim about less than a step, such as a GEMM or a layer: no case is comparable.
bool of_part_of_step(const Claim& claim);
/// Returns true if ours is the claim's model, possibly with plain attention (-gqa) or fewer layers. FLOP/s of
/// such a model are comparable; tokens/s are not.
bool same_blocks(const Claim& claim, const Counterpart& ours);

/// Distance of a case from a claim; lower is nearer. Ordered by model size above all, then sequence length
/// and master dtype, then batch, GPU count and, for MoE models, expert-parallel ranks and routing. Ties go to
/// the unmodified recipe, then to the most tokens.
using Nearness = std::tuple<double, std::size_t, double>;
Nearness nearness(const Claim& claim, const Counterpart& ours);

/// Successful cases by recipe.
class CasesByRecipe {
 public:
  explicit CasesByRecipe(const ReportInput& input);

  /// Returns the nearest case of the claim's recipes and model kind that `usable` accepts.
  Counterpart nearest(const Claim& claim, const std::function<bool(const Counterpart&)>& usable) const;
  /// Returns true if one of the claim's recipes ran here with a model of its kind.
  bool ran(const Claim& claim) const;
  /// Returns true if one of them ran natively on a GPU.
  bool ran_natively_on_gpu(const Claim& claim) const;
  /// Returns true if they ran on a GPU, but only emulated. On a CPU no recipe has a comparable speed.
  bool only_emulated_on_gpu(const Claim& claim) const;

 private:
  /// Returns the cases with the claim's recipes and model kind.
  std::vector<const Counterpart*> of(const Claim& claim) const;

  std::map<std::string, std::vector<Counterpart>> cases_;
};

}  // namespace precbench
