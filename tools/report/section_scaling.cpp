// Scaling section: each recipe on several GPUs compared with itself on one.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "kernels/base/plural.h"
#include "results/record/step_time.h"
#include "tools/analysis/columns.h"
#include "tools/report/sections.h"
#include "tools/text/distinct.h"
#include "tools/text/figure_data.h"

namespace precbench {
namespace {

double gpus_of(const Row& row) { return number_of(row, "gpus").value_or(1); }

/// One recipe in one setting at several GPU counts.
struct Line {
  std::string setting;           ///< fields that distinguish groups, except the GPU count
  std::string recipe;            ///< label_of its rows
  std::vector<const Row*> rows;  ///< by increasing GPU count
  const Row* single = nullptr;   ///< row on one GPU; null if not measured
};

using Work = std::pair<std::string, std::string>;  ///< recipe and setting

/// Returns the key of a row's work on one GPU, which is independent of parallel strategy and gather.
Work work_on_one_gpu(const MachineRecords& machine, const Row& row) {
  return {text_of(row, "recipe"),
          setting_of(machine, row,
                     {"gpus", "parallel", "shard_group", "context", "context_exchange", "tensor", "tensor_gather",
                      "gather", "reshard", "grad_sync"})};
}

/// One-GPU rows of the same work: the first one, and the last one of each parallel strategy.
struct SingleRows {
  const Row* first = nullptr;
  std::map<std::string, const Row*> last{};
};

std::vector<Line> lines_of(const MachineRecords& machine) {
  std::vector<const Row*> several;
  std::map<Work, SingleRows> singles;
  for (const Group& group : machine.analysis.groups)
    for (const Row& row : group.rows) {
      if (!row.comparable() || !row.tokens_per_s) continue;
      if (gpus_of(row) > 1) several.push_back(&row);
      if (gpus_of(row) != 1 || text_of(row, "gather") == "fp8") continue;
      SingleRows& some = singles[work_on_one_gpu(machine, row)];
      if (!some.first) some.first = &row;
      some.last[text_of(row, "parallel")] = &row;
    }
  std::vector<Line> lines;
  std::map<Work, std::size_t> places;
  for (const Row* row : several) {
    const std::string setting = setting_of(machine, *row, {"gpus"}), recipe = label_of(*row);
    const auto [place, is_new] = places.try_emplace({recipe, setting}, lines.size());
    if (is_new) {
      Line& line = lines.emplace_back(Line{setting, recipe, {}, nullptr});
      if (const auto some = singles.find(work_on_one_gpu(machine, *row)); some != singles.end()) {
        const auto same = some->second.last.find(text_of(*row, "parallel"));
        line.single = same != some->second.last.end() ? same->second : some->second.first;
        line.rows.push_back(line.single);
      }
    }
    lines[place->second].rows.push_back(row);
  }
  for (Line& line : lines)
    std::sort(line.rows.begin(), line.rows.end(),
              [](const Row* a, const Row* b) { return gpus_of(*a) < gpus_of(*b); });
  std::stable_sort(lines.begin(), lines.end(),
                   [](const Line& a, const Line& b) { return a.setting < b.setting; });
  return lines;
}

/// Returns tokens/s per GPU relative to those of one GPU.
std::optional<double> efficiency(const Line& line, const Row& row) {
  if (!line.single || *line.single->tokens_per_s <= 0) return std::nullopt;
  return *row.tokens_per_s / gpus_of(row) / *line.single->tokens_per_s;
}

/// Appends the step time, measured and as the record predicts it, and communication, which one GPU lacks.
void add_step(std::vector<std::string>& cells, const Record& record) {
  const double measured = step_ms_of_speed(record).value_or(0);
  cells.push_back(measured > 0 ? fmt::format("{:.1f}", measured) : "-");
  std::string predicted = record.predicted ? fmt::format("{:.1f}", record.predicted->step_ms) : "-";
  if (record.predicted && measured > 0)
    predicted += fmt::format(" ({:+.1f}%)", 100 * (record.predicted->step_ms / measured - 1));
  cells.push_back(predicted);
  cells.push_back(record.communication ? wire_text(record.communication->wire_bytes) : "-");
  cells.push_back(record.communication && record.breakdown
                      ? fmt::format("{:.1f}", record.breakdown->communication_ms)
                      : "-");
}

std::vector<Figure> scaling_figures(const ReportInput& input, const MachineRecords& machine,
                                    const std::vector<Line>& lines) {
  std::map<std::string, std::vector<Series>> by_setting;
  std::map<std::string, std::set<double>> counts;
  for (const Line& line : lines) {
    Series series{line.recipe, input.styles.at(line.recipe), {}};
    for (const Row* row : line.rows) {
      const double gpus = gpus_of(*row);
      counts[line.setting].insert(gpus);
      // If one GPU was not measured, the reference line starts at the smallest GPU count.
      const Row& base = line.single ? *line.single : *line.rows.front();
      series.points.push_back({gpus, {*row->tokens_per_s / gpus, *base.tokens_per_s / gpus_of(base)}});
    }
    by_setting[line.setting].push_back(std::move(series));
  }
  std::vector<Figure> figures;
  for (const auto& [setting, series] : by_setting) {
    const std::set<double>& some = counts.at(setting);
    if (some.size() < 2) continue;
    std::string ticks;
    for (double count : some) ticks += fmt::format("{:.0f} ", count);
    const Axis axis = axis_of(series);
    figures.push_back(
        {file_name(fmt::format("scaling {} {}", machine.name, setting)), "scaling",
         figure_heading(machine, setting),
         "Tokens/s per GPU against the number of GPUs, by recipe. Thin and dotted: the rate with the fewest "
         "GPUs, on which a line stays that loses nothing." +
             axis.remark(),
         plot_text("ticks", ticks) + plot_number("low", *some.begin() / 1.2) +
             plot_number("high", *some.rbegin() * 1.2) + axis.plot() + plot_series(series)});
  }
  return figures;
}

/// Returns for each setting the highest speedup at the largest GPU count: "llama3.1-8b, seq 4096, parallel
/// fsdp, 4 GPUs: 1.39x over bf16 with tensorwise + gather fp8; efficiency 105.5%, bf16's 97.1%".
std::vector<std::string> highlights_of(const MachineRecords& machine, const std::vector<Line>& lines) {
  struct Best {
    const Line* line;
    const Row* row;
  };
  std::map<std::string, Best> best;
  std::map<std::string, std::string> bf16;
  for (const Line& line : lines)
    for (const Row* row : line.rows) {
      if (!row->speedup || gpus_of(*row) <= 1) continue;
      const std::string setting = setting_of(machine, *row);
      const auto share = efficiency(line, *row);
      if (row->is_bf16() && share) bf16.emplace(setting, fmt::format("{:.1f}%", 100 * *share));
      if (row->is_bf16()) continue;
      const auto [known, is_new] = best.emplace(line.setting, Best{&line, row});
      if (is_new) continue;
      const Row& other = *known->second.row;
      if (gpus_of(*row) > gpus_of(other) ||
          (gpus_of(*row) == gpus_of(other) && *row->speedup > *other.speedup))
        known->second = {&line, row};
    }
  std::vector<std::string> texts;
  for (const auto& [setting, one] : best) {
    std::string text = fmt::format("{}, {}: {:.2f}x over bf16 with {}", setting,
                                   plural(static_cast<std::size_t>(gpus_of(*one.row)), machine.rank),
                                   *one.row->speedup, one.line->recipe);
    if (const auto share = efficiency(*one.line, *one.row)) {
      text += fmt::format("; efficiency {:.1f}%", 100 * *share);
      if (const auto theirs = bf16.find(setting_of(machine, *one.row)); theirs != bf16.end())
        text += ", bf16's " + theirs->second;
    }
    texts.push_back(text);
  }
  return texts;
}

/// Returns "Bus bandwidth of all_gather on 4 GPUs: 310 to 325 GB/s", over cases whose buffers are large
/// enough to reach it.
std::vector<std::string> bus_bandwidths_of(const MachineRecords& machine, const std::vector<Line>& lines) {
  constexpr double kLargeBuffer = 16e6;
  std::map<std::pair<std::string, double>, std::pair<double, double>> ranges;
  for (const Line& line : lines)
    for (const Row* row : line.rows) {
      if (!row->record().communication) continue;
      for (const CollectiveRecord& c : row->record().communication->collectives) {
        if (!c.bus_gb_per_s || c.buffer_bytes < kLargeBuffer * static_cast<double>(c.calls)) continue;
        const auto [range, is_new] =
            ranges.try_emplace({c.name, gpus_of(*row)}, *c.bus_gb_per_s, *c.bus_gb_per_s);
        auto& [low, high] = range->second;
        low = std::min(low, *c.bus_gb_per_s);
        high = std::max(high, *c.bus_gb_per_s);
      }
    }
  std::vector<std::string> texts;
  for (const auto& [key, range] : ranges)
    texts.push_back(fmt::format("Bus bandwidth of {} on {}: {:.0f} to {:.0f} GB/s.", key.first,
                                plural(static_cast<std::size_t>(key.second), machine.rank), range.first,
                                range.second));
  return texts;
}

}  // namespace

Section scaling_section(const ReportInput& input, const MachineRecords& machine) {
  Section section{title_on(input, machine, "Scaling over GPUs"), {}, {}, {}};
  const std::vector<Line> lines = lines_of(machine);
  if (lines.empty()) return section;
  section.lines = highlights_of(machine, lines);
  RowTable result(machine);
  const std::string per_rank = fmt::format(" per {}", machine.rank), predicted = "predicted step (ms)",
                    speedup = "speed-up over bf16", exposed = "exposed communication (ms)";
  for (const std::string& title :
       {fmt::format("tokens/s, all {}s", machine.rank), "tokens/s" + per_rank, std::string("efficiency"),
        speedup, "peak memory" + per_rank, std::string("step (ms)"), predicted, "sent" + per_rank, exposed})
    result.table.columns.push_back({title});
  for (const Line& line : lines) {
    if (!result.table.rows.empty()) result.table.group_starts.push_back(result.table.rows.size());
    for (const Row* row : line.rows) {
      // One GPU gathers nothing: its row is shown once with the plain recipe, not with each gather.
      if (row == line.single && label_of(*row) != line.recipe) continue;
      std::vector<std::string>& cells = result.begin(*row);
      const auto share = efficiency(line, *row);
      cells.push_back(rate_text(*row->tokens_per_s));
      cells.push_back(rate_text(*row->tokens_per_s / gpus_of(*row)));
      cells.push_back(share ? fmt::format("{:.1f}%", 100 * *share) : "-");
      cells.push_back(row->speedup ? fmt::format("{:.2f}x", *row->speedup) : "-");
      cells.push_back(row->peak_memory ? bytes_text(*row->peak_memory) : "-");
      add_step(cells, row->record());
    }
  }
  section.figures = scaling_figures(input, machine, lines);
  const auto explain = [&](const std::string& title, const std::string& note) {
    if (says_something(result.table, title)) section.notes.push_back(note);
  };
  explain(
      "efficiency",
      fmt::format("Efficiency: tokens/s per {0} over the tokens/s of one {0} with the same recipe, model, "
                  "sequence length and batch per {0}.",
                  machine.rank));
  explain(speedup, fmt::format("Speed-up: over bf16 on the same number of {}s.", machine.rank));
  explain(
      predicted,
      "Predicted step: what the cost model gave for the case before it ran, as its record has it; in parentheses, "
      "how far that is from the measured step.");
  explain(exposed, "Exposed communication: the part that no compute hides, in the profiled step.");
  result.move_to(section);
  for (const std::string& bandwidth : bus_bandwidths_of(machine, lines)) section.notes.push_back(bandwidth);
  return section;
}

}  // namespace precbench
