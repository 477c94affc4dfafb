// precbench study: does a recipe train? Plans trunks, forks, ladders and controls as ordinary cases, runs them through the
// sweep runner, and leaves their rows in OUT/records.jsonl, each with its place. What they say is judged elsewhere
// (tools/analysis/study_cards.h).
#pragma once

#include <CLI/CLI.hpp>

#include "bench/cli/cli.h"

namespace precbench {

/// Its `config` is a study file, and options.at_once 0: as many cases as fit.
struct StudyCommand : SweepCommand {
  StudyCommand() { out = "out/study", options.at_once = 0; }
  bool sensitivity_only = false;  ///< trunks, then --sensitivity and nothing else
  std::string trained_tokens;  ///< what the weights of --init-from had seen, as the user wrote it; empty: not said
};
CLI::App* add_study_command(CLI::App& app, StudyCommand& command);

/// Prints the plan with an estimate of its time, and runs what is not finished yet. Returns how it ended
/// (sweep_status.h). Throws InvalidInput.
int study(const StudyCommand& command);

}  // namespace precbench
