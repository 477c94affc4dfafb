// Sections on the distance of a recipe's outputs from BF16's, with the same weights, from a study's cards: at the state
// that is forked, and after the forks.
#include <fmt/format.h>

#include "tools/report/study_figures.h"
#include "tools/text/text.h"

namespace precbench {
namespace {

/// Appends the columns of a distance.
void add_distance_columns(Table& table) {
  for (const char* title : {"log-probability, nats", "largest, nats", "KL, nats", "largest KL, nats"})
    table.columns.push_back({title});
}

/// Appends the cells of those columns to a row.
void add_distance(std::vector<std::string>& row, const OutputMeans& distance) {
  row.push_back(fmt::format("{:.5f}", distance.log_probability));
  row.push_back(fmt::format("{:.4f}", distance.largest_log_probability));
  row.push_back(fmt::format("{:.3g}", distance.kl));
  row.push_back(fmt::format("{:.3g}", distance.largest_kl));
}

}  // namespace

Section outputs_section(const ReportInput& input) {
  Section section{"How far are the outputs?", {}, {}, {}};
  Table table;
  table.columns = {{"model", true}, {"recipe", true}, {"after steps"}};
  add_distance_columns(table);
  table.columns.push_back({"tokens"});
  bool held_out = false, trained_on = false;
  for (const StudyCard& card : input.cards)
    for (const CardFidelity& one : card.fidelity) {
      if (!one.outputs) continue;
      const CardOutputs& outputs = *one.outputs;
      (outputs.held_out ? held_out : trained_on) = true;
      table.rows.push_back({card.model, card.verdict.recipe, std::to_string(one.age)});
      add_distance(table.rows.back(), outputs.distance);
      table.rows.back().push_back(fmt::format("{:.0f}", outputs.tokens));
    }
  if (table.rows.empty()) return section;
  section.table = std::move(table);
  section.notes = {
      "Next-token distributions in the recipe against BF16's, with the same weights and tokens, at the state that is forked: "
      "size of the difference of the next token's log-probability, and KL(BF16 || recipe). Means over tokens, batches and "
      "trunks; largest of all tokens. Logits are FP32."};
  if (held_out) section.notes.push_back("Tokens are those of --eval-data.");
  if (trained_on)
    section.notes.push_back(fmt::format(
        "{}okens are those that a fork trains on first, before it does; --eval-data compares on held-out text.",
        held_out ? "Without --eval-data, t" : "T"));
  return section;
}

Section readings_section(const ReportInput& input) {
  Section section{"How far apart are trainer and roll-out?", {}, {}, {}};
  Table table;
  table.columns = {{"model", true}, {"recipe", true}, {"trained in", true}};
  add_distance_columns(table);
  for (const StudyCard& card : input.cards) {
    if (!card.deployment) continue;
    const auto add = [&](const char* trained, const std::optional<OutputMeans>& distance) {
      if (!distance) return;
      table.rows.push_back({card.model, card.verdict.recipe, trained});
      add_distance(table.rows.back(), *distance);
    };
    add("BF16", card.deployment->of_bf16_weights);
    add("the recipe", card.deployment->of_recipe_weights);
  }
  if (table.rows.empty()) return section;
  section.table = std::move(table);
  section.notes = {
      "The same weights after the forks' last step, read in BF16 and in the recipe on held-out text, as trainer and "
      "roll-out of reinforcement learning read them: size of the difference of the next token's log-probability, and "
      "KL(BF16 || recipe). Means over tokens and trunks; largest of all tokens. A recipe is read with the scales of the "
      "tensors themselves."};
  return section;
}

}  // namespace precbench
