// Sending and receiving of token rows, whatever the collective. See remote_experts.h.
#include "models/transformer/moe/remote_experts.h"

#include <numeric>

#include "kernels/numerics/scale_layout.h"

namespace precbench {

double RemoteExperts::wire_bytes(const Comm& comm) {
  return std::accumulate(comm.counts().begin(), comm.counts().end(), 0.0,
                         [](double sum, const CollectiveCount& kind) { return sum + kind.wire_bytes; });
}

ReceivedTokens RemoteExperts::push_received(const QuantFormat& format) const {
  const std::int64_t C = step_.config.width;
  if (!sends_quantized(format)) return {step_.push(step_.options.activations, max_rows(), C), {}};
  GemmOperand copy = step_.operands.push(format, max_rows(), C);
  if (has_tensor_scale(format)) copy.amax = step_.push(DType::f32, 1, 1);
  return {{}, copy};
}

void RemoteExperts::send_rows(const SavedRouting& routing, const Tensor& to, const Tensor& from,
                              const Overlap& overlap) const {
  const Scope scope(step_.arena);
  const Tensor packed = pack(routing, from);
  const Comm::Ticket sent =
      counted(&ExpertTraffic::dispatch, [&](Comm&) { return start(routing, to, packed); });
  if (overlap) overlap();
  comm().wait(sent);
}

void RemoteExperts::send_scales(const GemmOperand& to, const GemmOperand& from,
                                const Overlap& overlap) const {
  const Granularity g = to.format.granularity;
  if (g == Granularity::tensor) {
    step_.device.convert({to.scale, from.scale});
    if (overlap) overlap();
    return;
  }
  const Scope scope(step_.arena);
  const std::int64_t R = ranks(), rows = rows_per_rank(), blocks = scale_blocks(g, to.k());
  // Scales of 1x128 blocks are stored block-major, so one rank's rows are strided and must be packed.
  const bool strided = g == Granularity::block_1x128;
  const Tensor in = strided ? step_.push(to.scale.dtype, R, blocks * rows) : to.scale;
  const Tensor out = strided ? pack_scales(from.scale, blocks) : from.scale;
  const Comm::Ticket sent = counted(&ExpertTraffic::dispatch, [&](Comm&) { return start_scales(in, out); });
  if (overlap) overlap();
  comm().wait(sent);
  for (std::int64_t r = 0; strided && r < R; ++r)
    step_.device.copy_columns(
        {to.scale.reshape(blocks, R * rows), r * rows, in.slice_rows(r, 1).reshape(blocks, rows)});
}

void RemoteExperts::send_quantized(const SavedRouting& routing, const GemmOperand& to,
                                   const QuantizedTensor& x, const Overlap& overlap) const {
  const Scope scope(step_.arena);
  GemmOperand own = x.rowwise;
  // A known amax is the same on all ranks; recipes for which it is not do not send FP8 data.
  if (has_tensor_scale(to.format) && !x.amax_in.empty()) {
    step_.device.convert({to.amax, x.amax_in});
  } else if (has_tensor_scale(to.format)) {  // amax over all ranks of the group
    step_.device.convert({to.amax, x.amax_out});
    counted(&ExpertTraffic::dispatch, [&](Comm& experts) { experts.all_reduce_max(to.amax); });
    own = step_.operands.push(to.format, x.value.rows, x.value.cols);
    step_.device.quantize({{.value = x.value, .rowwise = own, .amax_in = to.amax}});
  }
  const GemmOperand packed = pack(routing, own);
  const Comm::Ticket sent =
      counted(&ExpertTraffic::dispatch, [&](Comm&) { return start(routing, to.data, packed.data); });
  send_scales(to, packed, overlap);
  comm().wait(sent);
}

QuantizedTensor RemoteExperts::received(const SavedRouting& routing, const ReceivedTokens& x,
                                        const QuantFormat& format, KeepValue keep,
                                        const Tensor& known) const {
  if (x.copy.empty()) {
    const std::int64_t count = received_rows(routing);
    if (!format.quantized()) {
      QuantizedTensor rows = make_quantized_tensor(x.value.slice_rows(0, count), format, {});
      rows.amax_in = known;
      return rows;
    }
    // Quantize the whole buffer so that memory does not depend on the routing; rows that were not received
    // are zeros.
    if (count < x.value.rows) step_.device.zero({x.value.slice_rows(count, x.value.rows - count)});
    QuantizedTensor all = make_quantized_tensor(x.value, format, {});
    all.amax_in = known;
    step_.operands.push_rowwise(all, format);
    step_.device.quantize({all});
    return all;
  }
  QuantizedTensor all{
      .value = {}, .rowwise = x.copy, .amax_in = x.copy.amax, .keep_value = keep == KeepValue::yes};
  all.rowwise.amax = {};
  if (keep == KeepValue::no) return all;
  all.value = step_.push(DType::bf16, x.copy.rows(), x.copy.k());
  step_.device.dequantize({all.value, x.copy});
  return all;
}

QuantizedTensor RemoteExperts::dispatch(const SavedRouting& routing, const QuantizedTensor& x,
                                        const QuantFormat& format, const ReceivedTokens& to, KeepValue keep,
                                        const Overlap& overlap) const {
  if (to.copy.empty())
    send_rows(routing, to.value.slice_rows(0, received_rows(routing)), x.value, overlap);
  else
    send_quantized(routing, to.copy, x, overlap);
  return received(routing, to, format, keep, x.amax_in);
}

void RemoteExperts::combine(const SavedRouting& routing, ops::Unpermute op,
                            const OverlapResult& addend) const {
  const Scope scope(step_.arena);
  ops::Unpermute partial{
      .out = step_.push(op.rows.dtype, max_rows(), op.rows.cols).slice_rows(0, received_rows(routing)),
      .rows = op.rows,
      .addend = {},
      .groups = op.groups};
  if (!op.weights.empty()) {
    partial.weights = routing.group_weights;
    partial.dw = push_received_weights(routing);
    partial.x = received(routing, routing.x, {}, KeepValue::yes, {}).value;
  }
  step_.device.unpermute(partial);
  return_rows(routing, op.out, partial.out, addend);
  if (!op.dw.empty()) return_rows(routing, op.dw, partial.dw);
}

}  // namespace precbench
