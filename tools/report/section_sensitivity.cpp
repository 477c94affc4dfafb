// Sensitivity sections, two per row measured with --sensitivity: the sources of a recipe's loss, and the
// layers whose BF16 computation recovers it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/base/plural.h"
#include "tools/report/sections.h"

namespace precbench {
namespace {

std::string text_in(const DefinitionPart& part, const char* key) {
  if (!part) return "?";
  const auto found = part->find(key);
  return found != part->end() && found->is_string() ? found->get<std::string>() : "?";
}

std::string interval(const MeanInterval& value) {
  if (!value.mean) return "not finite";
  if (!value.low || !value.high) return fmt::format("{:+.5f}", *value.mean);
  return mean_text({*value.mean, *value.low, *value.high});
}

std::string percent(const std::optional<double>& share) {
  return share && std::isfinite(*share) ? fmt::format("{:.1f}%", 100 * *share) : "-";
}

/// Returns the relative increase in step time with this share of the quantized FLOPs in BF16. Assumes that
/// quantized GEMMs run at twice BF16's rate and everything else at BF16's.
std::optional<double> longer(const std::optional<double>& kept, double quantized) {
  return kept ? std::optional(*kept * quantized / 2 / (1 - quantized / 2)) : std::nullopt;
}

std::string growth(const std::optional<double>& share) {
  return share && std::isfinite(*share) ? fmt::format("{:+.1f}%", 100 * *share) : "-";
}

std::optional<double> ratio(const std::optional<double>& part, const std::optional<double>& whole) {
  return part && whole && *whole != 0 ? std::optional(*part / *whole) : std::nullopt;
}

/// Returns "block 7", "block 7, down" or "fprop".
std::string part_words(const CellRecord& cell) {
  const std::string& part = cell.part;
  if (cell.group == "blocks") return "block " + part;
  const std::size_t dot = part.find('.');
  if (cell.group == "linears" && dot != std::string::npos)
    return fmt::format("block {}, {}", part.substr(0, dot), part.substr(dot + 1));
  return cell.kind == CellKind::set ? "the best " + part : part;
}

std::string keep_words(const CellRecord& cell) {
  if (cell.keep_bf16.empty()) return cell.note.value_or("-");
  return fmt::format("{}", fmt::join(cell.keep_bf16, ","));
}

using Cells = std::vector<const CellRecord*>;

template <class Wanted>
Cells cells_where(const SensitivityRecord& record, const Wanted& wanted) {
  Cells cells;
  for (const CellRecord& cell : record.cells)
    if (wanted(cell)) cells.push_back(&cell);
  return cells;
}

/// Sorts in descending order; non-finite values first.
void sort_by(Cells& cells, MeanInterval CellRecord::*member) {
  std::stable_sort(cells.begin(), cells.end(), [&](const CellRecord* a, const CellRecord* b) {
    return (a->*member).mean.value_or(INFINITY) > (b->*member).mean.value_or(INFINITY);
  });
}

const CellRecord* cell_of(const SensitivityRecord& record, CellKind kind) {
  const auto cell = std::find_if(record.cells.begin(), record.cells.end(),
                                 [&](const CellRecord& one) { return one.kind == kind; });
  return cell == record.cells.end() ? nullptr : &*cell;
}

/// Returns "rowwise on tiny (trunk 1 after 200 steps)".
std::string name_of_row(const Record& record) {
  std::string state = record.study ? fmt::format("trunk {} after {} steps", record.study->trunk, record.study->age)
                                   : text_in(record.definition->init, "kind");
  if (state == "normal") state = "untrained weights";
  if (state == "checkpoint") state = "weights of a checkpoint";
  if (state == "fork") state = "another run's state";
  return fmt::format("{} on {} ({})", text_in(record.definition->recipe, "name"),
                     text_in(record.definition->model, "name"), state);
}

std::string switch_gap_words(const Record& record, const CellRecord& whole) {
  const SensitivityRecord& s = *record.sensitivity;
  const std::int64_t tokens = record.training ? record.training->tokens_per_step.value_or(0) : 0;
  std::string words =
      fmt::format("Before any update the recipe costs {} nats per token", interval(whole.loss_difference));
  if (s.loss_bf16)
    words += fmt::format(", {} of BF16's {:.4f}", percent(ratio(whole.loss_difference.mean, s.loss_bf16)),
                         *s.loss_bf16);
  words += fmt::format("; measured on {} {}", s.batches, s.batches == 1 ? "batch" : "batches");
  if (tokens > 0) words += fmt::format(" of {} tokens", tokens);
  words += fmt::format(", {}.", machine_of(record.env));
  if (const CellRecord* control = cell_of(s, CellKind::control))
    words += fmt::format(" Control, nothing quantized: {} nats.", interval(control->loss_difference));
  return words;
}

/// Returns a sentence on the sum of single loss gaps and their interaction.
std::string sum_words(const CellSum& sum) {
  const bool alone = sum.kind == CellKind::alone;
  const std::string what = alone ? fmt::format("Loss gaps of {} alone in the recipe", sum.group)
                                 : fmt::format("What {} alone in BF16 buy back", sum.group);
  const bool differs = sum.interaction.low && (*sum.interaction.low > 0 || *sum.interaction.high < 0);
  return fmt::format("{}: {} nats together, {} more than that of the whole recipe{}.", what,
                     interval(sum.sum), interval(sum.interaction),
                     differs               ? ": they interact"
                     : sum.interaction.low ? ": no interaction is seen"
                                           : "");
}

/// Returns the section with the loss gap of each part alone in the recipe, and of alternative formats.
Section source_section(const Record& record, const CellRecord& whole) {
  const SensitivityRecord& s = *record.sensitivity;
  Section section{
      "Where the loss comes from: " + name_of_row(record), {switch_gap_words(record, whole)}, {}, {}};
  Table table;
  table.columns = {{"group", true},  {"in the recipe", true}, {"loss gap [95%], nats"},
                   {"of the whole"}, {"gradient error"},      {"bias"}};
  const auto add = [&](const CellRecord& cell, const std::string& part) {
    table.rows.push_back({cell.group, part, interval(cell.loss_difference),
                          percent(ratio(cell.loss_difference.mean, whole.loss_difference.mean)),
                          percent(cell.whole.error.mean), percent(cell.whole.bias.mean)});
    if (cell.note) section.notes.push_back(fmt::format("{} {}: {}.", cell.group, part, *cell.note));
  };
  add(whole, "all of it");
  for (const char* group : {"gemms", "operands", "roles", "blocks", "elements", "scales"}) {
    Cells cells = cells_where(s, [&](const CellRecord& cell) {
      return cell.group == group && (cell.kind == CellKind::alone || cell.kind == CellKind::variant);
    });
    sort_by(cells, &CellRecord::loss_difference);
    if (!cells.empty()) table.group_starts.push_back(table.rows.size());
    for (const CellRecord* cell : cells)
      add(*cell, (cell->kind == CellKind::alone ? "only " : "with ") + part_words(*cell));
  }
  section.table = std::move(table);
  for (const CellSum& sum : s.sums) section.notes.push_back(sum_words(sum));
  for (const SkippedCell& skipped : s.skipped)
    section.notes.push_back(fmt::format("Not measured: {}: {}.", skipped.part, skipped.reason));
  return section;
}

/// Returns the section with the loss gap that each part or set recovers if it stays in BF16.
Section keep_section(const Record& record, const CellRecord& whole) {
  constexpr std::size_t kLongTable = 60;
  const SensitivityRecord& s = *record.sensitivity;
  Section section{"What buys the loss back: " + name_of_row(record), {}, {}, {}};
  Table table;
  table.columns = {{"kept in BF16", true},
                   {"bought back [95%], nats"},
                   {"of the whole"},
                   {"GEMM FLOPs given back"},
                   {"step time"},
                   {"gradient error"},
                   {"--keep-bf16", true, true}};
  for (const CellKind kind : {CellKind::kept, CellKind::set}) {
    Cells cells = cells_where(s, [&](const CellRecord& cell) { return cell.kind == kind; });
    // Sets stay in order, smallest first: each extends the one before.
    if (kind == CellKind::kept) sort_by(cells, &CellRecord::bought_back);
    if (!cells.empty() && !table.rows.empty()) table.group_starts.push_back(table.rows.size());
    for (const CellRecord* cell : cells)
      table.rows.push_back({part_words(*cell), interval(cell->bought_back),
                            percent(ratio(cell->bought_back.mean, whole.loss_difference.mean)),
                            percent(cell->kept_flops), growth(longer(cell->kept_flops, s.quantized_flops)),
                            percent(cell->whole.error.mean), keep_words(*cell)});
  }
  if (table.rows.empty()) return section;
  section.folded = table.rows.size() > kLongTable;
  section.table = std::move(table);
  section.notes = {
      "Bought back: the loss gap of the whole recipe minus that of the recipe with this part in BF16, on the same batches.",
      "GEMM FLOPs given back: the part's share of the FLOPs that the recipe quantizes. Step time: an estimate from these FLOPs, "
      "with quantized GEMMs at twice BF16's rate and nothing else saved. precbench sweep --keep-bf16 WORDS measures it.",
      "Sets are chosen by the single parts' results and measured on other batches."};
  return section;
}

}  // namespace

std::optional<double> gap_before_updates(const Record& record) {
  const CellRecord* whole = record.sensitivity ? cell_of(*record.sensitivity, CellKind::whole) : nullptr;
  return whole ? whole->loss_difference.mean : std::nullopt;
}

std::vector<Section> sensitivity_sections(const ReportInput& input) {
  std::vector<Section> sections;
  for (const LocatedRecord* located : input.records) {
    const Record& record = located->record;
    if (!record.sensitivity || !record.definition) continue;
    const CellRecord* whole = cell_of(*record.sensitivity, CellKind::whole);
    if (!whole) continue;
    sections.push_back(source_section(record, *whole));
    if (Section keep = keep_section(record, *whole); keep.table) sections.push_back(std::move(keep));
  }
  return sections;
}

}  // namespace precbench
