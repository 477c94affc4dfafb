// Time section: breakdown of a profiled step.
#include <fmt/format.h>

#include <algorithm>

#include "tools/report/sections.h"
#include "tools/text/figure_data.h"

namespace precbench {
namespace {

struct OpClass {
  const char* title;
  double (*ms)(const Breakdown&);
};

template <double Breakdown::*member>
double part(const Breakdown& breakdown) {
  return breakdown.*member;
}

constexpr OpClass kClasses[] = {{"GEMM", part<&Breakdown::gemm_ms>},
                                {"quantize", part<&Breakdown::quantize_ms>},
                                {"attention", part<&Breakdown::attention_ms>},
                                {"norm and elementwise", part<&Breakdown::norm_elementwise_ms>},
                                {"head and loss", part<&Breakdown::head_loss_ms>},
                                {"optimizer", part<&Breakdown::optimizer_ms>},
                                {"communication", part<&Breakdown::communication_ms>},
                                {"idle", part<&Breakdown::idle_ms>},
                                {"routing", [](const Breakdown& b) { return b.routing_ms.value_or(0); }}};

std::vector<Figure> time_figures(const MachineRecords& machine) {
  std::vector<Figure> figures;
  std::vector<std::string> titles;
  for (const OpClass& one : kClasses) titles.push_back(one.title);
  for (const Group* group : typical_groups(machine)) {
    std::vector<std::string> labels;
    std::vector<std::vector<double>> values;
    for (const Row& row : group->rows) {
      const Breakdown* breakdown = breakdown_of(row);
      if (!breakdown) continue;
      labels.push_back(fmt::format("{}: {:.1f} ms", label_of(row), profiled_ms(*breakdown)));
      std::vector<double>& bar = values.emplace_back();
      for (const OpClass& one : kClasses) bar.push_back(one.ms(*breakdown));
    }
    if (labels.empty()) continue;
    const std::string setting = setting_of(machine, group->rows.front());
    figures.push_back({file_name(fmt::format("time {} {}", machine.name, setting)), "time",
                       figure_heading(machine, setting),
                       "Time of one profiled optimizer step by class of operation.",
                       plot_bars(labels, titles, values)});
  }
  return figures;
}

}  // namespace

double profiled_ms(const Breakdown& breakdown) {
  double sum = 0;
  for (const OpClass& one : kClasses) sum += one.ms(breakdown);
  return sum;
}

const Breakdown* breakdown_of(const Row& row) {
  if (!row.comparable()) return nullptr;
  for (const LocatedRecord* member : row.members)
    if (member->record.breakdown && profiled_ms(*member->record.breakdown) > 0)
      return &*member->record.breakdown;
  return nullptr;
}

Section time_section(const ReportInput& input, const MachineRecords& machine) {
  Section section{title_on(input, machine, "Where the time goes"), {}, {}, {}, {}, true};
  std::vector<std::pair<const Row*, const Breakdown*>> rows;
  std::vector<std::size_t> starts;
  for (const Group& group : machine.analysis.groups) {
    const std::size_t before = rows.size();
    for (const Row& row : group.rows)
      if (const Breakdown* breakdown = breakdown_of(row)) rows.emplace_back(&row, breakdown);
    if (before > 0 && rows.size() > before) starts.push_back(before);
  }
  if (rows.empty()) return section;
  std::vector<const OpClass*> shown;
  for (const OpClass& one : kClasses)
    if (std::any_of(rows.begin(), rows.end(), [&](const auto& row) { return one.ms(*row.second) > 0; }))
      shown.push_back(&one);
  RowTable result(machine);
  result.table.columns.push_back({"profiled step (ms)"});
  for (const OpClass* one : shown) result.table.columns.push_back({fmt::format("{} (ms)", one->title)});
  result.table.columns.push_back({"GEMM share"});
  for (const auto& [row, breakdown] : rows) {
    std::vector<std::string>& line = result.begin(*row);
    line.push_back(fmt::format("{:.2f}", profiled_ms(*breakdown)));
    for (const OpClass* one : shown) line.push_back(fmt::format("{:.2f}", one->ms(*breakdown)));
    line.push_back(fmt::format("{:.1f}%", 100 * breakdown->gemm_ms / profiled_ms(*breakdown)));
  }
  result.table.group_starts = starts;
  result.move_to(section);
  section.figures = time_figures(machine);
  section.notes = {
      "From device timestamps of one profiled step outside the timed samples. GEMM: those of the blocks' "
      "linear layers. Head and loss: the output projection with its three GEMMs, and the cross-entropy. "
      "Quantize: what is not fused into the operation before it."};
  if (std::any_of(shown.begin(), shown.end(),
                  [](const OpClass* one) { return std::string(one->title) == "routing"; }))
    section.notes.front() += " Routing: routers, and rows to experts and back.";
  return section;
}

}  // namespace precbench
