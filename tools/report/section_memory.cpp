// Memory section: segments, measured and predicted.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tools/report/sections.h"
#include "tools/text/figure_data.h"

namespace precbench {
namespace {

constexpr double kGiB = 1 << 30;

struct Segment {
  const char* title;
  std::int64_t MemorySegments::*bytes;
};

constexpr Segment kSegments[] = {
    {"weights", &MemorySegments::weights},     {"quantized weights", &MemorySegments::quantized_weights},
    {"master", &MemorySegments::master},       {"gradients", &MemorySegments::gradients},
    {"moments", &MemorySegments::moments},     {"activations", &MemorySegments::activations},
    {"workspace", &MemorySegments::workspace}, {"communication", &MemorySegments::communication},
    {"other", &MemorySegments::other}};

/// Unit of a table; MiB for small models.
struct Unit {
  const char* name = "GiB";
  double bytes = kGiB;
};

std::string amount(std::int64_t bytes, const Unit& unit) {
  const std::string text = fmt::format("{:.2f}", static_cast<double>(bytes) / unit.bytes);
  return text == "0.00" ? "0" : text;
}

/// Returns the seed's memory with the highest peak; null if none was measured.
const Memory* memory_of(const Row& row) {
  const Memory* highest = nullptr;
  for (const LocatedRecord* member : row.members) {
    const auto& memory = member->record.memory;
    if (memory && memory->measured && (!highest || memory->measured->peak > highest->measured->peak))
      highest = &*memory;
  }
  return highest;
}

/// Returns measured memory, followed by the prediction in brackets if it differs by more
/// than 0.1% of the peak.
std::string segment_text(const Memory& memory, const Segment& segment, const Unit& unit) {
  const std::int64_t measured = (*memory.measured).*segment.bytes;
  std::string text = amount(measured, unit);
  if (!memory.predicted) return text;
  const std::int64_t predicted = (*memory.predicted).*segment.bytes;
  if (std::abs(static_cast<double>(predicted - measured)) > 1e-3 * static_cast<double>(memory.measured->peak))
    text += fmt::format(" ({})", amount(predicted, unit));
  return text;
}

std::string difference_text(const Memory& memory) {
  if (!memory.predicted || memory.predicted->peak <= 0) return "-";
  return fmt::format(
      "{:+.2f}%",
      100 * (static_cast<double>(memory.measured->peak) / static_cast<double>(memory.predicted->peak) - 1));
}

std::vector<const Row*> rows_with_memory(const Group& group) {
  std::vector<const Row*> rows;
  for (const Row& row : group.rows)
    if (row.status == Status::ok && memory_of(row)) rows.push_back(&row);
  return rows;
}

Unit unit_of(const std::vector<const Row*>& rows) {
  std::int64_t highest = 0;
  for (const Row* row : rows) highest = std::max(highest, memory_of(*row)->measured->peak);
  return static_cast<double>(highest) >= kGiB ? Unit{} : Unit{"MiB", 1 << 20};
}

std::vector<Figure> memory_figures(const MachineRecords& machine) {
  std::vector<Figure> figures;
  for (const Group* group : typical_groups(machine)) {
    std::vector<std::string> labels, titles;
    std::vector<std::vector<double>> values, predicted, measured;
    const std::vector<const Row*> rows = rows_with_memory(*group);
    const Unit unit = unit_of(rows);
    for (const Row* row : rows) {
      const Memory& memory = *memory_of(*row);
      labels.push_back(fmt::format("{}{}: peak {} {}", label_of(*row),
                                   row->path == ExecutionPath::emulated ? " (emulated)" : "",
                                   amount(memory.measured->peak, unit), unit.name));
      const double place = static_cast<double>(labels.size());
      std::vector<double>& bar = values.emplace_back();
      for (const Segment& segment : kSegments)
        bar.push_back(static_cast<double>((*memory.measured).*segment.bytes) / unit.bytes);
      if (memory.predicted)
        predicted.push_back({static_cast<double>(memory.predicted->peak) / unit.bytes, place});
      measured.push_back({static_cast<double>(memory.measured->peak) / unit.bytes, place});
    }
    if (labels.empty() || predicted.empty()) continue;
    for (const Segment& segment : kSegments) titles.push_back(segment.title);
    const std::string setting = setting_of(machine, group->rows.front());
    figures.push_back(
        {file_name(fmt::format("memory {} {}", machine.name, setting)), "memory",
         figure_heading(machine, setting),
         "Memory by segment, each at its own highest, so a bar may be longer than the peak, the most that is alive "
         "at one time. The marks are the peak.",
         plot_text("unit", unit.name) + plot_bars(labels, titles, values) +
             plot_block("predicted", predicted) + plot_block("measured", measured)});
  }
  return figures;
}

}  // namespace

Section memory_section(const ReportInput& input, const MachineRecords& machine) {
  Section section{title_on(input, machine, "Memory by segment"), {}, {}, {}, {}, true};
  std::vector<const Row*> rows;
  std::vector<std::size_t> starts;
  for (const Group& group : machine.analysis.groups) {
    const auto some = rows_with_memory(group);
    if (!rows.empty() && !some.empty()) starts.push_back(rows.size());
    rows.insert(rows.end(), some.begin(), some.end());
  }
  if (rows.empty()) return section;
  const Unit unit = unit_of(rows);
  std::vector<const Segment*> shown;
  for (const Segment& segment : kSegments)
    if (std::any_of(rows.begin(), rows.end(), [&](const Row* row) {
          const Memory& memory = *memory_of(*row);
          return amount((*memory.measured).*segment.bytes, unit) != "0" ||
                 (memory.predicted && amount((*memory.predicted).*segment.bytes, unit) != "0");
        }))
      shown.push_back(&segment);
  RowTable result(machine);
  const auto add_column = [&](const std::string& title, int rank = kOrdinaryRank) {
    result.table.columns.push_back({fmt::format("{} ({})", title, unit.name), false, false, rank});
  };
  for (const Segment* segment : shown) add_column(segment->title);
  add_column("peak predicted", kOrdinaryRank + 1);
  add_column("peak measured", kKeyRank);
  result.table.columns.push_back({"measured - predicted"});
  add_column("driver says", kDetailRank);
  for (const Row* row : rows) {
    const Memory& memory = *memory_of(*row);
    std::vector<std::string>& line = result.begin(*row);
    for (const Segment* segment : shown) line.push_back(segment_text(memory, *segment, unit));
    line.push_back(memory.predicted ? amount(memory.predicted->peak, unit) : "-");
    line.push_back(amount(memory.measured->peak, unit));
    line.push_back(difference_text(memory));
    line.push_back(memory.driver ? amount(*memory.driver, unit) : "-");
  }
  result.table.group_starts = starts;
  result.move_to(section);
  section.figures = memory_figures(machine);
  section.notes = {
      "Segments are measured, each at its own highest, on the rank that needs most; in brackets the "
      "prediction, where it differs by more than 0.1% of the peak. The peak is the most that is alive at "
      "one time, so it is less than the sum. An emulated recipe keeps wider operands than a native one "
      "would."};
  return section;
}

}  // namespace precbench
