// The files that a case reads and writes, looked at before anything runs.
#pragma once

#include <vector>

#include "bench/case/plan.h"

namespace precbench {

/// Throws InvalidInput where the data or the weights of a case are missing, unreadable, corrupt, too short or
/// another model's, or where what it saves cannot be written or would overwrite another of its files. Each corpus
/// and each checkpoint is opened once; the folders of saved weights are made.
void check_files(const std::vector<Plan>& cases);

/// Refuses what check_files does, of a dry run: leaves no file or folder behind.
void try_files(const std::vector<Plan>& cases);

/// The part that writes nothing: what cases read, and that no two of a case's files are one.
void check_inputs(const std::vector<Plan>& cases);

/// The part about what a case saves, of one that is read by other means.
void check_outputs(const Plan& plan);

}  // namespace precbench
