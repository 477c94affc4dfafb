// Expert parallelism by all-to-all, with a fixed number of slots per rank pair or with row counts that the
// host reads. See expert_exchange.h.
#include <algorithm>
#include <numeric>

#include "models/transformer/moe/remote_experts.h"
#include "models/transformer/routing/expected_load.h"

namespace precbench {
namespace {

using Counts = std::vector<std::int64_t>;

std::int64_t total(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

Counts times(Counts counts, std::int64_t factor) {
  for (std::int64_t& n : counts) n *= factor;
  return counts;
}

class AllToAllExchange final : public RemoteExperts {
 public:
  using RemoteExperts::RemoteExperts;

  std::int64_t rows_per_rank() const override {
    return reads_counts() ? step_.M : step_.options.exchange.slots;
  }
  void push_destinations(SavedRouting& routing) const override;
  Tensor gather_routing(SavedRouting& routing, const Tensor& own) const override;
  void return_rows(const SavedRouting& routing, const Tensor& own, const Tensor& all,
                   const OverlapResult& addend) const override;

 private:
  bool reads_counts() const { return step_.options.exchange.mode == ExchangeOptions::Mode::sync; }
  /// Reads on the host how many rows are sent to and received from every rank.
  void read_counts(SavedRouting& routing) const;

  std::int64_t received_rows(const SavedRouting& routing) const override { return total(routing.received); }
  Tensor pack(const SavedRouting& routing, const Tensor& rows) const override;
  GemmOperand pack(const SavedRouting& routing, const GemmOperand& rows) const override;
  Tensor pack_scales(const Tensor& scale, std::int64_t blocks) const override;
  Comm::Ticket start(const SavedRouting& routing, const Tensor& to, const Tensor& packed) const override {
    return comm().start_all_to_all(to, times(routing.received, to.cols), packed,
                                   times(routing.sent, to.cols));
  }
  Comm::Ticket start_scales(const Tensor& to, const Tensor& packed) const override {
    const Counts equal(ranks(), to.size() / ranks());
    return comm().start_all_to_all(to, equal, packed, equal);
  }
};

void AllToAllExchange::push_destinations(SavedRouting& routing) const {
  const std::int64_t R = ranks(), rows = max_rows(), M = step_.M;
  const std::int64_t expected =
      R * tokens_to_rank(step_.config.moe.rule, own_experts(), M, step_.options.capacity);
  routing.destinations = {.offsets = step_.push(DType::i32, 1, R + 1),
                          .counts = step_.push(DType::i32, 1, R),
                          .row_of = step_.push(DType::i32, M, R),
                          .source = step_.push(DType::i32, 1, rows),
                          .pad = 1,
                          .rows_expected = std::min(rows, expected)};
  routing.sent = routing.received = Counts(R, rows_per_rank());
}

void AllToAllExchange::read_counts(SavedRouting& routing) const {
  const std::int64_t R = ranks();
  const Scope scope(step_.arena);
  const Tensor incoming = step_.push(DType::i32, 1, R);
  counted(&ExpertTraffic::dispatch, [&](Comm& experts) {
    experts.all_to_all(incoming, Counts(R, 1), routing.destinations.counts, Counts(R, 1));
  });
  if (comm().name() == "dry") {
    routing.sent = step_.parameters.routers()->tokens_to_ranks(step_.config.moe.rule, R, step_.M,
                                                               step_.options.capacity);
    routing.received = Counts(R, routing.sent[comm().rank()]);  // all ranks have the same forced routing
    return;
  }
  std::vector<std::int32_t> counts(R);
  step_.device.download(counts.data(), routing.destinations.counts);
  routing.sent.assign(counts.begin(), counts.end());
  step_.device.download(counts.data(), incoming);
  routing.received.assign(counts.begin(), counts.end());
}

Tensor AllToAllExchange::gather_routing(SavedRouting& routing, const Tensor& own) const {
  const std::int64_t K = step_.config.moe.rule.top_k, E = step_.config.moe.rule.experts;
  const Tensor index = step_.push(DType::i32, max_rows(), K);
  const Tensor rows = step_.push(DType::i32, max_rows(), K), weights = step_.push(DType::f32, max_rows(), K);
  // With sync nothing is dropped, so its report goes to scratch memory.
  const Tensor report = reads_counts() ? step_.push(DType::f32, 1, 1) : routing.report.elements(E + 5, 1);
  step_.device.group_peers({.peers = routing.destinations,
                            .row_index = rows,
                            .row_weights = weights,
                            .report = report,
                            .index = own,
                            .weights = routing.weights,
                            .experts = own_experts(),
                            .most = rows_per_rank(),
                            .tight = reads_counts()});
  if (reads_counts()) read_counts(routing);
  const std::int64_t sent = total(routing.sent), received = total(routing.received);
  const Tensor received_index = index.slice_rows(0, received);
  routing.group_weights = routing.group_weights.slice_rows(0, received);
  routing.groups.row_of = routing.groups.row_of.slice_rows(0, received);
  counted(&ExpertTraffic::dispatch, [&](Comm& experts) {
    const Counts in = times(routing.received, K), out = times(routing.sent, K);
    experts.all_to_all(received_index, in, rows.slice_rows(0, sent), out);
    experts.all_to_all(routing.group_weights, in, weights.slice_rows(0, sent), out);
  });
  return received_index;
}

Tensor AllToAllExchange::pack(const SavedRouting& routing, const Tensor& rows) const {
  const Tensor packed = step_.push(rows.dtype, max_rows(), rows.cols).slice_rows(0, total(routing.sent));
  step_.device.permute(
      {make_quantized_tensor(packed, {}, {}), make_quantized_tensor(rows, {}, {}), {}, routing.destinations});
  return packed;
}

GemmOperand AllToAllExchange::pack(const SavedRouting& routing, const GemmOperand& rows) const {
  const GemmOperand packed = step_.operands.push(rows.format, max_rows(), rows.k());
  step_.device.permute({{.value = {}, .rowwise = packed, .keep_value = false},
                        {.value = {}, .rowwise = rows, .keep_value = false},
                        {},
                        routing.destinations});
  return packed;
}

Tensor AllToAllExchange::pack_scales(const Tensor& scale, std::int64_t blocks) const {
  const std::int64_t R = ranks(), rows = rows_per_rank();
  const Tensor packed = step_.push(scale.dtype, R, blocks * rows);
  for (std::int64_t r = 0; r < R; ++r)
    step_.device.copy_columns(
        {packed.slice_rows(r, 1).reshape(blocks, rows), r * rows, scale.reshape(blocks, R * rows)});
  return packed;
}

void AllToAllExchange::return_rows(const SavedRouting& routing, const Tensor& own, const Tensor& all,
                                   const OverlapResult& addend) const {
  const Scope scope(step_.arena);
  const Tensor back = step_.push(all.dtype, max_rows(), all.cols).slice_rows(0, total(routing.sent));
  const Comm::Ticket sent = counted(&ExpertTraffic::combine, [&](Comm& experts) {
    return experts.start_all_to_all(back, times(routing.sent, all.cols), all,
                                    times(routing.received, all.cols));
  });
  const Tensor added = addend ? addend() : Tensor{};
  comm().wait(sent);
  step_.device.unpermute({.out = own, .rows = back, .addend = added, .groups = routing.destinations});
}

}  // namespace

std::unique_ptr<ExpertExchange> make_all_to_all_exchange(const StepContext& step) {
  return std::make_unique<AllToAllExchange>(step);
}

}  // namespace precbench
