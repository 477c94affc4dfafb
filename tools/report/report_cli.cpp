// Command line of precbench report. See report_cli.h.
#include "tools/report/report_cli.h"

#include <CLI/CLI.hpp>

namespace precbench {

namespace {

void add_query_options(CLI::App* command, ReportOptions& options) {
  const auto add = [&](const char* flag, auto& value, const char* help, const char* type) {
    return command->add_option(flag, value, help)->type_name(type)->group("A table of your own");
  };
  const auto add_list = [&](const char* flag, std::vector<std::string>& value, const char* help) {
    add(flag, value, help, "NAME[,NAME]")->delimiter(',')->allow_extra_args(false);
  };
  add_list("--columns", options.query.columns,
           "columns of a section's table (--section, default speed) by title, as one table and nothing else");
  add_list("--rows", options.query.rows, "columns that identify a row (default all text columns that vary)");
  add("--pivot", options.query.pivot,
      "column whose values become columns; a cell has the first of --columns and the others in parentheses",
      "NAME");
  add("--where", options.query.where, "rows kept by their value in a column; may be repeated",
      "NAME=VALUE[,VALUE]")
      ->allow_extra_args(false);
  add("--base", options.base, "recipe that speed-up and memory ratio are relative to (default bf16)", "RECIPE");
}

}  // namespace

CLI::App* add_report_command(CLI::App& app, ReportOptions& options) {
  CLI::App* command =
      app.add_subcommand("report", "comparison of finished cases with BF16: speed, memory and loss");
  command->footer(
      "Examples:\n"
      "  # the headline, verdicts and warnings on the terminal\n"
      "  precbench report out/first\n"
      "  # one table: recipes side by side\n"
      "  precbench report out/first --columns tokens/s,IQR --pivot recipe --format md\n"
      "  # one HTML page with figures\n"
      "  precbench report out/first --format html -o report.html\n"
      "  # is any recipe of a study better than mxfp8_floor?\n"
      "  precbench report out/study.jsonl --against mxfp8_floor\n"
      "  # one row per record, for a spreadsheet\n"
      "  precbench report out/first baseline.jsonl --format csv -o records.csv\n"
      "  # add a nightly run to a history, and fail if a case got slower in the last two weeks\n"
      "  precbench report --history out/nightly --append history.jsonl --since 14d --fail-on slower\n"
      "Exit status: 0 done; 1 a figure could not be drawn, or with --fail-on a case got slower; 2 bad input; "
      "3 a history has too few nights, or with --fail-on is undecided.");
  command
      ->add_option("PATH", options.paths,
                   "record files (.jsonl, .jsonl.xz), folders of them, or - for standard input")
      ->required()
      ->type_name("");
  command
      ->add_option("--format", options.format,
                   "output format: terminal, Markdown, self-contained HTML, CSV (a row per record), JSON")
      ->check(CLI::IsMember({"term", "md", "html", "csv", "json"}).description(""))
      ->type_name("term|md|html|csv|json")
      ->capture_default_str();
  command->add_option("-o,--output", options.output, "output file (default standard output)")
      ->type_name("FILE");
  command
      ->add_option(
          "--section", options.sections,
          "sections by name, separated by commas, or all; the last line of a report names those that it "
          "has (default on a terminal: an overview; else all)")
      ->type_name("NAME[,NAME]")
      ->excludes(command->add_flag("--brief", options.brief, "headline table alone"));
  command
      ->add_option("--model", options.selection.models,
                   "models shown, by name; * stands for any text (default all)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("NAME[,NAME]");
  command
      ->add_option("--recipe", options.selection.recipes,
                   "recipes shown beside bf16, by name; * stands for any text (default all)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("NAME[,NAME]");
  command->add_flag(
      "--wide", options.wide,
      "all columns on the terminal, whatever its width (default: those of highest rank that fit)");
  command
      ->add_option("--color", options.color, "color of verdicts; auto: on a terminal, unless NO_COLOR is set")
      ->check(CLI::IsMember({"auto", "always", "never"}).description(""))
      ->type_name("auto|always|never")
      ->capture_default_str();
  command
      ->add_option("--plots", options.plots, "output folder for the figures as SVG and PNG, with their data")
      ->type_name("DIR");
  command
      ->add_option("--against", options.against,
                   "recipe to compare the others of a study with (default the one of the study's --against)")
      ->type_name("RECIPE");
  add_query_options(command, options);
  add_history_options(*command, options.history);
  return command;
}

}  // namespace precbench
