// Expert parallelism: tokens on their way to the ranks that have their experts, and back. See transformer.h, mixture.cpp.
//
// By all-gather every rank of a group gets the rows of all of them, takes those of its own experts, and what they make of a
// token is a rank's part of a sum. The sizes are the same whatever the routing, so that a step is captured like any other.
//
//   forward    gather experts, weights, h (kept for backward);  sum outputs back
//   backward   gather dY;                                       sum dX and the weights' gradients back
//
// A rank adds up its slots in FP32 and rounds the sum for the way; the ranks' sums are added in FP32 and rounded again.
#include <numeric>

#include "models/transformer/transformer.h"

namespace precbench {
namespace {

double wire_bytes(const Comm& comm) {
  return std::accumulate(comm.counts().begin(), comm.counts().end(), 0.0,
                         [](double sum, const CollectiveCount& kind) { return sum + kind.wire_bytes; });
}

/// Runs a collective, whose bytes go to a part of the traffic.
template <class Body>
void counted(Parameters& parameters, double ExpertTraffic::*part, Body&& body) {
  Comm& comm = *parameters.expert_comm();
  const double before = wire_bytes(comm);
  body(comm);
  parameters.routers()->note_traffic(part, wire_bytes(comm) - before);
}

}  // namespace

Tensor Transformer::gather_routing(const SavedRouting& routing) {
  if (expert_ranks() == 1) return routing.index;
  const Tensor index = push(DType::i32, group_tokens(), config_.moe.rule.top_k);
  counted(parameters_, &ExpertTraffic::dispatch, [&](Comm& comm) {
    comm.all_gather(index, routing.index);
    comm.all_gather(routing.group_weights, routing.weights);
  });
  return index;
}

QuantizedTensor Transformer::dispatch(const QuantizedTensor& x, const QuantFormat& format,
                                      const Tensor& place) {
  if (expert_ranks() == 1) return x;
  const Tensor value = place.empty() ? push(x.value.dtype, group_tokens(), x.value.cols) : place;
  counted(parameters_, &ExpertTraffic::dispatch, [&](Comm& comm) { comm.all_gather(value, x.value); });
  QuantizedTensor all = make_quantized_tensor(value, format, {});
  push_row(all, format);
  all.keep_value = true;
  if (format.quantized()) device_.quantize({all});
  return all;
}

void Transformer::bring_back(const Tensor& mine, const Tensor& all) {
  counted(parameters_, &ExpertTraffic::combine, [&](Comm& comm) { comm.reduce_scatter(mine, all); });
}

void Transformer::combine(const SavedRouting& routing, ops::Unpermute op) {
  if (expert_ranks() == 1) return device_.unpermute(op);
  const Scope scope(arena_);
  const std::int64_t cols = op.rows.cols;
  const auto sums = [&](std::int64_t rows) { return push(op.rows.dtype, rows, cols); };
  if (const Tensor& numbers = options_.slot_numbers; !numbers.empty()) {
    const std::int64_t slots = op.groups.row_of.size();
    const Tensor all = sums(slots), mine = sums(numbers.size());
    Groups alone = op.groups;
    alone.row_of = alone.row_of.reshape(slots, 1);
    device_.unpermute({.out = all, .rows = op.rows, .addend = {}, .groups = alone});
    bring_back(mine, all);
    op.rows = mine;
    op.groups.row_of = numbers;
    op.groups.source = numbers.reshape(1, numbers.size());
    return device_.unpermute(op);
  }
  ops::Unpermute here{.out = sums(group_tokens()), .rows = op.rows, .addend = {}, .groups = op.groups};
  if (!op.weights.empty()) {
    here.weights = routing.group_weights;
    here.dw = push(DType::f32, group_tokens(), op.dw.cols);
    here.x = routing.x;
  }
  device_.unpermute(here);
  const bool direct = op.out.dtype == here.out.dtype;
  const Tensor mine = direct ? op.out : sums(M_);
  bring_back(mine, here.out);
  if (!op.dw.empty()) bring_back(op.dw, here.dw);
  if (!direct) device_.convert({op.out, mine});
  if (!op.addend.empty()) device_.add({op.out, op.addend});
}

}  // namespace precbench
