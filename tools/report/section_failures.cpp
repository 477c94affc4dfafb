// Sections on failed and emulated cases and on warnings.
#include <fmt/format.h>

#include <map>
#include <set>
#include <unordered_map>

#include "kernels/base/plural.h"
#include "results/record/statistics.h"
#include "results/record/step_time.h"
#include "tools/analysis/columns.h"
#include "tools/report/sections.h"
#include "tools/text/distinct.h"

namespace precbench {
namespace {

using Json = nlohmann::ordered_json;

/// Returns the recipe and the fields that distinguish a row: "rowwise, seq 4096".
std::string name_of_row(const MachineRecords& machine, const Row& row, bool several_machines) {
  Distinct names;
  names.add(label_of(row));
  const bool one_model = machine.analysis.constants.contains("model");
  names.add(
      setting_of(machine, row, one_model ? std::vector<std::string>{"model"} : std::vector<std::string>{}));
  if (several_machines) names.add("on " + machine.name);
  return names.joined();
}

/// Returns the number of distinct values of each field that distinguishes rows.
std::map<std::string, std::size_t> counts_of_values(const MachineRecords& machine) {
  std::vector<std::string> keys = machine.analysis.group_keys;
  keys.push_back("recipe");
  keys.insert(keys.end(), machine.analysis.row_keys.begin(), machine.analysis.row_keys.end());
  std::map<std::string, std::size_t> counts;
  for (const std::string& key : keys) {
    Distinct all;
    for (const Group& group : machine.analysis.groups)
      for (const Row& row : group.rows) all.add(text_of(row, key));
    counts[key] = all.texts.size();
  }
  return counts;
}

/// Returns the values of a field in some rows, "seq 2048/4096"; empty if they are all `count`
/// values of the machine.
std::string values_of(const std::vector<const Row*>& rows, const std::string& key, std::size_t count) {
  Distinct values;
  for (const Row* row : rows) values.add(text_of(*row, key));
  if (values.texts.empty() || values.texts.size() == count) return "";
  const std::string name = key == "model" || key == "recipe" ? "" : key + " ";
  return name + fmt::format("{}", fmt::join(values.texts, "/"));
}

/// Returns the record's warnings, doubts about its speed, and those about the uncertainty of a row's timing.
std::vector<std::string> warnings_of(const Row& row, const Record& record) {
  std::vector<std::string> texts = warnings_and_doubts(record);
  if (!row.tokens_per_s || !record.timing) return texts;
  const Timing& timing = *record.timing;
  const bool fixed = timing.stop_reason == StopReason::fixed_steps;
  if (timing.samples_ms.size() < kFewestSamples)
    texts.push_back(fmt::format("fewer than {} samples, so speeds and ratios are uncertain; raise {}",
                                kFewestSamples, fixed ? "--steps" : "--time-limit"));
  const auto statistics = sample_statistics(timing.samples_ms);
  if (statistics && timing.stop_reason == StopReason::time_limit &&
      relative_noise(*statistics) > kTargetNoise)
    texts.push_back(fmt::format(
        "sampling ended at the time limit, while the noise (IQR / 1.349 over the median) was above {:g}%",
        100 * kTargetNoise));
  return texts;
}

/// Returns true if the case has BF16 master weights.
bool has_narrow_master(const Row& row) { return text_of(row, "master") == "bf16"; }

const char* what_to_try(Status status) {
  switch (status) {
    case Status::ok:
      return "";
    case Status::oom:
      return "--recompute attention+ffn+norm or block, a smaller --batch or --seq, --moments bf16, or "
             "--parallel fsdp on more GPUs; --dry-run predicts the memory";
    case Status::unsupported:
      return "another value of what the reason names; where it names a format or a device, `precbench list "
             "recipes` says which recipes run here";
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
  const auto add = [&](const MachineRecords& machine, const Row& row, const Record& record) {
    std::string line =
        fmt::format("{}: {}", name_of(row.status), name_of_row(machine, row, input.several_machines()));
    if (row.members.size() > 1) line += ", seed " + field_text(record.case_fields.value("seed", Json()));
    line += ": " + record.error.value_or("no reason recorded");
    if (row.status == Status::oom && record.memory && record.memory->predicted)
      line +=
          fmt::format("; predicted peak {}", bytes_text(static_cast<double>(record.memory->predicted->peak)));
    if (row.status == Status::oom && record.env.gpu && record.env.gpu->memory)
      line += fmt::format(", the GPU has {}", bytes_text(static_cast<double>(*record.env.gpu->memory)));
    section.lines.push_back(line);
  };
  for (const MachineRecords& machine : input.machines)
    for (const Group& group : machine.analysis.groups)
      for (const Row& row : group.rows) {
        if (row.status == Status::ok) continue;
        statuses.insert(row.status);
        for (const LocatedRecord* member : row.members) add(machine, row, member->record);
      }
  for (Status status : statuses)
    section.notes.push_back(fmt::format("against {}, try: {}", name_of(status), what_to_try(status)));
  return section;
}

/// Lists emulated recipes by reason.
Section emulated_section(const ReportInput& input) {
  Section section{"Emulated recipes (losses only, no speed)", {}, {}, {}};
  for (const MachineRecords& machine : input.machines) {
    std::map<std::string, Distinct> recipes_by_reason;
    for (const Group& group : machine.analysis.groups)
      for (const Row& row : group.rows) {
        if (row.status != Status::ok || row.path != ExecutionPath::emulated) continue;
        const Support& support = *row.record().support;
        for (const GemmPath* gemm : {&support.fprop, &support.dgrad, &support.wgrad})
          if (gemm->path == ExecutionPath::emulated)
            recipes_by_reason[gemm->reason.value_or("no reason recorded")].add(recipe_of(row));
      }
    for (const auto& [reason, recipes] : recipes_by_reason)
      section.lines.push_back(fmt::format("{}{}: {}", recipes.joined(),
                                          input.several_machines() ? " on " + machine.name : "", reason));
  }
  return section;
}

/// Lists native recipes whose records say that their machine has not verified them.
Section unverified_section(const ReportInput& input) {
  Section section{"Native, unverified", {}, {}, {}};
  for (const MachineRecords& machine : input.machines) {
    Distinct recipes;
    for (const Group& group : machine.analysis.groups)
      for (const Row& row : group.rows) {
        if (row.status != Status::ok || row.path != ExecutionPath::native) continue;
        for (const LocatedRecord* member : row.members)
          if (member->record.support && member->record.support->verified == false)
            recipes.add(recipe_of(row));
      }
    if (!recipes.texts.empty())
      section.lines.push_back(recipes.joined() + (input.several_machines() ? " on " + machine.name : ""));
  }
  if (!section.lines.empty())
    section.notes.push_back(
        "cuBLASLt accepts these formats, but nobody has compared their results with the CPU's on such a machine: "
        "GPU, driver, libraries and build. `precbench doctor --run` does.");
  return section;
}

/// Lists each warning with the settings of its cases, unless these cover all cases.
Section warnings_section(const ReportInput& input) {
  Section section{"Warnings", input.workloads.notes(), {}, {}};
  bool rounded_away = false;
  for (const MachineRecords& machine : input.machines) {
    struct Cases {
      std::size_t count = 0;
      std::vector<const Row*> rows;
    };
    std::vector<std::pair<std::string, Cases>> warnings;
    std::unordered_map<std::string, std::size_t> places;  // by text
    for (const Group& group : machine.analysis.groups)
      for (const Row& row : group.rows)
        for (const LocatedRecord* member : row.members)
          for (const std::string& text : warnings_of(row, member->record)) {
            const auto [place, is_new] = places.try_emplace(text, warnings.size());
            if (is_new) warnings.emplace_back(text, Cases{});
            Cases& cases = warnings[place->second].second;
            ++cases.count;
            if (cases.rows.empty() || cases.rows.back() != &row) cases.rows.push_back(&row);
            const bool unchanged = text.find("did not change in the first step") != std::string::npos;
            rounded_away = rounded_away || (unchanged && has_narrow_master(row));
          }
    const auto counts = counts_of_values(machine);
    const auto values = [&](const Cases& cases, const std::string& key) {
      return values_of(cases.rows, key, counts.at(key));
    };
    for (const auto& [text, cases] : warnings) {
      Distinct where;
      for (const std::string& key : machine.analysis.group_keys) where.add(values(cases, key));
      where.add(values(cases, "recipe"));
      for (const std::string& key : machine.analysis.row_keys) where.add(values(cases, key));
      section.lines.push_back(fmt::format("{} of {}{}{}: {}", cases.count,
                                          plural(machine.records.size(), "case"),
                                          input.several_machines() ? " on " + machine.name : "",
                                          where.texts.empty() ? "" : " (" + where.joined() + ")", text));
    }
  }
  if (rounded_away)
    section.notes.push_back(
        "A BF16 weight without an FP32 master stays as it is under an update of less than half its last bit: "
        "with --master bf16 a small --lr leaves weights of large magnitude, such as the norms' ones, where "
        "they are. That changes no speed; to train, take --master fp32 or a higher --lr.");
  return section;
}

}  // namespace precbench
