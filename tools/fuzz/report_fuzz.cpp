// Fuzzes all formats of the report with record files. Figures are not drawn, since gnuplot
// is another program.
#include "tools/report/report.h"

#include <cstdlib>

#include "tools/fuzz/fuzz.h"

using namespace precbench;

PRECBENCH_FUZZ_TARGET(report) {
  static const bool without_gnuplot = setenv("PATH", "", 1) == 0;
  expect(without_gnuplot);
  const std::string path = scratch().write("records.jsonl", std::string(text_of(data, size)));
  ReportOptions options{{path}, "", scratch() / "report"};
  for (const char* format : {"term", "md", "html", "csv", "json"}) {
    options.format = format;
    if (!taken([&] { report(options); })) return 0;
  }
  options.format = "term", options.sections = "all";
  taken([&] { report(options); });
  options.sections = "speed", options.query = {{"tokens/s", "speed-up"}, {}, "recipe", {}};
  taken([&] { report(options); });
  return 0;
}
