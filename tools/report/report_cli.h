// Command line of precbench report.
#pragma once

#include "tools/report/report.h"

namespace CLI {
class App;
}

namespace precbench {

/// Adds the subcommand `report PATH... [--format F] [-o FILE] ...`. Parsing fills `options`, which
/// must outlive the app; the caller then runs report(options).
CLI::App* add_report_command(CLI::App& app, ReportOptions& options);

}  // namespace precbench
