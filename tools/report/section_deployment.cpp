// Deployment section: the cost of training in a recipe if the weights are served in BF16 or in the recipe, and the raw
// gap between the two deployments. From the held-out losses of a study's cards.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/report/sections.h"
#include "tools/report/study_figures.h"

namespace precbench {
namespace {

/// An answer with its name in tables and in sentences.
struct Named {
  const char *title, *words;
  std::optional<DeploymentAnswer> Deployment::*answer;
};
constexpr Named kAnswers[] = {
    {"in BF16", "trained in it and served in BF16", &Deployment::in_bf16},
    {"in the recipe", "trained in it and served in it, against BF16's weights served in it",
     &Deployment::in_recipe},
    {"raw gap", "raw gap, in it against BF16 in BF16", &Deployment::raw}};

/// Returns "+0.00660 [+0.00560, +0.00760]", or the mean alone of a single trunk.
std::string gap_words(const ForkVerdict& verdict) {
  if (verdict.difference) return mean_text(*verdict.difference);
  const auto mean = verdict.by_age.empty() ? std::nullopt : verdict.by_age.back().mean;
  return mean ? fmt::format("{:+.5f}", *mean) : "-";
}

/// Returns "worse for 36m at 0.73 tokens per parameter", and the reason unless the table shows it, as it does the
/// difference at the only age.
std::string verdict_words(const StudyCard& card, const ForkVerdict& verdict) {
  const bool in_table = verdict.by_age.size() == 1 && verdict.outcome != ForkOutcome::inconclusive &&
                        verdict.outcome != ForkOutcome::diverged;
  return fmt::format("{} for {} {}{}", name_of(verdict.outcome), card.model, age_words(card),
                     in_table ? "" : ": " + verdict.reason);
}

/// A sentence on the recipes that share an answer, its outcome and its reason.
struct Reason {
  int place;  ///< of the answer: 0 for all of them, else its number in kAnswers, from 1
  std::string reason;
  std::vector<std::string> recipes;
};

/// Adds the reasons of a card's answers; a recipe whose answers all have one reason gives it once.
void add_reasons(std::vector<Reason>& reasons, const StudyCard& card) {
  std::vector<Reason> own;
  for (int i = 0; i < std::ssize(kAnswers); ++i)
    if (const auto& answer = (*card.deployment).*kAnswers[i].answer)
      own.push_back({i + 1, verdict_words(card, answer->verdict), {card.verdict.recipe}});
  const bool alike =
      std::all_of(own.begin(), own.end(), [&](const Reason& one) { return one.reason == own[0].reason; });
  if (alike && own.size() > 1) own = {{0, own[0].reason, own[0].recipes}};
  for (Reason& one : own) {
    const auto known = std::find_if(reasons.begin(), reasons.end(), [&](const Reason& other) {
      return other.place == one.place && other.reason == one.reason;
    });
    if (known == reasons.end())
      reasons.push_back(std::move(one));
    else
      known->recipes.push_back(card.verdict.recipe);
  }
}

}  // namespace

Section deployment_section(const ReportInput& input) {
  Section section{"How large is the loss gap, by deployment?", {}, {}, {}};
  Table table;
  std::vector<Reason> reasons;
  const bool with_bytes = std::any_of(input.cards.begin(), input.cards.end(), [](const StudyCard& card) {
    return card.deployment && card.deployment->bytes_per_token;
  });
  table.columns = {{"model", true}, {"recipe", true}, {"served", true}, {"loss gap [95%], nats"}};
  if (with_bytes) table.columns.push_back({"per byte [95%], nats"});
  for (const char* title : {"share of loss [95%]", "text, nats"}) table.columns.push_back({title});
  table.columns.push_back({"verdict", true});
  for (const StudyCard& card : input.cards) {
    if (!card.deployment) continue;
    for (const Named& named : kAnswers)
      if (const auto& answer = (*card.deployment).*named.answer) {
        std::vector<std::string> row = {card.model, card.verdict.recipe, named.title,
                                        gap_words(answer->verdict)};
        if (with_bytes) row.push_back(interval_or_dash(answer->per_byte));
        row.push_back(percent_text(answer->share));
        row.push_back(answer->text ? fmt::format("+-{:.5f}", *answer->text) : "-");
        // A verdict of equivalence holds at one age of the model, so the cell names it.
        const ForkOutcome outcome = answer->verdict.outcome;
        row.push_back(name_of(outcome) + (outcome == ForkOutcome::equivalent ? " " + age_words(card) : ""));
        table.rows.push_back(std::move(row));
      }
    add_reasons(reasons, card);
  }
  if (table.rows.empty()) return section;
  std::stable_sort(reasons.begin(), reasons.end(),
                   [](const Reason& a, const Reason& b) { return a.place < b.place; });
  for (const Reason& one : reasons)
    section.lines.push_back(fmt::format("{}: {}: {}.", fmt::join(one.recipes, ", "),
                                        one.place == 0 ? "every answer" : kAnswers[one.place - 1].words,
                                        one.reason));
  section.table = std::move(table);
  section.notes = {
      "Held-out loss after the forks' last step, over the trunks, each answer with a verdict of its own. In BF16: weights "
      "trained in the recipe and read in BF16, minus weights trained and read in BF16. In the recipe: both read in the recipe. "
      "Raw gap: each read in what it was trained in, which compares two deployments. A break-even gap fits the answer "
      "for your deployment, never the raw gap.",
      "Text: half of the 95% interval that comes from the choice of the held-out text; the other interval is over the trunks, "
      "which all read the same text.",
      "Share of loss: the loss gap over the loss of BF16's forks read in BF16. Models with different tokenizers compare by it, "
      "and per byte of the held-out text where the records state the length of its tokens, but not per token."};
  return section;
}

}  // namespace precbench
