// Ranks and their coordinates on the axes.
#include "kernels/comm/parallel_dims.h"

#include <algorithm>
#include <set>
#include <vector>

#include "kernels/testing/catch.h"

using namespace precbench;

TEST_CASE("ParallelDims: ranks and coordinates map one to one", "[comm]") {
  const ParallelDims dims{.data = 2, .shard = 3, .context = 2, .tensor = 4};
  REQUIRE(dims.ranks() == 48);
  for (int rank = 0; rank < dims.ranks(); ++rank) {
    const ParallelDims place = dims.place_of(rank);
    CHECK(dims.rank_at(place) == rank);
    CHECK(rank == ((place.data * 3 + place.shard) * 2 + place.context) * 4 + place.tensor);
    for (const Axis axis : {Axis::data, Axis::shard, Axis::context, Axis::tensor})
      CHECK((place.along(axis) >= 0 && place.along(axis) < dims.along(axis)));
  }
}

TEST_CASE("group_of: groups along axes partition the ranks", "[comm]") {
  const ParallelDims dims{.data = 2, .shard = 3, .context = 2, .tensor = 2};
  const std::vector<std::vector<Axis>> choices = {{Axis::data},
                                                  {Axis::shard},
                                                  {Axis::context},
                                                  {Axis::tensor},
                                                  {Axis::data, Axis::shard},
                                                  {Axis::tensor, Axis::shard},
                                                  {}};
  for (const std::vector<Axis>& axes : choices) {
    int size = 1;
    for (const Axis axis : axes) size *= dims.along(axis);
    std::set<std::vector<int>> groups;
    std::set<int> seen;
    for (int rank = 0; rank < dims.ranks(); ++rank) {
      const std::vector<int> group = dims.group_of(rank, axes);
      CHECK(static_cast<int>(group.size()) == size);
      CHECK(std::is_sorted(group.begin(), group.end()));
      CHECK(std::find(group.begin(), group.end(), rank) != group.end());
      groups.insert(group);
      seen.insert(group.begin(), group.end());
      for (const int member : group)
        for (const Axis axis : {Axis::data, Axis::shard, Axis::context, Axis::tensor})
          if (std::find(axes.begin(), axes.end(), axis) == axes.end())
            CHECK(dims.place_of(member).along(axis) == dims.place_of(rank).along(axis));
    }
    CHECK(static_cast<int>(groups.size()) == dims.ranks() / size);
    CHECK(static_cast<int>(seen.size()) == dims.ranks());
  }
}

TEST_CASE("ParallelDims: ddp and fsdp and hsdp groups are consecutive ranks", "[comm]") {
  const ParallelDims hsdp{.data = 3, .shard = 2};
  CHECK(hsdp.group_of(3, {Axis::shard}) == std::vector<int>{2, 3});
  CHECK(hsdp.group_of(3, {Axis::data}) == std::vector<int>{1, 3, 5});
  for (int rank = 0; rank < 6; ++rank) CHECK(hsdp.batch_rank(rank) == rank);
  CHECK(hsdp.batch_ranks() == 6);
  // Ranks that share a sequence or a matrix have the same batch rank.
  const ParallelDims mixed{.data = 2, .shard = 2, .context = 2, .tensor = 2};
  CHECK(mixed.batch_ranks() == 4);
  for (int rank = 0; rank < 16; ++rank) CHECK(mixed.batch_rank(rank) == rank / 4);
}

TEST_CASE("ParallelDims: context ranks have further shards of the weights or are replicas", "[comm]") {
  CHECK(ParallelDims{.data = 2, .shard = 3, .context = 4, .context_shards = true}.weight_shards() == 12);
  CHECK(ParallelDims{.data = 2, .shard = 3, .context = 4}.weight_shards() == 3);
}
