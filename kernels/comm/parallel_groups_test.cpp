// Communicators of a run: their members, and one per group.
#include "kernels/comm/parallel_groups.h"

#include <cmath>
#include <map>
#include <set>
#include <string>

#include "kernels/comm/comm_testing.h"
#include "kernels/testing/catch.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

/// The ranks of every group as bits, by the group's name; 0 without a communicator.
using Members = std::map<std::string, int>;

std::vector<Members> members_of(const ParallelDims& dims, int expert_ranks = 1) {
  std::vector<Members> all(dims.ranks());
  std::vector<std::int64_t> repeated(dims.ranks());
  on_cpu_ranks(dims.ranks(), [&](Device&, Comm& comm) {
    const ParallelGroups groups(comm, dims, expert_ranks);
    const auto sum = [&](Comm* group) {
      float value = group ? std::ldexp(1.0f, comm.rank()) : 0;
      if (group) group->all_reduce({&value, DType::f32, 1, 1});
      return static_cast<int>(value);
    };
    all[comm.rank()] = {{"tokens", sum(&groups.tokens)},
                        {"weights", sum(groups.weights.comm)},
                        {"replicas", sum(groups.replicas.comm)},
                        {"context", sum(groups.context.comm)},
                        {"tensor", sum(groups.tensor.comm)},
                        {"experts", sum(groups.experts.comm)},
                        {"expert_replicas", sum(groups.expert_replicas.comm)}};
    const std::vector<Comm*> comms = groups.comms();
    repeated[comm.rank()] = std::ssize(comms) - std::ssize(std::set<Comm*>(comms.begin(), comms.end()));
  });
  for (const std::int64_t twice : repeated) CHECK(twice == 0);
  return all;
}

}  // namespace

TEST_CASE("ParallelGroups: hsdp shards within consecutive ranks, context ranks included", "[comm]") {
  const std::vector<Members> ranks =
      members_of({.data = 2, .shard = 2, .context = 2, .context_shards = true});
  CHECK(ranks[0] == Members{{"tokens", 0xff},
                            {"weights", 0x0f},
                            {"replicas", 0x11},
                            {"context", 0x03},
                            {"tensor", 0},
                            {"experts", 0},
                            {"expert_replicas", 0}});
  CHECK(ranks[7].at("weights") == 0xf0);
  CHECK(ranks[7].at("replicas") == 0x88);
  CHECK(ranks[7].at("context") == 0xc0);
}

TEST_CASE("ParallelGroups: with ddp the context ranks are replicas", "[comm]") {
  const std::vector<Members> ranks = members_of({.data = 2, .context = 2});
  for (const Members& rank : ranks) {
    CHECK(rank.at("weights") == 0);
    CHECK(rank.at("replicas") == 0x0f);
  }
  CHECK(ranks[2].at("context") == 0x0c);
}

TEST_CASE("ParallelGroups: tensor ranks are consecutive, and no replicas or shards of each other",
          "[comm][tensor]") {
  const std::vector<Members> ranks = members_of({.data = 2, .shard = 2, .tensor = 2});
  CHECK(ranks[0].at("tensor") == 0x03);
  CHECK(ranks[7].at("tensor") == 0xc0);
  CHECK(ranks[7].at("weights") == 0xa0);
  CHECK(ranks[7].at("replicas") == 0x88);
  CHECK(ranks[7].at("tokens") == 0xff);
}

TEST_CASE("ParallelGroups: context and tensor ranks have lanes of their own, the same on every rank",
          "[comm][tensor]") {
  const ParallelDims dims{.shard = 2, .context = 2, .tensor = 2, .context_shards = true};
  for (int rank = 0; rank < dims.ranks(); ++rank) {
    const std::unique_ptr<Comm> all = make_dry_comm(rank, dims.ranks());
    const ParallelGroups groups(*all, dims, 1);
    CHECK(groups.weights.comm->lane() == all->lane());
    CHECK(groups.context.comm->lane() == 1);
    CHECK(groups.tensor.comm->lane() == 2);
  }
}

TEST_CASE("ParallelGroups: experts are divided by consecutive ranks of any axes", "[comm]") {
  const std::vector<Members> ranks = members_of({.data = 2, .context = 2}, 2);
  CHECK(ranks[1].at("experts") == 0x03);
  CHECK(ranks[1].at("expert_replicas") == 0x0a);
  const std::vector<Members> all = members_of({.shard = 2, .context = 2, .context_shards = true}, 4);
  CHECK(all[3].at("experts") == 0x0f);
  CHECK(all[3].at("expert_replicas") == 0);
}

TEST_CASE("ParallelGroups: a single rank has no groups, and numbers that disagree are refused", "[comm]") {
  CHECK(members_of({})[0].at("replicas") == 0);
  const std::unique_ptr<Comm> comm = make_dry_comm(0, 4);
  CHECK_THROWS_AS(ParallelGroups(*comm, {.data = 2}, 1), std::invalid_argument);
  CHECK_THROWS_AS(ParallelGroups(*comm, {.data = 4}, 3), std::invalid_argument);
}
