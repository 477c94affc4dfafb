// The fidelity probe: the error of a recipe's gradient against BF16's for the same weights and tokens. Sums
// are computed on the device, parameter by parameter; no gradient is written to a file.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "bench/case/plan.h"
#include "bench/step/fidelity_summary.h"
#include "bench/step/rank.h"

namespace precbench {

/// Memory that holds the BF16 gradient while the recipe's is computed.
enum class ReferencePlace : std::uint8_t { device, host };

/// Compares transformers that share a rank's weights with BF16 on the rank's prepared tokens. Computes the
/// BF16 loss and gradient on construction and holds the gradient, in the arena or on the host, for its
/// lifetime. Overwrites the training's gradients, but not its weights, moments or random numbers.
/// Construction and with() are collectives.
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

/// Computes and compares both gradients of a rank's prepared tokens; a collective. Overwrites the training's
/// gradients, but not its weights, moments or random numbers.
BatchFidelity compare_gradients(Rank& rank, const Plan& plan, ReferencePlace place);

/// Adds up distances of outputs over all ranks; a collective, whose result has the same bits on every rank.
BatchOutputs over_ranks(Rank& rank, const BatchOutputs& own);

/// Compares the outputs of a rank's prepared tokens in the recipe with BF16's, over all ranks; a collective.
BatchOutputs compare_outputs(Rank& rank, const Plan& plan);

/// Measures what the plan asks for on the tokens of the first --fidelity-batches steps: with the unchanged
/// weights, then under each stress, which is undone afterwards. Outputs are compared without stress only: on
/// --eval-data if the plan has it, else on the same tokens. A collective; returns the same on every rank.
std::vector<Fidelity> measure_fidelity(Rank& rank, const Plan& plan, const DataSource& data,
                                       ReferencePlace place);

}  // namespace precbench
