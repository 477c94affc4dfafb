// The commands sweep, run and list. `report` and `check`, which only read records, are in tools/.
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

/// Returns a field's default for --help: empty if it has none, null if --help omits the field.
using DefaultOf = std::function<std::optional<std::string>(const Field&)>;

/// Returns the default that Case has.
std::optional<std::string> default_of_case(const Field& field);

/// Adds one flag per field, whose words go to `axes`. With `sweep`, axes take lists, and a repeated flag
/// appends. For any other field the last value counts.
void add_fields(CLI::App& app, Axes& axes, bool sweep, const DefaultOf& default_of = default_of_case);

struct SweepCommand {
  Axes axes;           ///< from the command line
  std::string config;  ///< sweep file; flags override it
  std::optional<std::string> out;
  std::optional<std::string> timeout;
  bool dry_run = false;
  std::string gpu;    ///< GPU that a dry run plans for; empty: this machine's
  std::string on;     ///< machine whose steps a dry run predicts: a preset or a file; empty: none
  std::string stack;  ///< whose speed stands beside ours (stack_factor.h); empty: ours alone
  bool json = false;  ///< output of a dry run as JSON
  SweepOptions options;
};
/// Help texts that differ between sweep and study, for the flags that both have.
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

/// Replaces the device "auto". Warns once if that is the CPU although a GPU driver is loaded.
void choose_device(Case& c);

/// Returns the resolved cases of a sweep in the order they run. Throws InvalidInput.
std::vector<Plan> grid_of(const SweepCommand& command);

struct RunCommand {
  Axes axes;
  std::string out;  ///< folder to append the record to; empty: print it only
};
CLI::App* add_run_command(CLI::App& app, RunCommand& command);
/// Runs one case in this process, for debuggers and profilers, and prints its record. Returns 0 if its status
/// is ok, else 1 with the reason on standard error. Throws InvalidInput for a list or a range.
int run(const RunCommand& command);

struct ListCommand {
  std::string what;    ///< "recipes", "models" or "devices"
  std::string recipe;  ///< the recipe to show in full; empty: all, as a table
  std::string model;   ///< the model to show with its warnings; empty: all, as a table
  bool json = false;   ///< JSON in place of tables
};
CLI::App* add_list_command(CLI::App& app, ListCommand& command);
int list(const ListCommand& command);

/// Returns a hint for a flag that a command does not know, given without its dashes; empty if it has none.
using FlagHint = std::function<std::string(const std::string& command, const std::string& flag)>;

/// Parses the command line. Returns the exit status if the program is done: help, version, bad input (one
/// line on standard error, with the nearest valid flag or command, or what `hint` says) or no arguments (an
/// introduction on standard error).
std::optional<int> parse_command_line(CLI::App& app, int argc, char** argv, const FlagHint& hint = nullptr);

/// Content of a command's standard output: its result, without which it fails, or mere messages.
enum class Printed : std::uint8_t { result, words };

/// Runs `command` and returns the exit status. An exception becomes one line on standard error and status 2
/// if the user can fix the input or the system, else 1. If standard output cannot be written, that is a line
/// too, and status 2 if the result was to go there.
int exit_status_of(const std::function<int()>& command, Printed printed = Printed::result);

}  // namespace precbench
