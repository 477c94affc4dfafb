// Command line of precbench report. See report_cli.h.
#include "tools/report/report_cli.h"

#include <CLI/CLI.hpp>

namespace precbench {

CLI::App* add_report_command(CLI::App& app, ReportOptions& options) {
  CLI::App* command =
      app.add_subcommand("report", "comparison of finished cases with BF16: speed, memory and loss");
  command->footer(
      "Examples:\n"
      "  # the headline, verdicts and warnings on the terminal\n"
      "  precbench report out/first\n"
      "  # every case of one recipe beside bf16\n"
      "  precbench report out/first --section speed,memory --recipe bf16\n"
      "  # one HTML page with figures\n"
      "  precbench report out/first --format html -o report.html\n"
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
      ->add_option("--section", options.sections,
                   "sections by name, separated by commas, or all; the last line of a report names those that it "
                   "has (default on a terminal: an overview; else all)")
      ->type_name("NAME[,NAME]")
      ->excludes(command->add_flag("--brief", options.brief, "the headline table alone"));
  command
      ->add_option("--model", options.selection.models, "models shown, by name; * stands for any text (default all)")
      ->delimiter(',')
      ->type_name("NAME[,NAME]");
  command
      ->add_option("--recipe", options.selection.recipes,
                   "recipes shown beside bf16, by name; * stands for any text (default all)")
      ->delimiter(',')
      ->type_name("NAME[,NAME]");
  command->add_flag("--wide", options.wide,
                    "all columns on the terminal, whatever its width (default: those of highest rank that fit)");
  command
      ->add_option("--color", options.color,
                   "color of verdicts; auto: on a terminal, unless NO_COLOR is set")
      ->check(CLI::IsMember({"auto", "always", "never"}).description(""))
      ->type_name("auto|always|never")
      ->capture_default_str();
  command
      ->add_option("--plots", options.plots, "output folder for the figures as SVG and PNG, with their data")
      ->type_name("DIR");
  return command;
}

}  // namespace precbench
