// Scales of a flat buffer over a Layout that stores every parameter with one scale (state_formats.h), and the
// amaxes for their next values. Every rank has those of all parameters.
#pragma once

#include <vector>

#include "kernels/device/device.h"
#include "kernels/device/memory.h"
#include "models/transformer/state/layout.h"
#include "models/transformer/state/state.h"

namespace precbench {

class ParameterScales {
 public:
  /// `codes`: f16 or e4m3. `layout` must outlive this.
  ParameterScales(Arena& arena, Segment segment, const Layout& layout, DType codes);

  /// Returns scale and amax of a unit's parameter, given its index in the unit.
  StateScale of(int unit, std::size_t parameter) const;
  /// Returns the measured amaxes of all parameters of a unit. Ranks that share the scales all-reduce (max)
  /// them before commit.
  Tensor amaxes(int unit) const;
  /// Computes a unit's scales from its amaxes. `headroom`: what the data was encoded with (ops::Encode).
  void commit(Device& device, int unit, float headroom = 1) const;
  /// Sets all scales to 1 and all amaxes to 0.
  void reset(Device& device) const;
  /// Appends "KIND_scale/NAME" of every parameter.
  void append_state(std::vector<StateTensor>& state, const char* kind) const;

 private:
  Tensor of_unit(const Tensor& all, int unit) const;

  const Layout& layout_;
  DType codes_;
  std::vector<std::int64_t> firsts_;  // index of a unit's first parameter
  Tensor scales_, amaxes_;            // f32 [1, parameters]
};

}  // namespace precbench
