// Experts without expert parallelism, and the choice of an exchange. See expert_exchange.h.
#include "models/transformer/moe/expert_exchange.h"

#include <stdexcept>

#include "models/transformer/moe/remote_experts.h"

namespace precbench {
namespace {

/// All experts are this rank's: nothing is sent.
class LocalExperts final : public ExpertExchange {
 public:
  using ExpertExchange::ExpertExchange;

  std::int64_t first_expert() const override { return 0; }
  bool sends_quantized(const QuantFormat&) const override { return false; }
  Tensor gather_routing(SavedRouting&, const Tensor& own) const override { return own; }
  ReceivedTokens push_received(const QuantFormat&) const override { return {}; }
  QuantizedTensor dispatch(const SavedRouting&, const QuantizedTensor& x, const QuantFormat&,
                           const ReceivedTokens&, KeepValue, const Overlap& overlap) const override {
    if (overlap) overlap();
    return x;
  }
  QuantizedTensor received(const SavedRouting&, const ReceivedTokens&, const QuantFormat&, KeepValue,
                           const Tensor&) const override {
    throw std::logic_error("experts: without expert parallelism no tokens are received");
  }
  void combine(const SavedRouting&, ops::Unpermute op, const OverlapResult& addend) const override {
    const Scope scope(step_.arena);
    if (addend) op.addend = addend();
    step_.device.unpermute(op);
  }
  void return_rows(const SavedRouting&, const Tensor&, const Tensor&, const OverlapResult&) const override {
    throw std::logic_error("experts: without expert parallelism no rows are returned");
  }

 private:
  std::int64_t received_rows(const SavedRouting&) const override { return step_.M; }
};

}  // namespace

std::unique_ptr<ExpertExchange> make_expert_exchange(const StepContext& step) {
  const Comm* comm = step.parameters.expert_comm();
  if (!comm || comm->size() == 1) return std::make_unique<LocalExperts>(step);
  return step.options.exchange.mode == ExchangeOptions::Mode::gather ? make_all_gather_exchange(step)
                                                                     : make_all_to_all_exchange(step);
}

}  // namespace precbench
