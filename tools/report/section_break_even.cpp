// Break-even section: each speed-up beside the loss gap that uses it up, and beside the gap that studies found.
// Needs both speeds and studies among the records.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tools/analysis/equal_loss.h"
#include "tools/analysis/model_age.h"
#include "tools/analysis/token_cost.h"
#include "tools/report/sections.h"

namespace precbench {
namespace {

/// Returns the highest speedup of each recipe (by label_of) on each model, over all settings and machines.
std::map<std::pair<std::string, std::string>, double> speedups_of(const ReportInput& input) {
  std::map<std::pair<std::string, std::string>, double> best;
  for (const MachineRecords& machine : input.machines)
    for (const Group& group : machine.analysis.groups)
      for (const Row& row : group.rows)
        if (row.speedup && !row.is_bf16()) {
          double& known = best[{label_of(row), text_of(row, "model")}];
          known = std::max(known, *row.speedup);
        }
  return best;
}

/// A gap and the deployment that it belongs to.
struct ServedGap {
  const char* served;
  MeanWithInterval gap;
};

/// Returns the gaps of a card by deployment; the loss gap of training, a raw one, only if its study has none.
std::vector<ServedGap> gaps_of(const StudyCard& card) {
  const std::int64_t oldest = card.gaps.back().age;
  std::vector<ServedGap> gaps;
  const auto add = [&](const char* served, const std::optional<DeploymentAnswer>& answer) {
    const AgeInterval* there = answer ? find_age(answer->verdict, oldest) : nullptr;
    if (there && there->difference) gaps.push_back({served, *there->difference});
  };
  if (card.deployment) {
    add("in BF16", card.deployment->in_bf16);
    add("in the recipe", card.deployment->in_recipe);
  }
  if (const auto settled = loss_gap_at(card, oldest); gaps.empty() && settled)
    gaps.push_back({"raw gap", *settled});
  return gaps;
}

std::vector<std::string> cells_of(const StudyCard& card, const std::string& model, double speedup,
                                  const ServedGap& served) {
  const MeanWithInterval& gap = served.gap;
  std::vector<std::string> cells = {card.verdict.recipe, model, fmt::format("{:.2f}x", speedup),
                                    served.served};
  for (const double tokens : kHorizons)
    cells.push_back(fmt::format("{:.4f}", break_even_gap(kBesiroglu2024.slope(tokens), speedup)));
  cells.push_back(mean_text(gap, 4));
  cells.push_back(fmt::format("{}, {}", card.model, ratio_words(*card.gaps.back().tokens_per_parameter)));
  for (const double tokens : kHorizons) {
    const MeanWithInterval left =
        equal_loss_speedup(exactly(speedup), gap, exactly(kBesiroglu2024.slope(tokens)));
    cells.push_back(fmt::format("{:.2f}x [{:.2f}, {:.2f}]", left.mean, left.low, left.high));
  }
  return cells;
}

}  // namespace

Section break_even_section(const ReportInput& input) {
  Section section{"Does the speed-up pay?", {}, {}, {}};
  const auto speedups = speedups_of(input);
  Table table;
  table.columns = {{"recipe", true}, {"faster on", true}, {"speed-up"}, {"served", true}};
  for (const double tokens : kHorizons)
    table.columns.push_back({fmt::format("pays below, nats, {}", token_words(tokens))});
  table.columns.push_back({"gap [95%], nats"});
  table.columns.push_back({"studied on, tokens per parameter", true});
  for (const double tokens : kHorizons)
    table.columns.push_back({fmt::format("to equal loss, {}", token_words(tokens))});
  for (const StudyCard& card : input.cards) {
    if (!card.fork || card.gaps.empty() || !card.gaps.back().tokens_per_parameter) continue;
    const std::string label = label_of(card);
    for (const ServedGap& gap : gaps_of(card))
      for (const auto& [key, speedup] : speedups)
        if (key.first == label) table.rows.push_back(cells_of(card, key.second, speedup, gap));
  }
  if (table.rows.empty()) return section;
  section.table = std::move(table);
  section.notes = {fmt::format(
      "Pays below: the break-even gap S (1 - speed-up^-beta) / beta; S and beta by {} ({}). To equal loss: speed-up over the factor "
      "of tokens that the gap costs. The gap is that of the oldest age studied; gaps grow with age. Served: "
      "weights trained in the recipe and in BF16, both read in BF16, or both read in the recipe. A study without held-out text "
      "has the raw gap alone, a loss in the recipe minus one in BF16, which is the gap of neither deployment.",
      kBesiroglu2024.name, kBesiroglu2024.source)};
  return section;
}

}  // namespace precbench
