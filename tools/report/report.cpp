// Reads records and writes the report, including CSV and JSON for programs. See report.h.
#include "tools/report/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "kernels/base/errors.h"
#include "results/record/line_reader.h"
#include "results/record/printable.h"
#include "results/record/schema.h"
#include "tools/analysis/analysis.h"
#include "tools/analysis/columns.h"
#include "tools/report/reduce_record.h"
#include "tools/text/distinct.h"
#include "tools/text/gnuplot.h"
#include "tools/text/text.h"
#include "tools/text/write_file.h"

namespace precbench {
namespace {

using Json = nlohmann::ordered_json;

/// CSV column: a scalar of the record, or a case field, whose name may contain any character.
struct CsvField {
  std::string title;
  std::string case_key;  ///< empty for a scalar of the record
  Json::json_pointer place{};

  std::string text_of(const Json& record) const {
    if (!case_key.empty()) return field_text(record.at("case").value(case_key, Json()));
    return field_text(record.contains(place) ? record.at(place) : Json());
  }
};

std::string csv_heading(std::string name, const std::string& unit) {
  std::replace(name.begin(), name.end(), '/', '.');
  return unit.empty() ? name : name + " [" + unit + "]";
}

/// Returns the columns: record fields and units from the schema, and all case fields of these records.
std::vector<CsvField> csv_fields(const RecordSet& set) {
  std::vector<CsvField> fields;
  for (const SchemaField& field : Schema::record().scalar_fields()) {
    const bool of_case = field.pointer.rfind("/case/", 0) == 0;
    if (!of_case)
      fields.push_back(
          {csv_heading(field.pointer.substr(1), field.unit), "", Json::json_pointer(field.pointer)});
    if (field.pointer != "/created") continue;
    Distinct keys;
    for (const LocatedRecord& located : set.records)
      for (const auto& item : located.record.case_fields.items()) keys.add(item.key());
    for (const std::string& key : keys.texts)
      fields.push_back({csv_heading("case." + key, case_unit(key)), key});
  }
  return fields;
}

/// Returns what a reader must know about the records before reading any number.
std::vector<std::string> problems_of(const RecordSet& set, const Workloads& workloads) {
  std::vector<std::string> problems = set.problems;
  problems.insert(problems.end(), workloads.notes().begin(), workloads.notes().end());
  return problems;
}

/// Buffers output and writes it in large pieces.
class Output {
 public:
  explicit Output(const std::string& path) : path_(path) {}
  void add(const std::string& text) {
    waiting_ += text;
    if (waiting_.size() >= kEnough) flush();
  }
  void flush() {
    path_.empty() ? write_standard_output(waiting_) : write_file(path_, waiting_, begun_);
    begun_ = true;
    waiting_.clear();
  }

 private:
  static constexpr std::size_t kEnough = std::size_t{1} << 20;
  const std::string& path_;  ///< empty: standard output
  std::string waiting_;
  bool begun_ = false;
};

}  // namespace

void make_csv(const RecordSet& set, const std::function<void(const std::string& line)>& write) {
  const std::vector<CsvField> fields = csv_fields(set);
  std::vector<std::string> titles;
  for (const CsvField& field : fields) titles.push_back(field.title);
  for (const Column& column : report_columns())
    if (column.derived) titles.push_back(csv_heading(column.key, column.unit));
  titles.push_back("origin");
  write(csv_line(titles));

  const RecordRefs records = all_of(set);
  const Analysis analysis = analyze(records, Workloads(records), RowsBy::record);
  std::vector<const Row*> rows(set.records.size());  // in record order
  for (const Group& group : analysis.groups)
    for (const Row& row : group.rows) rows[row.members.front() - set.records.data()] = &row;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const LocatedRecord& located = set.records[i];
    const Json json = located.record;
    std::vector<std::string> line;
    for (const CsvField& field : fields) line.push_back(field.text_of(json));
    for (const Column& column : report_columns())
      if (column.derived) line.push_back(field_text(column.value(*rows[i])));
    line.push_back(located.origin.text());
    write(csv_line(line));
  }
}

nlohmann::ordered_json make_json(const RecordSet& set) {
  Json cases = Json::array();
  const Workloads workloads(all_of(set));
  for (const RecordRefs& records : by_machine(all_of(set))) {
    const Analysis analysis = analyze(records, workloads);
    for (const Group& group : analysis.groups)
      for (const Row& row : group.rows) {
        Json one = {{"case", row.fields}};
        for (const Column& column : report_columns()) one[column.key] = column.value(row);
        for (const LocatedRecord* member : row.members) one["ids"].push_back(member->record.id);
        cases.push_back(std::move(one));
      }
  }
  Json units = Json::object();
  for (const Column& column : report_columns())
    if (*column.unit) units[column.key] = column.unit;
  Json json = {{"units", units}, {"cases", cases}, {"problems", problems_of(set, workloads)}};
  // Includes study rows, which are not cases of a report.
  for (const LocatedRecord& located : set.records) {
    const Record& record = located.record;
    if (!record.sensitivity) continue;
    const Json whole = record;
    Json one = {{"id", record.id}, {"case", whole.at("case")}};
    if (record.study) one["study"] = whole.at("study");
    one.update(whole.at("sensitivity"));
    json["sensitivity"].push_back(std::move(one));
  }
  return json;
}

int report(const ReportOptions& options) {
  check_outputs({{"-o", options.output}}, options.paths);
  const RecordSet set =
      read_records(options.paths, options.format == "csv" ? reduce_for_table : reduce_for_report);
  std::vector<std::string> names;
  for (const std::string& path : options.paths) names.push_back(input_name(path));
  if (set.records.empty())
    throw InvalidInput(fmt::format("{}: no record in it{}", fmt::join(names, ", "),
                                   set.problems.empty() ? "" : " (" + set.problems.front() + ")"));
  make_folder(std::filesystem::path(options.output).parent_path());
  Output output(options.output);
  if (options.format == "csv" || options.format == "json") {
    for (const std::string& problem : problems_of(set, Workloads(all_of(set))))
      fmt::print(stderr, "{}\n", printable(problem));
    if (options.format == "csv")
      make_csv(set, [&](const std::string& line) { output.add(line); });
    else
      output.add(json_text(make_json(set)));
    output.flush();
    return 0;
  }
  if (options.format != "md" && options.format != "term" && options.format != "html")
    throw InvalidInput("--format: unknown value \"" + options.format +
                       "\"; it is one of term, md, html, csv, json");
  Document document = make_report(set);
  bool drawn = true;
  if (options.format == "html" || !options.plots.empty())
    drawn = draw_figures(document, options.plots, options.output);
  output.add(options.format == "html" ? render_html(document)
             : options.format == "md" ? render_markdown(document)
                                      : render_term(document));
  output.flush();
  if (drawn || options.plots.empty()) return 0;
  fmt::print(stderr, "precbench: --plots: {}\n", printable(document.notice));
  return 1;
}

}  // namespace precbench
