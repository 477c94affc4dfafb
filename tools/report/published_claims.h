// Published figures (results/published/published.json), and which case of these records is nearest to one.
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

/// What a claim says, as text; empty where it does not.
std::string text_in(const Claim& claim, const char* key);
std::optional<double> number_in(const Claim& claim, const char* key);
/// Of which the figure is: one, several or none.
std::vector<std::string> recipes_in(const Claim& claim);
/// A row's recipe as claims name it: with --flow on it is another, bench/sweeps/blockwise_pow2_flow.json.
std::string claimed_recipe_of(const Row& row);

/// "1.28 to 1.37x" or "1.25x", of KEY or of KEY_min and KEY_max; empty if the claim has neither.
std::string claimed(const Claim& claim, const std::string& key, const std::string& unit, int digits);
/// `digits` behind the point; 0: in groups of three.
std::string figure_text(double value, int digits);

/// A row of these records, or a study's card with a row of its forks' fields, as the counterpart of a claim.
struct Counterpart {
  const MachineRecords* machine = nullptr;  ///< null of a card
  const Row* row = nullptr;                 ///< null: there is none
  const Record* record = nullptr;           ///< of the first seed
  std::optional<double> billions{};         ///< of parameters
  const StudyCard* card = nullptr;

  const std::string& machine_name() const { return card ? card->machine : machine->name; }
  const MoeRecord* moe() const { return record && record->moe ? &*record->moe : nullptr; }
};

/// Billions of parameters as a model's name says, "llama3.1-8b" 8 and "mini-125m" 0.125; null if it says none.
std::optional<double> billions_of(const std::string& model);
/// Of a case: as its record says, which knows of layers that were cut, else as the model's name does.
std::optional<double> billions_of(const Row& row, const Record& record);
/// Whether both or neither are of a mixture of experts. A dense model says nothing of one, nor the other way round.
bool same_kind(const Claim& claim, const Counterpart& ours);
/// Whether tokens/s and memory of the two models say something of each other.
bool about_as_large(const Claim& claim, const Counterpart& ours);
/// Whether their speed-ups do: neither is ten times the other. True where a size is unknown.
bool within_ten_times(const Claim& claim, const Counterpart& ours);
/// Whether both are of as many GPUs, or the claim does not say. Tokens/s of all GPUs say nothing of other numbers of them.
bool as_many_gpus(const Claim& claim, const Counterpart& ours);
/// Of a claim about less than a step, a product or a layer: no case here is its counterpart.
bool of_part_of_step(const Claim& claim);
/// Whether ours is the claim's model, perhaps with plain attention (-gqa) and with fewer layers. FLOP/s of such a one say
/// something of the whole, tokens/s do not.
bool same_blocks(const Claim& claim, const Counterpart& ours);

/// How near a case is to a claim; the lower, the nearer: in model size above all, then in sequence length and in what
/// weights are kept, then in batch, GPU count and, of experts, how many ranks share them and who routes. Of equally near ones that whose recipe is
/// applied as it stands, then that with the most tokens.
using Nearness = std::tuple<double, std::size_t, double>;
Nearness nearness(const Claim& claim, const Counterpart& ours);

/// The cases that finished, by recipe.
class CasesByRecipe {
 public:
  explicit CasesByRecipe(const ReportInput& input);

  /// The nearest of the same kind that `usable` accepts, of the claim's recipes.
  Counterpart nearest(const Claim& claim, const std::function<bool(const Counterpart&)>& usable) const;
  /// Whether one of the claim's recipes ran here, in a model of its kind.
  bool ran(const Claim& claim) const;
  /// Whether they did so that their speed can be compared.
  bool ran_natively_on_gpu(const Claim& claim) const;
  /// Whether they did, but nowhere natively, and on a GPU. On a CPU no recipe has a speed to compare.
  bool only_emulated_on_gpu(const Claim& claim) const;

 private:
  /// Those of the claim's recipes and kind.
  std::vector<const Counterpart*> of(const Claim& claim) const;

  std::map<std::string, std::vector<Counterpart>> cases_;
};

}  // namespace precbench
