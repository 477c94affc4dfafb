// Several processes of one sweep, one per node, started by an engine that is there already (srun, mpirun,
// torchrun): which of them this one is, where they meet, and which ranks of a case are its own.
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

  bool operator==(const NodeShare&) const = default;
};

inline NodeShare all_ranks(int world) { return {world, 0, world, 0}; }

/// Of an environment: name to value.
using Variables = std::map<std::string, std::string>;
Variables process_environment();

/// This process among those of the sweep.
struct Nodes {
  int index = 0, count = 1;
  int local = 0;       ///< its number among those on this host
  std::string source;  ///< the variables that say so, "RANK and WORLD_SIZE"; empty: started alone

  bool operator==(const Nodes&) const = default;
};

/// From SLURM_PROCID and SLURM_STEP_NUM_TASKS (else SLURM_NTASKS), OMPI_COMM_WORLD_RANK and _SIZE, RANK and
/// WORLD_SIZE; each with its variable for the number on the host. An engine that started a single process has
/// no say. Throws InvalidInput where a number is missing, malformed or out of range, and where engines
/// disagree.
Nodes find_nodes(const Variables& environment);

struct Address {
  std::string host;
  int port = 0;
};

/// Where process 0 listens for the others: the host of NCCL_COMM_ID (HOST:PORT or [IPv6]:PORT), whose port
/// NCCL takes for itself, and the port after it. Throws InvalidInput.
Address rendezvous_address(const Variables& environment, const Nodes& nodes);

/// PRECBENCH_SECRET, by which the processes know each other (handshake.h); empty where it is not set. Throws
/// InvalidInput where it is set to nothing or too short.
inline constexpr std::size_t kShortestSecret = 16;
std::string shared_secret(const Variables& environment);

/// Process `index`'s ranks of a case with `ranks` in all. `visible`: GPUs it sees; processes of one host that
/// see all GPUs take them in order, one that sees only its own takes them from the first. Throws InvalidInput
/// where the ranks do not divide.
NodeShare share_of(const Nodes& nodes, int ranks, int visible);

/// Throws InvalidInput where a case cannot be spread over several processes.
void check_spread(const std::vector<Case>& cases, const Nodes& nodes);

}  // namespace precbench
