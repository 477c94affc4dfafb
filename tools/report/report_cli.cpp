// Command line of precbench report. See report_cli.h.
#include "tools/report/report_cli.h"

#include <CLI/CLI.hpp>

namespace precbench {

CLI::App* add_report_command(CLI::App& app, ReportOptions& options) {
  CLI::App* command = app.add_subcommand("report", "compare the recipes of finished cases with bf16");
  command->add_option("PATH", options.paths, "record files, folders of *.jsonl, or - for standard input")
      ->required()
      ->type_name("");
  command
      ->add_option("--format", options.format,
                   "term, md (Markdown), html (one file that needs no other), csv (a row per record) or json")
      ->check(CLI::IsMember({"term", "md", "html", "csv", "json"}))
      ->capture_default_str();
  command->add_option("-o,--output", options.output, "write here instead of to standard output")
      ->type_name("FILE");
  command
      ->add_option("--plots", options.plots,
                   "also leave the figures there, as SVG and PNG, each with its data")
      ->type_name("DIR");
  return command;
}

}  // namespace precbench
