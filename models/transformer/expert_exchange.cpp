// All-gather and all-to-all of tokens. See expert_exchange.h.
#include "models/transformer/expert_exchange.h"

#include <algorithm>
#include <numeric>

#include "kernels/numerics/scale_layout.h"

namespace precbench {
namespace {

using Counts = std::vector<std::int64_t>;

double wire_bytes(const Comm& comm) {
  return std::accumulate(comm.counts().begin(), comm.counts().end(), 0.0,
                         [](double sum, const CollectiveCount& kind) { return sum + kind.wire_bytes; });
}

std::int64_t total(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

Counts times(Counts counts, std::int64_t factor) {
  for (std::int64_t& n : counts) n *= factor;
  return counts;
}

}  // namespace

template <class Body>
void ExpertExchange::counted(double ExpertTraffic::*part, Body&& body) const {
  Comm& comm = *step_.parameters.expert_comm();
  const double before = wire_bytes(comm);
  body(comm);
  step_.parameters.routers()->note_traffic(part, wire_bytes(comm) - before);
}

std::int64_t ExpertExchange::received_rows(const SavedRouting& routing) const {
  return gathers() ? max_rows() : total(routing.received);
}

void ExpertExchange::push_destinations(SavedRouting& routing) const {
  if (ranks() == 1 || gathers()) return;
  const std::int64_t ranks = this->ranks(), rows = max_rows();
  routing.destinations = {
      .offsets = step_.push(DType::i32, 1, ranks + 1),
      .counts = step_.push(DType::i32, 1, ranks),
      .row_of = step_.push(DType::i32, step_.M, ranks),
      .source = step_.push(DType::i32, 1, rows),
      .pad = 1,
      .rows_expected = std::min(rows, ranks * tokens_to_rank(step_.config.moe.rule, own_experts(), step_.M,
                                                             step_.options.capacity))};
  routing.sent = routing.received = Counts(ranks, rows_per_rank());
}

void ExpertExchange::count_rows(SavedRouting& routing) const {
  Comm& comm = *step_.parameters.expert_comm();
  const std::int64_t ranks = comm.size();
  const Scope scope(step_.arena);
  const Tensor incoming = step_.push(DType::i32, 1, ranks);
  counted(&ExpertTraffic::dispatch, [&](Comm& experts) {
    experts.all_to_all(incoming, Counts(ranks, 1), routing.destinations.counts, Counts(ranks, 1));
  });
  if (comm.name() == "dry") {
    routing.sent = step_.parameters.routers()->tokens_to_ranks(step_.config.moe.rule, ranks, step_.M,
                                                               step_.options.capacity);
    routing.received = Counts(ranks, routing.sent[comm.rank()]);  // all ranks have the same forced routing
    return;
  }
  std::vector<std::int32_t> counts(ranks);
  step_.device.download(counts.data(), routing.destinations.counts);
  routing.sent.assign(counts.begin(), counts.end());
  step_.device.download(counts.data(), incoming);
  routing.received.assign(counts.begin(), counts.end());
}

Tensor ExpertExchange::gather_routing(SavedRouting& routing, const Tensor& own) const {
  if (ranks() == 1) return own;
  const std::int64_t K = step_.config.moe.rule.top_k, E = step_.config.moe.rule.experts;
  const Tensor index = step_.push(DType::i32, max_rows(), K);
  if (gathers()) {
    counted(&ExpertTraffic::dispatch, [&](Comm& comm) {
      comm.all_gather(index, own);
      comm.all_gather(routing.group_weights, routing.weights);
    });
    return index;
  }
  const bool sync = step_.options.exchange.mode == ExchangeOptions::Mode::sync;
  const Tensor rows = step_.push(DType::i32, max_rows(), K), weights = step_.push(DType::f32, max_rows(), K);
  // With sync nothing is dropped, so its report goes to scratch memory.
  step_.device.group_peers({.peers = routing.destinations,
                            .row_index = rows,
                            .row_weights = weights,
                            .report = sync ? step_.push(DType::f32, 1, 1) : routing.report.elements(E + 5, 1),
                            .index = own,
                            .weights = routing.weights,
                            .experts = own_experts(),
                            .most = rows_per_rank(),
                            .tight = sync});
  if (sync) count_rows(routing);
  const std::int64_t sent = total(routing.sent), received = total(routing.received);
  const Tensor received_index = index.slice_rows(0, received);
  routing.group_weights = routing.group_weights.slice_rows(0, received);
  routing.groups.row_of = routing.groups.row_of.slice_rows(0, received);
  counted(&ExpertTraffic::dispatch, [&](Comm& comm) {
    const Counts in = times(routing.received, K), out = times(routing.sent, K);
    comm.all_to_all(received_index, in, rows.slice_rows(0, sent), out);
    comm.all_to_all(routing.group_weights, in, weights.slice_rows(0, sent), out);
  });
  return received_index;
}

ReceivedTokens ExpertExchange::push_received(const QuantFormat& format) const {
  if (ranks() == 1) return {};
  if (!sends_quantized(format))
    return {step_.push(step_.options.activations, max_rows(), step_.config.width), {}};
  GemmOperand copy = step_.operands.push(format, max_rows(), step_.config.width);
  if (has_tensor_scale(format)) copy.amax = step_.push(DType::f32, 1, 1);
  return {{}, copy};
}

Tensor ExpertExchange::push_received_weights(const SavedRouting& routing) const {
  return step_.push(DType::f32, max_rows(), step_.config.moe.rule.top_k)
      .slice_rows(0, received_rows(routing));
}

void ExpertExchange::send_rows(const SavedRouting& routing, const Tensor& to, const Tensor& from,
                               const Overlap& overlap) const {
  const Scope scope(step_.arena);
  Tensor packed;
  if (!gathers()) {
    packed = step_.push(from.dtype, max_rows(), from.cols).slice_rows(0, total(routing.sent));
    step_.device.permute({make_quantized_tensor(packed, {}, {}),
                          make_quantized_tensor(from, {}, {}),
                          {},
                          routing.destinations});
  }
  Comm::Ticket sent = 0;
  counted(&ExpertTraffic::dispatch, [&](Comm& comm) {
    sent = gathers() ? comm.start_all_gather(to, from)
                     : comm.start_all_to_all(to, times(routing.received, to.cols), packed,
                                             times(routing.sent, to.cols));
  });
  if (overlap) overlap();
  step_.parameters.expert_comm()->wait(sent);
}

void ExpertExchange::send_scales(const GemmOperand& to, const GemmOperand& from,
                                 const Overlap& overlap) const {
  const Granularity g = to.format.granularity;
  if (has_tensor_scale(to.format)) {
    step_.device.convert({to.scale, from.scale});
    if (overlap) overlap();
    return;
  }
  const Scope scope(step_.arena);
  const std::int64_t ranks = this->ranks(), rows = rows_per_rank(), blocks = scale_blocks(g, to.k());
  // Scales of 1x128 blocks are stored block-major, so one rank's rows are strided and must be packed.
  const bool across = g == Granularity::block_1x128;
  const auto part_of = [&](const Tensor& staged, std::int64_t rank) {
    return staged.slice_rows(rank, 1).reshape(blocks, rows);
  };
  Tensor out = from.scale, in = to.scale;
  if (across) in = step_.push(in.dtype, ranks, blocks * rows);
  if (across && !gathers()) {
    out = step_.push(out.dtype, ranks, blocks * rows);
    for (std::int64_t r = 0; r < ranks; ++r)
      step_.device.copy_columns({part_of(out, r), r * rows, from.scale.reshape(blocks, ranks * rows)});
  }
  Comm::Ticket sent = 0;
  counted(&ExpertTraffic::dispatch, [&](Comm& comm) {
    const Counts equal(ranks, in.size() / ranks);
    sent = gathers() ? comm.start_all_gather(in, out) : comm.start_all_to_all(in, equal, out, equal);
  });
  if (overlap) overlap();
  step_.parameters.expert_comm()->wait(sent);
  for (std::int64_t r = 0; across && r < ranks; ++r)
    step_.device.copy_columns({to.scale.reshape(blocks, ranks * rows), r * rows, part_of(in, r)});
}

void ExpertExchange::send_quantized(const SavedRouting& routing, const GemmOperand& to,
                                    const QuantizedTensor& x, const Overlap& overlap) const {
  const Scope scope(step_.arena);
  GemmOperand own = x.rowwise;
  const bool tensor_scale = has_tensor_scale(to.format);
  // A known amax is the same on all ranks; recipes for which it is not do not send FP8 data.
  if (tensor_scale && !x.amax_in.empty()) {
    step_.device.convert({to.amax, x.amax_in});
  } else if (tensor_scale) {  // amax over all ranks of the group
    step_.device.convert({to.amax, x.amax_out});
    counted(&ExpertTraffic::dispatch, [&](Comm& comm) { comm.all_reduce_max(to.amax); });
    own = step_.operands.push(to.format, x.value.rows, x.value.cols);
    step_.device.quantize({{.value = x.value, .rowwise = own, .amax_in = to.amax}});
  }
  if (!gathers()) {
    const GemmOperand packed = step_.operands.push(to.format, max_rows(), to.k());
    step_.device.permute({{.value = {}, .rowwise = packed, .keep_value = false},
                          {.value = {}, .rowwise = own, .keep_value = false},
                          {},
                          routing.destinations});
    own = packed;
  }
  Comm::Ticket sent = 0;
  counted(&ExpertTraffic::dispatch, [&](Comm& comm) {
    sent = gathers() ? comm.start_all_gather(to.data, own.data)
                     : comm.start_all_to_all(to.data, times(routing.received, to.k()), own.data,
                                             times(routing.sent, to.k()));
  });
  send_scales(to, own, overlap);
  step_.parameters.expert_comm()->wait(sent);
}

QuantizedTensor ExpertExchange::received(const SavedRouting& routing, const ReceivedTokens& x,
                                         const QuantFormat& format, KeepValue keep,
                                         const Tensor& known) const {
  if (x.copy.empty()) {
    const std::int64_t count = received_rows(routing);
    if (!format.quantized()) {
      QuantizedTensor rows = make_quantized_tensor(x.value.slice_rows(0, count), format, {});
      rows.amax_in = known;
      return rows;
    }
    // Quantize the whole buffer so that memory does not depend on the routing; rows that were not received are
    // zeros.
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

QuantizedTensor ExpertExchange::dispatch(const SavedRouting& routing, const QuantizedTensor& x,
                                         const QuantFormat& format, const ReceivedTokens& to, KeepValue keep,
                                         const Overlap& overlap) const {
  if (ranks() == 1) {
    if (overlap) overlap();
    return x;
  }
  if (to.copy.empty())
    send_rows(routing, to.value.slice_rows(0, received_rows(routing)), x.value, overlap);
  else
    send_quantized(routing, to.copy, x, overlap);
  return received(routing, to, format, keep, x.amax_in);
}

void ExpertExchange::return_rows(const SavedRouting& routing, const Tensor& own, const Tensor& all,
                                 const OverlapResult& addend) const {
  const Scope scope(step_.arena);
  const bool convert = gathers() && own.dtype != all.dtype;
  Tensor back = own;
  if (!gathers()) back = step_.push(all.dtype, max_rows(), all.cols).slice_rows(0, total(routing.sent));
  if (convert) back = step_.push(all.dtype, own.rows, own.cols);
  Comm::Ticket sent = 0;
  counted(&ExpertTraffic::combine, [&](Comm& comm) {
    sent = gathers() ? comm.start_reduce_scatter(back, all)
                     : comm.start_all_to_all(back, times(routing.sent, all.cols), all,
                                             times(routing.received, all.cols));
  });
  const Tensor added = addend ? addend() : Tensor{};
  step_.parameters.expert_comm()->wait(sent);
  if (!gathers())
    return step_.device.unpermute(
        {.out = own, .rows = back, .addend = added, .groups = routing.destinations});
  if (convert) step_.device.convert({own, back});
  if (!added.empty()) step_.device.add({own, added});
}

void ExpertExchange::combine(const SavedRouting& routing, ops::Unpermute op,
                             const OverlapResult& addend) const {
  const Scope scope(step_.arena);
  if (ranks() == 1) {
    if (addend) op.addend = addend();
    return step_.device.unpermute(op);
  }
  const auto push_sums = [&](std::int64_t rows) { return step_.push(op.rows.dtype, rows, op.rows.cols); };
  if (const Tensor& numbers = step_.options.slot_numbers; !numbers.empty()) {
    const std::int64_t slots = op.groups.row_of.size();
    const Tensor all = push_sums(slots), own = push_sums(numbers.size());
    Groups alone = op.groups;
    alone.row_of = alone.row_of.reshape(slots, 1);
    step_.device.unpermute({.out = all, .rows = op.rows, .addend = {}, .groups = alone});
    return_rows(routing, own, all);
    if (addend) op.addend = addend();
    op.rows = own;
    op.groups.row_of = numbers;
    op.groups.source = numbers.reshape(1, numbers.size());
    return step_.device.unpermute(op);
  }
  const std::int64_t rows = received_rows(routing);
  ops::Unpermute here{
      .out = push_sums(max_rows()).slice_rows(0, rows), .rows = op.rows, .addend = {}, .groups = op.groups};
  if (!op.weights.empty()) {
    here.weights = routing.group_weights;
    here.dw = push_received_weights(routing);
    here.x = received(routing, routing.x, {}, KeepValue::yes).value;
  }
  step_.device.unpermute(here);
  return_rows(routing, op.out, here.out, addend);
  if (!op.dw.empty()) return_rows(routing, op.dw, here.dw);
}

}  // namespace precbench
