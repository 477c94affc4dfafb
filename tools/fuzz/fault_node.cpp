// A process of a multi-process sweep for inject_faults.py: the program's own sweep, coordinator and worker,
// with cases that only sleep, because the processes are under test. Takes the flags of `precbench sweep`;
// --device cuda, which multi-process sweeps require, opens no GPU here.
#include <CLI/CLI.hpp>
#include <chrono>
#include <thread>

#include "bench/cli/cli.h"
#include "bench/process/case_process.h"

namespace {

constexpr std::chrono::milliseconds kStep(10);

/// Sleeps for steps x 10 ms and returns a record.
precbench::Record idle(const precbench::Case& c, const precbench::NodeShare&, precbench::StepBoard&) {
  std::this_thread::sleep_for(c.steps * kStep);
  return precbench::start_record(precbench::validate(c));
}

}  // namespace

int main(int argc, char** argv) {
  using namespace precbench;
  CLI::App app("A process of a sweep whose cases are idle.", "precbench_fault_node");
  SweepCommand command;
  command.options.child = {"/proc/self/exe", "run-case"};
  const CLI::App* sweep_sub = add_sweep_command(app, command);
  app.add_subcommand("run-case", "one idle case")->group("");
  if (const auto status = parse_command_line(app, argc, argv)) return *status;
  return exit_status_of([&] { return *sweep_sub ? sweep(command) : child_main(idle); });
}
