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
// Three implementations: LocalExperts without expert parallelism (expert_exchange.cpp),
// all_gather_exchange.cpp, and all_to_all_exchange.cpp for slots and sync. remote_experts.h has what the last
// two share.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "models/transformer/layers/step_context.h"

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

/// Tells if received rows are needed in BF16 beside their quantized copy.
enum class KeepValue : std::uint8_t { no, yes };
constexpr KeepValue keep_value_if(bool keep) { return keep ? KeepValue::yes : KeepValue::no; }

class ExpertExchange {
 public:
  /// Work to overlap with the exchange of rows; may be empty.
  using Overlap = std::function<void()>;
  /// Overlapped work that returns a tensor to add; may be empty, as may the tensor.
  using OverlapResult = std::function<Tensor()>;

  explicit ExpertExchange(const StepContext& step) : step_(step) {}
  virtual ~ExpertExchange() = default;

  /// Returns the number of ranks that share a block's experts.
  int ranks() const { return step_.parameters.expert_comm() ? step_.parameters.expert_comm()->size() : 1; }
  /// Number and first index of this rank's experts of a block.
  std::int64_t own_experts() const { return step_.config.moe.rule.experts / ranks(); }
  virtual std::int64_t first_expert() const = 0;
  /// Returns the token rows that this rank can receive: from each rank, and in all.
  virtual std::int64_t rows_per_rank() const { return step_.M; }
  std::int64_t max_rows() const { return rows_per_rank() * ranks(); }
  /// Returns true if rows in this format are sent as quantized data and scales.
  virtual bool sends_quantized(const QuantFormat& format) const = 0;

  /// Allocates the groups of this rank's tokens by destination rank, if the exchange uses them.
  virtual void push_destinations(SavedRouting&) const {}
  /// Returns the experts of all received tokens' slots (i32 [rows, top_k]) and sets routing.group_weights.
  /// `own`: those of this rank's own tokens.
  virtual Tensor gather_routing(SavedRouting& routing, const Tensor& own) const = 0;

  /// Allocates the receive buffer of tokens in a GEMM's format; empty if nothing is received.
  virtual ReceivedTokens push_received(const QuantFormat& format) const = 0;
  /// Allocates f32, one number for every received slot.
  Tensor push_received_weights(const SavedRouting& routing) const {
    return step_.push(DType::f32, max_rows(), step_.config.moe.rule.top_k)
        .slice_rows(0, received_rows(routing));
  }

  /// Sends token rows to their experts. Returns the received rows in `format`, quantized here if they came in
  /// BF16, and also in BF16 with KeepValue::yes. LocalExperts returns `x` as it is.
  virtual QuantizedTensor dispatch(const SavedRouting& routing, const QuantizedTensor& x,
                                   const QuantFormat& format, const ReceivedTokens& to, KeepValue keep,
                                   const Overlap& overlap = {}) const = 0;
  /// Returns the rows received in `x` in the same way. `known`: amax for their scale; empty: their own.
  virtual QuantizedTensor received(const SavedRouting& routing, const ReceivedTokens& x,
                                   const QuantFormat& format, KeepValue keep,
                                   const Tensor& known = {}) const = 0;

  /// Sums the experts' rows per token, returns the sums to their ranks and adds the addend. In `op`, groups
  /// and rows belong to this rank's experts and everything else to its own tokens.
  virtual void combine(const SavedRouting& routing, ops::Unpermute op, const OverlapResult& addend) const = 0;
  /// own = sum of the ranks' partial results `all` for this rank's tokens + the addend.
  virtual void return_rows(const SavedRouting& routing, const Tensor& own, const Tensor& all,
                           const OverlapResult& addend = {}) const = 0;

 protected:
  /// Returns the number of received token rows.
  virtual std::int64_t received_rows(const SavedRouting& routing) const = 0;

  const StepContext& step_;
};

/// Returns the exchange for the step's expert-parallel ranks and TransformerOptions::exchange.
std::unique_ptr<ExpertExchange> make_expert_exchange(const StepContext& step);

}  // namespace precbench
