// State of a rank's routers besides their weights: the load-balancing biases (DeepSeek-V3) and statistics of
// the last step's routing. Everything is on the device, so that a step needs no host synchronization.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/comm/comm.h"
#include "kernels/device/device.h"
#include "kernels/device/memory.h"
#include "models/config/config.h"
#include "models/transformer/state/layout.h"
#include "models/transformer/state/state.h"

namespace precbench {

/// Statistics of one block's router over the micro-steps of a step, on one rank.
struct RouterLoad {
  std::int64_t layer = 0;
  std::vector<double> slots;       ///< slots per expert, dropped ones included
  double rows = 0, padded = 0;     ///< rows computed, without and with padding
  double dropped = 0;              ///< this rank's slots dropped by the capacity or in the exchange
  double balance = 0, z_loss = 0;  ///< means over micro-steps: E * sum f P, and logsumexp^2
};

/// Bytes exchanged with the other expert-parallel ranks in a step.
struct ExpertTraffic {
  double dispatch = 0;  ///< to the experts: tokens, and gradients of their outputs
  double combine = 0;   ///< from the experts: outputs, and gradients of the tokens
};

/// First token with non-finite logits, in the first micro-step and layer that have any. The origin may be
/// another token: attention spreads non-finite values to later tokens (on a GPU also to earlier ones, see
/// ops::Attention), and a shared scale spreads them to all of its values.
struct BadToken {
  std::int64_t layer = 0, micro_step = 0;
  std::int64_t token = 0;  ///< row of the rank's micro-step
};

class Routers {
 public:
  /// `model`: one with experts. `peers`: slots may be dropped in the exchange and are counted.
  Routers(Device& device, Arena& arena, const ModelConfig& model, int accumulation, bool peers = false);

  /// Returns f32 [1, E]; empty for routers without biases.
  Tensor bias(std::int64_t layer) const;
  /// Length of a router's report: slots per expert, two losses, three numbers of the groups (the dropped
  /// count is of this rank's own tokens) and, with `peers`, the slots dropped in the exchange.
  std::int64_t report_size() const { return experts_ + 5 + peers_; }
  /// Adds a micro-step's report to that of the step.
  void note(std::int64_t layer, int micro_step, const Tensor& report);
  /// Records every micro-step's choices from now on in i32 [layers with experts * accumulation, tokens *
  /// top_k]; empty: stops.
  void keep_choices(const Tensor& choices) { choices_ = choices; }
  /// Records the micro-step's choices, i32 [tokens, top_k], if keep_choices() asked for it.
  void note_choices(std::int64_t layer, int micro_step, const Tensor& index);
  std::int64_t layers() const { return static_cast<std::int64_t>(layers_.size()); }
  /// Call before the first micro-step of a training step.
  void begin_step() { traffic_ = {}; }
  void note_traffic(double ExpertTraffic::*part, double bytes) {
    if (!watching_) traffic_.*part += bytes;
  }
  /// Traffic of the last step enqueued by the host. A captured step moves the same amount on every replay.
  const ExpertTraffic& traffic() const { return traffic_; }
  /// Returns i32 [1, 1], the micro-step's first token with non-finite logits, or -1.
  Tensor bad(std::int64_t layer, int micro_step) const;
  /// While watching, routing is not counted as part of training.
  void set_watching(bool watching) { watching_ = watching; }
  /// Forces the experts: i32 [tokens, top_k] on the device, which must outlive this, and its host copy;
  /// empty: learned.
  void force(const Tensor& experts, std::vector<std::int32_t> index) {
    forced_ = experts;
    forced_index_ = std::move(index);
  }
  const Tensor& forced() const { return forced_; }
  /// Returns how many of a rank's `tokens` go to each of `ranks` expert-parallel ranks: exactly if the
  /// experts are forced, else as tokens_to_rank() estimates.
  std::vector<std::int64_t> tokens_to_ranks(const RoutingRule& rule, std::int64_t ranks, std::int64_t tokens,
                                            double capacity) const;

  /// Moves the biases against the load of all ranks. A collective, called at the end of every step.
  void update(Comm& comm);
  void reset();
  /// Returns the statistics of the last step; waits for it.
  std::vector<RouterLoad> load() const;
  /// Returns this rank's bad token of the last step, nullopt if all logits are finite; waits for the step.
  std::optional<BadToken> bad_token() const;
  /// Returns the biases of all layers; empty without biases.
  std::vector<float> biases() const;

  /// Returns the biases as "routing/NAME", identical on every rank.
  std::vector<StateTensor> state(const Layout& layout) const;

 private:
  std::int64_t row(std::int64_t layer) const;

  Device& device_;
  std::vector<std::int64_t> layers_;  // blocks with experts, ascending
  std::int64_t experts_;              // of a block on all ranks
  int accumulation_;
  bool peers_;
  Tensor bias_;    // f32 [layers, E]
  Tensor global_;  // f32 [layers, E]: slots on all ranks
  Tensor totals_;  // f32 [layers, report_size]
  Tensor bad_;     // i32 [layers, accumulation]
  Tensor forced_, choices_;
  std::vector<std::int32_t> forced_index_;
  bool watching_ = false;
  ExpertTraffic traffic_;
};

}  // namespace precbench
