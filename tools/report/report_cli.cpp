// Command line of precbench report. See report_cli.h.
#include "tools/report/report_cli.h"

#include <CLI/CLI.hpp>

namespace precbench {

CLI::App* add_report_command(CLI::App& app, ReportOptions& options) {
  CLI::App* command =
      app.add_subcommand("report", "comparison of finished cases with BF16: speed, memory and loss");
  command->footer(
      "Examples:\n"
      "  # tables on the terminal\n"
      "  precbench report out/first\n"
      "  # one HTML page with figures\n"
      "  precbench report out/first --format html -o report.html\n"
      "  # is any recipe of a study better than nvfp4?\n"
      "  precbench report out/study --against nvfp4\n"
      "  # one row per record, for a spreadsheet\n"
      "  precbench report out/first baseline.jsonl --format csv -o records.csv");
  command->add_option("PATH", options.paths, "record files, folders of *.jsonl, or - for standard input")
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
      ->add_option("--plots", options.plots, "output folder for the figures as SVG and PNG, with their data")
      ->type_name("DIR");
  command
      ->add_option("--against", options.against,
                   "recipe to compare the others of a study with (default the one of the study's --against)")
      ->type_name("RECIPE");
  return command;
}

}  // namespace precbench
