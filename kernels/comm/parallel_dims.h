// Division of work among ranks: the axes, and a rank's coordinates on them. parallel_groups.h has the
// communicators.
//
//   data     replicas of the model, each with its own sequences
//   shard    shards of a replica's weights, gradients and moments; each has its own sequences
//   context  parts of a sequence
//   tensor   rows or columns of a matrix
//
// The last axis varies fastest: rank = ((d S + s) C + c) T + t. So ddp uses data only, fsdp shard only, and
// hsdp both, with groups of consecutive ranks. To weights, ranks along the context axis are like ranks with
// other sequences: with fsdp and hsdp they have further shards, with ddp they are replicas. Experts are
// divided by another folding of all ranks, in groups of consecutive ones.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace precbench {

enum class Axis : std::uint8_t { data, shard, context, tensor };
inline constexpr int kAxes = 4;

/// A number per axis: its size, or a coordinate on it.
struct ParallelDims {
  int data = 1, shard = 1, context = 1, tensor = 1;
  bool context_shards = false;  ///< ranks along the context axis have different shards of the weights

  int along(Axis axis) const { return values()[static_cast<int>(axis)]; }
  int ranks() const { return data * shard * context * tensor; }
  /// Number of ranks that share one copy of the weights.
  int weight_shards() const { return context_shards ? shard * context : shard; }
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
  std::array<int, kAxes> values() const { return {data, shard, context, tensor}; }
};

}  // namespace precbench
