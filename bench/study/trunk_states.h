// The states that a study keeps on disk between trunks and forks: how much space they need, how many trunks can have
// them at a time, and what is known of those that have been removed.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "bench/case/plan.h"
#include "bench/study/study_plan.h"
#include "bench/sweep/disk_space.h"

namespace precbench {

/// The order of a study's work. one_trunk: a trunk, its forks, the removal of its states, then the next trunk.
/// Records and verdicts are the same, except for the order of the rows.
enum class TrunkOrder : std::uint8_t { all_trunks, one_trunk };

struct TrunkSpace {
  TrunkOrder order = TrunkOrder::all_trunks;
  std::string note;  ///< a line for the user; empty if everything fits
  bool fits = true;  ///< false if not even one trunk at a time fits; `note` says what is needed
};

/// Decides how the states of the `trunks`, in the order in which they run, fit into what is free below the folder
/// `out`. `steady`: the forks' age depends on the losses of all trunks, so all of them come first.
TrunkSpace plan_trunk_space(const std::vector<Plan>& trunks, const std::string& out, Earlier earlier,
                            bool steady, const FreeBytes& free);

/// Returns true if the trunk has a state on disk at some of the ages at which its plan keeps it.
bool has_states(const Plan& trunk);

/// Returns the fingerprints of states by path, as the rows of their forks have them: with these a fork has its id
/// although its state is gone. A missing file has none.
std::map<std::string, std::uint64_t> fingerprints_in_rows(const std::string& records);

/// Resolves forks, with their places. A state that is gone has the fingerprint that `known` gives.
std::vector<Plan> resolve_forks(const std::vector<StudyCase>& forks,
                                const std::map<std::string, std::uint64_t>& known);

/// Removes the trunk's states: all at once for a study that starts later, even if this one is killed meanwhile.
void remove_states(const Plan& trunk);

/// Removes what a killed study has left of states that it was removing.
void finish_removal(const Plan& trunk);

}  // namespace precbench
