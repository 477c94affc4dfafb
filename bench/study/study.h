// precbench study: does a recipe train? Plans trunks, forks, ladders and controls as ordinary cases, runs
// them with the sweep runner, and leaves their rows, with their places in the study, in OUT/records.jsonl.
// tools/analysis/study_cards.h judges them.
#pragma once

#include <CLI/CLI.hpp>

#include "bench/cli/cli.h"

namespace precbench {

/// Options of the command. `config` is a study file; options.at_once 0 means as many cases as fit.
struct StudyCommand : SweepCommand {
  StudyCommand() { out = "out/study", options.at_once = 0; }
  bool sensitivity_only = false;  ///< runs trunks and --sensitivity only
  std::string against;            ///< incumbent, a recipe to compare the others with; empty: the settings'
  std::string trained_tokens;     ///< tokens seen by the --init-from weights, as typed; empty: unknown
};
CLI::App* add_study_command(CLI::App& app, StudyCommand& command);

/// Prints the plan with an estimate of its time, and runs what is not finished yet. Returns the exit status
/// (sweep_status.h). Throws InvalidInput.
int study(const StudyCommand& command);

}  // namespace precbench
