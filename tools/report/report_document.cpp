// Assembles the sections of a report.
#include <fmt/format.h>

#include <algorithm>

#include "kernels/base/errors.h"
#include "kernels/base/plural.h"
#include "results/record/printable.h"
#include "tools/report/report.h"
#include "tools/report/sections.h"
#include "tools/text/distinct.h"

namespace precbench {
namespace {

/// Names of the sections, in order.
const std::vector<std::string> kNames = {
    "headline",    "summary",   "problems", "speed",      "scaling",  "memory",   "time",   "experts",
    "convergence", "study",     "contrast", "outputs",    "price",    "pays",     "age",    "ladders",
    "sensitivity", "published", "emulated", "unverified", "failures", "warnings", "legend", "environment"};

/// Returns whether an overview shows a section. The losses of runs that only time the recipes are no verdict, so
/// they are left out.
bool in_overview(const std::string& name, const ReportInput& input) {
  static const std::vector<std::string> names = {"headline", "summary",     "problems", "study",   "contrast",
                                                 "pays",     "sensitivity", "failures", "warnings"};
  if (name == "convergence")
    return std::any_of(input.machines.begin(), input.machines.end(),
                       [](const MachineRecords& machine) { return !machine.studies.empty(); });
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> names;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find_first_of(",|", begin), text.size());
    if (end > begin) names.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return names;
}

/// Returns the names in `sections`. Throws InvalidInput if one is unknown.
std::vector<std::string> asked_for(const std::string& sections) {
  if (sections == "all") return kNames;
  std::vector<std::string> names = split(sections);
  for (const std::string& name : names)
    if (std::find(kNames.begin(), kNames.end(), name) == kNames.end())
      throw InvalidInput(fmt::format("--section: unknown name \"{}\"; it is all or some of {}",
                                     printable(name), fmt::join(kNames, ", ")));
  return names;
}

std::vector<Section> all_sections(const ReportInput& input) {
  std::vector<Section> sections;
  auto name = kNames.begin();
  const auto add = [&](Section section) {
    section.name = *name;
    if (!section.lines.empty() || section.table) sections.push_back(std::move(section));
  };
  const auto next = [&](const auto&... some) { (add(some), ...), ++name; };
  const auto of_each_machine = [&](Section (*section)(const ReportInput&, const MachineRecords&)) {
    for (const MachineRecords& machine : input.machines) add(section(input, machine));
    ++name;
  };
  next(headline_section(input));
  next(summary_section(input));
  next(Section{"Problems in the record files", input.set.problems, {}, {}});
  of_each_machine(speed_section);
  of_each_machine(scaling_section);
  of_each_machine(memory_section);
  of_each_machine(time_section);
  of_each_machine(experts_section);
  of_each_machine(convergence_section);
  next(study_section(input));
  next(contrast_section(input));
  next(outputs_section(input));
  next(price_section(input));
  next(break_even_section(input));
  next(age_section(input));
  next(ladders_section(input));
  for (Section& section : sensitivity_sections(input)) add(std::move(section));
  next();
  next(published_section(input));
  next(emulated_section(input));
  next(unverified_section(input));
  next(failures_section(input));
  next(warnings_section(input));
  next(legend_section(input));
  next(environment_section(input));
  return sections;
}

std::string title_of(const ReportInput& input) {
  const std::size_t count = input.records.size();
  const auto ok = static_cast<std::size_t>(
      std::count_if(input.records.begin(), input.records.end(),
                    [](const LocatedRecord* located) { return located->record.status == Status::ok; }));
  std::string title = "precbench report: ";
  if (count != input.set.records.size()) title += fmt::format("{} of ", count);
  title += plural(input.set.records.size(), "case");
  return ok == count ? title : title + fmt::format(", {} ok, {} failed", ok, count - ok);
}

/// Returns the last line of an overview; empty if it left nothing out.
std::string more_words(const Distinct& left_out) {
  if (left_out.texts.empty()) return "";
  return fmt::format("more: --section {} or all; all columns: --wide; page: --format html -o report.html",
                     left_out.joined());
}

}  // namespace

Document make_report(const RecordSet& set, const ReportView& view) {
  const bool query = !view.query.columns.empty();
  const std::string sections = view.sections.empty() && query ? "speed" : view.sections;
  const std::vector<std::string> names = asked_for(sections);
  ReportInput input = make_input(set, view.against.empty() ? std::nullopt : std::optional(view.against));
  if (!view.base.empty()) rebase(input, view.base);
  select(input, view.selection);
  Document document;
  document.title = title_of(input);
  Distinct left_out;
  const auto wanted = [&](const std::string& name) {
    if (!sections.empty()) return std::find(names.begin(), names.end(), name) != names.end();
    return view.overview ? in_overview(name, input) : name != "headline";
  };
  for (Section& section : all_sections(input)) {
    if (query && wanted(section.name)) {
      if (section.table)
        document.sections.push_back({section.title, {}, query_table(*section.table, view.query), {}});
    } else if (wanted(section.name))
      document.sections.push_back(std::move(section));
    else
      left_out.add(section.name);
  }
  if (document.sections.empty() && !sections.empty())
    throw InvalidInput(fmt::format("--section: these records have no {}{}", fmt::join(names, ", "),
                                   left_out.texts.empty() ? "" : "; they have " + left_out.joined()));
  if (view.overview && sections.empty()) document.more = more_words(left_out);
  return document;
}

}  // namespace precbench
