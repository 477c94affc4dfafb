// Assembles the sections of a report.
#include <fmt/format.h>

#include <algorithm>

#include "kernels/base/plural.h"
#include "tools/report/report.h"
#include "tools/report/sections.h"

namespace precbench {

Document make_report(const RecordSet& set) {
  const ReportInput input = make_input(set);
  const auto ok = static_cast<std::size_t>(
      std::count_if(set.records.begin(), set.records.end(),
                    [](const LocatedRecord& located) { return located.record.status == Status::ok; }));
  Document document;
  document.title = "precbench report: " + plural(set.records.size(), "case");
  if (ok != set.records.size())
    document.title += fmt::format(", {} ok, {} failed", ok, set.records.size() - ok);
  const auto add = [&](Section section) {
    if (!section.lines.empty() || section.table) document.sections.push_back(std::move(section));
  };
  const auto add_for_each_machine = [&](Section (*section)(const ReportInput&, const MachineRecords&)) {
    for (const MachineRecords& machine : input.machines) add(section(input, machine));
  };
  add(summary_section(input));
  add({"Problems in the record files", set.problems, {}, {}});
  add_for_each_machine(speed_section);
  add_for_each_machine(scaling_section);
  add_for_each_machine(memory_section);
  add_for_each_machine(time_section);
  add_for_each_machine(experts_section);
  add_for_each_machine(convergence_section);
  add(study_section(input));
  add(price_section(input));
  add(age_section(input));
  add(ladders_section(input));
  for (Section& section : sensitivity_sections(input)) add(std::move(section));
  add(published_section(input));
  add(emulated_section(input));
  add(unverified_section(input));
  add(failures_section(input));
  add(warnings_section(input));
  add(legend_section(input));
  add(environment_section(input));
  return document;
}

}  // namespace precbench
