// The communicators of a run, by what their ranks share. Created once, in one order on every rank; nothing
// else lists axes.
//
//   weights          one copy of the weights                  fsdp, hsdp: shard and context; ddp: none
//   replicas         the same part of the weights             ddp: data and context; hsdp: data
//   context          the same sequences
//   tensor           the same rows: each has a part of every matrix
//   tokens           one step: all ranks
//   experts          one copy of every block's experts        consecutive ranks
//   expert_replicas  the same part of the experts
#pragma once

#include <memory>
#include <vector>

#include "kernels/comm/comm.h"
#include "kernels/comm/parallel_dims.h"

namespace precbench {

/// A group's communicator; null for a group of one rank.
struct GroupComm {
  Comm* comm = nullptr;
  std::unique_ptr<Comm> owned;  ///< empty if the group uses another one's communicator
};

struct ParallelGroups {
  /// `all`: the ranks of dims, in order. `expert_ranks`: consecutive ranks that divide the experts. Throws
  /// std::invalid_argument if the numbers of ranks disagree.
  ParallelGroups(Comm& all, const ParallelDims& dims, int expert_ranks);

  Comm& tokens;
  GroupComm weights, replicas;
  GroupComm context, tensor;           ///< in lanes of their own: a step waits for their collectives at once
  GroupComm experts, expert_replicas;  ///< null without expert parallelism

  /// Returns the communicators of a step's collectives, each once.
  std::vector<Comm*> comms() const;
};

}  // namespace precbench
