// Headline section: one table that fits an issue, with speed, loss, memory and verdict of each recipe in the largest
// setting of each model.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/base/plural.h"
#include "tools/analysis/columns.h"
#include "tools/analysis/model_age.h"
#include "tools/analysis/numerics_label.h"
#include "tools/analysis/published_losses.h"
#include "tools/analysis/token_cost.h"
#include "tools/law/expected_gaps.h"
#include "tools/report/sections.h"

namespace precbench {
namespace {

constexpr std::size_t kMostGroups = 8;

std::string rank_text(const MachineRecords& machine, const Row& row) {
  return fmt::format("{:g} x {}", number_of(row, "gpus").value_or(1), machine.name);
}

std::string gib_text(double bytes) {
  const double gib = bytes / static_cast<double>(1 << 30);
  return fmt::format("{:.{}f}", gib, gib < 1 ? 3 : gib < 10 ? 2 : 1);
}

std::string speed_text(const Row& row) {
  if (row.status != Status::ok) return name_of(row.status);
  if (row.path == ExecutionPath::emulated) return "emulated";
  return row.tokens_per_s ? rate_text(*row.tokens_per_s) : "-";
}

/// Tokens for which the law of the loss gap answers, as advise does where the run's number is unknown.
constexpr double kTokensOfLaw = kHorizons[0];

/// Answers whether a recipe trains a row's model: by a study of this very model, else by what advise expects of it. A
/// study of another model is no answer.
class Judgements {
 public:
  explicit Judgements(const ReportInput& input) {
    for (const StudyCard& card : input.cards) cards_.try_emplace({label_of(card), card.model}, &card);
  }

  /// Returns the card of the row's model; null if no study of it has the recipe.
  const StudyCard* card_of(const Row& row) const {
    const auto found = cards_.find({label_of(row), precbench::text_of(row, "model")});
    return found == cards_.end() ? nullptr : found->second;
  }

  std::string text_of(const Row& row) const {
    if (row.is_bf16()) return "-";
    const StudyCard* card = card_of(row);
    return card ? words_of(*card) : expected_words(row);
  }

  static std::string words_of(const StudyCard& card) {
    std::string text = outcome_words(card.verdict);
    if (card.verdict.difference) text += fmt::format(", {:+.4f} nats", card.verdict.difference->mean);
    return text;
  }

 private:
  /// Returns the loss gap that advise expects at kTokensOfLaw, served in BF16: "0.0014 [0.0003, 0.0068] at 1T".
  static std::string expected_words(const Row& row) {
    const std::string recipe = numerics_label(row.fields);
    if (const PublishedLoss* failure = known_failure(recipe)) return known_failure_words(*failure);
    const auto parameters = active_parameters_of(row.record());
    if (!parameters || *parameters < kSmallestEvidence) return "-";
    static const ExpectedGaps gaps(committed_law(), {}, committed_evidence());
    const auto expected = gaps.at(recipe, {*parameters, kTokensOfLaw, Serving::bf16}, kTokensOfLaw);
    return expected ? fmt::format("{:.4f} [{:.4f}, {:.4f}] at {}", expected->gap.mean, expected->gap.low,
                                  expected->gap.high, token_words(kTokensOfLaw))
                    : "unproven";
  }

  std::map<std::pair<std::string, std::string>, const StudyCard*> cards_;  ///< by label and model
};

Tone tone_of_words(const std::string& cell) {
  return cell.starts_with("known to fail") ? Tone::bad : tone_of_verdict(cell);
}

struct Setting {
  const MachineRecords* machine;
  const Group* group;
};

/// Returns the losses of a row's recipe; null if the group's runs only time the recipes.
const RecipeLosses* losses_of(const Setting& setting, const Row& row) {
  for (const TrainedGroup& trained : setting.machine->trained) {
    if (trained.group != setting.group) continue;
    for (const RecipeLosses& recipe : trained.recipes)
      for (const LocatedRecord* member : row.members)
        if (std::count(recipe.members.begin(), recipe.members.end(), member)) return &recipe;
  }
  return nullptr;
}

std::string loss_text(const RecipeLosses* losses) {
  if (!losses || !losses->final_loss) return "-";
  return fmt::format("{:.4f}", *losses->final_loss);
}

std::string gap_text(const RecipeLosses* losses) {
  return losses && losses->gap ? fmt::format("{:+.4f}", *losses->gap) : "-";
}

/// Returns rows from fastest to slowest, then those without a speed.
std::vector<const Row*> by_speed(const Group& group) {
  std::vector<const Row*> rows;
  for (const Row& row : group.rows) rows.push_back(&row);
  std::stable_sort(rows.begin(), rows.end(), [](const Row* a, const Row* b) {
    return a->tokens_per_s.value_or(0) > b->tokens_per_s.value_or(0);
  });
  return rows;
}

class HeadlineTable {
 public:
  explicit HeadlineTable(const ReportInput& input) : judgements_(input) {}

  Table table;

  void add(const Setting& setting) {
    begin_group();
    for (const Row* row : by_speed(*setting.group)) {
      std::vector<std::string> cells;
      for (const char* key : {"model", "seq", "batch"}) cells.push_back(text_of(*row, key));
      cells.push_back(rank_text(*setting.machine, *row));
      cells.push_back(setting_of(*setting.machine, *row, {"model", "seq", "batch", "gpus"}));
      const RecipeLosses* losses = losses_of(setting, *row);
      cells.insert(cells.end(), {label_of(*row), loss_text(losses), gap_text(losses), speed_text(*row),
                                 row->speedup ? fmt::format("{:.2f}x", *row->speedup) : "-",
                                 row->peak_memory ? gib_text(*row->peak_memory) : "-"});
      for (std::string& cell : cells)
        if (cell.empty()) cell = "-";
      add_row(std::move(cells), row);
    }
  }

  void add(const std::string& model, const std::vector<StudyCard>& cards) {
    begin_group();
    for (const StudyCard& card : cards)
      if (card.model == model) {
        table.rows.push_back(
            {model, "-", "-", card.machine, "-", label_of(card), "-", "-", "-", "-", "-", Judgements::words_of(card)});
        rows_.push_back(nullptr);
      }
  }

  /// Adds a recipe whose loss was measured at equal weights alone.
  void add(const Record& record, double gap) {
    const auto name = [&](const char* key) {
      return field_text(record.case_fields.value(key, nlohmann::ordered_json()));
    };
    std::string model = name("model");  // a file's name, which says less than the name in it
    if (record.definition && record.definition->model)
      if (const auto known = record.definition->model->find("name");
          known != record.definition->model->end() && known->is_string())
        model = known->get<std::string>();
    table.rows.push_back({model, "-", "-", machine_of(record.env), "-", name("recipe"), "-", "-", "-", "-",
                          "-", fmt::format("{:+.4f} nats before any update", gap)});
    rows_.push_back(nullptr);
  }

  /// Returns true if a cell of the finished table has a forecast.
  bool by_law() const {
    const std::string end = " at " + token_words(kTokensOfLaw);
    return std::any_of(rows_.begin(), rows_.end(), [&](const Row* row) {
      return row && !row->is_bf16() && judgements_.text_of(*row).ends_with(end);
    });
  }

  /// Returns the models whose studies judge the rows so far.
  std::set<std::string> judging_models() const {
    std::set<std::string> models;
    for (const Row* row : rows_)
      if (const StudyCard* card = row && !row->is_bf16() ? judgements_.card_of(*row) : nullptr)
        models.insert(card->model);
    return models;
  }

  /// Fills the verdicts, whose text depends on the other rows, and removes columns without content. `machines`:
  /// title of the column of ranks and machines.
  void finish(const char* rank, const std::string& machines) {
    for (std::size_t i = 0; i < rows_.size(); ++i)
      if (rows_[i]) table.rows[i].push_back(judgements_.text_of(*rows_[i]));
    table.columns = {{"model", true, false, kKeyRank},
                     {"seq (tokens)", true},
                     {"batch (sequences)", true},
                     {machines, true},
                     {"setting", true, false, kKeyRank},
                     {"recipe", true, false, kKeyRank},
                     {"loss (nats)", false, false, kKeyRank},
                     {"loss gap (nats)", false, false, kKeyRank},
                     {"tokens/s", false, false, kKeyRank},
                     {"over bf16", false, false, kKeyRank},
                     {fmt::format("GiB/{}", rank), false, false, kOrdinaryRank + 1},
                     {"trains", true, false, kKeyRank, tone_of_words}};
    const bool compared = std::any_of(rows_.begin(), rows_.end(),
                                      [](const Row* row) { return row && row->speedup && !row->is_bf16(); });
    for (std::size_t c = table.columns.size(); c-- > 0;)
      if (!says_something(table, table.columns[c].title) || (!compared && table.columns[c].title == "over bf16"))
        erase(c);
  }

 private:
  void begin_group() {
    if (!table.rows.empty()) table.group_starts.push_back(table.rows.size());
  }
  void add_row(std::vector<std::string> cells, const Row* row) {
    table.rows.push_back(std::move(cells));
    rows_.push_back(row);
  }
  void erase(std::size_t c) {
    const auto place = static_cast<std::ptrdiff_t>(c);
    table.columns.erase(table.columns.begin() + place);
    for (auto& row : table.rows) row.erase(row.begin() + place);
  }

  Judgements judgements_;
  std::vector<const Row*> rows_;  ///< null for rows of a card
};

}  // namespace

Section headline_section(const ReportInput& input) {
  Section section{"At a glance", {}, {}, {}};
  std::vector<Setting> settings;
  std::size_t groups = 0;
  for (const MachineRecords& machine : input.machines) {
    groups += machine.analysis.groups.size();
    for (const Group* group : typical_groups(machine)) settings.push_back({&machine, group});
  }
  HeadlineTable table(input);
  const std::size_t shown = std::min(settings.size(), kMostGroups);
  for (std::size_t i = 0; i < shown; ++i) table.add(settings[i]);
  std::set<std::string> models;
  for (const StudyCard& card : input.cards) models.insert(card.model);
  for (const std::string& model : table.judging_models()) models.erase(model);
  for (const std::string& model : models) table.add(model, input.cards);
  if (table.table.rows.empty())
    for (const LocatedRecord* located : input.records)
      if (const auto gap = gap_before_updates(located->record)) table.add(located->record, *gap);
  if (table.table.rows.empty()) return section;
  const char* rank = input.machines.empty() ? "GPU" : input.machines.front().rank;
  // Studies run on any machine, and records may be of GPUs and CPUs.
  const bool one_kind = !input.machines.empty() &&
                        std::all_of(input.machines.begin(), input.machines.end(), [&](const MachineRecords& one) {
                          return std::string_view(one.rank) == rank;
                        });
  table.finish(rank, one_kind ? fmt::format("{}s", rank) : "machine");
  section.table = std::move(table.table);
  if (table.by_law())
    section.notes.push_back(fmt::format(
        "trains, \"at {}\": loss gap in nats [80%] that advise expects of this model after so many tokens, served in BF16. A "
        "verdict is of a study of this model.",
        token_words(kTokensOfLaw)));
  if (shown < groups)
    section.notes.push_back(fmt::format("{} of {}, the one of each model with the most recipes, then tokens.",
                                        shown, plural(groups, "setting")));
  return section;
}

}  // namespace precbench
