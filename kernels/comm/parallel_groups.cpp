// Creates the communicators of a run. See parallel_groups.h.
#include "kernels/comm/parallel_groups.h"

#include <fmt/format.h>

#include <stdexcept>
#include <utility>

namespace precbench {
namespace {

GroupComm group_of(Comm& all, const std::vector<int>& members, Lane lane) {
  const int size = static_cast<int>(members.size());
  if (size == 1) return {};
  if (size == all.size() && lane == Lane::shared) return {&all, nullptr};
  std::unique_ptr<Comm> owned = all.subset(members, lane);
  Comm* comm = owned.get();
  return {comm, std::move(owned)};
}

GroupComm along(Comm& all, const ParallelDims& dims, const std::vector<Axis>& axes,
                Lane lane = Lane::shared) {
  return group_of(all, dims.group_of(all.rank(), axes), lane);
}

std::vector<Axis> weight_axes(const ParallelDims& dims) {
  return dims.context_shards ? std::vector{Axis::shard, Axis::context} : std::vector{Axis::shard};
}

std::vector<Axis> replica_axes(const ParallelDims& dims) {
  return dims.context_shards ? std::vector{Axis::data} : std::vector{Axis::data, Axis::context};
}

/// Returns every `stride`-th of `count` ranks from `first` on.
std::vector<int> ranks_from(int first, int stride, int count) {
  std::vector<int> ranks;
  for (int i = 0; i < count; ++i) ranks.push_back(first + i * stride);
  return ranks;
}

Comm& checked(Comm& all, const ParallelDims& dims, int expert_ranks) {
  if (dims.ranks() != all.size())
    throw std::invalid_argument(
        fmt::format("parallel groups: {} ranks, but the axes have {}", all.size(), dims.ranks()));
  if (expert_ranks < 1 || all.size() % expert_ranks != 0)
    throw std::invalid_argument(
        fmt::format("parallel groups: {} expert ranks do not divide {} ranks", expert_ranks, all.size()));
  return all;
}

}  // namespace

ParallelGroups::ParallelGroups(Comm& all, const ParallelDims& dims, int expert_ranks)
    : tokens(checked(all, dims, expert_ranks)),
      weights(along(all, dims, weight_axes(dims))),
      replicas(along(all, dims, replica_axes(dims))),
      context(along(all, dims, {Axis::context}, Lane::own)),
      tensor(along(all, dims, {Axis::tensor}, Lane::own)) {
  if (expert_ranks == 1) return;
  const int rank = all.rank(), part = rank % expert_ranks;
  experts = group_of(all, ranks_from(rank - part, 1, expert_ranks), Lane::shared);
  expert_replicas = group_of(all, ranks_from(part, expert_ranks, all.size() / expert_ranks), Lane::shared);
}

std::vector<Comm*> ParallelGroups::comms() const {
  std::vector<Comm*> all = {&tokens};
  for (const GroupComm* group : {&weights, &replicas, &context, &tensor, &experts, &expert_replicas})
    if (group->owned) all.push_back(group->comm);
  return all;
}

}  // namespace precbench
