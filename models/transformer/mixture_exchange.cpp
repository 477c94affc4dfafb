// Expert parallelism: sends tokens to the ranks that have their experts, and returns the results. See
// transformer.h and mixture.cpp.
//
//   forward    dispatch expert indices, routing weights, h (kept for backward);  combine output sums
//   backward   dispatch dY;  combine dX and the gradients of the routing weights
//
//   gather     all-gather of all rows of the group; each rank takes its experts' rows and returns its partial
//              sums by reduce-scatter
//   slots      all-to-all: a token goes once to each rank that has one of its experts. Each rank pair has a
//              fixed number of slots; tokens beyond it are dropped
//   sync       all-to-all without drops; the host reads the row counts
//
// The shared expert, which needs no exchange, computes while rows are in flight. A rank drops slots beyond
// the experts' capacity before it sends anything.
//
// Sizes of `gather` and `slots` do not depend on the routing, so the step can be captured as a CUDA graph. A
// rank sums its experts' rows of a token in FP32 and rounds the sum for transport. The ranks' sums are added
// in FP32 and rounded again.
#include <algorithm>
#include <numeric>

#include "kernels/numerics/scale_layout.h"
#include "models/transformer/transformer.h"

namespace precbench {
namespace {

using Counts = std::vector<std::int64_t>;

double wire_bytes(const Comm& comm) {
  return std::accumulate(comm.counts().begin(), comm.counts().end(), 0.0,
                         [](double sum, const CollectiveCount& kind) { return sum + kind.wire_bytes; });
}

/// Runs or starts collectives and adds the bytes they move to one part of the traffic.
template <class Body>
void counted(Parameters& parameters, double ExpertTraffic::*part, Body&& body) {
  Comm& comm = *parameters.expert_comm();
  const double before = wire_bytes(comm);
  body(comm);
  parameters.routers()->note_traffic(part, wire_bytes(comm) - before);
}

std::int64_t total(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

Counts times(Counts counts, std::int64_t factor) {
  for (std::int64_t& n : counts) n *= factor;
  return counts;
}

bool dry(const Comm& comm) { return comm.name() == "dry"; }

}  // namespace

std::int64_t Transformer::arrived_rows(const SavedRouting& routing) const {
  return gathers() ? group_tokens() : total(routing.in);
}

void Transformer::push_peers(SavedRouting& routing) {
  const std::int64_t ranks = expert_ranks(), rows = group_tokens();
  routing.peers = {.offsets = push(DType::i32, 1, ranks + 1),
                   .counts = push(DType::i32, 1, ranks),
                   .row_of = push(DType::i32, M_, ranks),
                   .source = push(DType::i32, 1, rows),
                   .pad = 1,
                   .rows_expected = std::min(
                       rows, ranks * tokens_to_rank(config_.moe.rule, own_experts(), M_, options_.capacity))};
  routing.out = routing.in = Counts(ranks, peer_rows());
}

void Transformer::count_peers(SavedRouting& routing) {
  Comm& comm = *parameters_.expert_comm();
  const std::int64_t ranks = comm.size();
  const Scope scope(arena_);
  const Tensor incoming = push(DType::i32, 1, ranks);
  counted(parameters_, &ExpertTraffic::dispatch, [&](Comm& experts) {
    experts.all_to_all(incoming, Counts(ranks, 1), routing.peers.counts, Counts(ranks, 1));
  });
  if (dry(comm)) {
    routing.out = parameters_.routers()->tokens_to_ranks(config_.moe.rule, ranks, M_, options_.capacity);
    routing.in = Counts(ranks, routing.out[comm.rank()]);  // all ranks have the same forced routing
    return;
  }
  std::vector<std::int32_t> counts(ranks);
  device_.download(counts.data(), routing.peers.counts);
  routing.out.assign(counts.begin(), counts.end());
  device_.download(counts.data(), incoming);
  routing.in.assign(counts.begin(), counts.end());
}

Tensor Transformer::gather_routing(SavedRouting& routing, const Tensor& mine) {
  if (expert_ranks() == 1) return mine;
  const std::int64_t K = config_.moe.rule.top_k, E = config_.moe.rule.experts;
  const Tensor index = push(DType::i32, group_tokens(), K);
  if (gathers()) {
    counted(parameters_, &ExpertTraffic::dispatch, [&](Comm& comm) {
      comm.all_gather(index, mine);
      comm.all_gather(routing.group_weights, routing.weights);
    });
    return index;
  }
  const bool sync = options_.exchange.mode == ExpertExchange::Mode::sync;
  const Tensor rows = push(DType::i32, group_tokens(), K), weights = push(DType::f32, group_tokens(), K);
  // With sync nothing is dropped, so its report goes to scratch memory.
  device_.group_peers({.peers = routing.peers,
                       .row_index = rows,
                       .row_weights = weights,
                       .report = sync ? push(DType::f32, 1, 1) : routing.report.elements(E + 5, 1),
                       .index = mine,
                       .weights = routing.weights,
                       .experts = own_experts(),
                       .most = peer_rows(),
                       .tight = sync});
  if (sync) count_peers(routing);
  const std::int64_t sent = total(routing.out), come = total(routing.in);
  const Tensor arrived = index.slice_rows(0, come);
  routing.group_weights = routing.group_weights.slice_rows(0, come);
  routing.groups.row_of = routing.groups.row_of.slice_rows(0, come);
  counted(parameters_, &ExpertTraffic::dispatch, [&](Comm& comm) {
    const Counts in = times(routing.in, K), out = times(routing.out, K);
    comm.all_to_all(arrived, in, rows.slice_rows(0, sent), out);
    comm.all_to_all(routing.group_weights, in, weights.slice_rows(0, sent), out);
  });
  return arrived;
}

bool Transformer::as_codes(const QuantFormat& format) const {
  return options_.exchange.codes && format.quantized() && bits_of(format.dtype) == 8;
}

Transformer::Arrived Transformer::push_arrived(const QuantFormat& format) {
  if (expert_ranks() == 1) return {};
  if (!as_codes(format)) return {push(options_.activations, group_tokens(), config_.width), {}};
  GemmOperand codes = push_gemm_operand(arena_, Segment::activations, format, group_tokens(), config_.width);
  if (format.granularity == Granularity::tensor) codes.amax = push(DType::f32, 1, 1);
  return {{}, codes};
}

void Transformer::send_rows(const SavedRouting& routing, const Tensor& to, const Tensor& from,
                            const Beside& beside) {
  const Scope scope(arena_);
  Tensor packed;
  if (!gathers()) {
    packed = push(from.dtype, group_tokens(), from.cols).slice_rows(0, total(routing.out));
    device_.permute(
        {make_quantized_tensor(packed, {}, {}), make_quantized_tensor(from, {}, {}), {}, routing.peers});
  }
  Comm::Ticket sent = 0;
  counted(parameters_, &ExpertTraffic::dispatch, [&](Comm& comm) {
    sent = gathers()
               ? comm.start_all_gather(to, from)
               : comm.start_all_to_all(to, times(routing.in, to.cols), packed, times(routing.out, to.cols));
  });
  if (beside) beside();
  parameters_.expert_comm()->wait(sent);
}

void Transformer::send_scales(const GemmOperand& to, const GemmOperand& from, const Beside& beside) {
  const Granularity g = to.format.granularity;
  if (g == Granularity::tensor) {
    device_.convert({to.scale, from.scale});
    if (beside) beside();
    return;
  }
  const Scope scope(arena_);
  const std::int64_t ranks = expert_ranks(), rows = peer_rows(), blocks = scale_blocks(g, to.k());
  // Scales of 1x128 blocks are stored block-major, so one rank's rows are strided and must be packed.
  const bool across = g == Granularity::block_1x128;
  const auto part_of = [&](const Tensor& staged, std::int64_t rank) {
    return staged.slice_rows(rank, 1).reshape(blocks, rows);
  };
  Tensor out = from.scale, in = to.scale;
  if (across) in = push(in.dtype, ranks, blocks * rows);
  if (across && !gathers()) {
    out = push(out.dtype, ranks, blocks * rows);
    for (std::int64_t r = 0; r < ranks; ++r)
      device_.copy_columns({part_of(out, r), r * rows, from.scale.reshape(blocks, ranks * rows)});
  }
  Comm::Ticket sent = 0;
  counted(parameters_, &ExpertTraffic::dispatch, [&](Comm& comm) {
    const Counts equal(ranks, in.size() / ranks);
    sent = gathers() ? comm.start_all_gather(in, out) : comm.start_all_to_all(in, equal, out, equal);
  });
  if (beside) beside();
  parameters_.expert_comm()->wait(sent);
  for (std::int64_t r = 0; across && r < ranks; ++r)
    device_.copy_columns({to.scale.reshape(blocks, ranks * rows), r * rows, part_of(in, r)});
}

void Transformer::send_codes(const SavedRouting& routing, const GemmOperand& to, const QuantizedTensor& x,
                             const Beside& beside) {
  const Scope scope(arena_);
  GemmOperand mine = x.rowwise;
  const bool one_scale = to.format.granularity == Granularity::tensor;
  // A known amax is the same on all ranks; recipes for which it is not do not send FP8 data.
  if (one_scale && !x.amax_in.empty()) {
    device_.convert({to.amax, x.amax_in});
  } else if (one_scale) {  // amax over all ranks of the group
    device_.convert({to.amax, x.amax_out});
    counted(parameters_, &ExpertTraffic::dispatch, [&](Comm& comm) { comm.all_reduce_max(to.amax); });
    mine = push_gemm_operand(arena_, Segment::activations, to.format, x.value.rows, x.value.cols);
    device_.quantize({{.value = x.value, .rowwise = mine, .amax_in = to.amax}});
  }
  if (!gathers()) {
    const GemmOperand packed =
        push_gemm_operand(arena_, Segment::activations, to.format, group_tokens(), to.k());
    device_.permute({{.value = {}, .rowwise = packed, .keep_value = false},
                     {.value = {}, .rowwise = mine, .keep_value = false},
                     {},
                     routing.peers});
    mine = packed;
  }
  Comm::Ticket sent = 0;
  counted(parameters_, &ExpertTraffic::dispatch, [&](Comm& comm) {
    sent = gathers() ? comm.start_all_gather(to.data, mine.data)
                     : comm.start_all_to_all(to.data, times(routing.in, to.k()), mine.data,
                                             times(routing.out, to.k()));
  });
  send_scales(to, mine, beside);
  parameters_.expert_comm()->wait(sent);
}

QuantizedTensor Transformer::arrived(const SavedRouting& routing, const Arrived& x, const QuantFormat& format,
                                     bool value, const Tensor& known) {
  if (x.codes.empty()) {
    const std::int64_t come = arrived_rows(routing);
    if (!format.quantized()) {
      QuantizedTensor rows = make_quantized_tensor(x.value.slice_rows(0, come), format, {});
      rows.amax_in = known;
      return rows;
    }
    // Quantize the whole buffer so that memory does not depend on the routing; rows that did not arrive are
    // zeros.
    if (come < x.value.rows) device_.zero({x.value.slice_rows(come, x.value.rows - come)});
    QuantizedTensor all = make_quantized_tensor(x.value, format, {});
    all.amax_in = known;
    push_row(all, format);
    device_.quantize({all});
    return all;
  }
  QuantizedTensor all{.value = {}, .rowwise = x.codes, .amax_in = x.codes.amax, .keep_value = value};
  all.rowwise.amax = {};
  if (!value) return all;
  all.value = push(DType::bf16, x.codes.rows(), x.codes.k());
  device_.dequantize({all.value, x.codes});
  return all;
}

QuantizedTensor Transformer::dispatch(const SavedRouting& routing, const QuantizedTensor& x,
                                      const QuantFormat& format, const Arrived& to, bool value,
                                      const Beside& beside) {
  if (expert_ranks() == 1) {
    if (beside) beside();
    return x;
  }
  if (to.codes.empty())
    send_rows(routing, to.value.slice_rows(0, arrived_rows(routing)), x.value, beside);
  else
    send_codes(routing, to.codes, x, beside);
  return arrived(routing, to, format, value, x.amax_in);
}

void Transformer::bring_back(const SavedRouting& routing, const Tensor& mine, const Tensor& all,
                             const MadeBeside& addend) {
  const Scope scope(arena_);
  const bool convert = gathers() && mine.dtype != all.dtype;
  Tensor back = mine;
  if (!gathers()) back = push(all.dtype, group_tokens(), all.cols).slice_rows(0, total(routing.out));
  if (convert) back = push(all.dtype, mine.rows, mine.cols);
  Comm::Ticket sent = 0;
  counted(parameters_, &ExpertTraffic::combine, [&](Comm& comm) {
    sent = gathers()
               ? comm.start_reduce_scatter(back, all)
               : comm.start_all_to_all(back, times(routing.out, all.cols), all, times(routing.in, all.cols));
  });
  const Tensor added = addend ? addend() : Tensor{};
  parameters_.expert_comm()->wait(sent);
  if (!gathers())
    return device_.unpermute({.out = mine, .rows = back, .addend = added, .groups = routing.peers});
  if (convert) device_.convert({mine, back});
  if (!added.empty()) device_.add({mine, added});
}

void Transformer::combine(const SavedRouting& routing, ops::Unpermute op, const MadeBeside& addend) {
  const Scope scope(arena_);
  if (expert_ranks() == 1) {
    if (addend) op.addend = addend();
    return device_.unpermute(op);
  }
  const auto push_sums = [&](std::int64_t rows) { return push(op.rows.dtype, rows, op.rows.cols); };
  if (const Tensor& numbers = options_.slot_numbers; !numbers.empty()) {
    const std::int64_t slots = op.groups.row_of.size();
    const Tensor all = push_sums(slots), mine = push_sums(numbers.size());
    Groups alone = op.groups;
    alone.row_of = alone.row_of.reshape(slots, 1);
    device_.unpermute({.out = all, .rows = op.rows, .addend = {}, .groups = alone});
    bring_back(routing, mine, all);
    if (addend) op.addend = addend();
    op.rows = mine;
    op.groups.row_of = numbers;
    op.groups.source = numbers.reshape(1, numbers.size());
    return device_.unpermute(op);
  }
  const std::int64_t rows = arrived_rows(routing);
  ops::Unpermute here{.out = push_sums(group_tokens()).slice_rows(0, rows),
                      .rows = op.rows,
                      .addend = {},
                      .groups = op.groups};
  if (!op.weights.empty()) {
    here.weights = routing.group_weights;
    here.dw = push_arrived_weights(routing);
    here.x = arrived(routing, routing.x, {}, true).value;
  }
  device_.unpermute(here);
  bring_back(routing, op.out, here.out, addend);
  if (!op.dw.empty()) bring_back(routing, op.dw, here.dw);
}

}  // namespace precbench
