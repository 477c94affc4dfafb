// Expert parallelism by all-gather of all rows and reduce-scatter of partial sums. See expert_exchange.h.
#include "models/transformer/moe/remote_experts.h"

namespace precbench {
namespace {

class AllGatherExchange final : public RemoteExperts {
 public:
  using RemoteExperts::RemoteExperts;

  Tensor gather_routing(SavedRouting& routing, const Tensor& own) const override {
    const Tensor index = step_.push(DType::i32, max_rows(), step_.config.moe.rule.top_k);
    counted(&ExpertTraffic::dispatch, [&](Comm& experts) {
      experts.all_gather(index, own);
      experts.all_gather(routing.group_weights, routing.weights);
    });
    return index;
  }

  void combine(const SavedRouting& routing, ops::Unpermute op, const OverlapResult& addend) const override {
    if (step_.options.slot_numbers.empty())
      RemoteExperts::combine(routing, op, addend);
    else
      combine_slots(routing, op, addend);
  }

  void return_rows(const SavedRouting&, const Tensor& own, const Tensor& all,
                   const OverlapResult& addend) const override {
    const Scope scope(step_.arena);
    const bool convert = own.dtype != all.dtype;
    const Tensor sum = convert ? step_.push(all.dtype, own.rows, own.cols) : own;
    const Comm::Ticket sent = counted(&ExpertTraffic::combine,
                                      [&](Comm& experts) { return experts.start_reduce_scatter(sum, all); });
    const Tensor added = addend ? addend() : Tensor{};
    comm().wait(sent);
    if (convert) step_.device.convert({own, sum});
    if (!added.empty()) step_.device.add({own, added});
  }

 private:
  std::int64_t received_rows(const SavedRouting&) const override { return max_rows(); }
  Tensor pack(const SavedRouting&, const Tensor& rows) const override { return rows; }
  GemmOperand pack(const SavedRouting&, const GemmOperand& rows) const override { return rows; }
  Tensor pack_scales(const Tensor& scale, std::int64_t) const override { return scale; }
  Comm::Ticket start(const SavedRouting&, const Tensor& to, const Tensor& packed) const override {
    return comm().start_all_gather(to, packed);
  }
  Comm::Ticket start_scales(const Tensor& to, const Tensor& packed) const override {
    return comm().start_all_gather(to, packed);
  }

  /// For tests: returns every slot's row separately and sums a token's rows as on one rank (slot_numbers).
  void combine_slots(const SavedRouting& routing, ops::Unpermute op, const OverlapResult& addend) const {
    const Scope scope(step_.arena);
    const Tensor& numbers = step_.options.slot_numbers;
    const std::int64_t slots = op.groups.row_of.size();
    const Tensor all = step_.push(op.rows.dtype, slots, op.rows.cols),
                 own = step_.push(op.rows.dtype, numbers.size(), op.rows.cols);
    Groups alone = op.groups;
    alone.row_of = alone.row_of.reshape(slots, 1);
    step_.device.unpermute({.out = all, .rows = op.rows, .addend = {}, .groups = alone});
    return_rows(routing, own, all, {});
    if (addend) op.addend = addend();
    op.rows = own;
    op.groups.row_of = numbers;
    op.groups.source = numbers.reshape(1, numbers.size());
    step_.device.unpermute(op);
  }
};

}  // namespace

std::unique_ptr<ExpertExchange> make_all_gather_exchange(const StepContext& step) {
  return std::make_unique<AllGatherExchange>(step);
}

}  // namespace precbench
