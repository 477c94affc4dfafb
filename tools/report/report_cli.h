// The command line of precbench report.
#pragma once

#include "tools/report/report.h"

namespace CLI {
class App;
}

namespace precbench {

/// Mounts `report PATH... [--format F] [-o FILE] [--plots DIR]`; parsing fills `options`, which must outlive
/// the app. The caller then runs report(options).
CLI::App* add_report_command(CLI::App& app, ReportOptions& options);

}  // namespace precbench
