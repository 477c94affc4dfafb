// Attention over sequences that several ranks share (context parallelism). A rank has the queries of two
// chunks of every sequence, an early and a late one (sequence_part.h). It gathers the keys and values of all
// ranks and runs one attention for either half; keys behind the diagonal are skipped. Backward gathers again,
// and the ranks' gradients of keys and values are added up where the keys are. With TransformerOptions::ring
// ring_attention.cpp does this without a gather.
#include "models/transformer/layers/attention_layer.h"
#include "models/transformer/layers/query_half.h"

namespace precbench {

Tensor AttentionLayer::gather_keys(const Tensor& qkv) const {
  const AttentionShape& shape = step_.attention_shape;
  const std::int64_t ranks = step_.sequence.parts, width = shape.kv_width();
  const Tensor kv = step_.push(qkv.dtype, ranks * step_.M, width);
  const Scope scope(step_.arena);
  const Tensor by_rank = step_.push(qkv.dtype, ranks * step_.M, width), own = step_.push(width);
  step_.device.copy_columns({own, shape.q_width(), qkv});
  step_.parameters.groups().context.comm->all_gather(by_rank, own);
  step_.device.place_rows({kv, by_rank, step_.sequence.T, step_.sequence.parts});
  return kv;
}

void AttentionLayer::scatter_keys(const Tensor& dqkv, const Tensor& dkv, const Tensor& scratch) const {
  const AttentionShape& shape = step_.attention_shape;
  step_.device.place_rows({scratch, dkv, step_.sequence.T, step_.sequence.parts, true});
  const Tensor own = dkv.slice_rows(0, step_.M);
  step_.parameters.groups().context.comm->reduce_scatter(own, scratch);
  step_.device.copy_columns({dqkv, shape.q_width(), own});
}

void AttentionLayer::attend(std::int64_t layer, QuantizedTensor& out, const Tensor& lse, const Tensor& qkv,
                            const BlockWeights& w) const {
  const bool whole = step_.sequence.whole(), sinks = !w.sinks.empty();
  if (whole) {
    const AttentionShape shape = step_.attention_shape_of(layer);
    const DocumentMask documents = step_.documents_of(shape, 0, step_.M);
    if (!sinks) return step_.device.attention({out, lse, qkv, shape, {}, documents});
    // Quantized after the sinks have changed it.
    step_.device.attention({{.value = out.value}, lse, qkv, shape, {}, documents});
    step_.device.attention_sink({out.value, lse, w.sinks, shape});
    return step_.device.quantize({out});
  }
  const bool ring = step_.options.ring;
  const Scope scope(step_.arena);
  if (ring) attend_ring(layer, out.value, lse, qkv);
  const Tensor kv = ring ? Tensor{} : gather_keys(qkv);
  for (int number = 0; number < step_.sequence.halves(); ++number) {
    const QueryHalf half(step_, layer, number);
    if (!ring)
      step_.device.attention({.out = {.value = half.rows_of(out.value)},
                              .lse = half.lse_of(lse),
                              .qkv = half.rows_of(qkv),
                              .shape = half.placed(),
                              .kv = kv,
                              .documents = half.documents()});
    if (sinks)
      step_.device.attention_sink({half.rows_of(out.value), half.lse_of(lse), w.sinks, half.placed()});
  }
  step_.device.quantize({out});
}

void AttentionLayer::attend_backward(std::int64_t layer, const Tensor& dqkv, const Tensor& dout,
                                     const AttentionSaved& saved, const Tensor& qkv, const BlockWeights& w,
                                     const BlockTensors& g) const {
  const bool accumulates = step_.parameters.accumulates();
  if (step_.sequence.whole() && !w.sinks.empty())
    step_.device.attention_sink_backward(
        {g.sinks, accumulates, dout, saved.attention, saved.lse, w.sinks, step_.attention_shape_of(layer)});
  if (step_.sequence.whole()) {
    const AttentionShape shape = step_.attention_shape_of(layer);
    return step_.device.attention_backward({.dqkv = dqkv,
                                            .dout = dout,
                                            .out = saved.attention,
                                            .lse = saved.lse,
                                            .qkv = qkv,
                                            .shape = shape,
                                            .documents = step_.documents_of(shape, 0, step_.M)});
  }
  if (!w.sinks.empty())
    for (int number = 0; number < step_.sequence.halves(); ++number) {
      const QueryHalf half(step_, layer, number);
      step_.device.attention_sink_backward({g.sinks, accumulates || number > 0, half.rows_of(dout),
                                            half.rows_of(saved.attention), half.lse_of(saved.lse), w.sinks,
                                            half.placed()});
    }
  if (step_.options.ring) return attend_ring_backward(layer, dqkv, dout, saved, qkv);
  const Scope scope(step_.arena);
  const Tensor kv = gather_keys(qkv);
  const Tensor dkv = step_.push(kv.dtype, kv.rows, kv.cols), early = step_.push(kv.dtype, kv.rows, kv.cols);
  for (int number = 0; number < step_.sequence.halves(); ++number) {
    const QueryHalf half(step_, layer, number);
    step_.device.attention_backward({.dqkv = half.rows_of(dqkv),
                                     .dout = half.rows_of(dout),
                                     .out = half.rows_of(saved.attention),
                                     .lse = half.lse_of(saved.lse),
                                     .qkv = half.rows_of(qkv),
                                     .shape = half.placed(),
                                     .kv = kv,
                                     .dkv = number == 0 ? early : dkv,
                                     .documents = half.documents()});
  }
  step_.device.add({dkv, early});
  scatter_keys(dqkv, dkv, early);
}

}  // namespace precbench
