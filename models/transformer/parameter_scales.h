// The scales of a flat buffer over a Layout that keeps every parameter as codes with one scale (state_formats.h), and the
// amaxes that their next values come from. Every rank has those of all parameters.
#pragma once

#include <vector>

#include "kernels/device/device.h"
#include "kernels/device/memory.h"
#include "models/transformer/layout.h"
#include "models/transformer/state.h"

namespace precbench {

class ParameterScales {
 public:
  /// `codes`: f16 or e4m3. `layout` must outlive it.
  ParameterScales(Arena& arena, Segment segment, const Layout& layout, DType codes);

  /// Of a unit's parameter, by its number there.
  StateScale of(int unit, std::size_t parameter) const;
  /// What measuring has left, of all parameters of a unit: ranks that share the scales agree on the maxima before commit.
  Tensor amaxes(int unit) const;
  /// `room`: as codes were encoded with (ops::Encode).
  void commit(Device& device, int unit, float room = 1) const;
  /// All scales 1.
  void reset(Device& device) const;
  /// "KIND_scale/NAME" of every parameter.
  void append_state(std::vector<StateTensor>& state, const char* kind) const;

 private:
  Tensor of_unit(const Tensor& all, int unit) const;

  const Layout& layout_;
  DType codes_;
  std::vector<std::int64_t> firsts_;  // parameters before a unit's
  Tensor scales_, amaxes_;            // f32 [1, parameters]
};

}  // namespace precbench
