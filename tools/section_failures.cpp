// Cases that failed, were emulated or come with a warning.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "tools/columns.h"
#include "tools/distinct.h"
#include "tools/sections.h"

namespace precbench {
namespace {

using Json = nlohmann::ordered_json;

/// The fields that tell a row from the others: "rowwise, seq 4096".
std::string name_of_row(const Part& part, const Row& row, bool several_machines) {
  Distinct names;
  names.add(field_text(row.fields.value("recipe", Json())));
  for (const auto* keys : {&part.analysis.group_keys, &part.analysis.row_keys})
    for (const std::string& key : *keys)
      if (const std::string value = field_text(row.fields.value(key, Json())); !value.empty())
        names.add(key + " " + value);
  if (several_machines) names.add("on " + part.machine);
  return names.joined();
}

const char* what_to_try(Status status) {
  switch (status) {
    case Status::ok:
      return "";
    case Status::oom:
      return "--recompute block, a smaller --batch or --seq, --moments bf16, or --parallel fsdp on more "
             "GPUs; --dry-run predicts the memory";
    case Status::unsupported:
      return "`precbench list recipes` says which recipes run natively or emulated here";
    case Status::timeout:
      return "a longer --timeout or fewer --steps; if the step hangs, run the case alone";
    case Status::crashed:
      return "run the case alone to see its output, on the newest driver and library versions";
    case Status::diverged:
      return "a lower --lr, a longer --warmup, or --keep-bf16 first:1,last:1; if bf16 diverges too, the "
             "recipe is not the cause";
  }
  return "";
}

}  // namespace

Section failures_section(const ReportInput& input) {
  Section section{"Failed cases (in no ratio)", {}, {}, {}};
  std::set<Status> statuses;
  const auto add = [&](const Part& part, const Row& row, const Record& record) {
    std::string line =
        fmt::format("{}: {}", name_of(row.status), name_of_row(part, row, input.several_machines()));
    if (row.members.size() > 1) line += ", seed " + field_text(record.case_fields.value("seed", Json()));
    line += ": " + record.error.value_or("no reason recorded");
    if (row.status == Status::oom && record.memory && record.memory->predicted)
      line +=
          fmt::format("; predicted peak {}", bytes_text(static_cast<double>(record.memory->predicted->peak)));
    if (row.status == Status::oom && record.env.gpu && record.env.gpu->memory)
      line += fmt::format(", the GPU has {}", bytes_text(static_cast<double>(*record.env.gpu->memory)));
    section.lines.push_back(line);
  };
  for (const Part& part : input.parts)
    for (const Group& group : part.analysis.groups)
      for (const Row& row : group.rows) {
        if (row.status == Status::ok) continue;
        statuses.insert(row.status);
        for (const LocatedRecord* member : row.members) add(part, row, member->record);
      }
  for (Status status : statuses)
    section.notes.push_back(fmt::format("against {}, try: {}", name_of(status), what_to_try(status)));
  return section;
}

/// Which recipes were emulated, by reason.
Section emulated_section(const ReportInput& input) {
  Section section{"Emulated recipes (losses only, no speed)", {}, {}, {}};
  for (const Part& part : input.parts) {
    std::map<std::string, Distinct> recipes_by_reason;
    for (const Group& group : part.analysis.groups)
      for (const Row& row : group.rows) {
        if (row.status != Status::ok || row.path != ExecutionPath::emulated) continue;
        const Support& support = *row.record().support;
        for (const GemmPath* gemm : {&support.fprop, &support.dgrad, &support.wgrad})
          if (gemm->path == ExecutionPath::emulated)
            recipes_by_reason[gemm->reason.value_or("no reason recorded")].add(
                field_text(row.fields.value("recipe", Json())));
      }
    for (const auto& [reason, recipes] : recipes_by_reason)
      section.lines.push_back(fmt::format("{}{}: {}", recipes.joined(),
                                          input.several_machines() ? " on " + part.machine : "", reason));
  }
  return section;
}

Section warnings_section(const ReportInput& input) {
  std::vector<std::pair<std::string, std::size_t>> counts;
  const auto count = [&](const std::string& text) {
    for (auto& [known, times] : counts)
      if (known == text) return void(++times);
    counts.emplace_back(text, 1);
  };
  for (const LocatedRecord& located : input.set.records)
    for (const std::string& warning : located.record.warnings) count(warning);
  Section section{"Warnings", {}, {}, {}};
  for (const auto& [text, times] : counts)
    section.lines.push_back(
        fmt::format("{} of {}: {}", times, plural(input.set.records.size(), "case"), text));
  return section;
}

}  // namespace precbench
