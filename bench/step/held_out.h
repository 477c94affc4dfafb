// Loss on held-out text. The tokens are the same for every run of a model and sequence length, whatever its
// recipe, seed and number of ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/case/plan.h"
#include "bench/step/rank.h"
#include "models/data/data.h"
#include "results/record/record.h"

namespace precbench {

class HeldOut {
 public:
  /// Opens --eval-data. Throws InvalidInput if it cannot be read or has fewer whole sequences than
  /// --eval-tokens asks for. The plan must outlive it.
  explicit HeldOut(const Plan& plan);

  /// Evaluates the weights as they are after `step` steps; a collective that changes nothing of the training.
  /// Batches are distributed whole and round-robin over the ranks, or over the groups of ranks that share
  /// sequences, so their number changes no batch.
  Evaluation evaluate(Rank& rank, std::int64_t step) const;
  /// Reads the weights as they are in BF16 and in each recipe of --eval-recipes, on the same sequences; empty without
  /// that flag. A collective that changes nothing of the training.
  std::optional<std::vector<Reading>> read(Rank& rank) const;

  /// For a dry run: allocates and computes as a batch of read() does.
  static void account(Rank& rank, const Plan& plan);

  /// Returns doubts about the text (data_doubts.h).
  std::vector<std::string> warnings() const;

  /// Returns a warning if `steps` training steps have trained on this text or on passages of it.
  std::vector<std::string> overlap(const DataSource& training, std::size_t steps) const;

 private:
  /// Returns the mean loss of each sequence, nats per token; the same on every rank. Of documents, which have unequal
  /// numbers of targets, returns values whose mean is the mean loss of all targets.
  std::vector<double> sequence_losses(Rank& rank, Transformer& transformer) const;
  /// Returns the sequences of this rank's batch in the round that begins with sequence `first`. They wrap around at the
  /// end of the text.
  std::vector<std::uint64_t> batch_of(Rank& rank, std::size_t first) const;
  /// Appends the mean of each of the round's sequences over its targets, the same on every rank. `tokens`: a value
  /// for each row of this rank's `batch`.
  void append_means(Rank& rank, const std::vector<std::uint64_t>& batch, const std::vector<float>& tokens,
                    std::vector<double>& means) const;
  /// Returns the number of held-out targets.
  std::int64_t targets() const;
  /// Replaces mean losses of documents by values whose mean is the mean loss of all targets and whose spread is that of
  /// the documents' contributions to it (the linearized ratio of two sums).
  void weigh_documents(std::vector<double>& losses) const;
  /// Returns the number of held-out sequences whose first `passage` tokens occur in a row in a training
  /// sequence.
  std::size_t seen(const DataSource& training, std::size_t steps, std::int64_t passage) const;

  const Plan& plan_;
  std::int64_t sequences_;
  std::unique_ptr<DataSource> data_;
};

}  // namespace precbench
