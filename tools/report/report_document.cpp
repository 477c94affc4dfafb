// Assembles the sections of a report.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "kernels/base/errors.h"
#include "kernels/base/plural.h"
#include "results/record/printable.h"
#include "tools/report/report.h"
#include "tools/report/sections.h"
#include "tools/text/distinct.h"

namespace precbench {
namespace {

using Sections = std::vector<Section>;

template <Section (*section)(const ReportInput&)>
Sections once(const ReportInput& input) {
  return {section(input)};
}

template <Section (*section)(const ReportInput&, const MachineRecords&)>
Sections of_each_machine(const ReportInput& input) {
  Sections sections;
  for (const MachineRecords& machine : input.machines) sections.push_back(section(input, machine));
  return sections;
}

Section problems_section(const ReportInput& input) {
  return {"Problems in the record files", input.set.problems, {}, {}};
}

bool always(const ReportInput&) { return true; }
bool never(const ReportInput&) { return false; }

/// Returns true if runs train for a fixed number of steps; the losses of runs that only time the recipes say little.
bool has_trained_runs(const ReportInput& input) {
  return std::any_of(input.machines.begin(), input.machines.end(),
                     [](const MachineRecords& machine) { return !machine.trained.empty(); });
}

/// One or more sections that a user asks for by one name.
struct NamedSections {
  const char* name;
  bool (*in_overview)(const ReportInput& input);
  Sections (*make)(const ReportInput& input);
};

/// All sections, in the order of a report.
constexpr NamedSections kSections[] = {
    {"headline", always, once<headline_section>},
    {"summary", always, once<summary_section>},
    {"problems", always, once<problems_section>},
    {"speed", never, of_each_machine<speed_section>},
    {"imports", always, of_each_machine<imports_section>},
    {"scaling", never, of_each_machine<scaling_section>},
    {"predicted", never, of_each_machine<predicted_section>},
    {"memory", never, of_each_machine<memory_section>},
    {"time", never, of_each_machine<time_section>},
    {"experts", never, of_each_machine<experts_section>},
    {"convergence", has_trained_runs, of_each_machine<convergence_section>},
    {"study", always, once<study_section>},
    {"deployment", always, once<deployment_section>},
    {"readings", never, once<readings_section>},
    {"contrast", always, once<contrast_section>},
    {"outputs", never, once<outputs_section>},
    {"loss-gap", never, once<loss_gap_section>},
    {"pays", always, once<break_even_section>},
    {"age", never, once<age_section>},
    {"ladders", never, once<ladders_section>},
    {"sensitivity", always, sensitivity_sections},
    {"emulated", never, once<emulated_section>},
    {"unverified", never, once<unverified_section>},
    {"failures", always, once<failures_section>},
    {"warnings", always, once<warnings_section>},
    {"legend", never, once<legend_section>},
    {"environment", never, once<environment_section>},
};

/// Makes sections of that name, without those that have no content.
Sections make(const NamedSections& named, const ReportInput& input) {
  Sections sections = named.make(input);
  std::erase_if(sections, [](const Section& section) { return section.lines.empty() && !section.table; });
  for (Section& section : sections) section.name = named.name;
  return sections;
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
  std::vector<std::string> known;
  for (const NamedSections& named : kSections) known.emplace_back(named.name);
  if (sections == "all") return known;
  std::vector<std::string> names = split(sections);
  for (const std::string& name : names)
    if (name == "published")
      throw InvalidInput(
          "--section: published is removed; results/predicted has published figures, and predict --published compares them");
    else if (std::find(known.begin(), known.end(), name) == known.end())
      throw InvalidInput(fmt::format("--section: unknown name \"{}\"; it is all or some of {}",
                                     printable(name), fmt::join(known, ", ")));
  return names;
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

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Throws InvalidInput for sections that have no content, with the names of those that have.
[[noreturn]] void refuse_empty(const std::vector<std::string>& names, const ReportInput& input) {
  Distinct others;
  for (const NamedSections& named : kSections)
    if (!contains(names, named.name) && !make(named, input).empty()) others.add(named.name);
  throw InvalidInput(fmt::format("--section: these records have no {}{}", fmt::join(names, ", "),
                                 others.texts.empty() ? "" : "; they have " + others.joined()));
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
  Distinct left_out;  // of an overview
  for (const NamedSections& named : kSections) {
    const bool wanted = !sections.empty() ? contains(names, named.name)
                        : view.overview   ? named.in_overview(input)
                                          : named.name != std::string_view("headline");
    if (!wanted && !(view.overview && sections.empty())) continue;
    for (Section& section : make(named, input)) {
      if (!wanted)
        left_out.add(section.name);
      else if (!query)
        document.sections.push_back(std::move(section));
      else if (section.table)
        document.sections.push_back({section.title, {}, query_table(*section.table, view.query), {}});
    }
  }
  if (document.sections.empty() && !sections.empty()) refuse_empty(names, input);
  if (!left_out.texts.empty())
    document.more =
        fmt::format("more: --section {} or all; all columns: --wide; page: --format html -o report.html",
                    left_out.joined());
  return document;
}

}  // namespace precbench
