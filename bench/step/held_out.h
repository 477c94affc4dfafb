// The loss of text that training does not see: the same tokens for every run of a model and sequence length, whatever its
// recipe, seed and ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/case/plan.h"
#include "bench/step/rank.h"
#include "models/data/data.h"
#include "results/record.h"

namespace precbench {

class HeldOut {
 public:
  /// Opens --eval-data. Throws InvalidInput where it cannot be read, or has fewer whole sequences than --eval-tokens
  /// asks for. The plan must outlive it.
  explicit HeldOut(const Plan& plan);

  /// A collective, with the weights as they are after `step` steps; nothing of the training changes. Ranks take turns
  /// batch by batch, so that how many they are changes no batch.
  Evaluation evaluate(Rank& rank, std::int64_t step) const;

  /// A line where this is the text, or has passages of it, that so many steps have trained on.
  std::vector<std::string> overlap(const DataSource& training, std::size_t steps) const;

 private:
  /// Mean loss of every sequence's tokens, nats; the same on every rank.
  std::vector<double> sequence_losses(Rank& rank, Transformer& transformer) const;
  /// How many held-out sequences begin with `passage` tokens that a sequence trained on has in a row.
  std::size_t seen(const DataSource& training, std::size_t steps, std::int64_t passage) const;

  const Plan& plan_;
  std::int64_t sequences_;
  std::unique_ptr<DataSource> data_;
};

}  // namespace precbench
