// Where sharded ranks put whole units, and the collectives that fill them with weights and empty them of gradients.
// No unit is needed whole for long, so they take turns in one region:
//
//   weights     blocks in two places, G0 and G1; embedding and head, needed at opposite ends of a step, in a third, E
//   gradients   blocks in two places, of which one shares memory with E, done by then, and one with the head's gradient;
//               the embedding's, which comes last, shares with the weights and with the block before the last
//
//   | head's gradient, then blocks' | G0 | G1 | E, then blocks' gradients |
//                    | <- - - the embedding's gradient, at last - - - - -> |
//
// A tied head's gradient lasts until the embedding has added to it, and shares with nobody. With accumulation the next
// micro-step would have to wait for the last one's reductions, so nothing is shared either.
//
// One rank alone with an FP16 master rounds its units in such places, too, a block at a time.
//
// Experts that ranks have different ones of are not exchanged at all.
//
// Whoever takes a place waits for the collectives of those that it shares memory with. With kept weights every unit has a
// place of its own for weights: each is gathered once an optimizer step.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/comm/comm.h"
#include "kernels/device/memory.h"
#include "models/transformer/fp8_weights.h"
#include "models/transformer/layout.h"

namespace precbench {

class UnitExchange {
 public:
  struct Options {
    DType weights = DType::bf16;
    DType gradients = DType::f32;
    const Fp8Weights* fp8 = nullptr;  ///< of blocks that are exchanged in FP8
    bool keep = false;                ///< weights stay gathered until forget()
    bool reduce = true;               ///< whether gradients are reduced here
    bool share = true;                ///< whether places may overlap
  };
  /// `comm`: the ranks that share units; null for one, which has blocks in FP8 elsewhere.
  UnitExchange(Comm* comm, Arena& arena, const Layout& layout, const Options& options);

  /// The weights have changed: what was gathered is of no use.
  void forget();
  /// Whether a unit's weights for this pass are there or on their way.
  bool has(int unit, Pass pass) const;
  /// Makes room for them; where this rank's part of them goes.
  Tensor take_weights(int unit, Pass pass);
  /// Starts to gather them, after take_weights. `shard`: this rank's part, which may stand in its place already.
  void gather(int unit, Pass pass, const Tensor& shard, const Tensor& scales);
  /// The whole unit, and the scales beside it; waits until they are there. One rank's are there once taken.
  Tensor weights(int unit, Pass pass);
  Tensor scales(int unit, Pass pass) const;
  /// Whether nobody has asked since the unit's weights were gathered or taken.
  bool first_use(int unit, Pass pass) { return !std::exchange(weights_of(unit, pass).used, true); }
  /// The place of the edges' weights, f32, for what is done between steps.
  Tensor edges_room() const;
  /// This rank's part of a unit's weights in the place of the whole.
  Tensor own_part(int unit, Pass pass) const;

  /// Makes room for a unit's gradient, unless it is there.
  Tensor gradients(int unit);
  /// Starts to reduce it into this rank's shard.
  Comm::Ticket reduce(int unit, const Tensor& shard);

 private:
  /// A unit's weights or gradient: where they lie, whether they are there, and the latest collective on them.
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
  /// Waits for all that is under way in the tenant's memory, which is then the tenant's.
  void take(Tenant& tenant);
  void wait(Comm::Ticket ticket) {
    if (comm_) comm_->wait(ticket);
  }
  /// Of a unit's room for weights, at this many bytes from its begin.
  Tensor in_weights(int unit, Pass pass, std::int64_t offset, DType dtype, std::int64_t elements) const;
  Tensor all(int unit, Pass pass) const;  ///< the whole unit's weights or codes
  Tensor at(const Tensor& region, std::int64_t offset, DType dtype, std::int64_t elements) const;

  Comm* comm_;
  const Layout& layout_;
  Options options_;
  Tensor kept_, region_;            // bytes
  std::vector<Tenant> weights_[2];  // by unit; the second where each pass gathers codes of its own
  std::vector<Tenant> gradients_;   // by unit
};

}  // namespace precbench
