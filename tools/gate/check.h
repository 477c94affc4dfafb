// precbench check: the records of a run against those of a baseline. Needs no GPU.
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
  bool numerics = false;              ///< judge_numerics as well
  std::string markdown, junit, json;  ///< files to write as well; empty: none
  bool accept = false;                ///< write the records of this run to the baseline
};

/// Prints the result; returns the exit status. Also appends Markdown to the file that GITHUB_STEP_SUMMARY
/// names, and prints annotations where GITHUB_ACTIONS is "true",
/// with workflow commands stopped for all else. With `accept` the run's measured cases
/// replace those of the baseline and new ones join it, but for records that contradict themselves or of which
/// nobody knows whether they are the newest; a baseline of another kind (difference_in_kind) is replaced
/// whole, and kept as FILE.1, FILE.2, ...; then the status is 0. Throws InvalidInput if a path
/// holds no record, the baseline is missing, empty or broken, the two must not be compared, or an output
/// cannot be written.
///
/// `rerun` makes the command of a case; its row goes to the first folder of `paths`, or to out/again where they name none.
int check(const CheckOptions& options, const RerunCommand& rerun);

/// Mounts `check --baseline FILE PATH...`; parsing fills `options`, which must outlive the app.
CLI::App* add_check_command(CLI::App& app, CheckOptions& options);

/// The rules that the three tolerances say: "3%", "off", and for the loss "auto". Throws InvalidInput.
GateRules rules_of(const CheckOptions& options);

}  // namespace precbench
