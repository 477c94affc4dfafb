// A whole training step for checks and tests: a model on a device that takes weights and tokens and returns
// its loss, gradients and updated weights by name, and the distance between two such results.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels/comm/comm.h"
#include "kernels/device/devices.h"
#include "kernels/numerics/random.h"
#include "models/checks/nan_block.h"
#include "models/transformer/optimizer/optimizer.h"
#include "models/transformer/routing/expected_load.h"
#include "models/transformer/transformer.h"

namespace precbench::checks {

/// FP32 tensors of a model under their Hugging Face names.
using Named = std::map<std::string, std::vector<float>>;

inline Named saved(Parameters& parameters, Parameters::Kind kind) {
  Named result;
  parameters.save(kind, [&](const Parameter& p, const float* values) {
    result[p.name].assign(values, values + p.size());
  });
  return result;
}

struct StepSetup {
  ModelConfig model;
  std::int64_t B = 1, T = 32;
  Recipe recipe = find_recipe("bf16");
  /// Roles in the recipe; the other linear layers of the blocks are in BF16.
  std::vector<LinearRole> roles = {LinearRole::qkv, LinearRole::o, LinearRole::gate_up, LinearRole::down};
  Recipe head = find_recipe("bf16");  ///< the recipe of lm_head
  Recompute recompute = {};
  bool reference = false;  ///< FP32 weights and activations: nothing is rounded to BF16
  int accumulation = 1;
  const OptimizerSpec* optimizer = &optimizers().front();
  MomentFormats moments = {};
  double capacity = 0;            ///< MoE capacity factor
  float balance = 0, z_loss = 0;  ///< coefficients of the router losses
  ParallelDims parallel = {};     ///< B sequences on each rank, or on each group of context and tensor ranks
  bool ring = false;              ///< TransformerOptions::ring
  int expert_ranks = 1;
  ExchangeOptions exchange = {};
  bool slots_come_back = false;  ///< TransformerOptions::slot_numbers
  bool reduce_amax = false;
  bool weight_amaxes = true;    ///< keep weight amaxes for a step if the recipe uses them
  LoraOptions lora = {};        ///< adapters; the model's own weights are frozen
  bool keep_copies = true;      ///< keep the quantized copies of frozen weights
  bool keep_frozen = true;      ///< keep BF16 values of frozen weights beside copies
  bool delayed_scales = false;  ///< delayed scaling if the recipe has a history
  std::vector<std::int32_t> first_key = {},
                            positions = {};  ///< packed documents (set_documents); may be empty
};

/// Forward, backward and update on the rank of `comm`; a single rank without one.
class TrialStep {
 public:
  explicit TrialStep(const StepSetup& setup, std::unique_ptr<Device> device = make_cpu_device(1),
                     Comm* comm = nullptr)
      : setup_(with_frozen_recipe(setup)),
        device_(std::move(device)),
        own_comm_(comm ? nullptr : make_dry_comm(0, 1)),
        comm_(comm ? comm : own_comm_.get()),
        block_(*device_, kBytes),
        arena_(block_.data(), kBytes),
        parameters_(*device_, *comm_, arena_, setup.model, parameter_options(setup)),
        tokens_(arena_.push(Segment::other, DType::i32, setup.accumulation * M(), 1)),
        targets_(arena_.push(Segment::other, DType::i32, setup.accumulation * M(), 1)),
        loss_sum_(arena_.push(Segment::other, DType::f32, 1, 1)),
        slot_numbers_(count_slots()),
        transformer_(*device_, arena_, parameters_, setup.model, transformer_options()) {
    if (!setup.first_key.empty()) set_documents(setup.first_key, setup.positions);
  }

  std::int64_t M() const { return setup_.B * setup_.T / setup_.parallel.context; }
  Device& device() { return *device_; }
  Comm& comm() { return *comm_; }
  Parameters& parameters() { return parameters_; }
  Transformer& transformer() { return transformer_; }

  /// Loads the weights of the model, and those of its adapters if it has any.
  void load(const Named& weights) {
    const auto read = [&](const Parameter& p, float* values) {
      const std::vector<float>& source = weights.at(p.name);
      if (static_cast<std::int64_t>(source.size()) != p.size())
        throw std::invalid_argument(p.name + ": another number of weights");
      std::copy(source.begin(), source.end(), values);
    };
    parameters_.load(read);
    if (setup_.lora) parameters_.load_frozen(read);
  }

  /// Forces the experts from now on.
  void force_experts(Routing routing, double exponent = 0) {
    const RoutingRule& rule = setup_.model.moe.rule;
    const Tensor forced = arena_.push(Segment::other, DType::i32, M(), rule.top_k);
    std::vector<std::int32_t> index = forced_experts(routing, exponent, rule, M());
    device_->upload(forced, index.data());
    device_->synchronize();
    parameters_.routers()->force(forced, std::move(index));
  }

  /// Maps this rank's rows of a micro-step to rows of the sequences of all ranks.
  RowMap rows() const {
    const TransformerOptions options = transformer_options();
    return options.sequence().rows(options.B, options.first_sequence);
  }

  /// Runs forward and backward of all micro-steps; tokens, targets and weights of their losses (empty: 1
  /// each) [accumulation * M]. Returns the mean loss of this rank's tokens in nats; tensor ranks each return their part
  /// of the mean.
  double forward_backward(const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& targets,
                          const std::vector<float>& weights = {}) {
    if (static_cast<std::int64_t>(tokens.size()) != tokens_.size() || tokens.size() != targets.size() ||
        (!weights.empty() && weights.size() != tokens.size()))
      throw std::invalid_argument("trial step: another number of tokens");
    if (weights_.empty() && !weights.empty())
      weights_ = arena_.push(Segment::other, DType::f32, tokens_.size(), 1);
    if (!weights.empty()) device_->upload(weights_, weights.data());
    device_->upload(tokens_, tokens.data());
    device_->upload(targets_, targets.data());
    enqueue();
    return static_cast<double>(downloaded(loss_sum_)) / static_cast<double>(tokens_.size());
  }

  /// Divides the sequences into documents from now on: for every position of [accumulation * M], the position in its
  /// sequence at which its document begins, and its own in the document.
  void set_documents(const std::vector<std::int32_t>& first_key, const std::vector<std::int32_t>& positions) {
    if (first_key_.empty()) {
      first_key_ = arena_.push(Segment::other, DType::i32, tokens_.size(), 1);
      positions_ = arena_.push(Segment::other, DType::i32, tokens_.size(), 1);
    }
    device_->upload(first_key_, first_key.data());
    device_->upload(positions_, positions.data());
  }

  /// Enqueues forward and backward on the tokens of the last forward_backward. Can be captured as a graph.
  void enqueue() {
    const float scale =
        1.0f / static_cast<float>(tokens_.size() * (setup_.parallel.ranks() / setup_.parallel.tensor));
    parameters_.begin_step();
    for (int micro = 0; micro < setup_.accumulation; ++micro) {
      parameters_.begin_micro_step(micro);
      transformer_.forward_backward(loss_sum_, inputs().slice_rows(micro * M(), M()),
                                    Targets{targets_, weights_}.slice_rows(micro * M(), M()), scale, micro);
    }
  }

  /// Runs an optimizer step, counted from 0, on the gradients of the last forward_backward. Returns the
  /// gradient norm before clipping.
  double update(const OptimizerOptions& options, std::int64_t step = 0) {
    const Scope scope(arena_);
    const Tensor scalars = arena_.push(Segment::other, DType::f32, 1, 4);
    const Tensor norm_squared = arena_.push(Segment::other, DType::f32, 1, 1);
    const StepScalars values = step_scalars(options, step);
    device_->upload(scalars, &values);
    optimizer_step(*device_, parameters_, scalars, norm_squared, options);
    return std::sqrt(static_cast<double>(downloaded(norm_squared)));
  }

  /// Returns the loss of every token in nats, [M].
  std::vector<float> token_losses(const std::vector<std::int32_t>& tokens,
                                  const std::vector<std::int32_t>& targets) {
    device_->upload(tokens_.slice_rows(0, M()), tokens.data());
    device_->upload(targets_.slice_rows(0, M()), targets.data());
    parameters_.begin_step();
    const Scope scope(arena_);
    const Tensor losses = arena_.push(Segment::activations, DType::f32, M(), 1);
    transformer_.forward(losses, inputs().slice_rows(0, M()), {targets_.slice_rows(0, M())});
    std::vector<float> values(M());
    device_->download(values.data(), losses);
    return values;
  }

  Named gradients() { return saved(parameters_, Parameters::Kind::gradients); }
  Named weights() { return saved(parameters_, Parameters::Kind::weights); }

 private:
  static constexpr std::int64_t kBytes = std::int64_t{48} << 20;

  static StepSetup with_frozen_recipe(StepSetup setup) {
    if (setup.lora) setup.recipe = recipe_of_frozen(setup.recipe);
    return setup;
  }
  static ParameterOptions parameter_options(const StepSetup& setup) {
    ParameterOptions options;
    options.accumulation = setup.accumulation;
    options.lora = setup.lora;
    options.keep_frozen_values = setup.keep_frozen;
    if (setup.lora && setup.keep_copies) {
      FrozenFormats formats;
      for (const LinearRole role : setup.roles) formats.set(role, setup.recipe);
      for (const auto& [shared, own] : {std::pair{LinearRole::shared_gate_up, LinearRole::gate_up},
                                        {LinearRole::shared_down, LinearRole::down}})
        if (std::find(setup.roles.begin(), setup.roles.end(), own) != setup.roles.end())
          formats.set(shared, setup.recipe);
      options.frozen_formats.assign(static_cast<std::size_t>(setup.model.layers), formats);
    }
    options.parallel = setup.parallel;
    options.expert_ranks = setup.expert_ranks;
    options.expert_slots = setup.exchange.mode == ExchangeOptions::Mode::slots;
    options.optimizer = setup.optimizer;
    options.moments = setup.moments;
    options.weight_amaxes = setup.weight_amaxes && has_weight_amaxes(setup.recipe);
    if (setup.delayed_scales) options.delayed = setup.recipe;
    if (setup.reference) {
      options.weights = DType::f32;
      options.master = Master::bf16;  // no copy: the weights are updated directly
    }
    return options;
  }
  TransformerOptions transformer_options() const {
    TransformerOptions options;
    options.B = setup_.B;
    options.T = setup_.T;
    options.context_ranks = setup_.parallel.context;
    options.context_rank = setup_.parallel.place_of(comm_->rank()).context;
    options.ring = setup_.ring;
    options.first_sequence = setup_.parallel.batch_rank(comm_->rank()) * setup_.B;
    options.recipe_of = [this](std::int64_t, LinearRole role) -> const Recipe& {
      if (role == LinearRole::head) return setup_.head;
      const bool in_recipe = std::find(setup_.roles.begin(), setup_.roles.end(), role) != setup_.roles.end();
      return in_recipe ? setup_.recipe : bf16_;
    };
    options.kept = setup_.recipe.kept;
    options.recompute = setup_.recompute;
    options.capacity = setup_.capacity;
    if (device_->name() != "cpu") options.group_rows = kGpuGroupRows;
    options.balance = setup_.balance;
    options.z_loss = setup_.z_loss;
    options.exchange = setup_.exchange;
    options.slot_numbers = slot_numbers_;
    options.reduce_amax = setup_.reduce_amax ? AmaxGroup::all : AmaxGroup::own;
    if (setup_.reference) options.activations = DType::f32;
    return options;
  }
  Tokens inputs() const { return {tokens_, first_key_, positions_}; }
  Tensor count_slots() {
    if (!setup_.slots_come_back) return {};
    const std::int64_t top_k = setup_.model.moe.rule.top_k;
    std::vector<std::int32_t> numbers(M() * top_k);
    std::iota(numbers.begin(), numbers.end(), 0);
    const Tensor slots = arena_.push(Segment::other, DType::i32, M(), top_k);
    device_->upload(slots, numbers.data());
    return slots;
  }
  float downloaded(const Tensor& scalar) {
    float value = 0;
    device_->download(&value, scalar);
    return value;
  }

  StepSetup setup_;
  Recipe bf16_ = find_recipe("bf16");
  std::unique_ptr<Device> device_;
  std::unique_ptr<Comm> own_comm_;
  Comm* comm_;
  NanBlock block_;
  Arena arena_;
  Parameters parameters_;
  Tensor tokens_, targets_, weights_, loss_sum_, slot_numbers_;
  Tensor first_key_, positions_;  // set_documents()
  Transformer transformer_;
};

/// Returns n tokens below `vocab`, from a stream per seed.
inline std::vector<std::int32_t> random_tokens(std::uint64_t seed, std::int64_t n, std::int64_t vocab) {
  std::vector<std::int32_t> tokens(n);
  for (std::int64_t i = 0; i < n; ++i)
    tokens[i] = static_cast<std::int32_t>(random_bits(seed, i) % static_cast<std::uint64_t>(vocab));
  return tokens;
}

/// Returns |x - reference| / |reference| in the 2-norm.
inline double distance(const std::vector<float>& x, const std::vector<float>& reference) {
  if (x.size() != reference.size()) throw std::invalid_argument("tensors of different sizes");
  double error = 0, scale = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    error += (static_cast<double>(x[i]) - reference[i]) * (static_cast<double>(x[i]) - reference[i]);
    scale += static_cast<double>(reference[i]) * reference[i];
  }
  return std::sqrt(error / scale);
}

/// Returns the first tensor whose bits differ; empty if none does.
inline std::string first_difference(const Named& x, const Named& y) {
  if (x.size() != y.size()) throw std::invalid_argument("steps of different models");
  for (const auto& [name, values] : x)
    if (std::memcmp(values.data(), y.at(name).data(), values.size() * sizeof(float)) != 0) return name;
  return "";
}

/// The tensor with the largest distance; NaN counts as the largest.
struct Farthest {
  std::string name;
  double distance = 0;
};
inline Farthest farthest(const Named& x, const Named& reference) {
  if (x.size() != reference.size()) throw std::invalid_argument("tensors of different sizes");
  Farthest result;
  for (const auto& [name, values] : reference) {
    const double d = distance(x.at(name), values);
    if (!(d <= result.distance) && !std::isnan(result.distance)) result = {name, d};
  }
  return result;
}

}  // namespace precbench::checks
