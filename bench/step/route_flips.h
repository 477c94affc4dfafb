// Counts slots that are routed to another expert than in BF16; part of the fidelity probe of MoE models.
#pragma once

#include <cstdint>
#include <vector>

#include "bench/case/plan.h"
#include "bench/step/rank.h"

namespace precbench {

/// The experts chosen in one forward pass, compared with those of later passes over the same tokens. Empty
/// for dense models.
class KeptChoices {
 public:
  /// Allocates a buffer in the rank's arena; the routers write their choices there during its lifetime.
  KeptChoices(Rank& rank, const Plan& plan);
  KeptChoices(const KeptChoices&) = delete;
  KeptChoices& operator=(const KeptChoices&) = delete;
  ~KeptChoices();

  /// Makes the last pass the reference for later ones.
  void keep();
  /// Compares the last pass of all ranks with the reference; a collective. Returns, per block with experts,
  /// the share of slots whose expert was not among the token's experts in the reference.
  std::vector<double> flips() const;

 private:
  std::vector<std::int32_t> now() const;

  Rank& rank_;
  std::int64_t top_k_;
  Tensor choices_;  // i32 [layers * accumulation, tokens * top_k]
  std::vector<std::int32_t> kept_;
};

}  // namespace precbench
