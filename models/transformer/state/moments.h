// Optimizer state besides the weights, in flat buffers over a Layout: this rank's part of every unit;
// factored moments are kept whole.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/device/device.h"
#include "kernels/device/memory.h"
#include "kernels/numerics/state_formats.h"
#include "models/transformer/state/layout.h"
#include "models/transformer/state/optimizer_spec.h"
#include "models/transformer/state/state.h"

namespace precbench {

/// Formats of the first moment (m) and of the second (v).
struct MomentFormats {
  StateFormat m = StateFormat::fp32, v = StateFormat::fp32;

  bool scaled() const { return precbench::scaled(m) || precbench::scaled(v); }
  bool tensor_scaled() const { return precbench::tensor_scaled(m) || precbench::tensor_scaled(v); }
};

class Moments {
 public:
  /// `layout` must outlive this.
  Moments(Arena& arena, const Layout& layout, const OptimizerSpec& optimizer, const MomentFormats& formats,
          int shard_rank);

  const MomentFormats& formats() const { return formats_; }
  /// Return elements [first, first + count) of this rank's shard of a unit; empty if the optimizer keeps
  /// none.
  Tensor m(int unit, std::int64_t first, std::int64_t count) const { return m_.elements(unit, first, count); }
  Tensor v(int unit, std::int64_t first, std::int64_t count) const { return v_.elements(unit, first, count); }
  /// Return the scales of this rank's part of a unit's parameter, given its index in the unit.
  StateScale m_scale(int unit, std::size_t parameter) const { return scale_of(m_, unit, parameter); }
  StateScale v_scale(int unit, std::size_t parameter) const { return scale_of(v_, unit, parameter); }
  /// Returns the measured amaxes of all parameters of a unit. Ranks that share the unit all-reduce (max) them
  /// before commit_scales. Empty without per-tensor scales.
  Tensor amaxes(int unit) const;
  void commit_scales(Device& device, int unit) const;
  /// Returns the factored moment of a unit's parameter; the caller sets row_mean.
  FactoredMoment factors(int unit, std::size_t parameter) const;

  /// Sets all values to 0 and all scales to 1.
  void reset(Device& device) const;
  /// Appends "m/NAME", "v/NAME", each followed by "m_scale/NAME" or "v_scale/NAME" if scaled; then "row/NAME"
  /// and "col/NAME".
  void append_state(std::vector<StateTensor>& state) const;
  /// Appends the same without scaled moments, which load_scaled reads in FP32 and rounds with new scales.
  void append_unscaled_state(std::vector<StateTensor>& state) const;
  void load_scaled(Device& device, const StateReader& read) const;

 private:
  /// One buffer, with the place of every unit: its offset and the range of the shard that it holds.
  struct Buffer {
    struct Place {
      std::int64_t offset = 0, first = 0, count = 0;
    };
    const char* kind = "";
    StateFormat format = StateFormat::fp32;
    bool KeptState::*kept = nullptr;
    Tensor values, scales;
    std::vector<Place> places;
    /// COAT: first group of each of a unit's parameters in `scales`.
    std::vector<std::vector<std::int64_t>> groups;

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
  /// Index of a unit's first parameter among all; number of parameters of a unit.
  std::int64_t first_parameter(int unit) const { return first_parameters_[unit]; }
  std::int64_t parameters_of(int unit) const {
    return static_cast<std::int64_t>(layout_.units()[unit].parameters.size());
  }

  const Layout& layout_;
  const OptimizerSpec& optimizer_;
  MomentFormats formats_;
  int shard_rank_;
  std::vector<std::int64_t> first_parameters_;  // of every unit, then the total
  Buffer m_, v_;
  Tensor amaxes_;                                          // f32: per unit m's, then v's
  Tensor factors_;                                         // f32, flat
  std::vector<std::vector<std::int64_t>> factor_offsets_;  // per unit and parameter: rows, then columns
};

}  // namespace precbench
