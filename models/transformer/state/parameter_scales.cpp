// Placement of the scales. See parameter_scales.h.
#include "models/transformer/state/parameter_scales.h"

#include <fmt/format.h>

#include "kernels/numerics/state_formats.h"

namespace precbench {
namespace {

std::int64_t parameters_of(const Unit& unit) { return static_cast<std::int64_t>(unit.parameters.size()); }

}  // namespace

ParameterScales::ParameterScales(Arena& arena, Segment segment, const Layout& layout, DType codes)
    : layout_(layout), codes_(codes) {
  std::int64_t count = 0;
  for (const Unit& unit : layout.units()) {
    firsts_.push_back(count);
    count += parameters_of(unit);
  }
  scales_ = arena.push(segment, DType::f32, 1, count);
  amaxes_ = arena.push(segment, DType::f32, 1, count);
}

Tensor ParameterScales::of_unit(const Tensor& all, int unit) const {
  return all.elements(firsts_[unit], parameters_of(layout_.units()[unit]));
}

StateScale ParameterScales::of(int unit, std::size_t parameter) const {
  const std::int64_t index = firsts_[unit] + static_cast<std::int64_t>(parameter);
  return {.scale = scales_.elements(index, 1), .amax = amaxes_.elements(index, 1)};
}

Tensor ParameterScales::amaxes(int unit) const { return of_unit(amaxes_, unit); }

void ParameterScales::commit(Device& device, int unit, float headroom) const {
  device.commit_scale({of_unit(scales_, unit), amaxes(unit), state_max(codes_) / headroom});
}

void ParameterScales::reset(Device& device) const {
  device.fill({scales_, 1.0f});
  device.zero({amaxes_});
}

void ParameterScales::append_state(std::vector<StateTensor>& state, const char* kind) const {
  for (int u = 0; u < layout_.unit_count(); ++u)
    for (std::size_t i = 0; i < layout_.units()[u].parameters.size(); ++i)
      state.push_back({.name = fmt::format("{}_scale/{}", kind, layout_.units()[u].parameters[i].name),
                       .shape = {1},
                       .values = of(u, i).scale});
}

}  // namespace precbench
