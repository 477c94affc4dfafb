// Slots that go to another expert than in BF16: what the fidelity probe looks at in a mixture.
#pragma once

#include <cstdint>
#include <vector>

#include "bench/case/plan.h"
#include "bench/step/rank.h"

namespace precbench {

/// The experts that a forward pass chose, beside those of a later one of the same tokens. Nothing in a dense model.
class KeptChoices {
 public:
  /// Takes room in the rank's arena; its routers write there until this goes.
  KeptChoices(Rank& rank, const Plan& plan);
  KeptChoices(const KeptChoices&) = delete;
  KeptChoices& operator=(const KeptChoices&) = delete;
  ~KeptChoices();

  /// The last pass is what later ones are compared with.
  void keep();
  /// By block with experts, of the last pass of all ranks: the share of slots whose expert was none of the token's then. A
  /// collective.
  std::vector<double> flips() const;

 private:
  std::vector<std::int32_t> now() const;

  Rank& rank_;
  std::int64_t top_k_;
  Tensor choices_;  // i32 [layers * accumulation, tokens * top_k]
  std::vector<std::int32_t> kept_;
};

}  // namespace precbench
