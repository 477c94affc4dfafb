// Section on the distance of a recipe's outputs from BF16's, with the same weights, from a study's cards.
#include <fmt/format.h>

#include "tools/report/study_figures.h"
#include "tools/text/text.h"

namespace precbench {

Section outputs_section(const ReportInput& input) {
  Section section{"How far are the outputs?", {}, {}, {}};
  Table table;
  table.columns = {{"model", true},           {"recipe", true},  {"age"},
                   {"log-probability, nats"}, {"largest, nats"}, {"KL, nats"},
                   {"largest KL, nats"},      {"tokens"}};
  bool held_out = false, trained_on = false;
  for (const StudyCard& card : input.cards)
    for (const CardFidelity& one : card.fidelity) {
      if (!one.outputs) continue;
      const CardOutputs& outputs = *one.outputs;
      (outputs.held_out ? held_out : trained_on) = true;
      table.rows.push_back({card.model, card.verdict.recipe, std::to_string(one.age),
                            fmt::format("{:.5f}", outputs.log_probability),
                            fmt::format("{:.4f}", outputs.largest_log_probability),
                            fmt::format("{:.3g}", outputs.kl), fmt::format("{:.3g}", outputs.largest_kl),
                            fmt::format("{:.0f}", outputs.tokens)});
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

}  // namespace precbench
