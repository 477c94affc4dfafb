// precbench check: compares the records of a run with a baseline. Needs no GPU.
//
// Exit status: 0 nothing is worse, 1 a regression, 2 bad input (InvalidInput), 3 nothing is known to be worse
// but something is missing or inconclusive. A case of the baseline that was not measured is never a pass.
#pragma once

#include <string>
#include <vector>

#include "tools/gate/gate_render.h"

namespace CLI {
class App;
}

namespace precbench {

struct CheckOptions {
  std::string baseline;            ///< record file
  std::vector<std::string> paths;  ///< record files, folders of them, or "-" for standard input
  std::string tokens_per_s = "3%", memory = "2%", loss = "auto";
  bool numerics = false;              ///< also run judge_numerics
  std::string markdown, junit, json;  ///< additional output files; empty: none
  std::string inconclusive;           ///< "pass" or "fail"; empty: exit status 3
  bool accept = false;                ///< update the baseline with the records of this run
  bool replace = false;  ///< with accept: replace records of the same build, and a baseline of another kind
};

/// Prints the result and returns the exit status. Also appends Markdown to the file named by
/// GITHUB_STEP_SUMMARY. If GITHUB_ACTIONS is "true", prints annotations, and disables workflow commands for
/// all other output.
///
/// With `accept`, measured cases of the run go into the baseline, except records that contradict themselves
/// or whose age is ambiguous. A record of the commit of the baseline's records of its case becomes a repeat
/// of it; another, or any with `replace`, takes their place, and so does a record of the same time. What got
/// worse is printed, as a check against the old baseline finds it. A baseline of another kind
/// (difference_in_kind) is replaced entirely, with `replace` only. An old file of which records were replaced
/// is kept as FILE.1, FILE.2, ... The status is then 0. Accepted cases that cannot be judged against
/// themselves are named: a check against them stays inconclusive.
///
/// Throws InvalidInput if a path holds no record, if the baseline is missing, empty or broken, if the two
/// must not be compared, or if an output cannot be written.
///
/// `rerun` builds the command for a case. Its record goes to the first folder among `paths`,
/// else to out/again.
int check(const CheckOptions& options, const RerunCommand& rerun);

/// Adds the subcommand `check --baseline FILE PATH...`. Parsing fills `options`, which must outlive the app.
CLI::App* add_check_command(CLI::App& app, CheckOptions& options);

/// Parses the three tolerances: "3%", "off", and "auto" for the loss. Throws InvalidInput
/// if one is malformed.
GateRules rules_of(const CheckOptions& options);

}  // namespace precbench
