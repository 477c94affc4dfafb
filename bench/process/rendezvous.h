// Several processes of one sweep, one per node, started by a launcher (srun, mpirun, torchrun): which of them
// this one is, where they meet, and which ranks of a case each runs.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "bench/case/case.h"

namespace precbench {

/// The part of a case's ranks that one process runs, a thread each: [first, first + local) of `world`, on the
/// GPUs [first_gpu, first_gpu + local) that it sees. The default, world 0, means all ranks of the case.
struct NodeShare {
  int world = 0, first = 0, local = 0, first_gpu = 0;
  bool beside_others =
      false;  ///< other cases run at the same time, perhaps on the same GPUs: no speed is measured
  int nodes = 1;  ///< hosts of all ranks

  bool operator==(const NodeShare&) const = default;
};

inline NodeShare all_ranks(int world) { return {world, 0, world, 0}; }

/// Environment variables, name to value.
using Variables = std::map<std::string, std::string>;
Variables process_environment();

/// Place of this process among those of the sweep.
struct Nodes {
  int index = 0, count = 1;
  int local = 0;       ///< index among the processes on this host
  std::string source;  ///< variables that it comes from, "RANK and WORLD_SIZE"; empty: started alone

  bool operator==(const Nodes&) const = default;
};

/// Reads SLURM_PROCID and SLURM_STEP_NUM_TASKS (else SLURM_NTASKS), OMPI_COMM_WORLD_RANK and _SIZE, RANK and
/// WORLD_SIZE, each with its variable for the index on the host. Ignores launchers that started a single
/// process. Throws InvalidInput if a number is missing, malformed or out of range, and if launchers disagree.
Nodes find_nodes(const Variables& environment);

struct Address {
  std::string host;
  int port = 0;
};

/// Returns where process 0 listens for the others: the host of NCCL_COMM_ID (HOST:PORT or [IPv6]:PORT) and
/// the port after the one that NCCL itself uses. Throws InvalidInput.
Address rendezvous_address(const Variables& environment, const Nodes& nodes);

/// Returns PRECBENCH_SECRET, with which processes authenticate (handshake.h); empty if unset. Throws
/// InvalidInput if it is empty or too short.
inline constexpr std::size_t kShortestSecret = 16;
std::string shared_secret(const Variables& environment);

/// Returns process `index`'s share of a case with `ranks` in total. `visible`: number of GPUs it sees.
/// Processes of one host that see all GPUs take them in order; one that sees only its own takes them from the
/// first. Throws InvalidInput if the ranks do not divide evenly.
NodeShare share_of(const Nodes& nodes, int ranks, int visible);

/// Throws InvalidInput if a case cannot be spread over several processes.
void check_spread(const std::vector<Case>& cases, const Nodes& nodes);

}  // namespace precbench
