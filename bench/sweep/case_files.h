// Checks the files that a case reads and writes before anything runs.
#pragma once

#include <vector>

#include "bench/case/plan.h"

namespace precbench {

/// Throws InvalidInput if a case's data or weights are missing, unreadable, corrupt, too short or of another
/// model, or if an output cannot be written or would overwrite another of the case's files. Opens each corpus
/// and checkpoint once. Creates the folders of saved weights.
void check_files(const std::vector<Plan>& cases);

/// The same for a dry run: leaves no file or folder behind.
void try_files(const std::vector<Plan>& cases);

/// The part that writes nothing: checks inputs, and that no two of a case's files are the same. Prints doubts about
/// the inputs, each once: tensors of --init-from that are left out, tokens of too few bits, checkpoints of the same
/// case with another --steps.
void check_inputs(const std::vector<Plan>& cases);

/// Prints these doubts about a case whose inputs are checked elsewhere. Throws InvalidInput if they cannot be opened.
void print_input_warnings(const Plan& plan);

/// Checks the outputs of a case whose inputs are checked elsewhere.
void check_outputs(const Plan& plan);

}  // namespace precbench
