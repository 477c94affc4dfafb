// The report's sections, from an analysis of the records.
#include "tools/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <set>

#include "kernels/errors.h"
#include "results/schema.h"
#include "tools/analysis.h"
#include "tools/columns.h"

namespace precbench {
namespace {

using Json = nlohmann::ordered_json;
using Records = std::vector<LocatedRecord>;

/// Texts in the order met, each once.
struct Distinct {
  std::vector<std::string> texts;
  void add(const std::string& text) {
    if (!text.empty() && std::find(texts.begin(), texts.end(), text) == texts.end()) texts.push_back(text);
  }
  std::string joined() const { return fmt::format("{}", fmt::join(texts, ", ")); }
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
  Distinct parts;
  if (env.git)
    parts.add("precbench " + *env.git + (env.dirty.value_or(false) ? " with uncommitted changes" : ""));
  if (env.build) parts.add(*env.build);
  if (env.compiler) parts.add(*env.compiler);
  for (const auto& [name, version] : {std::pair("CUDA", &env.cuda), std::pair("cuBLASLt", &env.cublaslt),
                                      std::pair("cuDNN", &env.cudnn), std::pair("NCCL", &env.nccl)})
    if (*version) parts.add(fmt::format("{} {}", name, **version));
  return parts.joined();
}

/// One line per distinct set of hardware, host and software.
Section environment_section(const Records& records, const Analysis& analysis, bool all_ok) {
  Distinct lines, machines;
  for (const auto& [record, origin] : records) {
    machines.add(machine_of(record));
    Distinct parts;
    parts.add(hardware_text(record.env));
    if (record.env.threads && !record.env.gpu)
      parts.add(plural(static_cast<std::size_t>(*record.env.threads), "thread"));
    if (record.env.host) parts.add("host " + *record.env.host);
    parts.add(software_text(record.env));
    lines.add(parts.joined());
  }
  Distinct constants;
  if (all_ok) constants.add("status ok");
  for (const auto& item : analysis.constants.items()) {
    const std::string value = field_text(item.value());
    if (item.key() == "machine" || item.key() == "threads" || value.empty()) continue;
    const std::string heading = case_heading(item.key());
    const std::size_t unit = heading.find('(');
    constants.add(unit == std::string::npos
                      ? fmt::format("{} {}", item.key(), value)
                      : fmt::format("{} {} {}", item.key(), value,
                                    heading.substr(unit + 1, heading.size() - unit - 2)));
  }
  Section section{"Environment", lines.texts, {}, {}};
  if (lines.texts.size() > machines.texts.size())
    section.lines.push_back(
        "Builds, hosts or settings differ on one machine: ratios may include that difference");
  section.lines.push_back((records.size() == 1 ? "The case: " : "All cases: ") + constants.joined());
  return section;
}

/// Denominators and conventions of the numbers above, as the records name them.
std::vector<std::string> denominators(const Records& records) {
  Distinct peaks, flops;
  for (const auto& [record, origin] : records) {
    if (record.metrics && record.metrics->mfu_bf16 && record.metrics->peaks &&
        record.metrics->peaks->bf16_tflops)
      peaks.add(fmt::format("MFU bf16 of {}: {:g} TFLOP/s ({})", machine_of(record),
                            *record.metrics->peaks->bf16_tflops,
                            record.metrics->peaks->source.value_or("source unknown")));
    if (record.flops && record.metrics && record.metrics->tflops_per_gpu)
      flops.add("FLOPs are counted with " + record.flops->convention);
  }
  peaks.texts.insert(peaks.texts.end(), flops.texts.begin(), flops.texts.end());
  return peaks.texts;
}

Section results_section(const Records& records, const Analysis& analysis, bool all_ok) {
  Section section{"Results", {}, Table{}, {}};
  Table& table = *section.table;
  std::vector<std::function<std::string(const Row&)>> cells;
  Distinct legends;
  const auto add_field = [&](const std::string& key) {
    table.columns.push_back({case_heading(key), true});
    cells.push_back([key](const Row& row) { return field_text(row.fields.value(key, Json())); });
  };
  for (const std::string& key : analysis.group_keys) add_field(key);
  add_field("recipe");
  for (const std::string& key : analysis.row_keys) add_field(key);
  for (const Column& column : report_columns()) {
    if (column.text == report_columns().front().text && all_ok) continue;  // the status stands in the header
    bool any = false;
    for (const Group& group : analysis.groups)
      any = any || std::any_of(group.rows.begin(), group.rows.end(),
                               [&](const Row& row) { return !column.text(row).empty(); });
    if (!any) continue;
    table.columns.push_back({column.title, column.left});
    cells.push_back(column.text);
    if (*column.legend) legends.add(fmt::format("{}: {}", column.title, column.legend));
  }
  const bool blocks = std::any_of(analysis.groups.begin(), analysis.groups.end(),
                                  [](const Group& group) { return group.rows.size() > 1; });
  for (const Group& group : analysis.groups) {
    if (blocks && !table.rows.empty()) table.group_starts.push_back(table.rows.size());
    for (const Row& row : group.rows) {
      std::vector<std::string> line;
      for (const auto& cell : cells) {
        line.push_back(cell(row));
        if (line.back().empty() && &cell != &cells.back()) line.back().assign(1, '-');
      }
      table.rows.push_back(line);
    }
  }
  section.notes = denominators(records);
  section.notes.insert(section.notes.begin(), fmt::format("{}", fmt::join(legends.texts, "; ")));
  return section;
}

/// The fields that tell a row from the others: "rowwise, seq 4096".
std::string name_of_row(const Analysis& analysis, const Row& row) {
  Distinct parts;
  parts.add(field_text(row.fields.value("recipe", Json())));
  for (const auto* keys : {&analysis.group_keys, &analysis.row_keys})
    for (const std::string& key : *keys)
      if (const std::string value = field_text(row.fields.value(key, Json())); !value.empty())
        parts.add(key + " " + value);
  return parts.joined();
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

Section failures_section(const Analysis& analysis) {
  Section section{"Failed cases (in no ratio)", {}, {}, {}};
  std::set<Status> statuses;
  for (const Group& group : analysis.groups)
    for (const Row& row : group.rows) {
      if (row.status == Status::ok) continue;
      statuses.insert(row.status);
      for (const LocatedRecord* member : row.members) {
        const Record& record = member->record;
        std::string line = fmt::format("{}: {}", name_of(row.status), name_of_row(analysis, row));
        if (row.members.size() > 1) line += ", seed " + field_text(record.case_fields.value("seed", Json()));
        line += ": " + record.error.value_or("no reason recorded");
        if (row.status == Status::oom && record.memory && record.memory->predicted)
          line += fmt::format("; predicted peak {}",
                              bytes_text(static_cast<double>(record.memory->predicted->peak)));
        if (row.status == Status::oom && record.env.gpu && record.env.gpu->memory)
          line += fmt::format(", the GPU has {}", bytes_text(static_cast<double>(*record.env.gpu->memory)));
        section.lines.push_back(line);
      }
    }
  for (Status status : statuses)
    section.notes.push_back(fmt::format("against {}, try: {}", name_of(status), what_to_try(status)));
  return section;
}

/// Which recipes were emulated, by reason.
Section emulated_section(const Analysis& analysis) {
  Section section{"Emulated recipes (losses only, no speed)", {}, {}, {}};
  std::map<std::string, Distinct> recipes_by_reason;
  for (const Group& group : analysis.groups)
    for (const Row& row : group.rows) {
      if (row.status != Status::ok || row.path != ExecutionPath::emulated) continue;
      const Support& support = *row.record().support;
      Distinct reasons;
      for (const GemmPath* gemm : {&support.fprop, &support.dgrad, &support.wgrad})
        if (gemm->path == ExecutionPath::emulated) reasons.add(gemm->reason.value_or("no reason recorded"));
      for (const std::string& reason : reasons.texts)
        recipes_by_reason[reason].add(field_text(row.fields.value("recipe", Json())));
    }
  for (const auto& [reason, recipes] : recipes_by_reason)
    section.lines.push_back(recipes.joined() + ": " + reason);
  return section;
}

Section warnings_section(const Records& records) {
  std::vector<std::pair<std::string, std::size_t>> counts;
  const auto count = [&](const std::string& text) {
    for (auto& [known, times] : counts)
      if (known == text) return void(++times);
    counts.emplace_back(text, 1);
  };
  for (const auto& [record, origin] : records) {
    for (const std::string& warning : record.warnings) count(warning);
    if (record.status != Status::ok || !record.training) continue;
    const Training& training = *record.training;
    if (training.params_changed && training.params_total && *training.params_changed < *training.params_total)
      count(fmt::format("{} of {} parameter tensors changed in training", *training.params_changed,
                        *training.params_total));
  }
  Section section{"Warnings", {}, {}, {}};
  for (const auto& [text, times] : counts)
    section.lines.push_back(fmt::format("{} of {}: {}", times, plural(records.size(), "case"), text));
  return section;
}

Json scalar_at(const Json& json, const std::string& pointer) {
  const Json::json_pointer place(pointer);
  return json.contains(place) ? json.at(place) : Json();
}

void write_output(const std::string& path, const std::string& text) {
  std::FILE* file = path.empty() ? stdout : std::fopen(path.c_str(), "wb");
  bool done = file && std::fwrite(text.data(), 1, text.size(), file) == text.size() && std::fflush(file) == 0;
  const int error = errno;
  if (file && file != stdout) std::fclose(file);
  if (!done)
    throw InvalidInput(
        fmt::format("cannot write {}: {}", path.empty() ? "standard output" : path, std::strerror(error)));
}

}  // namespace

Document make_report(const RecordSet& set) {
  const Analysis analysis = analyze(set.records);
  const auto ok = static_cast<std::size_t>(
      std::count_if(set.records.begin(), set.records.end(),
                    [](const LocatedRecord& located) { return located.record.status == Status::ok; }));
  const bool all_ok = ok == set.records.size();
  Document document;
  document.title = "precbench report: " + plural(set.records.size(), "case") +
                   (all_ok ? "" : fmt::format(", {} ok, {} failed", ok, set.records.size() - ok));
  document.sections.push_back(environment_section(set.records, analysis, all_ok));
  document.sections.push_back(results_section(set.records, analysis, all_ok));
  for (Section& section : std::vector<Section>{emulated_section(analysis), failures_section(analysis),
                                               warnings_section(set.records),
                                               Section{"Problems in the record files", set.problems, {}, {}}})
    if (!section.lines.empty()) document.sections.push_back(std::move(section));
  return document;
}

Table make_csv(const RecordSet& set) {
  // The schema names the fields and units of a record; the fields of a case are those of the records.
  std::vector<SchemaField> fields;
  for (const SchemaField& field : Schema::record().scalar_fields()) {
    const bool of_case = field.pointer.rfind("/case/", 0) == 0;
    if (!of_case) fields.push_back(field);
    if (field.pointer != "/created") continue;
    Distinct keys;
    for (const auto& [record, origin] : set.records)
      for (const auto& item : record.case_fields.items()) keys.add(item.key());
    for (const std::string& key : keys.texts) {
      const std::string heading = case_heading(key);
      const std::string unit =
          heading == key ? "" : heading.substr(key.size() + 2, heading.size() - key.size() - 3);
      fields.push_back({"/case/" + key, unit});
    }
  }
  Table table;
  const auto heading = [](std::string name, const std::string& unit) {
    std::replace(name.begin(), name.end(), '/', '.');
    return TableColumn{unit.empty() ? name : name + " [" + unit + "]"};
  };
  for (const SchemaField& field : fields)
    table.columns.push_back(heading(field.pointer.substr(1), field.unit));
  for (const Column& column : report_columns())
    if (*column.key) table.columns.push_back(heading(column.key, column.unit));
  table.columns.push_back({"origin"});

  const Analysis analysis = analyze(set.records, RowsBy::record);
  std::map<const LocatedRecord*, const Row*> rows;
  for (const Group& group : analysis.groups)
    for (const Row& row : group.rows) rows[row.members.front()] = &row;
  for (const LocatedRecord& located : set.records) {
    const Json json = located.record;
    std::vector<std::string> line;
    for (const SchemaField& field : fields) line.push_back(field_text(scalar_at(json, field.pointer)));
    for (const Column& column : report_columns())
      if (*column.key) line.push_back(field_text(column.value(*rows.at(&located))));
    line.push_back(located.origin);
    table.rows.push_back(line);
  }
  return table;
}

int report(const ReportOptions& options) {
  const RecordSet set = read_records(options.paths);
  if (set.records.empty())
    throw InvalidInput(fmt::format("{}: no record in it{}", fmt::join(options.paths, ", "),
                                   set.problems.empty() ? "" : " (" + set.problems.front() + ")"));
  if (options.format == "csv") {
    for (const std::string& problem : set.problems) fmt::print(stderr, "{}\n", printable(problem));
    write_output(options.output, render_csv(make_csv(set)));
  } else if (options.format == "md") {
    write_output(options.output, render_markdown(make_report(set)));
  } else if (options.format == "term") {
    write_output(options.output, render_term(make_report(set)));
  } else {
    throw InvalidInput("--format: unknown value \"" + options.format + "\"; it is one of term, md, csv");
  }
  return 0;
}

}  // namespace precbench
