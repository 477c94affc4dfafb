// Reads records and writes the report, including CSV and JSON for programs. See report.h.
#include "tools/report/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>

#include "kernels/base/errors.h"
#include "kernels/base/terminal.h"
#include "results/record/compressed.h"
#include "results/record/line_reader.h"
#include "results/record/printable.h"
#include "results/record/schema.h"
#include "tools/analysis/analysis.h"
#include "tools/analysis/columns.h"
#include "tools/import/read_log.h"
#include "tools/report/reduce_record.h"
#include "tools/text/distinct.h"
#include "tools/text/escape.h"
#include "tools/text/gnuplot.h"
#include "tools/text/screen.h"
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

/// Returns true for formats with one entry per record, in place of sections.
bool is_of_rows(const std::string& format) { return format == "csv" || format == "json"; }

/// Throws InvalidInput for flags that the format has no use for.
void check_view(const ReportOptions& options) {
  const std::set<std::string> formats = {"term", "md", "html", "csv", "json"};
  if (!formats.contains(options.format))
    throw InvalidInput("--format: unknown value \"" + options.format +
                       "\"; it is one of term, md, html, csv, json");
  const bool of_rows = is_of_rows(options.format);
  if (of_rows && (options.brief || !options.sections.empty()))
    throw InvalidInput(fmt::format("{}: --format {} has no sections", options.brief ? "--brief" : "--section",
                                   options.format));
  if (of_rows && !options.against.empty())
    throw InvalidInput("--against: --format " + options.format + " has no verdicts; use term, md or html");
  if (!options.plots.empty() && (of_rows || options.brief || !options.query.columns.empty()))
    throw InvalidInput(fmt::format("--plots: {} has no figures; leave one of the two out",
                                   options.brief ? "--brief"
                                   : of_rows     ? "--format " + options.format
                                                 : "--columns"));
  if (options.brief && !options.sections.empty())
    throw InvalidInput("--brief is --section headline: use one of them");
  const bool query = !options.query.columns.empty();
  if (query && options.format != "term" && options.format != "md")
    throw InvalidInput("--columns: only for --format term and md");
  const ColumnQuery& rest = options.query;
  const std::vector<std::pair<const char*, bool>> parts = {{"--rows", !rest.rows.empty()},
                                                           {"--pivot", !rest.pivot.empty()},
                                                           {"--where", !rest.where.empty()},
                                                           {"--base", !options.base.empty()}};
  for (const auto& [flag, given] : parts)
    if (given && !query) throw InvalidInput(fmt::format("{}: needs --columns", flag));
  if (!options.base.empty() && !options.sections.empty() && options.sections != "speed")
    throw InvalidInput("--base: only for --section speed");
  if (options.wide && options.format != "term") throw InvalidInput("--wide: only for --format term");
}

ReportView view_of(const ReportOptions& options) {
  return {options.selection, options.brief ? "headline" : options.sections, options.format == "term",
          options.query, options.base, options.against};
}

Screen screen_of(const ReportOptions& options) {
  Screen screen = standard_screen(options.color);
  screen.fitted = !options.wide;
  if (options.output.empty()) return screen;
  constexpr int kNoTerminal = -1;
  screen.width = terminal_width(kNoTerminal);
  screen.color = options.color == "always";
  return screen;
}

/// Returns the tables alone, with titles only if there are several.
std::string tables_of(const Document& document, const ReportOptions& options) {
  const bool term = options.format == "term";
  const Screen screen = screen_of(options);
  std::string text;
  for (const Section& section : document.sections) {
    if (document.sections.size() > 1)
      text += fmt::format("{}{}{}\n\n", text.empty() ? "" : "\n", term ? "" : "## ",
                          term ? printable(section.title) : markdown_text(section.title));
    text += term ? render_term(*section.table, screen) : render_markdown(*section.table);
  }
  return text;
}

/// Buffers output and writes it in large pieces.
class Output {
 public:
  explicit Output(const std::string& path) {
    if (!path.empty()) file_.emplace(path);
  }
  void add(const std::string& text) {
    waiting_ += text;
    if (waiting_.size() >= kEnough) flush();
  }
  /// Writes what is left. To be called once, last.
  void finish() {
    flush();
    if (file_) file_->commit();
  }

 private:
  static constexpr std::size_t kEnough = std::size_t{1} << 20;

  void flush() {
    file_ ? file_->add(waiting_) : write_standard_output(waiting_);
    waiting_.clear();
  }

  std::optional<PendingFile> file_;  ///< null: standard output
  std::string waiting_;
};

bool is_overview(const ReportOptions& options) {
  return options.format == "term" && options.sections.empty() && !options.brief;
}

/// Draws the figures into the folder of --plots, of all sections if the report shows an overview alone. Returns why not
/// all were drawn; null if they were.
std::optional<std::string> draw_plots(const RecordSet& set, const ReportOptions& options, Document& shown) {
  ReportView view = view_of(options);
  view.overview = false;
  Document whole = is_overview(options) ? make_report(set, view) : Document{};
  Document& drawn = is_overview(options) ? whole : shown;
  const bool none = std::all_of(drawn.sections.begin(), drawn.sections.end(),
                                [](const Section& section) { return section.figures.empty(); });
  if (none) return "these records have no figure in the sections of this report";
  return draw_figures(drawn, options.plots, options.output) ? std::nullopt : std::optional(drawn.notice);
}

/// Returns the options of a history. Throws InvalidInput for flags that have no effect on one.
HistoryOptions history_options(const ReportOptions& options) {
  const std::vector<std::pair<const char*, bool>> others = {{"--section", !options.sections.empty()},
                                                            {"--brief", options.brief},
                                                            {"--plots", !options.plots.empty()},
                                                            {"--model", !options.selection.models.empty()},
                                                            {"--recipe", !options.selection.recipes.empty()},
                                                            {"--columns", !options.query.columns.empty()},
                                                            {"--rows", !options.query.rows.empty()},
                                                            {"--pivot", !options.query.pivot.empty()},
                                                            {"--where", !options.query.where.empty()},
                                                            {"--base", !options.base.empty()},
                                                            {"--against", !options.against.empty()}};
  for (const auto& [flag, given] : others)
    if (given) throw InvalidInput(fmt::format("{}: not with --history, which shows all cases", flag));
  if (options.wide && options.format != "term") throw InvalidInput("--wide: only for --format term");
  HistoryOptions history = options.history;
  history.paths = options.paths, history.format = options.format, history.output = options.output;
  history.color = options.color, history.wide = options.wide;
  return history;
}

}  // namespace

void make_csv(const RecordSet& set, const Selection& selection,
              const std::function<void(const std::string& line)>& write) {
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
    if (!selection.has(located.record)) continue;
    const Json json = located.record;
    std::vector<std::string> line;
    for (const CsvField& field : fields) line.push_back(field.text_of(json));
    for (const Column& column : report_columns())
      if (column.derived) line.push_back(field_text(column.value(*rows[i])));
    line.push_back(located.origin.text());
    write(csv_line(line));
  }
}

nlohmann::ordered_json make_json(const RecordSet& set, const Selection& selection) {
  Json cases = Json::array();
  const Workloads workloads(all_of(set));
  for (const RecordRefs& records : by_machine(all_of(set))) {
    const Analysis analysis = analyze(records, workloads);
    for (const Group& group : analysis.groups)
      for (const Row& row : group.rows) {
        if (!selection.has(row.record())) continue;
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
    if (!record.sensitivity || !selection.has(record)) continue;
    const Json whole = record;
    Json one = {{"id", record.id}, {"case", whole.at("case")}};
    if (record.study) one["study"] = whole.at("study");
    one.update(whole.at("sensitivity"));
    json["sensitivity"].push_back(std::move(one));
  }
  return json;
}

int report(const ReportOptions& options) {
  const HistoryOptions& history = options.history;
  for (const auto& [flag, value] : {std::pair("--since", &history.since), {"--fail-on", &history.fail_on},
                                    {"--append", &history.append}})
    if (!history.asked && !value->empty()) throw InvalidInput(fmt::format("{}: needs --history", flag));
  if (history.asked) return report_history(history_options(options), options.history_cases);
  check_outputs({{"-o", options.output}}, options.paths);
  check_view(options);
  refuse_compressed(options.paths, "precbench report -");
  const RecordSet set =
      read_records(options.paths, options.format == "csv" ? reduce_for_table : reduce_for_report);
  std::vector<std::string> names;
  for (const std::string& path : options.paths) names.push_back(input_name(path));
  if (set.records.empty())
    throw InvalidInput(fmt::format("{}: no record in it{}{}", fmt::join(names, ", "),
                                   set.problems.empty() ? "" : " (" + set.problems.front() + ")",
                                   import_hint(options.paths.front())));
  check_selection(options.selection, set);
  make_folder(std::filesystem::path(options.output).parent_path());
  if (!options.plots.empty()) {
    make_folder(options.plots);
    check_writable((std::filesystem::path(options.plots) / "figure.svg").string());
  }
  Output output(options.output);
  if (is_of_rows(options.format)) {
    for (const std::string& problem : problems_of(set, Workloads(all_of(set))))
      fmt::print(stderr, "{}\n", printable(problem));
    if (options.format == "csv")
      make_csv(set, options.selection, [&](const std::string& line) { output.add(line); });
    else
      output.add(json_text(make_json(set, options.selection)));
    output.finish();
    return 0;
  }
  Document document = make_report(set, view_of(options));
  std::optional<std::string> undrawn;
  if (!options.plots.empty())
    undrawn = draw_plots(set, options, document);
  else if (options.format == "html")
    draw_figures(document, "", options.output);
  if (!options.query.columns.empty()) {
    output.add(tables_of(document, options));
  } else if (options.format == "term") {
    const std::string text = render_term(document, screen_of(options));
    if (options.output.empty())
      page_text(text);
    else
      output.add(text);
  } else {
    output.add(options.format == "html" ? render_html(document) : render_markdown(document));
  }
  output.finish();
  if (!undrawn) return 0;
  fmt::print(stderr, "precbench: --plots: {}\n", printable(*undrawn));
  return 1;
}

}  // namespace precbench
