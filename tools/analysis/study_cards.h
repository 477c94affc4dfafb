// Study cards: one card for each recipe that a study asks about.
//
// Forks are compared by their trailing loss, the mean over the last half of their steps, minus that of the
// BF16 fork of the same trunk, age and seed, which had the same state and the same data.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tools/analysis/age_law.h"
#include "tools/analysis/analysis.h"
#include "tools/analysis/deployment.h"
#include "tools/analysis/fork_course.h"
#include "tools/analysis/fork_verdict.h"
#include "tools/analysis/output_means.h"
#include "tools/analysis/study_ladders.h"

namespace precbench {

/// Distance of a recipe's next-token distributions from BF16's: means over the trunks, largest over all.
struct CardOutputs {
  OutputMeans distance;
  double tokens = 0;      ///< compared, over all trunks
  bool held_out = false;  ///< true: all of --eval-data
};

/// Gradient and outputs of a recipe compared with BF16's at one age: means over the trunks.
struct CardFidelity {
  std::int64_t age = 0;
  double error = 0, cosine = 0, bias = 0;
  std::optional<double> route_flips;   ///< fraction of expert slots; MoE models only
  std::optional<CardOutputs> outputs;  ///< null in older rows
};

/// The same for one block, at the oldest age.
struct CardLayer {
  std::int64_t layer = 0;
  double error = 0, bias = 0;
};

/// Difference from BF16 over a tenth of the fork's steps.
struct StepDifference {
  double step = 0;  ///< last step of that tenth
  MeanWithInterval difference;
};

/// Loss gap of switching to the recipe before any update: its loss minus BF16's at equal weights
/// and tokens, in nats.
struct SwitchGap {
  double mean = 0;
  std::optional<double> low, high;  ///< 95% interval; null if neither trunks nor batches give one
  /// Origin of the interval. trunks: over the trunks, from the fidelity probe. batches: over the probe's
  /// batches, if there are fewer trunks than a verdict needs. first_step: over the trunks, from the first
  /// step of the forks.
  enum class Source : std::uint8_t { trunks, batches, first_step } source = Source::trunks;
};
const char* name_of(SwitchGap::Source source);

/// Loss gap at the switch and over the forks of a recipe at one age of the trunks. The latter is the verdict's difference at that age.
struct CardGaps {
  std::int64_t age = 0;
  std::optional<double> tokens_per_parameter;  ///< seen by the model; null if unknown
  double bf16_loss = 0;                        ///< nats, mean over the BF16 forks of this age
  std::optional<SwitchGap> at_switch;
  std::optional<ForkCourse> course;  ///< null for fewer than two trunks or too short forks
  /// Held-out loss after the forks' last step minus that of BF16's forks, nats, over the trunks: in the recipe, and of
  /// the same weights in BF16. Null without --eval-data, and for fewer than two trunks.
  std::optional<MeanWithInterval> held_out, held_out_in_bf16;
};

/// How a recipe's loss gap grows with the age of the model, in a study with three or more ages.
struct CardAgeLaw {
  AgeLaw law;    ///< of the loss gap, nats
  AgeLaw share;  ///< of the loss gap as a fraction of BF16's loss at the same age
  double youngest = 0, oldest = 0;  ///< tokens per parameter, measured
  /// Loss gap at the oldest age as predicted by a law that was fitted without it, in nats and as a fraction of BF16's loss;
  /// null for fewer than four ages. It tests the law: the measured gap should lie within the interval.
  std::optional<MeanWithInterval> forecast, share_forecast;
};

struct ControlResult {
  std::string name;                    ///< "rowwise_e5m2 apart from rowwise"
  std::optional<bool> found;           ///< null: it did not run
  std::optional<double> difference{};  ///< nats over BF16 at the oldest age, mean over the trunks
};

/// Comparison with the study's incumbent: the verdict of paired forks, as against BF16. All contrasts of a
/// study share Holm's correction, apart from the verdicts against BF16, which a contrast does not change.
struct CardContrast {
  std::string incumbent;
  ForkVerdict verdict;
};

/// A recipe that takes over during the forks, as the studied recipe's schedule says.
struct CardChange {
  std::int64_t after = 0;  ///< steps of the fork before it
  std::string recipe;
};

struct StudyCard {
  std::string model, machine, study;  ///< study: as in StudyPlace
  ForkVerdict verdict;                ///< includes the recipe's name
  const Record* fork = nullptr;       ///< one of the recipe's forks, for its settings; a successful
                                      ///< one if there is any
  std::optional<double> floor;        ///< noise floor, nats
  double margin_fraction = 0;         ///< smallest difference that matters, as a fraction of BF16's loss
  double margin = 0;                  ///< nats, smallest of any age: that of the lowest BF16 loss
  double bf16_loss = 0;               ///< nats, mean over the BF16 forks of all ages
  std::int64_t fork_steps = 0;
  std::vector<CardChange> changes;  ///< in order; empty for most recipes, and in records of schema 1
  std::vector<CardFidelity> fidelity;
  std::vector<CardGaps> gaps;                  ///< by age, youngest first
  std::optional<CardAgeLaw> age_law;           ///< null where fit_age_law() finds none
  std::optional<std::int64_t> trained_tokens;  ///< as in StudyPlace
  std::optional<bool> steady;                  ///< as in StudyPlace
  std::vector<CardLayer> layers;
  std::vector<StepDifference> curve;
  Ladder outlier_ffn, outlier_norm, outlier_vo, learning_rate, bits, exponent_bits, batch;
  Ladder bf16_learning_rate;             ///< factors of the learning rate at which BF16 itself is stable
  std::vector<ControlResult> controls;   ///< of the whole study; the same in all its cards
  std::optional<Deployment> deployment;  ///< null without --eval-data
  std::optional<CardContrast> contrast;  ///< null without an incumbent, and for the incumbent itself
};

/// Returns the cards by model and recipe name; empty if no record belongs to a study. The cards point to the
/// records, which must outlive them. `against`: the incumbent; null: the one that the records name.
/// Throws InvalidInput if no study judges that recipe beside others.
std::vector<StudyCard> study_cards(const RecordRefs& records,
                                   const std::optional<std::string>& against = std::nullopt);

/// Returns the loss gap at an age: the mean difference over the last half of the forks' steps, nats.
/// Null if the card has no interval at that age.
std::optional<MeanWithInterval> loss_gap_at(const StudyCard& card, std::int64_t age);
/// Returns the loss gap at an age as a fraction of BF16's loss there; null if the card has no interval at that age.
std::optional<MeanWithInterval> share_at(const StudyCard& card, const CardGaps& at_age);
/// Returns a verdict's differences at an age; null if it has none there.
const AgeInterval* find_age(const ForkVerdict& verdict, std::int64_t age);
/// Returns "at 0.18 to 0.73 tokens per parameter", over all ages of a card.
std::string age_words(const StudyCard& card);
/// Returns "equivalent", or "known to fail at 8B (Megatron-Bridge); equivalent": a failure that others published
/// (published_losses.h) outranks a study of a smaller or younger model that saw none.
std::string outcome_words(const ForkVerdict& verdict);
/// Returns "equivalent for 36m at 0.18 to 0.73 tokens per parameter": a verdict holds for a model at an age.
std::string verdict_words(const StudyCard& card);
/// Returns "36m: nvfp4 changes to bf16 after step 123 of 150: its loss gap, course and trend include the steps that
/// follow."; null if the recipe does not change during the forks.
std::optional<std::string> change_words(const StudyCard& card);
/// Returns "better than nvfp4 for 36m at 0.18 to 0.73 tokens per parameter". The card must have a contrast.
std::string contrast_words(const StudyCard& card);

/// Returns the content of cards.json.
nlohmann::ordered_json cards_to_json(const std::vector<StudyCard>& cards);

}  // namespace precbench
