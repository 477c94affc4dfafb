// Arithmetic of ranks and coordinates. See parallel_dims.h.
#include "kernels/comm/parallel_dims.h"

#include <algorithm>

namespace precbench {

ParallelDims ParallelDims::place_of(int rank) const {
  std::array<int, kAxes> place{};
  const std::array<int, kAxes> sizes = values();
  for (int axis = kAxes - 1; axis >= 0; --axis) {
    place[axis] = rank % sizes[axis];
    rank /= sizes[axis];
  }
  return {place[0], place[1], place[2], place[3]};
}

int ParallelDims::rank_at(const ParallelDims& place) const {
  int rank = 0;
  const std::array<int, kAxes> sizes = values(), places = place.values();
  for (int axis = 0; axis < kAxes; ++axis) rank = rank * sizes[axis] + places[axis];
  return rank;
}

std::vector<int> ParallelDims::group_of(int rank, const std::vector<Axis>& axes) const {
  // Axes from last to first, each multiplying the group; sorted at the end.
  const std::array<int, kAxes> sizes = values(), place = place_of(rank).values();
  std::vector<int> group = {rank};
  int stride = 1;
  for (int axis = kAxes - 1; axis >= 0; stride *= sizes[axis], --axis) {
    if (std::find(axes.begin(), axes.end(), static_cast<Axis>(axis)) == axes.end()) continue;
    const std::vector<int> before = std::move(group);
    group.clear();
    for (const int member : before)
      for (int other = 0; other < sizes[axis]; ++other)
        group.push_back(member + (other - place[axis]) * stride);
  }
  std::sort(group.begin(), group.end());
  return group;
}

int ParallelDims::batch_rank(int rank) const {
  const ParallelDims place = place_of(rank);
  return place.data * shard + place.shard;
}

}  // namespace precbench
