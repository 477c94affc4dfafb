// FP16 master weights in Parameters: matrices in FP16 with one scale each and vectors in FP32; encoding,
// decoding, and the BF16 and FP8 weights made from them.
#include <utility>

#include "kernels/numerics/state_formats.h"
#include "models/transformer/parallel/parameters.h"

namespace precbench {
namespace {

/// Returns the same memory as the same number of elements of another type.
Tensor in_place_of(const Tensor& x, DType dtype) { return {x.data, dtype, x.rows, x.cols}; }

}  // namespace

void Parameters::decode_master(int unit, const Tensor& dst, const Tensor& codes, std::int64_t first,
                               std::int64_t last) const {
  const std::vector<Parameter>& parameters = layout_.units()[unit].parameters;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& p = parameters[i];
    const std::int64_t begin = std::max(first, p.offset), count = std::min(last, p.offset + p.size()) - begin;
    if (count <= 0) continue;
    const Tensor to = dst.elements(begin - first, count), from = codes.elements(begin - first, count);
    if (in_codes(p))
      device_.decode({to, from, weight_scale(unit, i)});
    else
      device_.convert({to, in_place_of(from, options_.weights)});
  }
}

Tensor Parameters::exact(int unit) const {
  const Unit& u = layout_.units()[unit];
  return exact_.elements(exact_offsets_[unit], u.size - u.vectors_offset());
}

Tensor Parameters::exact(int unit, const Piece& piece) const {
  const Parameter& p = *piece.parameter;
  return exact(unit).elements(p.offset - layout_.units()[unit].vectors_offset() + piece.first, piece.count);
}

Tensor Parameters::rounded(int unit, const Piece& piece) const {
  return in_place_of(local(master_, unit).elements(piece.offset, piece.count), options_.weights);
}

void Parameters::round_vectors() {
  for (int u = 0; u < layout_.unit_count(); ++u)
    for (const Piece& piece : layout_.pieces(u, shard_rank()))
      if (piece.count > 0 && !in_codes(*piece.parameter))
        device_.convert({rounded(u, piece), exact(u, piece)});
}

Tensor Parameters::whole_vectors(int unit) {
  if (!sharded() || exact(unit).size() == 0) return exact(unit);
  const Tensor whole = arena_.push_uncounted(DType::f32, 1, exact(unit).size());
  device_.convert({whole, exact(unit)});
  groups_.weights.comm->all_reduce(whole);
  return whole;
}

Parameters::Updated Parameters::updated(int unit, std::size_t parameter, const Piece& piece) const {
  if (in_codes(*piece.parameter)) return {{}, leading(unit, piece), master_scales_->of(unit, parameter)};
  const Tensor weights = local_weights(unit);
  if (fp16_master()) return {rounded(unit, piece), exact(unit, piece), {}};
  return {
      part(weights, piece.offset, piece.count), part(local(master_, unit), piece.offset, piece.count), {}};
}

void Parameters::encode_master(int unit, std::size_t parameter,
                               const std::function<void(const Tensor&, std::int64_t)>& values) {
  const Piece piece = layout_.pieces(unit, shard_rank())[parameter];
  const StateScale scale = master_scales_->of(unit, parameter);
  const Tensor codes = local(master_, unit);
  // The edges' weights are neither in use nor gathered now, so their buffer serves as scratch.
  forget_gathered();
  const Tensor memory = exchange_->edges_buffer();
  for (const bool measure : {true, false}) {
    for (std::int64_t done = 0; done < piece.count; done += memory.size()) {
      const std::int64_t count = std::min(memory.size(), piece.count - done);
      const Tensor elements = memory.elements(0, count);
      values(elements, done);
      device_.encode({.codes = codes.elements(piece.offset + done, count),
                      .scale = scale,
                      .src = elements,
                      .accumulate = false,
                      .measure = measure});
    }
    if (measure && sharded()) groups_.weights.comm->all_reduce_max(scale.amax);
  }
  master_scales_->commit(device_, unit);
}

void Parameters::initialize_master(std::uint64_t seed, float std) {
  for (int u = 0; u < layout_.unit_count(); ++u) {
    const std::vector<Piece> pieces = layout_.pieces(u, shard_rank());
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const Parameter& p = *pieces[i].parameter;
      if (p.kind == ParameterKind::gain && pieces[i].count > 0) device_.fill({exact(u, pieces[i]), 1.0f});
      if (p.kind != ParameterKind::matrix) continue;
      const std::int64_t begin = layout_.model_offset(u) + p.offset + pieces[i].first;
      encode_master(u, i, [&](const Tensor& elements, std::int64_t first) {
        device_.init_normal({elements, std, seed, begin + first});
      });
    }
  }
}

void Parameters::load_master(const StateReader& read) {
  for_weights([&](std::size_t, int unit, std::size_t i, const StateTensor& part) {
    store_weights(unit, i, part.values, read_whole(read, part).data() + part.place.first);
  });
}

void Parameters::refresh_fp8_weights() {
  const Scope scope(arena_);
  const int block = layout_.block_unit(0);
  const bool widen = fp16_master(), round = !widen && !fp8_->from_master() && !master_.empty();
  const auto leading = [&](int unit) { return local_leading(unit); };
  const auto kept = [&](int unit) { return fp8_->from_master() ? local_leading(unit) : local_weights(unit); };
  if (!widen && !round) return fp8_->refresh(kept, leading, delayed_.get());
  // Made unit by unit. An FP16 master is decoded to FP32, so that FP8 is rounded from the master itself. An
  // FP32 master is rounded to the BF16 weights that are not kept.
  const Tensor made =
      arena_.push(Segment::workspace, widen ? DType::f32 : options_.weights, 1, layout_.shard_size(block));
  int current = -1;
  const auto make = [&](int unit) {
    if (std::exchange(current, unit) == unit) return made;
    const auto [first, last] = layout_.shard_range(unit, shard_rank());
    if (widen)
      decode_master(unit, made, local(master_, unit), first, last);
    else
      device_.convert({made, local(master_, unit)});
    return made;
  };
  if (widen) return fp8_->refresh(make, make, delayed_.get());
  fp8_->refresh(make, leading, delayed_.get());
}

}  // namespace precbench
