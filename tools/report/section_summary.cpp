// Summary section: coverage, fastest recipes, and verdicts on the loss.
#include <fmt/format.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/plural.h"
#include "tools/analysis/columns.h"
#include "tools/analysis/published_losses.h"
#include "tools/report/sections.h"
#include "tools/text/distinct.h"

namespace precbench {
namespace {

struct Best {
  const MachineRecords* machine = nullptr;
  const Row* row = nullptr;
};

using Verdicts = std::map<std::pair<std::string, std::string>, ForkOutcome>;

int severity(ForkOutcome outcome) {
  switch (outcome) {
    case ForkOutcome::better:
      return 0;
    case ForkOutcome::equivalent:
      return 1;
    case ForkOutcome::inconclusive:
      return 2;
    case ForkOutcome::worse:
      return 3;
    case ForkOutcome::diverged:
      break;
  }
  return 4;
}

/// Returns the names that timed rows of the card's model and recipe have.
Verdicts::key_type judged_name(const StudyCard& card) {
  return {field_text(card.fork->case_fields.value("model", nlohmann::ordered_json())), label_of(card)};
}

/// Returns the worst verdict of the studies by model and label_of the recipe. Machine and setting are ignored, because
/// the effect on the loss does not depend on the machine.
Verdicts verdicts_of(const std::vector<StudyCard>& cards) {
  Verdicts verdicts;
  for (const StudyCard& card : cards) {
    // A known failure is worse, whatever a small model says.
    const ForkOutcome outcome = known_failure(card.verdict.recipe) ? ForkOutcome::worse : card.verdict.outcome;
    const auto [known, is_new] = verdicts.emplace(judged_name(card), outcome);
    if (!is_new && severity(outcome) > severity(known->second)) known->second = outcome;
  }
  return verdicts;
}

/// Returns the largest loss gap that studies report for a row's recipe and model: ", +0.00092 nats, equivalent
/// for 36m at 0.73 tokens per parameter".
std::string largest_gap_text(const Row& row, const std::vector<StudyCard>& cards) {
  const StudyCard* most = nullptr;
  const Verdicts::key_type name{text_of(row, "model"), label_of(row)};
  for (const StudyCard& card : cards)
    if (card.verdict.difference && judged_name(card) == name &&
        (!most || card.verdict.difference->mean > most->verdict.difference->mean))
      most = &card;
  return most ? fmt::format(", {:+.5f} nats, {}", most->verdict.difference->mean, verdict_words(*most)) : "";
}

bool is_good(ForkOutcome outcome) { return outcome == ForkOutcome::equivalent || outcome == ForkOutcome::better; }

/// Returns the row with the highest speedup over BF16 for each machine and model. If a study judged
/// the model, only recipes that passed are considered.
std::vector<Best> fastest(const ReportInput& input, const Verdicts& verdicts) {
  std::vector<Best> best;
  std::map<std::pair<const MachineRecords*, std::string>, std::size_t> places;  // by machine and model
  const auto judged = [&](const std::string& model) {
    const auto first = verdicts.lower_bound({model, ""});
    return first != verdicts.end() && first->first.first == model;
  };
  for (const MachineRecords& machine : input.machines)
    for (const Group& group : machine.analysis.groups)
      for (const Row& row : group.rows) {
        if (!row.speedup || row.is_bf16()) continue;
        const std::string model = text_of(row, "model");
        const auto verdict = verdicts.find({model, label_of(row)});
        if (judged(model) &&
            (verdict == verdicts.end() || !is_good(verdict->second) || known_failure(recipe_of(row))))
          continue;
        const auto [place, is_new] = places.try_emplace({&machine, model}, best.size());
        if (is_new)
          best.push_back({&machine, &row});
        else if (*row.speedup > *best[place->second].row->speedup)
          best[place->second].row = &row;
      }
  return best;
}

std::string coverage(const ReportInput& input) {
  Distinct models, names;
  std::size_t emulated = 0, failed = 0, imported = 0;
  for (const MachineRecords& machine : input.machines) {
    names.add(machine.name);
    for (const Group& group : machine.analysis.groups)
      for (const Row& row : group.rows) {
        models.add(text_of(row, "model"));
        if (row.record().source) imported += row.members.size();
        if (row.status != Status::ok)
          failed += row.members.size();
        else if (row.path == ExecutionPath::emulated)
          emulated += row.members.size();
      }
  }
  std::string text =
      fmt::format("{} of {} on {}", plural(input.records.size(), "case"), models.joined(), names.joined());
  if (imported > 0)
    text += fmt::format(", {} imported from logs of other programs",
                        imported == input.records.size() ? "all" : std::to_string(imported));
  if (emulated > 0) text += fmt::format(", {} of them emulated (losses only, no speed)", emulated);
  return text + (failed > 0 ? fmt::format(", {} failed.", failed) : ", none failed.");
}

std::string speed(const ReportInput& input, const Verdicts& verdicts) {
  Distinct texts;
  for (const Best& best : fastest(input, verdicts)) {
    const Row& row = *best.row;
    std::string text = fmt::format("{} {:.2f}x with {} ({}", text_of(row, "model"), *row.speedup,
                                   label_of(row), setting_of(*best.machine, row, {"model"}));
    if (text.back() != '(') text += "; ";
    text += fmt::format("{} tokens/s", rate_text(*row.tokens_per_s));
    if (row.memory_ratio) text += fmt::format(", {:.2f}x its memory", *row.memory_ratio);
    text += largest_gap_text(row, input.cards);
    texts.add(text + (input.several_machines() ? ", on " + best.machine->name + ")" : ")"));
  }
  if (texts.texts.empty())
    return verdicts.empty() ? "No recipe ran natively beside bf16, so there is no speed-up to report."
                            : "No recipe ran natively beside bf16 with a loss shown to be as good, so there "
                              "is no speed-up to report.";
  return fmt::format(
      "The highest speed-up over bf16 of each model, of recipes not known to harm its loss: {}.",
      fmt::join(texts.texts, "; "));
}

/// Returns the verdicts of studies: "blockwise, mxfp8: equivalent for 36m at 0.73 tokens per parameter;
/// mxfp8_floor: worse for ...".
std::string of_studies(const std::vector<StudyCard>& cards) {
  std::map<std::pair<std::string, std::string>, Distinct> recipes;  // by model and verdict
  for (const StudyCard& card : cards) recipes[{card.model, verdict_words(card)}].add(card.verdict.recipe);
  Distinct texts;
  for (const auto& [key, names] : recipes) texts.add(fmt::format("{}: {}", names.joined(), key.second));
  return fmt::format("Studies of forks beside bf16's: {}", fmt::join(texts.texts, "; "));
}

/// Returns the verdicts of the studies, and the timed models that none of them judged.
std::string convergence(const ReportInput& input, const Verdicts& verdicts) {
  if (verdicts.empty())
    return "These records do not show whether any recipe converges as bf16 does: precbench study judges that.";
  std::string line = of_studies(input.cards);
  Distinct open;
  for (const Best& best : fastest(input, verdicts))
    if (!verdicts.count({text_of(*best.row, "model"), label_of(*best.row)})) open.add(text_of(*best.row, "model"));
  if (!open.texts.empty()) line += "; not judged for " + open.joined();
  return line + ".";
}

}  // namespace

Section summary_section(const ReportInput& input) {
  Section section{"Summary", {}, {}, {}};
  const Verdicts verdicts = verdicts_of(input.cards);
  if (!input.machines.empty()) section.lines = {coverage(input), speed(input, verdicts)};
  if (!input.machines.empty() || !input.cards.empty()) section.lines.push_back(convergence(input, verdicts));
  return section;
}

}  // namespace precbench
