// Placement of optimizer state. See moments.h.
#include "models/transformer/state/moments.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "kernels/numerics/amax.h"

namespace precbench {
namespace {

constexpr std::int64_t kPartAlign = 128;  // as for shards

std::int64_t aligned_part(std::int64_t n) { return (n + kPartAlign - 1) / kPartAlign * kPartAlign; }

std::int64_t groups_of(std::int64_t count) { return (count + kCoatGroup - 1) / kCoatGroup; }

std::int64_t rows_of(const Parameter& p) { return p.kind == ParameterKind::matrix ? p.rows : 0; }

}  // namespace

Moments::Moments(Arena& arena, const Layout& layout, const OptimizerSpec& optimizer,
                 const MomentFormats& formats, int shard_rank)
    : layout_(layout), optimizer_(optimizer), formats_(formats), shard_rank_(shard_rank) {
  first_parameters_.push_back(0);
  for (int u = 0; u < layout.unit_count(); ++u)
    first_parameters_.push_back(first_parameters_.back() + parameters_of(u));
  m_ = make_buffer(arena, "m", &KeptState::m, formats.m);
  v_ = make_buffer(arena, "v", &KeptState::v, formats.v);
  allocate_scales(arena, m_);
  allocate_scales(arena, v_);
  if (formats.tensor_scaled())
    amaxes_ = arena.push(Segment::moments, DType::f32, 1, 2 * first_parameters_.back());
  if (!optimizer.block_matrices.factors) return;
  std::int64_t size = 0;
  for (const Unit& unit : layout.units()) {
    std::vector<std::int64_t>& offsets = factor_offsets_.emplace_back();
    for (const Parameter& p : unit.parameters) {
      offsets.push_back(size);
      size += aligned_part(rows_of(p)) + aligned_part(p.cols);
    }
  }
  factors_ = arena.push(Segment::moments, DType::f32, 1, size);
}

/// A unit's kept part is all of it, or what follows the matrices of a block. Every rank allocates the largest
/// part of any rank.
Moments::Buffer Moments::make_buffer(Arena& arena, const char* kind, bool KeptState::*kept,
                                     StateFormat format) const {
  Buffer buffer;
  buffer.kind = kind;
  buffer.format = format;
  buffer.kept = kept;
  std::int64_t size = 0;
  for (int u = 0; u < layout_.unit_count(); ++u) {
    const bool block = layout_.is_block(u);
    const bool all = optimizer_.others.*kept && (!block || optimizer_.block_matrices.*kept);
    const std::int64_t none = std::numeric_limits<std::int64_t>::max();
    const std::int64_t begin = all ? 0
                               : block && optimizer_.others.*kept
                                   ? layout_.vectors_offset(layout_.layer_of(u))
                                   : none;
    const std::int64_t shard = layout_.shard_size(u);
    const auto skipped_by = [&](int rank) {
      return std::clamp<std::int64_t>(begin - std::min(begin, rank * shard), 0, shard);
    };
    const std::int64_t skipped = skipped_by(shard_rank_);
    buffer.places.push_back({size, skipped, shard - skipped});
    size += aligned_part(shard - skipped_by(layout_.shards() - 1));  // the last rank skips least
  }
  if (size > 0) buffer.values = arena.push(Segment::moments, dtype_of(format), 1, size);
  return buffer;
}

/// Allocates one scale per parameter. COAT: one per group of this rank's part, sized for the largest part of
/// any rank.
void Moments::allocate_scales(Arena& arena, Buffer& buffer) const {
  if (buffer.values.empty() || !scaled(buffer.format)) return;
  std::int64_t size = first_parameters_.back();
  if (buffer.format == StateFormat::coat) {
    size = 0;
    for (int u = 0; u < layout_.unit_count(); ++u) {
      std::int64_t next = size;
      std::vector<std::int64_t>& firsts = buffer.groups.emplace_back();
      for (const Piece& piece : layout_.pieces(u, shard_rank_)) {
        firsts.push_back(next);
        next += groups_of(piece.count);
      }
      size += groups_of(layout_.shard_size(u)) + parameters_of(u);
    }
    size *= kCoatScaleFloats;
  }
  buffer.scales = arena.push(Segment::moments, DType::f32, 1, size);
}

StateScale Moments::scale_of(const Buffer& buffer, int unit, std::size_t parameter) const {
  if (buffer.scales.empty()) return {};
  if (buffer.format == StateFormat::coat) {
    const std::int64_t count = layout_.pieces(unit, shard_rank_)[parameter].count;
    const std::int64_t groups = groups_of(count);
    return {
        .scale = buffer.scales
                     .elements(buffer.groups[unit][parameter] * kCoatScaleFloats, groups * kCoatScaleFloats)
                     .reshape(groups, kCoatScaleFloats),
        .amax = {}};
  }
  const auto index = static_cast<std::int64_t>(parameter);
  const std::int64_t slot = 2 * first_parameter(unit) + (&buffer == &v_ ? parameters_of(unit) : 0) + index;
  return {.scale = buffer.scales.elements(first_parameter(unit) + index, 1),
          .amax = amaxes_.elements(slot, 1)};
}

Tensor Moments::amaxes(int unit) const {
  if (amaxes_.empty()) return {};
  return amaxes_.elements(2 * first_parameter(unit), 2 * parameters_of(unit));
}

void Moments::commit_scales(Device& device, int unit) const {
  const std::int64_t count = parameters_of(unit);
  for (const Buffer* buffer : {&m_, &v_})
    if (!buffer->scales.empty() && tensor_scaled(buffer->format))
      device.commit_scale({buffer->scales.elements(first_parameter(unit), count),
                           amaxes(unit).elements(buffer == &v_ ? count : 0, count),
                           state_max(dtype_of(buffer->format))});
}

Tensor Moments::Buffer::elements(int unit, std::int64_t first, std::int64_t count) const {
  const Place& place = places[unit];
  if (first < place.first || first + count > place.first + place.count) return {};
  return values.elements(place.offset + first - place.first, count);
}

FactoredMoment Moments::factors(int unit, std::size_t parameter) const {
  const Parameter& p = layout_.units()[unit].parameters[parameter];
  const std::int64_t offset = factor_offsets_[unit][parameter], rows = rows_of(p);
  FactoredMoment moment;
  if (rows > 0) moment.rows = factors_.elements(offset, rows);
  moment.cols = factors_.elements(offset + aligned_part(rows), p.cols);
  return moment;
}

void Moments::reset(Device& device) const {
  for (const Tensor& flat : {m_.values, v_.values, factors_, amaxes_})
    if (!flat.empty()) device.zero({flat});
  for (const Tensor& scales : {m_.scales, v_.scales})
    if (!scales.empty()) device.fill({scales, 1.0f});
}

void Moments::append_buffer(std::vector<StateTensor>& state, const Buffer& buffer) const {
  if (buffer.values.empty()) return;
  for (int u = 0; u < layout_.unit_count(); ++u)
    for (const Piece& piece : layout_.pieces(u, shard_rank_)) {
      const Parameter& p = *piece.parameter;
      const bool block_matrix = layout_.is_block(u) && p.kind == ParameterKind::matrix;
      if (!((block_matrix ? optimizer_.block_matrices : optimizer_.others).*buffer.kept)) continue;
      StateTensor tensor{.name = fmt::format("{}/{}", buffer.kind, p.name), .shape = p.shape()};
      tensor.values.dtype = buffer.values.dtype;
      if (piece.count > 0) {
        tensor.place = piece.in_whole();
        tensor.values = buffer.elements(u, piece.offset, piece.count);
      }
      state.push_back(std::move(tensor));
    }
}

void Moments::append_scales(std::vector<StateTensor>& state, const Buffer& buffer) const {
  if (buffer.scales.empty()) return;
  for (int u = 0; u < layout_.unit_count(); ++u) {
    const std::vector<Piece> pieces = layout_.pieces(u, shard_rank_);
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const Tensor scale = scale_of(buffer, u, i).scale;
      StateTensor tensor{.name = fmt::format("{}_scale/{}", buffer.kind, pieces[i].parameter->name),
                         .shape = {1}};
      if (buffer.format == StateFormat::coat) {
        tensor.shape = {groups_of(pieces[i].parameter->size()), kCoatScaleFloats};
        tensor.place = pieces[i].first / kCoatGroup * kCoatScaleFloats;
      }
      if (scale.size() > 0) tensor.values = scale;
      state.push_back(std::move(tensor));
    }
  }
}

void Moments::append_state(std::vector<StateTensor>& state) const {
  for (const Buffer* buffer : {&m_, &v_}) {
    append_buffer(state, *buffer);
    append_scales(state, *buffer);
  }
  append_factors(state);
}

void Moments::append_unscaled_state(std::vector<StateTensor>& state) const {
  for (const Buffer* buffer : {&m_, &v_})
    if (!scaled(buffer->format)) append_buffer(state, *buffer);
  append_factors(state);
}

void Moments::load_scaled(Device& device, const StateReader& read) const {
  for (const Buffer* buffer : {&m_, &v_}) {
    if (!scaled(buffer->format)) continue;
    for (int u = 0; u < layout_.unit_count(); ++u) {
      const std::vector<Piece> pieces = layout_.pieces(u, shard_rank_);
      for (std::size_t i = 0; i < pieces.size(); ++i) load_scaled(device, read, *buffer, u, i, pieces[i]);
    }
  }
}

/// Every rank reads the whole parameter, because its amax is that of the whole.
void Moments::load_scaled(Device& device, const StateReader& read, const Buffer& buffer, int unit,
                          std::size_t parameter, const Piece& piece) const {
  const Parameter& p = *piece.parameter;
  const std::vector<float> values =
      read_whole(read, {.name = fmt::format("{}/{}", buffer.kind, p.name), .shape = p.shape()});
  const DType dtype = buffer.values.dtype;
  std::vector<std::byte> codes(bytes_of(dtype, piece.count));
  std::vector<float> scales;
  if (buffer.format == StateFormat::coat) {
    for (std::int64_t done = 0; done < piece.count; done += kCoatGroup) {
      const CoatScale s =
          coat_encode_group(reinterpret_cast<std::uint8_t*>(codes.data()) + done,
                            values.data() + piece.first + done, std::min(kCoatGroup, piece.count - done));
      scales.insert(scales.end(), {s.scale, s.middle, s.power});
    }
  } else {
    const float amax = bits_to_float(static_cast<std::uint32_t>(amax_bits(values.data(), p.size())));
    scales = {state_scale(amax, state_max(dtype), 1.0f)};
    for (std::int64_t i = 0; i < piece.count; ++i)
      state_encode(dtype, codes.data(), i, values[piece.first + i] * scales[0]);
  }
  device.upload(scale_of(buffer, unit, parameter).scale, scales.data());
  if (piece.count > 0) device.upload(buffer.elements(unit, piece.offset, piece.count), codes.data());
}

void Moments::append_factors(std::vector<StateTensor>& state) const {
  if (factors_.empty()) return;
  for (int u = 0; u < layout_.unit_count(); ++u)
    for (std::size_t i = 0; i < layout_.units()[u].parameters.size(); ++i) {
      const std::string& name = layout_.units()[u].parameters[i].name;
      const FactoredMoment moment = factors(u, i);
      if (!moment.rows.empty())
        state.push_back({.name = "row/" + name, .shape = {moment.rows.cols}, .values = moment.rows});
      state.push_back({.name = "col/" + name, .shape = {moment.cols.cols}, .values = moment.cols});
    }
}

}  // namespace precbench
