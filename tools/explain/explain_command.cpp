// Reads traces and prints what they explain. See explain_command.h.
#include "tools/explain/explain_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "kernels/base/errors.h"
#include "tools/explain/explain_output.h"
#include "tools/explain/trace_file.h"
#include "tools/text/gnuplot.h"
#include "tools/text/text.h"
#include "tools/text/write_file.h"

namespace precbench {

void add_explain_flags(CLI::App& command, ExplainCommand& options) {
  command.add_option("TRACE", options.traces, "a trace, or two to compare")->required()->type_name("");
  command
      .add_option("--gpu", options.gpu, "GPU whose rates give the expected times (default the one that the trace names)")
      ->type_name("NAME");
  command.add_option("--plots", options.plots, "output folder for a figure as SVG and PNG, with its data")
      ->type_name("DIR");
  command.add_flag("--json", options.json, "output as JSON");
}

int explain(const ExplainCommand& command, const ExpectationOf& expectation_of) {
  if (command.traces.size() > 2)
    throw InvalidInput(fmt::format("TRACE: one, or two to compare; {} are named", command.traces.size()));
  std::unique_ptr<Expectation> named;
  if (!command.gpu.empty())
    named = expectation_of(command.gpu, true);  // refuses unknown names before it reads
  std::vector<ExplainedTrace> traces;
  for (const std::string& path : command.traces) {
    ExplainedTrace& one = traces.emplace_back();
    one.trace = read_trace(path);
    const std::unique_ptr<Expectation> own = named ? nullptr : expectation_of(one.trace.gpu_name, false);
    const Expectation* expectation = named ? named.get() : own.get();
    if (expectation) {
      one.rates_of = expectation->gpu();
      one.borrowed = expectation->borrowed();
    }
    one.all = explain_trace(one.trace, expectation);
  }
  std::string notice;
  if (!command.plots.empty()) {
    make_folder(command.plots);
    check_writable((std::filesystem::path(command.plots) / "explain.svg").string());
    Document figure = explain_figure(traces);
    if (!draw_figures(figure, command.plots, "")) notice = figure.notice;
  }
  write_standard_output(command.json ? json_text(explain_json(traces))
                                     : explain_text(traces, plain_screen(STDOUT_FILENO)));
  if (!notice.empty()) fmt::print(stderr, "{}\n", notice);
  return notice.empty() ? 0 : 1;
}

}  // namespace precbench
