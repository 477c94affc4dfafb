// The fidelity probe: how far a recipe's gradient is from BF16's, of the same weights and tokens. Sums are made on the
// device, parameter by parameter; no gradient is written to a file.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "bench/case/plan.h"
#include "bench/step/fidelity_summary.h"
#include "bench/step/rank.h"

namespace precbench {

/// Where the BF16 gradient waits while the recipe's is computed.
enum class ReferencePlace : std::uint8_t { device, host };

/// The BF16 loss and gradient of a rank's prepared tokens, with the weights as they are, and what other transformers of the
/// same weights make of these tokens. Holds the BF16 gradient, in the arena or on the host, as long as it lives. Weights,
/// moments and random numbers of the training are not touched, its gradients are. Construction and with() are collectives.
class GradientComparison {
 public:
  GradientComparison(Rank& rank, const Plan& plan, ReferencePlace place);
  GradientComparison(const GradientComparison&) = delete;
  GradientComparison& operator=(const GradientComparison&) = delete;
  ~GradientComparison();

  /// Compares the transformer's loss and gradient with BF16's.
  BatchFidelity with(Transformer& transformer);

 private:
  class KeptGradient;
  struct State;
  Rank& rank_;
  std::unique_ptr<State> state_;
  double bf16_loss_ = 0;
};

/// Both gradients of a rank's prepared tokens, with the weights as they are; a collective. Weights, moments and random
/// numbers of the training are not touched, its gradients are.
BatchFidelity compare_gradients(Rank& rank, const Plan& plan, ReferencePlace place);

/// What the plan asks for: of the first --fidelity-batches steps' tokens, first with the weights as they are, then
/// under each stress, which is taken back. A collective; the same on every rank.
std::vector<Fidelity> measure_fidelity(Rank& rank, const Plan& plan, const DataSource& data,
                                       ReferencePlace place);

}  // namespace precbench
