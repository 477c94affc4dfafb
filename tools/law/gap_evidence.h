// Loss gaps that the studies of this repository measured: the evidence that the law of loss_law.h is fitted to.
//
// results/law/evidence.csv holds them, so that the program knows them without the records; tools/ci/law_evidence.sh
// writes that file from the records, and CI compares both.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "results/record/record_file.h"
#include "tools/analysis/study_cards.h"

namespace precbench {

/// How a run came to its recipe: trained in it from the first step, or continued in it from BF16.
enum class TrainingStart : std::uint8_t { from_scratch, continued };
/// Returns "from scratch" or "continued".
const char* name_of(TrainingStart training);

/// A mean over runs with its standard error, nats.
struct MeasuredGap {
  double mean = 0, error = 0;
};

/// Loss gap of one recipe, of one model at one age. Losses and gaps in nats per token of the study.
struct GapEvidence {
  std::string records;              ///< file under results/, without .jsonl or .jsonl.xz
  double parameters = 0;            ///< active ones of a mixture of experts
  double tokens_per_parameter = 0;  ///< seen before the forks, or by the whole run from scratch
  std::string recipe;
  TrainingStart training = TrainingStart::continued;
  std::int64_t fork_steps = 0;  ///< 0 from scratch
  double bf16_loss = 0;         ///< loss that the gap is a share of
  /// Loss of the recipe minus BF16's: the training loss over the last half of the forks; from scratch, the held-out
  /// loss.
  double gap = 0;
  double gap_error = 0;  ///< standard error of the gap, over the runs
  int runs = 0;
  /// Held-out loss after the last step: weights of the recipe evaluated in the recipe, minus BF16's evaluated in BF16.
  /// Null, as the next two, where it was not measured.
  std::optional<double> held_out;
  std::optional<MeasuredGap> in_bf16, in_recipe;  ///< the same with both evaluated in BF16; with both in the recipe
  /// Held-out loss of BF16's weights evaluated in the recipe, minus evaluated in BF16, when the forks began.
  std::optional<double> at_switch;

  double share() const { return gap / bf16_loss; }
  /// Returns what the recipe costs BF16's weights: after the forks if that was measured, else when they began.
  std::optional<double> recipe_of_bf16_weights() const {
    return in_recipe && held_out ? std::optional(*held_out - in_recipe->mean) : at_switch;
  }
};

/// Smallest model of the evidence. Smaller ones train with settings of their own.
inline constexpr double kSmallestEvidence = 10e6;

/// Returns the settled gaps of the studies' cards, one per recipe and age, of at least two trunks each. `records`: as
/// in GapEvidence. Leaves out models below kSmallestEvidence, adapters, and cases that change more than the recipe (the
/// output layer in the recipe).
std::vector<GapEvidence> gap_evidence_of(const std::vector<StudyCard>& cards, const std::string& records);

/// Returns the gaps of runs from scratch that end with a held-out loss, paired with BF16's runs of the same seed. A
/// recipe needs two pairs, a model kSmallestEvidence parameters.
std::vector<GapEvidence> gap_evidence_of_long_runs(const RecordRefs& runs, const std::string& records);

/// Drops, to limit memory, parts of a record that neither loss gaps nor speeds are computed from. For read_records.
void reduce_for_evidence(Record& record);

/// Returns the evidence of the record files (*.jsonl, *.jsonl.xz) in a folder and the folders in it, named by their paths from
/// there. Throws InvalidInput.
std::vector<GapEvidence> evidence_in(const std::string& folder);

/// Returns the evidence as lines of CSV with a header, and reads it back. Throws InvalidInput for a damaged line.
std::string evidence_csv(const std::vector<GapEvidence>& evidence);
std::vector<GapEvidence> read_evidence(const std::string& csv);

/// Returns the content of results/law/evidence.csv, which is part of the program.
const std::vector<GapEvidence>& committed_evidence();

}  // namespace precbench
