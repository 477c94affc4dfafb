// What an optimizer keeps from step to step beside the weights, in flat buffers over a Layout: of every unit the part
// that this rank updates, of factored moments the whole.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/device/device.h"
#include "kernels/device/memory.h"
#include "kernels/numerics/state_formats.h"
#include "models/transformer/layout.h"
#include "models/transformer/optimizers.h"
#include "models/transformer/state.h"

namespace precbench {

/// Of the average of gradients, and of that of their squares.
struct MomentFormats {
  StateFormat m = StateFormat::fp32, v = StateFormat::fp32;

  bool scaled() const { return precbench::scaled(m) || precbench::scaled(v); }
  bool tensor_scaled() const { return precbench::tensor_scaled(m) || precbench::tensor_scaled(v); }
};

class Moments {
 public:
  /// `layout` must outlive it.
  Moments(Arena& arena, const Layout& layout, const OptimizerSpec& optimizer, const MomentFormats& formats,
          int shard_rank);

  const MomentFormats& formats() const { return formats_; }
  /// Elements [first, first + count) of this rank's shard of a unit; empty where the optimizer keeps none.
  Tensor m(int unit, std::int64_t first, std::int64_t count) const { return m_.elements(unit, first, count); }
  Tensor v(int unit, std::int64_t first, std::int64_t count) const { return v_.elements(unit, first, count); }
  /// How what this rank has of a unit's parameter, by its number there, is scaled.
  StateScale m_scale(int unit, std::size_t parameter) const { return scale_of(m_, unit, parameter); }
  StateScale v_scale(int unit, std::size_t parameter) const { return scale_of(v_, unit, parameter); }
  /// The amaxes that a step's measuring has left, of all parameters of a unit; the ranks that share it must agree on
  /// their maxima before commit_scales. Empty without scales of tensors.
  Tensor amaxes(int unit) const;
  void commit_scales(Device& device, int unit) const;
  /// Of a unit's parameter, by its number there; row_mean is left to the caller.
  FactoredMoment factors(int unit, std::size_t parameter) const;

  /// All values 0, and scales 1.
  void reset(Device& device) const;
  /// "m/NAME", "v/NAME", each followed by "m_scale/NAME" where it is scaled; then "row/NAME" and "col/NAME".
  void append_state(std::vector<StateTensor>& state) const;
  /// What append_state names, but for moments that are scaled: those load_scaled rounds from FP32, by scales of their own.
  void append_unscaled_state(std::vector<StateTensor>& state) const;
  void load_scaled(Device& device, const StateReader& read) const;

 private:
  /// One buffer, and of every unit where its elements lie and which of the shard they are.
  struct Buffer {
    struct Place {
      std::int64_t offset = 0, first = 0, count = 0;
    };
    const char* kind = "";
    StateFormat format = StateFormat::fp32;
    bool KeptState::*kept = nullptr;
    Tensor values, scales;
    std::vector<Place> places;
    std::vector<std::vector<std::int64_t>> groups;  ///< COAT's: of a unit's parameters the first in `scales`

    Tensor elements(int unit, std::int64_t first, std::int64_t count) const;
  };
  Buffer make_buffer(Arena& arena, const char* kind, bool KeptState::*kept, StateFormat format) const;
  void allocate_scales(Arena& arena, Buffer& buffer) const;
  void append_buffer(std::vector<StateTensor>& state, const Buffer& buffer) const;
  void load_scaled(Device& device, const StateReader& read, const Buffer& buffer, int unit,
                   std::size_t parameter, const Piece& piece) const;
  void append_factors(std::vector<StateTensor>& state) const;
  void append_scales(std::vector<StateTensor>& state, const Buffer& buffer) const;
  StateScale scale_of(const Buffer& buffer, int unit, std::size_t parameter) const;
  /// Parameters before a unit's, and of it.
  std::int64_t first_parameter(int unit) const { return first_parameters_[unit]; }
  std::int64_t parameters_of(int unit) const {
    return static_cast<std::int64_t>(layout_.units()[unit].parameters.size());
  }

  const Layout& layout_;
  const OptimizerSpec& optimizer_;
  MomentFormats formats_;
  int shard_rank_;
  std::vector<std::int64_t> first_parameters_;  // of every unit, and of all
  Buffer m_, v_;
  Tensor amaxes_;                                          // f32: of every unit m's, then v's
  Tensor factors_;                                         // f32, flat
  std::vector<std::vector<std::int64_t>> factor_offsets_;  // of a unit's parameters in it: rows, then columns
};

}  // namespace precbench
