// Buffers for whole units on sharded ranks, with the all-gathers of weights and reduce-scatters of gradients
// that use them. No unit is needed whole for long, so units take turns in one region:
//
//   weights     blocks alternate between two buffers, G0 and G1; embedding and head, needed at opposite ends
//               of a step, share a third, E
//   gradients   blocks alternate between two buffers: one overlaps E, which is free by then, the other the
//               head's gradient; the embedding's gradient, which comes last, overlaps the weights and the
//               gradient of the block before the last
//
//   | head's gradient, then blocks' | G0 | G1 | E, then blocks' gradients |
//                    | <- - - the embedding's gradient, at last - - - - -> |
//
// A tied head's gradient lives until the embedding has added to it, so it overlaps nothing. With accumulation
// nothing overlaps either, because the next micro-step would have to wait for the last one's reductions.
//
// A single rank with FP16 master weights also rounds its units into these buffers, one block at a time.
// Experts that are divided among ranks are not exchanged here.
//
// Taking a buffer waits for the collectives of all buffers that overlap it. With kept weights every unit has
// a weight buffer of its own and is gathered once per optimizer step.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/comm/comm.h"
#include "kernels/device/memory.h"
#include "models/transformer/parallel/fp8_weights.h"
#include "models/transformer/state/layout.h"

namespace precbench {

class UnitExchange {
 public:
  struct Options {
    DType weights = DType::bf16;
    DType gradients = DType::f32;
    const Fp8Weights* fp8 = nullptr;  ///< describes the blocks that are exchanged in FP8; null: none
    bool keep = false;                ///< weights stay gathered until forget()
    bool reduce = true;               ///< gradients are reduced here
    bool share = true;                ///< buffers may overlap
  };
  /// `comm`: the ranks that share units; null for a single rank, whose FP8 blocks are kept elsewhere.
  UnitExchange(Comm* comm, Arena& arena, const Layout& layout, const Options& options);

  /// Marks all gathered weights as stale, after an update.
  void forget();
  /// Returns true if a unit's weights for this pass are gathered or in flight.
  bool has(int unit, Pass pass) const;
  /// Frees the buffer of a unit's weights and returns where this rank's part of them goes.
  Tensor take_weights(int unit, Pass pass);
  /// Starts the all-gather, after take_weights. `shard`: this rank's part, which may already be in its place.
  void gather(int unit, Pass pass, const Tensor& shard, const Tensor& scales);
  /// Wait for the gather and return the whole unit and its scales. On a single rank weights() takes the
  /// buffer itself.
  Tensor weights(int unit, Pass pass);
  Tensor scales(int unit, Pass pass) const;
  /// Returns true on the first call since the unit's weights were gathered or taken.
  bool first_use(int unit, Pass pass) { return !std::exchange(weights_of(unit, pass).used, true); }
  /// Returns the buffer of the edges' weights as f32 scratch, for use between steps.
  Tensor edges_buffer() const;
  /// Returns this rank's part within the buffer of the whole unit.
  Tensor own_part(int unit, Pass pass) const;

  /// Returns the buffer of a unit's gradient, and takes it unless it is already in use.
  Tensor gradients(int unit);
  /// Starts the reduce-scatter of a unit's gradient into this rank's shard.
  Comm::Ticket reduce(int unit, const Tensor& shard);

 private:
  /// Buffer of a unit's weights or gradient: its memory, its validity and its latest collective.
  struct Tenant {
    std::int64_t offset = 0, bytes = 0;
    bool here = false, used = false;
    Comm::Ticket ticket = 0;

    bool meets(const Tenant& other) const {
      return offset < other.offset + other.bytes && other.offset < offset + bytes;
    }
  };
  bool by_pass(int unit) const { return options_.fp8 && options_.fp8->has(unit) && options_.fp8->by_pass(); }
  Tenant& weights_of(int unit, Pass pass);
  const Tenant& weights_of(int unit, Pass pass) const;
  DType weights_type(int unit) const;
  std::int64_t whole(int unit) const {
    return layout_.is_experts(unit) ? 0 : layout_.shard_size(unit) * layout_.shards();
  }
  std::int64_t weight_bytes(int unit) const;
  std::int64_t gradient_bytes(int unit) const;
  void place_kept_weights(Arena& arena);
  void place_in_turns(Arena& arena);
  /// Waits for all collectives in memory that overlaps the tenant's and invalidates its other users.
  void take(Tenant& tenant);
  void wait(Comm::Ticket ticket) {
    if (comm_) comm_->wait(ticket);
  }
  /// Returns a view into a unit's weight buffer, `offset` bytes from its start.
  Tensor in_weights(int unit, Pass pass, std::int64_t offset, DType dtype, std::int64_t elements) const;
  Tensor all(int unit, Pass pass) const;  ///< the whole unit's weights or FP8 data
  Tensor at(const Tensor& region, std::int64_t offset, DType dtype, std::int64_t elements) const;

  Comm* comm_;
  const Layout& layout_;
  Options options_;
  Tensor kept_, region_;            // bytes
  std::vector<Tenant> weights_[2];  // by unit; [1] is used if each pass gathers FP8 data of its own
  std::vector<Tenant> gradients_;   // by unit
};

}  // namespace precbench
