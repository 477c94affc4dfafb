// Predicted section: each record compared with the step that the cost model predicted before it ran.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/base/plural.h"
#include "results/record/expert_load.h"
#include "results/record/statistics.h"
#include "results/record/step_time.h"
#include "tools/analysis/columns.h"
#include "tools/report/sections.h"

namespace precbench {
namespace {

/// Predicted over measured step time, minus 1.
double error_of(const PredictedStep& predicted, double measured_ms) {
  return predicted.step_ms / measured_ms - 1;
}

}  // namespace

Section predicted_section(const ReportInput& input, const MachineRecords& machine) {
  Section section{title_on(input, machine, "Predicted and measured"), {}, {}, {}, {}, true};
  RowTable result(machine);
  for (const char* title :
       {"step (ms)", "predicted (ms)", "error", "80% interval (ms)", "inside", "borrowed"})
    result.table.columns.push_back({title});
  std::vector<double> errors;
  std::size_t inside = 0, uneven = 0;
  double worst_load = 0;
  for (const Group& group : machine.analysis.groups) {
    const std::size_t before = errors.size();
    for (const Row& row : group.rows) {
      const auto& predicted = row.record().predicted;
      const double measured = step_ms_of_speed(row.record()).value_or(0);
      // Imported runs ran before they were predicted, and stand in a section of their own.
      if (!row.comparable() || !predicted || measured <= 0 || row.record().source) continue;
      const double error = error_of(*predicted, measured);
      const bool holds = predicted->low_ms <= measured && measured <= predicted->high_ms;
      if (errors.size() == before && before > 0) result.table.group_starts.push_back(before);
      errors.push_back(std::fabs(error));
      inside += holds;
      if (const auto& moe = row.record().moe; moe && is_uneven(moe->load))
        ++uneven, worst_load = std::max(worst_load, *moe->load.max);
      std::vector<std::string>& cells = result.begin(row);
      cells.push_back(fmt::format("{:.2f}", measured));
      cells.push_back(fmt::format("{:.2f}", predicted->step_ms));
      cells.push_back(fmt::format("{:+.1f}%", 100 * error));
      cells.push_back(fmt::format("{:.2f} to {:.2f}", predicted->low_ms, predicted->high_ms));
      cells.push_back(holds ? "yes" : "no");
      cells.push_back(fmt::format("{:.0f}%", 100 * predicted->borrowed));
    }
  }
  if (errors.empty()) return section;
  std::sort(errors.begin(), errors.end());
  section.lines = {
      fmt::format("{}: median error {:.1f}%, 95% within {:.1f}%, worst {:.1f}%; {} inside the 80% "
                  "interval",
                  plural(errors.size(), "predicted case"), 100 * quantile(errors, 0.5),
                  100 * quantile(errors, 0.95), 100 * errors.back(), inside)};
  result.move_to(section);
  section.notes = {
      "Predicted before the case ran, from its ops and collectives in a dry run, rates of ops that the program "
      "carries for this GPU, and its network. Borrowed: share of the ops' time whose rates come from another GPU or "
      "from other formats."};
  if (uneven > 0)
    section.notes.push_back(fmt::format(
        "Predictions assume even load of the experts. In {} the busiest expert got up to {:.1f} times its share.",
        plural(uneven, "case"), worst_load));
  return section;
}

}  // namespace precbench
