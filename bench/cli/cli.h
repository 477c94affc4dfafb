// The commands that make records: sweep, run and list. `report` stands in tools/, which only reads them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/cli/axis.h"
#include "bench/sweep/sweep.h"

namespace CLI {
class App;
}

namespace precbench {

/// What --help says is a field's default, in words; empty where it has none, null of one that --help leaves out.
using DefaultOf = std::function<std::optional<std::string>(const Field&)>;

/// A case's own.
std::optional<std::string> default_of_case(const Field& field);

/// One flag per field, whose words go to `axes`. `sweep`: axes take lists, and repeats add to them; of another field the
/// last one counts.
void add_fields(CLI::App& app, Axes& axes, bool sweep, const DefaultOf& default_of = default_of_case);

struct SweepCommand {
  Axes axes;           ///< what the command line gave
  std::string config;  ///< sweep file; the command line wins over it
  std::optional<std::string> out;
  std::optional<std::string> timeout;
  bool dry_run = false;
  SweepOptions options;
};
/// What the flags that sweep and study share say of themselves where it is not the same.
struct SweepHelp {
  const char* group;
  const char* config;
  const char* out;
  const char* dry_run;
  const char* at_once;
  DefaultOf default_of = default_of_case;
};
void add_sweep_flags(CLI::App& app, SweepCommand& command, const SweepHelp& help);
CLI::App* add_sweep_command(CLI::App& app, SweepCommand& command);
int sweep(const SweepCommand& command);

/// The cases of a sweep, resolved, in the order they run. Throws InvalidInput.
std::vector<Plan> grid_of(const SweepCommand& command);

struct RunCommand {
  Axes axes;
  std::string out;  ///< folder to append the record to; empty: print it only
};
CLI::App* add_run_command(CLI::App& app, RunCommand& command);
/// One case in this very process, for debuggers and profilers. Prints the record; 0 if its status is ok,
/// else 1, and why in a line on standard error. Throws InvalidInput for a list or a range, which only a sweep takes.
int run(const RunCommand& command);

struct ListCommand {
  std::string what;    ///< "recipes", "models" or "devices"
  std::string recipe;  ///< of recipes only this one, in full; empty: all
  std::string model;   ///< of models only this one, with its warnings; empty: all
};
CLI::App* add_list_command(CLI::App& app, ListCommand& command);
int list(const ListCommand& command);

/// Parses, and ends in one line on standard error where that fails: unknown flags and commands come with the
/// nearest valid one. Returns the exit status if the program is done (help, version, bad input).
std::optional<int> parse_command_line(CLI::App& app, int argc, char** argv);

/// What a command prints on standard output: its result, without which it fails, or words about it.
enum class Printed : std::uint8_t { result, words };

/// The exit status of `command`. An exception becomes one line on standard error: 2 for what the user can mend
/// in the input or the system, 1 for everything else. So does a standard output that cannot be written, which is 2
/// where the result was to go there.
int exit_status_of(const std::function<int()>& command, Printed printed = Printed::result);

}  // namespace precbench
