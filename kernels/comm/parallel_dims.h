// How ranks divide the work: five axes, a rank's place on each of them, and communicators along them.
//
//   data     copies of the model, each with sequences of its own
//   shard    the parts of one copy's weights, gradients and moments; each has sequences of its own
//   context  the parts of a sequence
//   expert   the experts of a block
//   tensor   the rows or columns of a matrix
//
// Neighbouring ranks differ in the last axis first: rank = (((d S + s) C + c) E + e) T + t. So ddp is data alone,
// fsdp is shard alone, and hsdp is both, its groups being consecutive ranks.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/comm/comm.h"

namespace precbench {

enum class Axis : std::uint8_t { data, shard, context, expert, tensor };
inline constexpr int kAxes = 5;

/// A number for every axis: its size, or a place on it.
struct ParallelDims {
  int data = 1, shard = 1, context = 1, expert = 1, tensor = 1;

  int along(Axis axis) const { return values()[static_cast<int>(axis)]; }
  int ranks() const { return data * shard * context * expert * tensor; }
  /// The place of a rank, every number from 0 to its axis's size; rank from 0 to ranks().
  ParallelDims place_of(int rank) const;
  /// The rank at a place.
  int rank_at(const ParallelDims& place) const;
  /// The ranks whose places differ from that of `rank` along `axes` only, itself among them, in ascending order.
  std::vector<int> group_of(int rank, const std::vector<Axis>& axes) const;

  /// Ranks with sequences of their own (those of other axes work on the same ones), and which of them `rank` is.
  int batch_ranks() const { return data * shard; }
  int batch_rank(int rank) const;

  bool operator==(const ParallelDims&) const = default;

 private:
  std::array<int, kAxes> values() const { return {data, shard, context, expert, tensor}; }
};

/// The Comm of a rank's group along `axes`. Every rank of `all`, of which there are dims.ranks(), calls it at the same
/// point. Groups of one rank need none: null. A group of all ranks is `all`: not owned.
struct AxisComm {
  Comm* comm = nullptr;
  std::unique_ptr<Comm> owned;
};
AxisComm comm_along(Comm& all, const ParallelDims& dims, const std::vector<Axis>& axes);

}  // namespace precbench
