// MoE section: load balance, padding, dropped tokens, routing time, and exchanged bytes,
// measured and predicted.
#include <fmt/format.h>

#include <algorithm>

#include "tools/report/sections.h"

namespace precbench {
namespace {

/// Returns the MoE record of the first seed that has one.
const MoeRecord* mixture_of(const Row& row) {
  if (row.status != Status::ok) return nullptr;
  for (const LocatedRecord* member : row.members)
    if (member->record.moe) return &*member->record.moe;
  return nullptr;
}

std::string times(const std::optional<double>& value) { return value ? fmt::format("{:.2f}", *value) : "-"; }

std::string percent(double part, double whole) {
  return whole > 0 ? fmt::format("{:.1f}%", 100 * part / whole) : "-";
}

/// Returns the expert slots of one rank's tokens over all layers, the base of the record's dropped slots.
double slots_of(const Row& row, const MoeRecord& moe) {
  const auto& training = row.record().training;
  if (!training || !training->tokens_per_step) return 0;
  return static_cast<double>(*training->tokens_per_step) / std::max(1.0, number_of(row, "gpus").value_or(1)) *
         static_cast<double>(moe.top_k) * static_cast<double>(moe.load.layers.size());
}

/// Formats traffic, "105 MB", followed by the prediction in brackets if it differs.
std::string wire(double measured, const std::optional<double>& predicted) {
  const std::string text = wire_text(measured);
  if (!predicted || wire_text(*predicted) == text) return text;
  return fmt::format("{} ({})", text, wire_text(*predicted));
}

void add_exchange(std::vector<std::string>& line, const MoeRecord& moe) {
  if (!moe.bytes) return line.insert(line.end(), {"-", "-"}), void();
  line.push_back(wire(moe.bytes->dispatch, moe.bytes->predicted_dispatch));
  line.push_back(wire(moe.bytes->combine, moe.bytes->predicted_combine));
}

}  // namespace

Section experts_section(const ReportInput& input, const MachineRecords& machine) {
  Section section{title_on(input, machine, "Experts"), {}, {}, {}, {}, true};
  RowTable result(machine);
  const std::string rank = machine.rank;
  bool forced = false;
  for (const std::string& title :
       {std::string("median load"), std::string("worst load"), std::string("idle experts"),
        std::string("padding"), std::string("dropped"), std::string("routing (ms)"),
        std::string("routing share"), "to experts, per " + rank, "and back, per " + rank})
    result.table.columns.push_back({title});
  for (const Group& group : machine.analysis.groups) {
    const std::size_t before = result.table.rows.size();
    for (const Row& row : group.rows) {
      const MoeRecord* moe = mixture_of(row);
      if (!moe) continue;
      forced = forced || moe->routing != "learned";
      std::vector<std::string>& line = result.begin(row);
      line.insert(line.end(),
                  {times(moe->load.median), times(moe->load.max), fmt::format("{}", moe->load.empty_experts),
                   percent(moe->padding_fraction, 1), percent(moe->rows.dropped, slots_of(row, *moe))});
      const Breakdown* breakdown = breakdown_of(row);
      const bool timed = breakdown && breakdown->routing_ms;
      line.push_back(timed ? fmt::format("{:.2f}", *breakdown->routing_ms) : "-");
      line.push_back(timed ? percent(*breakdown->routing_ms, profiled_ms(*breakdown)) : "-");
      add_exchange(line, *moe);
    }
    if (before > 0 && result.table.rows.size() > before) result.table.group_starts.push_back(before);
  }
  if (result.table.rows.empty()) return section;
  result.move_to(section);
  section.notes = {
      "Of the last timed step. Load: slots of a layer's most loaded expert over the mean of all, in the median and the "
      "worst layer. Idle experts: those without a token, all layers together. Padding: part of the rows that experts "
      "multiply. Dropped: slots of a rank's tokens beyond --capacity or --slots, of all. Routing: routers, and rows to "
      "experts and back, in the profiled step. To experts and back: what a " +
      rank + " exchanges in a step, forward and backward; in brackets the prediction, where it differs."};
  if (forced)
    section.notes.push_back(
        "Routing other than learned is forced, to time a load; what such a case learns says nothing of its recipe. "
        "balanced: as many slots for each expert; zipf:A: shares that fall as 1 / rank^A; one: all tokens to the same "
        "experts, the model's first top_k, so that the others are idle.");
  return section;
}

}  // namespace precbench
