// Speed section: the table, and figures against sequence length.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <unordered_map>

#include "tools/analysis/columns.h"
#include "tools/analysis/mfu.h"
#include "tools/report/sections.h"
#include "tools/text/distinct.h"
#include "tools/text/figure_data.h"

namespace precbench {
namespace {

using Json = nlohmann::ordered_json;

/// Returns the constant fields of a machine's cases: "All cases: status ok, model tiny, seq 128 tokens".
std::string constants_text(const MachineRecords& machine) {
  Distinct constants;
  if (machine.all_ok) constants.add("status ok");
  for (const auto& item : machine.analysis.constants.items()) {
    const std::string value = field_text(item.value()), unit = case_unit(item.key());
    if (item.key() == "machine" || item.key() == "power_limit" || item.key() == "cublaslt" ||
        item.key() == "threads" || value.empty())
      continue;  // The environment section shows the machine.
    constants.add(fmt::format("{} {}{}{}", item.key(), value, unit.empty() ? "" : " ", unit));
  }
  return (machine.records.size() == 1 ? "The case: " : "All cases: ") + constants.joined();
}

/// Rows that one figure against sequence length may connect: equal except for recipe and sequence length.
struct Panel {
  std::string setting;
  std::vector<const Row*> rows;
};

std::vector<Panel> panels_of(const MachineRecords& machine) {
  std::vector<Panel> panels;
  std::unordered_map<std::string, std::size_t> places;  // by setting
  for (const Group& group : machine.analysis.groups) {
    const std::string setting = setting_of(machine, group.rows.front(), {"seq"});
    const auto [place, is_new] = places.try_emplace(setting, panels.size());
    if (is_new) panels.push_back({setting, {}});
    for (const Row& row : group.rows)
      if (row.comparable() && row.tokens_per_s && number_of(row, "seq"))
        panels[place->second].rows.push_back(&row);
  }
  return panels;
}

/// Returns the dense BF16 peak if all records of the machine agree on one.
std::optional<double> one_peak(const MachineRecords& machine) {
  std::set<double> peaks;
  for (const LocatedRecord* located : machine.records) {
    const auto& metrics = located->record.metrics;
    if (metrics && metrics->mfu_bf16 && metrics->peaks && metrics->peaks->bf16_tflops)
      peaks.insert(*metrics->peaks->bf16_tflops);
  }
  return peaks.size() == 1 && *peaks.begin() > 0 ? std::optional(*peaks.begin()) : std::nullopt;
}

/// Returns one curve per recipe against sequence length.
std::vector<Series> curves(const ReportInput& input, const Panel& panel, std::optional<double> Row::*value) {
  std::vector<Series> series;
  std::unordered_map<std::string, std::size_t> places;  // by recipe
  for (const Row* row : panel.rows) {
    if (!(row->*value)) continue;
    const std::string recipe = label_of(*row);
    const auto [place, is_new] = places.try_emplace(recipe, series.size());
    if (is_new) series.push_back({recipe, input.styles.at(recipe), {}});
    series[place->second].points.push_back({*number_of(*row, "seq"), {*(row->*value)}});
  }
  for (Series& one : series)
    std::sort(one.points.begin(), one.points.end(), [](const Point& a, const Point& b) { return a.x < b.x; });
  return series;
}

std::vector<Figure> speed_figures(const ReportInput& input, const MachineRecords& machine) {
  std::vector<Figure> figures;
  const auto peak = one_peak(machine);
  for (const Panel& panel : panels_of(machine)) {
    std::set<double> lengths;
    for (const Row* row : panel.rows) lengths.insert(*number_of(*row, "seq"));
    if (lengths.size() < 2) continue;
    std::string ticks;
    for (double length : lengths) ticks += fmt::format("{:.0f} ", length);
    const std::string axis = plot_text("ticks", ticks) + plot_number("low", *lengths.begin() / 1.2) +
                             plot_number("high", *lengths.rbegin() * 1.2);
    const auto add = [&](const char* script, const std::string& what, std::optional<double> Row::*value,
                         const std::string& more) {
      const std::vector<Series> series = curves(input, panel, value);
      if (series.empty()) return;
      const Axis vertical = axis_of(series);
      figures.push_back({file_name(fmt::format("{} {} {}", script, machine.name, panel.setting)), script,
                         figure_heading(machine, panel.setting), what + vertical.remark(),
                         axis + vertical.plot() + more + plot_series(series)});
    };
    add("tflops",
        fmt::format("Model TFLOP/s per {} against sequence length, by recipe.{}", machine.rank,
                    peak ? fmt::format(" MFU: of {:g} TFLOP/s, dense BF16.", *peak) : ""),
        &Row::tflops_per_gpu, peak ? plot_number("peak", *peak) : "");
    add("tokens",
        fmt::format("Tokens/s of all {}s together against sequence length, by recipe.", machine.rank),
        &Row::tokens_per_s, "");
  }
  return figures;
}

/// Formats a range: "689 to 705 TFLOP/s".
std::string range_text(const std::vector<double>& values, const char* unit) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  const std::string a = fmt::format("{:.0f}", *low), b = fmt::format("{:.0f}", *high);
  return a == b ? fmt::format("{} {}", a, unit) : fmt::format("{} to {} {}", a, b, unit);
}

/// Returns the denominators of the percentages.
std::vector<std::string> denominators(const MachineRecords& machine) {
  Distinct lines;
  std::vector<double> bf16, fp8, copy;
  for (const LocatedRecord* located : machine.records) {
    const Record& record = located->record;
    if (!record.metrics || !record.metrics->peaks) continue;
    const DeviceRates& peaks = *record.metrics->peaks;
    if (record.metrics->mfu_bf16 && peaks.bf16_tflops)
      lines.add(fmt::format("MFU bf16 of {}: {:g} TFLOP/s ({})", machine.name, *peaks.bf16_tflops,
                            peaks.source.value_or("source unknown")));
    if (const auto peak = fp8_peak(record); peak && record.metrics->mfu_bf16)
      lines.add(fmt::format("MFU fp8 of {}: {:g} TFLOP/s ({})", machine.name, *peak,
                            peaks.source.value_or("source unknown")));
    if (record.metrics->sol && peaks.bf16_tflops && peaks.fp8_tflops && peaks.memory_gb_per_s)
      lines.add(fmt::format("SOL of {}: {:g} TFLOP/s in BF16, {:g} in FP8,{} {:g} GB/s ({})", machine.name,
                            *peaks.bf16_tflops, *peaks.fp8_tflops,
                            peaks.fp4_tflops ? fmt::format(" {:g} in FP4,", *peaks.fp4_tflops) : "",
                            *peaks.memory_gb_per_s, peaks.source.value_or("source unknown")));
    if (!record.metrics->mfu_measured) continue;
    if (peaks.measured_bf16_tflops) bf16.push_back(*peaks.measured_bf16_tflops);
    if (peaks.measured_fp8_tflops) fp8.push_back(*peaks.measured_fp8_tflops);
    if (peaks.measured_copy_gb_per_s) copy.push_back(*peaks.measured_copy_gb_per_s);
  }
  Distinct measured;
  if (!bf16.empty()) measured.add("BF16 GEMM " + range_text(bf16, "TFLOP/s"));
  if (!fp8.empty()) measured.add("FP8 GEMM " + range_text(fp8, "TFLOP/s"));
  if (!copy.empty()) measured.add("copy " + range_text(copy, "GB/s"));
  if (!measured.texts.empty())
    lines.add(fmt::format(
        "SOL measured of {}: the best of what its cases measured, each in its own run: {}. A record's mfu_measured is "
        "against its own run's alone, so two records' are no comparison",
        machine.name, measured.joined()));
  return lines.texts;
}

}  // namespace

bool worth_showing(const Column& column, const MachineRecords& machine) {
  if (column.topic == Topic::none) return false;
  if (std::string(column.key) == kStatusKey && machine.all_ok) return false;  // the header shows it
  for (const Group& group : machine.analysis.groups)
    for (const Row& row : group.rows) {
      if (column.relative && row.is_bf16()) continue;
      const std::string text = column.text(row);
      if (!text.empty() && text != column.trivial) return true;
    }
  return false;
}

void add_table(Section& section, const MachineRecords& machine, Topic topic) {
  RowTable result(machine);
  std::vector<const Column*> columns;
  for (const Column& column : report_columns())
    if ((column.topic == topic || column.topic == Topic::all) && worth_showing(column, machine)) {
      columns.push_back(&column);
      result.table.columns.push_back({title_of(column, machine.rank), column.left, false, column.rank});
    }
  const bool several = topic == Topic::speed && machine.environments.size() > 1;
  if (several) result.table.columns.push_back({"made in", true});
  const auto& groups = machine.analysis.groups;
  const bool blocks =
      std::any_of(groups.begin(), groups.end(), [](const Group& group) { return group.rows.size() > 1; });
  for (const Group& group : groups) {
    if (blocks && !result.table.rows.empty()) result.table.group_starts.push_back(result.table.rows.size());
    for (const Row& row : group.rows) {
      std::vector<std::string>& line = result.begin(row);
      for (const Column* column : columns) {
        const std::string text = column->text(row);
        line.push_back(text.empty() && !column->left ? std::string("-") : text);
      }
      if (!several) continue;
      Distinct environments;
      for (const LocatedRecord* member : row.members)
        environments.add(name_of_environment(machine.environment_of(member)));
      line.push_back(environments.joined());
    }
  }
  result.move_to(section);
}

Section speed_section(const ReportInput& input, const MachineRecords& machine) {
  Section section{title_on(input, machine, "Results"), {constants_text(machine)}, {}, denominators(machine)};
  add_table(section, machine, Topic::speed);
  section.figures = speed_figures(input, machine);
  return section;
}

}  // namespace precbench
