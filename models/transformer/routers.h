// What the routers of a rank's blocks keep beside their weights: the biases that even the load (DeepSeek-V3), and what the
// last step's routing came to. Everything is on the device, so that a step needs no host.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/comm/comm.h"
#include "kernels/device/device.h"
#include "kernels/device/memory.h"
#include "models/config/config.h"
#include "models/transformer/layout.h"
#include "models/transformer/state.h"

namespace precbench {

/// i32 [tokens, top_k]: each token's experts, all different; the same on every machine. Nothing where they are learned.
std::vector<std::int32_t> forced_experts(Routing routing, double exponent, const RoutingRule& rule,
                                         std::int64_t tokens);

/// Rows that an expert takes of so many tokens; capacity: in those of even load, 0: all.
std::int64_t most_rows_of_expert(const RoutingRule& rule, std::int64_t tokens, double capacity);

/// Of so many tokens of a rank those that go to a rank with `own` of the experts, where all are chosen equally often, and so
/// are full after the first tokens. capacity: as above.
std::int64_t tokens_to_rank(const RoutingRule& rule, std::int64_t own, std::int64_t tokens, double capacity);

/// Slots of so many tokens of each of the ranks that divide the experts which are not dropped, where all experts are chosen
/// equally often. capacity: as above; slots: room for tokens on each rank, 0: for all.
std::int64_t rows_at_even_load(const RoutingRule& rule, std::int64_t tokens, double capacity,
                               std::int64_t ranks, std::int64_t slots);

/// What a block's router did in a step, over its micro-steps, on one rank.
struct RouterLoad {
  std::int64_t layer = 0;
  std::vector<double> slots;    ///< of each expert, dropped ones too
  double rows = 0, padded = 0;  ///< computed, and with padding
  double dropped = 0;  ///< of this rank's tokens: slots beyond the capacity, or on their way to other ranks
  double balance = 0, z_loss = 0;  ///< means over micro-steps: E * sum f P, and logsumexp^2
};

/// Bytes between this rank and those that have the other experts, in a step.
struct ExpertTraffic {
  double dispatch = 0;  ///< tokens, and gradients of their outputs, to the experts
  double combine = 0;   ///< outputs, and gradients of the tokens, back
};

/// A token whose logits are not finite: of the first micro-step and layer with such logits the first. Where that began may be
/// another: attention takes it to later ones, a GPU's also to earlier ones (ops::Attention), and a scale to all that share it.
struct BadToken {
  std::int64_t layer = 0, micro_step = 0;
  std::int64_t token = 0;  ///< of the rank's B * T in a micro-step
};

class Routers {
 public:
  /// Of a model with experts. `peers`: slots may be dropped on their way to other ranks, and are counted.
  Routers(Device& device, Arena& arena, const ModelConfig& model, int accumulation, bool peers = false);

  /// f32 [1, E]; empty without biases.
  Tensor bias(std::int64_t layer) const;
  /// Of a router's report: its slots and losses, behind them the three numbers of the groups, of which what was dropped is
  /// of this rank's tokens, and what was dropped on the way.
  std::int64_t report_size() const { return experts_ + 5 + peers_; }
  /// Adds a micro-step's report to the step's.
  void note(std::int64_t layer, int micro_step, const Tensor& report);
  /// Where each micro-step's choices go from now on: i32 [layers with experts * accumulation, tokens * top_k]; empty: nowhere.
  void keep_choices(const Tensor& choices) { choices_ = choices; }
  /// index i32 [tokens, top_k] of the micro-step.
  void note_choices(std::int64_t layer, int micro_step, const Tensor& index);
  std::int64_t layers() const { return layers_; }
  /// Before the first micro-step of a training step.
  void begin_step() { traffic_ = {}; }
  void note_traffic(double ExpertTraffic::*part, double bytes) {
    if (!watching_) traffic_.*part += bytes;
  }
  /// Of the last step that the host has enqueued; a captured one moves as much each time.
  const ExpertTraffic& traffic() const { return traffic_; }
  /// i32 [1, 1], of the micro-step.
  Tensor bad(std::int64_t layer, int micro_step) const;
  /// What is routed now is no part of training.
  void set_watching(bool watching) { watching_ = watching; }
  /// i32 [tokens, top_k], which outlives this, of `index`; empty: learned.
  void force(const Tensor& experts, std::vector<std::int32_t> index) {
    forced_ = experts;
    forced_index_ = std::move(index);
  }
  const Tensor& forced() const { return forced_; }
  /// Of so many tokens of a rank those that go to each of the ranks that divide the experts, as they are forced to; else as
  /// tokens_to_rank has it.
  std::vector<std::int64_t> tokens_to_ranks(const RoutingRule& rule, std::int64_t ranks, std::int64_t tokens,
                                            double capacity) const;

  /// Moves the biases by the load of all ranks: a collective, at the end of every step.
  void update(Comm& comm);
  void reset();
  /// Of the last step; waits for it.
  std::vector<RouterLoad> load() const;
  /// Of this rank's tokens in the last step; nothing where all logits are finite. Waits for it.
  std::optional<BadToken> bad_token() const;
  /// Of all layers; nothing without.
  std::vector<float> biases() const;

  /// The biases: "routing/NAME", which every rank has.
  std::vector<StateTensor> state(const Layout& layout) const;

 private:
  std::int64_t row(std::int64_t layer) const { return layer - first_; }

  Device& device_;
  std::int64_t first_, layers_, experts_;  // the first block with experts; of those all
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
