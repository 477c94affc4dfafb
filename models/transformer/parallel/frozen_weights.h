// The model's weights of a run that trains adapters (lora.h). They have no gradient, master or optimizer state. Unsharded
// ranks quantize them once, when the weights are set, and not in every GEMM. Matrices whose GEMMs read nothing but these
// copies need no BF16 weights in memory: they are set one by one, each in the same transient memory.
//
// Ranks that share weights (fsdp, hsdp) have a part of every unit in BF16 and gather it before each use; GEMMs quantize what
// was gathered.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/comm/comm.h"
#include "kernels/device/device.h"
#include "kernels/device/memory.h"
#include "models/transformer/parallel/fp8_weights.h"
#include "models/transformer/parallel/unit_exchange.h"
#include "models/transformer/state/layout.h"
#include "models/transformer/state/state.h"

namespace precbench {

/// Formats of a block's weights in fprop and in dgrad, by role; BF16: no copy is kept. `one_copy`: dgrad reads fprop's.
struct FrozenFormats {
  std::array<QuantFormat, kAllLinearRoles> fprop{}, dgrad{};
  std::array<bool, kAllLinearRoles> one_copy{};

  /// Sets the formats in which a recipe reads the weights of a role.
  void set(LinearRole role, const Recipe& recipe) {
    const auto place = static_cast<std::size_t>(role);
    std::tie(fprop[place], dgrad[place]) = stored_formats(recipe);
    one_copy[place] = recipe.weight_only.quantized();
  }
};

/// Returns true if quantizing a weight again would give the same bits, so that a copy can be kept: it depends on no
/// random numbers, on no history, and on no other copy.
bool can_keep_copy(const QuantFormat& format);

class FrozenWeights {
 public:
  /// Kind of their tensors in a checkpoint.
  static constexpr const char* kStateKind = "frozen";

  struct Options {
    DType dtype = DType::bf16;                ///< of the weights
    std::vector<FrozenFormats> formats = {};  ///< of the copies of each block; empty: none are kept
    bool keep_values = true;                  ///< false: no BF16 weights where copies suffice
    Comm* comm = nullptr;                     ///< ranks that share the weights; null: each has all of them
    bool keep_gathered = false;               ///< gathered weights stay until the next step
  };
  FrozenWeights(Device& device, Arena& arena, const ModelConfig& config, Options options);

  /// Returns the layout of the model, whose units have the same numbers as those of its adapters.
  const Layout& layout() const { return layout_; }
  bool sharded() const { return exchange_ != nullptr; }
  /// Returns true if some matrices exist as quantized copies alone. Their values cannot be read or changed.
  bool drops_values() const { return staged_ > 0; }

  void begin_step();
  void prefetch(int unit, Pass pass);
  /// Returns a unit's whole weights; not for blocks of which some matrices exist as copies alone.
  Tensor unit(int unit, Pass pass);
  BlockWeights block(std::int64_t layer, Pass pass);
  /// Returns where backward writes gradients of a block's vectors and router, which nothing reads.
  BlockTensors block_gradients(std::int64_t layer) const;
  /// Returns where backward writes the gradient of the final norm, [1, 2 C], which nothing reads.
  Tensor discarded() const { return discarded_; }

  /// Makes the copies of weights that are in memory. Call after they have changed.
  void quantize() const;
  /// Sets the values with which training of the whole model would start (Parameters::initialize).
  void initialize(std::uint64_t seed, float std);

  /// This rank's part of a parameter.
  struct Part {
    std::size_t index;  ///< of the parameter, in layout order
    const Parameter* parameter;
    std::int64_t first;  ///< first element within the parameter
    Tensor values;       ///< empty if this rank has none
  };
  using Visit = std::function<void(const Part& part)>;
  /// Visits every parameter; values that are not in memory are empty.
  void for_each(const Visit& visit) const;
  /// Visits every parameter for `visit` to write its values, and quantizes those that are not to stay in memory.
  void set(const Visit& visit);
  /// Returns this rank's part of "frozen/NAME" for every parameter that is in memory.
  std::vector<StateTensor> state() const;
  /// Sets all weights from a state that has every one of them.
  void load(const StateReader& read);

 private:
  /// Copies of a linear layer's weight, empty where none is kept.
  struct Copies {
    GemmOperand rowwise, columnwise;
    std::int64_t value =
        0;  ///< first element of the BF16 weight in its unit's part of weights_; -1: not in memory
  };

  void push_copies(Arena& arena, const Options& options);
  /// Returns the number of elements of a block's vectors, up to where its router begins in discarded_.
  std::int64_t vector_count(std::int64_t layer) const;
  Tensor push_staged() const { return arena_.push(Segment::workspace, weights_.dtype, 1, staged_); }
  int shard_rank() const { return comm_ ? comm_->rank() : 0; }
  /// Returns this rank's part of a unit; without matrices that are not in memory.
  Tensor own(int unit) const { return weights_.elements(offsets_[unit], sizes_[unit]); }
  Tensor vectors(std::int64_t layer) const;
  const Copies& copies(std::int64_t layer, LinearRole role) const {
    return copies_[layer][static_cast<std::size_t>(role)];
  }
  void quantize(const Copies& copies, const Tensor& value) const;
  std::string state_name(const Parameter& p) const;

  Device& device_;
  Arena& arena_;
  Comm* comm_;
  std::shared_ptr<const Layout> shared_layout_;
  const Layout& layout_;                                     // *shared_layout_
  std::vector<std::array<Copies, kAllLinearRoles>> copies_;  // by layer and role
  std::vector<std::int64_t> offsets_, sizes_;                // of this rank's part of units in weights_
  std::int64_t staged_ = 0;                 // elements of the largest matrix that is not in memory
  Tensor amax_;                             // f32 [1], scratch of per-tensor scales
  Tensor weights_;                          // flat
  Tensor discarded_;                        // f32, as long as a unit's vectors and router
  std::unique_ptr<UnitExchange> exchange_;  // null: unsharded
};

}  // namespace precbench
