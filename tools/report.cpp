// precbench report: reads the records, writes the report; and CSV, which is for programs.
#include "tools/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>

#include "kernels/errors.h"
#include "results/schema.h"
#include "tools/analysis.h"
#include "tools/columns.h"
#include "tools/distinct.h"

namespace precbench {
namespace {

using Json = nlohmann::ordered_json;

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

Table make_csv(const RecordSet& set) {
  // The schema names the fields and units of a record; the fields of a case are those of the records.
  std::vector<SchemaField> fields;
  for (const SchemaField& field : Schema::record().scalar_fields()) {
    const bool of_case = field.pointer.rfind("/case/", 0) == 0;
    if (!of_case) fields.push_back(field);
    if (field.pointer != "/created") continue;
    Distinct keys;
    for (const auto& [record, origin, env] : set.records)
      for (const auto& item : record.case_fields.items()) keys.add(item.key());
    for (const std::string& key : keys.texts) fields.push_back({"/case/" + key, case_unit(key)});
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

  const Analysis analysis = analyze(all_of(set), RowsBy::record);
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
