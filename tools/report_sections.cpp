// The sections of a report for people.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "tools/analysis.h"
#include "tools/columns.h"
#include "tools/distinct.h"
#include "tools/report.h"

namespace precbench {
namespace {

using Json = nlohmann::ordered_json;

/// The records of one machine. Machines are never compared, so each has a table of its own.
struct Part {
  RecordRefs records;
  Analysis analysis;
  std::string machine;
  bool all_ok = true;
};

std::string plural(std::size_t count, const char* noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string hardware_text(const Environment& env) {
  if (!env.gpu) return env.cpu.value_or("unknown CPU");
  const GpuRecord& gpu = *env.gpu;
  Distinct details;
  if (gpu.cc) details.add("compute capability " + *gpu.cc);
  if (gpu.memory) details.add(bytes_text(static_cast<double>(*gpu.memory)));
  if (gpu.power_limit) details.add(fmt::format("power limit {:.0f} W", *gpu.power_limit));
  if (gpu.ecc) details.add(*gpu.ecc ? "ECC on" : "ECC off");
  if (gpu.driver) details.add("driver " + *gpu.driver);
  if (gpu.nvlink) details.add(*gpu.nvlink);
  return details.texts.empty() ? gpu.name : fmt::format("{} ({})", gpu.name, details.joined());
}

std::string software_text(const Environment& env) {
  constexpr std::size_t kShortHash = 12;
  Distinct parts;
  if (env.git)
    parts.add("precbench " + env.git->substr(0, kShortHash) +
              (env.dirty.value_or(false) ? " with uncommitted changes" : ""));
  if (env.build) parts.add(*env.build);
  if (env.compiler) parts.add(*env.compiler);
  for (const auto& [name, version] : {std::pair("CUDA", &env.cuda), std::pair("cuBLASLt", &env.cublaslt),
                                      std::pair("cuDNN", &env.cudnn), std::pair("NCCL", &env.nccl)})
    if (*version) parts.add(fmt::format("{} {}", name, **version));
  return parts.joined();
}

/// One line per distinct set of hardware, host and software.
Section environment_section(const std::vector<Part>& parts) {
  Section section{"Environment", {}, {}, {}};
  for (const Part& part : parts) {
    Distinct lines;
    for (const LocatedRecord* located : part.records) {
      const Environment& env = located->env;
      Distinct details;
      details.add(hardware_text(env));
      if (env.threads && !env.gpu) details.add(plural(static_cast<std::size_t>(*env.threads), "thread"));
      if (env.host) details.add("host " + *env.host);
      details.add(software_text(env));
      lines.add(details.joined());
    }
    section.lines.insert(section.lines.end(), lines.texts.begin(), lines.texts.end());
    if (lines.texts.size() > 1)
      section.lines.push_back(part.machine +
                              ": builds, hosts or settings differ; ratios may include that difference");
  }
  return section;
}

/// What all cases of a part have in common: "All cases: status ok, model tiny, seq 128 tokens".
std::string constants_text(const Part& part) {
  Distinct constants;
  if (part.all_ok) constants.add("status ok");
  for (const auto& item : part.analysis.constants.items()) {
    const std::string value = field_text(item.value()), unit = case_unit(item.key());
    if (item.key() == "machine" || item.key() == "threads" || value.empty()) continue;
    constants.add(fmt::format("{} {}{}{}", item.key(), value, unit.empty() ? "" : " ", unit));
  }
  return (part.records.size() == 1 ? "The case: " : "All cases: ") + constants.joined();
}

bool worth_showing(const Column& column, const Part& part) {
  if (column.text == report_columns().front().text && part.all_ok)
    return false;  // the header says the status
  for (const Group& group : part.analysis.groups)
    for (const Row& row : group.rows) {
      const std::string text = column.text(row);
      if (!text.empty() && text != column.trivial) return true;
    }
  return false;
}

Section results_section(const Part& part, const std::string& title) {
  Section section{title, {constants_text(part)}, Table{}, {}};
  Table& table = *section.table;
  std::vector<std::function<std::string(const Row&)>> cells;
  const auto add_field = [&](const std::string& key) {
    const std::string unit = case_unit(key);
    table.columns.push_back({unit.empty() ? key : fmt::format("{} ({})", key, unit), true});
    cells.push_back([key](const Row& row) { return field_text(row.fields.value(key, Json())); });
  };
  for (const std::string& key : part.analysis.group_keys) add_field(key);
  add_field("recipe");
  for (const std::string& key : part.analysis.row_keys) add_field(key);
  for (const Column& column : report_columns()) {
    if (!worth_showing(column, part)) continue;
    table.columns.push_back({column.title, column.left});
    cells.push_back(column.text);
  }
  const auto& groups = part.analysis.groups;
  const bool blocks =
      std::any_of(groups.begin(), groups.end(), [](const Group& group) { return group.rows.size() > 1; });
  for (const Group& group : groups) {
    if (blocks && !table.rows.empty()) table.group_starts.push_back(table.rows.size());
    for (const Row& row : group.rows) {
      std::vector<std::string>& line = table.rows.emplace_back();
      for (const auto& cell : cells) {
        line.push_back(cell(row));
        if (line.back().empty() && &cell != &cells.back()) line.back().assign(1, '-');
      }
    }
  }
  return section;
}

/// What the columns mean, and the denominators and conventions that the records name.
Section legend_section(const std::vector<Part>& parts) {
  Distinct legends, peaks, conventions;
  for (const Part& part : parts) {
    for (const Column& column : report_columns())
      if (*column.legend && worth_showing(column, part))
        legends.add(fmt::format("{}: {}", column.title, column.legend));
    for (const LocatedRecord* located : part.records) {
      const Record& record = located->record;
      if (!record.metrics) continue;
      const Metrics& metrics = *record.metrics;
      if (metrics.mfu_bf16 && metrics.peaks && metrics.peaks->bf16_tflops)
        peaks.add(fmt::format("MFU bf16 of {}: {:g} TFLOP/s ({})", part.machine, *metrics.peaks->bf16_tflops,
                              metrics.peaks->source.value_or("source unknown")));
      if (record.flops && metrics.tflops_per_gpu)
        conventions.add("FLOP convention for attention: " + record.flops->convention);
    }
  }
  Section section{"What the numbers mean", {}, {}, {}};
  if (!legends.texts.empty()) section.lines.push_back(fmt::format("{}", fmt::join(legends.texts, "; ")));
  for (const Distinct* more : {&peaks, &conventions})
    section.lines.insert(section.lines.end(), more->texts.begin(), more->texts.end());
  return section;
}

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
             "GPUs; "
             "--dry-run predicts the memory";
    case Status::unsupported:
      return "`precbench list recipes` says which recipes run natively or emulated here";
    case Status::timeout:
      return "a longer --timeout or fewer --steps; if the step hangs, run the case alone";
    case Status::crashed:
      return "run the case alone to see its output, on the newest driver and library versions";
    case Status::diverged:
      return "a lower --lr, a longer --warmup, or --keep-bf16 first:1,last:1; if bf16 diverges too, the "
             "recipe is not "
             "the cause";
  }
  return "";
}

Section failures_section(const std::vector<Part>& parts) {
  Section section{"Failed cases (in no ratio)", {}, {}, {}};
  std::set<Status> statuses;
  const auto add = [&](const Part& part, const Row& row, const Record& record) {
    std::string line = fmt::format("{}: {}", name_of(row.status), name_of_row(part, row, parts.size() > 1));
    if (row.members.size() > 1) line += ", seed " + field_text(record.case_fields.value("seed", Json()));
    line += ": " + record.error.value_or("no reason recorded");
    if (row.status == Status::oom && record.memory && record.memory->predicted)
      line +=
          fmt::format("; predicted peak {}", bytes_text(static_cast<double>(record.memory->predicted->peak)));
    if (row.status == Status::oom && record.env.gpu && record.env.gpu->memory)
      line += fmt::format(", the GPU has {}", bytes_text(static_cast<double>(*record.env.gpu->memory)));
    section.lines.push_back(line);
  };
  for (const Part& part : parts)
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
Section emulated_section(const std::vector<Part>& parts) {
  Section section{"Emulated recipes (losses only, no speed)", {}, {}, {}};
  for (const Part& part : parts) {
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
      section.lines.push_back(
          fmt::format("{}{}: {}", recipes.joined(), parts.size() > 1 ? " on " + part.machine : "", reason));
  }
  return section;
}

Section warnings_section(const RecordSet& set) {
  std::vector<std::pair<std::string, std::size_t>> counts;
  const auto count = [&](const std::string& text) {
    for (auto& [known, times] : counts)
      if (known == text) return void(++times);
    counts.emplace_back(text, 1);
  };
  for (const auto& [record, origin, env] : set.records) {
    for (const std::string& warning : record.warnings) count(warning);
    if (record.status != Status::ok || !record.training) continue;
    const Training& training = *record.training;
    if (training.params_changed && training.params_total && *training.params_changed < *training.params_total)
      count(fmt::format("{} of {} parameter tensors changed in training", *training.params_changed,
                        *training.params_total));
  }
  Section section{"Warnings", {}, {}, {}};
  for (const auto& [text, times] : counts)
    section.lines.push_back(fmt::format("{} of {}: {}", times, plural(set.records.size(), "case"), text));
  return section;
}

}  // namespace

Document make_report(const RecordSet& set) {
  std::vector<Part> parts;
  std::size_t ok = 0;
  for (const RecordRefs& records : by_machine(set)) {
    Part part{records, analyze(records), machine_of(records.front()->env)};
    for (const LocatedRecord* located : records) {
      ok += located->record.status == Status::ok;
      part.all_ok = part.all_ok && located->record.status == Status::ok;
    }
    parts.push_back(std::move(part));
  }
  Document document;
  document.title = "precbench report: " + plural(set.records.size(), "case");
  if (ok != set.records.size())
    document.title += fmt::format(", {} ok, {} failed", ok, set.records.size() - ok);
  std::vector<Section> sections = {environment_section(parts)};
  for (const Part& part : parts)
    sections.push_back(results_section(part, parts.size() > 1 ? "Results on " + part.machine : "Results"));
  sections.push_back(legend_section(parts));
  sections.push_back(emulated_section(parts));
  sections.push_back(failures_section(parts));
  sections.push_back(warnings_section(set));
  sections.push_back({"Problems in the record files", set.problems, {}, {}});
  for (Section& section : sections)
    if (!section.lines.empty() || section.table) document.sections.push_back(std::move(section));
  return document;
}

}  // namespace precbench
