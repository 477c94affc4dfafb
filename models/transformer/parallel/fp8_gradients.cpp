// Casts, exchanges and sums FP8 gradients. See fp8_gradients.h.
#include "models/transformer/parallel/fp8_gradients.h"

#include <algorithm>

namespace precbench {

Fp8Gradients::Fp8Gradients(Device& device, Comm* comm, Arena& arena, const ModelConfig& config,
                           const Layout& layout, bool round_sums)
    : device_(device),
      comm_(comm),
      layout_(layout),
      round_sums_(round_sums),
      parts_(layout.shards() > 1 ? layout : Layout(config, comm ? comm->size() : 1)),
      scales_(arena, Segment::gradients, layout, DType::e4m3) {
  std::int64_t largest[2] = {}, largest_part = 0;
  for (int u = 0; u < layout.unit_count(); ++u) {
    std::int64_t& size = largest[layout.is_block(u)];
    size = std::max(size, layout.shard_size(u) * layout.shards());
    largest_part = std::max(largest_part, parts_.shard_size(u));
  }
  for (int i = 0; i < 2; ++i) staging_[i] = arena.push(Segment::gradients, DType::bf16, 1, largest[i]);
  if (!comm) return;
  while (round_sums && headroom_ * headroom_ < static_cast<float>(comm->size())) headroom_ *= 2;
  const auto push = [&](DType dtype, std::int64_t size) {
    return arena.push(Segment::communication, dtype, 1, size);
  };
  received_ = push(DType::e4m3, largest_part * comm->size());
  sum_ = push(DType::f32, largest_part);
  if (sharded()) {
    sent_ = push(DType::e4m3, largest_part * comm->size());
    sent_scales_ = std::make_unique<ParameterScales>(arena, Segment::communication, layout, DType::e4m3);
  } else {
    summed_ = push(DType::e4m3, largest_part);
  }
}

void Fp8Gradients::begin_step() const {
  scales_.reset(device_);
  if (sent_scales_) sent_scales_->reset(device_);
}

Tensor Fp8Gradients::staging(int unit) const {
  return staging_[layout_.is_block(unit)].elements(0, layout_.shard_size(unit) * layout_.shards());
}

std::vector<Piece> Fp8Gradients::whole(int unit) const {
  std::vector<Piece> pieces;
  for (const Parameter& p : layout_.units()[unit].parameters) pieces.push_back({&p, 0, p.offset, p.size()});
  return pieces;
}

void Fp8Gradients::encode(int unit, const std::vector<Piece>& pieces, const Tensor& codes,
                          const Tensor& values, const ParameterScales& scales, const Cast& cast) const {
  for (const bool measure : {true, false}) {
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const Piece& piece = pieces[i];
      if (piece.count == 0) continue;
      device_.encode({.codes = codes.elements(piece.offset, piece.count),
                      .scale = scales.of(unit, i),
                      .src = values.elements(piece.offset, piece.count),
                      .accumulate = cast.accumulate,
                      .measure = measure,
                      .headroom = cast.headroom});
    }
    if (measure && cast.common) comm_->all_reduce_max(scales.amaxes(unit));
  }
  scales.commit(device_, unit, cast.headroom);
}

Tensor Fp8Gradients::exchange(int unit, const Tensor& codes, const ParameterScales& scales) const {
  const int ranks = comm_->size(), mine = comm_->rank();
  std::vector<std::int64_t> sizes(ranks);
  for (int r = 0; r < ranks; ++r) {
    const auto [first, last] = parts_.shard_range(unit, r);
    sizes[r] = std::max<std::int64_t>(0, last - first);
  }
  const std::int64_t size = sizes[mine];
  std::int64_t sent = 0;
  for (const std::int64_t n : sizes) sent += n;
  const Tensor received = received_.elements(0, ranks * size).reshape(ranks, size);
  comm_->all_to_all(received, std::vector<std::int64_t>(ranks, size), codes.elements(0, sent), sizes);
  const std::vector<Piece> pieces = parts_.pieces(unit, mine);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Piece& piece = pieces[i];
    if (piece.count > 0)
      device_.sum_codes({sum_.elements(piece.offset, piece.count), received, piece.offset,
                         scales.of(unit, i).scale, round_sums_});
  }
  return sum_;
}

void Fp8Gradients::reduce(int unit, const Tensor& codes, bool first, bool last) {
  if (sharded()) {
    encode(unit, whole(unit), sent_, staging(unit), *sent_scales_, {.common = true, .headroom = headroom_});
    const Tensor sum = exchange(unit, sent_, *sent_scales_);
    encode(unit, parts_.pieces(unit, comm_->rank()), codes, sum, scales_,
           {.accumulate = !first, .common = true});
    return;
  }
  const bool common = comm_ && last;
  encode(unit, whole(unit), codes, staging(unit), scales_,
         {.accumulate = !first, .common = common, .headroom = common ? headroom_ : 1});
  if (!common) return;
  const Tensor sum = exchange(unit, codes, scales_);
  encode(unit, parts_.pieces(unit, comm_->rank()), summed_, sum, scales_, {.common = true});
  const std::int64_t part = parts_.shard_size(unit);
  const Tensor all = received_.elements(0, part * comm_->size());
  comm_->all_gather(all, summed_.elements(0, part));
  device_.convert({codes, all.elements(0, codes.size())});
}

}  // namespace precbench
