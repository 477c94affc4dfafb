// Division of work among ranks: five axes, a rank's coordinates on them, and communicators along them.
//
//   data     replicas of the model, each with its own sequences
//   shard    shards of a replica's weights, gradients and moments; each has its own sequences
//   context  parts of a sequence
//   expert   experts of a block
//   tensor   rows or columns of a matrix
//
// The last axis varies fastest: rank = (((d S + s) C + c) E + e) T + t. So ddp uses data only, fsdp shard
// only, and hsdp both, with groups of consecutive ranks.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/comm/comm.h"

namespace precbench {

enum class Axis : std::uint8_t { data, shard, context, expert, tensor };
inline constexpr int kAxes = 5;

/// A number per axis: its size, or a coordinate on it.
struct ParallelDims {
  int data = 1, shard = 1, context = 1, expert = 1, tensor = 1;

  int along(Axis axis) const { return values()[static_cast<int>(axis)]; }
  int ranks() const { return data * shard * context * expert * tensor; }
  /// Returns the coordinates of a rank in [0, ranks()), each from 0 to its axis's size - 1.
  ParallelDims place_of(int rank) const;
  /// Returns the rank at given coordinates.
  int rank_at(const ParallelDims& place) const;
  /// Returns the ranks that differ from `rank` only along `axes`, including itself, in ascending order.
  std::vector<int> group_of(int rank, const std::vector<Axis>& axes) const;

  /// Number of ranks with their own sequences (ranks along the other axes share them), and the index of
  /// `rank` among these.
  int batch_ranks() const { return data * shard; }
  int batch_rank(int rank) const;

  bool operator==(const ParallelDims&) const = default;

 private:
  std::array<int, kAxes> values() const { return {data, shard, context, expert, tensor}; }
};

/// The Comm of a rank's group along `axes`. Every rank of `all`, which has dims.ranks() ranks, creates it at
/// the same point. Groups of one rank need none: null. A group of all ranks uses `all`: not owned.
struct AxisComm {
  Comm* comm = nullptr;
  std::unique_ptr<Comm> owned;
};
AxisComm comm_along(Comm& all, const ParallelDims& dims, const std::vector<Axis>& axes);

}  // namespace precbench
