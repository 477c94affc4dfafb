// Expert parallelism: sends tokens to the ranks that have their experts, and returns the results.
//
//   forward    dispatch expert indices, routing weights, h (kept for backward);  combine output sums
//   backward   dispatch dY;  combine dX and the gradients of the routing weights
//
//   gather     all-gather of all rows of the group; each rank takes its experts' rows and returns its partial
//              sums by reduce-scatter
//   slots      all-to-all: a token goes once to each rank that has one of its experts. Each rank pair has a
//              fixed number of slots; tokens beyond it are dropped
//   sync       all-to-all without drops; the host reads the row counts
//
// A rank drops slots beyond the experts' capacity before it sends anything. Sizes of `gather` and `slots` do
// not depend on the routing, so the step can be captured as a CUDA graph. A rank sums its experts' rows of a
// token in FP32 and rounds the sum for transport. The ranks' sums are added in FP32 and rounded again.
//
// Without expert parallelism nothing is sent: received tokens are this rank's own.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "models/transformer/step_context.h"

namespace precbench {

/// Tokens received from other ranks: BF16 rows, or quantized data with scales. Both are empty without expert
/// parallelism.
struct ReceivedTokens {
  Tensor value;
  GemmOperand copy;
};

/// A router's decisions of one block. Recomputation reuses them.
struct SavedRouting {
  Tensor z, index, weights, report;  ///< see ops::Route
  Groups groups;                     ///< of the rows that this rank's experts compute
  Tensor group_weights;              ///< routing weights of the tokens those rows come from
  Tensor x_amax;  ///< f32 [1], amax over all ranks of the experts' X, where its scale is derived from it
  // With expert parallelism only:
  ReceivedTokens x;     ///< the received norm outputs
  Groups destinations;  ///< this rank's tokens grouped by destination rank; unused with all-gather
  std::vector<std::int64_t> sent, received;  ///< rows per rank
};

/// Whether received rows are needed in BF16 beside their quantized copy.
enum class KeepValue : std::uint8_t { no, yes };
constexpr KeepValue keep_value_if(bool keep) { return keep ? KeepValue::yes : KeepValue::no; }

class ExpertExchange {
 public:
  /// Work to overlap with the exchange of rows; may be empty.
  using Overlap = std::function<void()>;
  /// Overlapped work that returns a tensor to add; may be empty, as may the tensor.
  using OverlapResult = std::function<Tensor()>;

  explicit ExpertExchange(const StepContext& step) : step_(step) {}

  /// Returns the number of ranks that share a block's experts.
  int ranks() const { return step_.parameters.expert_comm() ? step_.parameters.expert_comm()->size() : 1; }
  /// Number and first index of this rank's experts of a block.
  std::int64_t own_experts() const { return step_.config.moe.rule.experts / ranks(); }
  std::int64_t first_expert() const {
    return ranks() > 1 ? step_.parameters.expert_comm()->rank() * own_experts() : 0;
  }
  /// Returns the rows of the receive buffer: per source rank, and in all.
  std::int64_t rows_per_rank() const {
    return step_.options.exchange.mode == ExchangeOptions::Mode::slots ? step_.options.exchange.slots
                                                                       : step_.M;
  }
  std::int64_t max_rows() const { return rows_per_rank() * ranks(); }
  /// Returns true if rows in this format are sent as quantized data and scales.
  bool sends_quantized(const QuantFormat& format) const {
    return step_.options.exchange.codes && format.quantized() && bits_of(format.dtype) == 8;
  }

  /// Allocates the groups of this rank's tokens by destination rank, if the exchange uses them.
  void push_destinations(SavedRouting& routing) const;
  /// Returns the experts of all received tokens' slots (i32 [rows, top_k]) and sets routing.group_weights.
  /// `own`: those of this rank's own tokens, returned unchanged without expert parallelism.
  Tensor gather_routing(SavedRouting& routing, const Tensor& own) const;

  /// Allocates the receive buffer of tokens in a GEMM's format.
  ReceivedTokens push_received(const QuantFormat& format) const;
  /// Allocates f32, one number for every received slot.
  Tensor push_received_weights(const SavedRouting& routing) const;

  /// Sends token rows to their experts. Returns the received rows in `format`, quantized here if they came in
  /// BF16, and also in BF16 with KeepValue::yes.
  QuantizedTensor dispatch(const SavedRouting& routing, const QuantizedTensor& x, const QuantFormat& format,
                           const ReceivedTokens& to, KeepValue keep, const Overlap& overlap = {}) const;
  /// Returns the rows received in `x` in the same way. `known`: amax for their scale; empty: their own.
  QuantizedTensor received(const SavedRouting& routing, const ReceivedTokens& x, const QuantFormat& format,
                           KeepValue keep, const Tensor& known = {}) const;

  /// Sums the experts' rows per token, returns the sums to their ranks and adds the addend. In `op`, groups
  /// and rows belong to this rank's experts and everything else to its own tokens.
  void combine(const SavedRouting& routing, ops::Unpermute op, const OverlapResult& addend) const;
  /// own = sum of the ranks' partial results `all` for this rank's tokens + the addend.
  void return_rows(const SavedRouting& routing, const Tensor& own, const Tensor& all,
                   const OverlapResult& addend = {}) const;

 private:
  bool gathers() const { return step_.options.exchange.mode == ExchangeOptions::Mode::gather; }
  /// Returns the number of received token rows.
  std::int64_t received_rows(const SavedRouting& routing) const;
  /// Reads on the host how many rows are sent to and received from every rank.
  void count_rows(SavedRouting& routing) const;
  void send_rows(const SavedRouting& routing, const Tensor& to, const Tensor& from,
                 const Overlap& overlap) const;
  void send_quantized(const SavedRouting& routing, const GemmOperand& to, const QuantizedTensor& x,
                      const Overlap& overlap) const;
  void send_scales(const GemmOperand& to, const GemmOperand& from, const Overlap& overlap) const;
  /// Runs or starts collectives and adds the bytes they move to one part of the traffic.
  template <class Body>
  void counted(double ExpertTraffic::*part, Body&& body) const;

  const StepContext& step_;
};

}  // namespace precbench
