// precbench study: does a recipe train? Plans trunks, forks, ladders and controls as ordinary cases, runs them through the
// sweep runner, and leaves their rows in OUT/records.jsonl, each with its place. What they say is judged elsewhere
// (tools/analysis/study_cards.h).
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "bench/cli/axis.h"
#include "bench/sweep/sweep.h"

namespace precbench {

struct StudyCommand {
  Axes axes;           ///< what the command line gave
  std::string config;  ///< study file; the command line wins over it
  std::string out = "out/study";
  std::optional<std::string> timeout;
  int at_once = 0;  ///< cases at one time; 0: as many as fit
  bool dry_run = false;
  SweepOptions options;
};
CLI::App* add_study_command(CLI::App& app, StudyCommand& command);

/// Prints the plan with an estimate of its time, and runs what is not finished yet. Returns how it ended
/// (sweep_status.h). Throws InvalidInput.
int study(const StudyCommand& command);

}  // namespace precbench
