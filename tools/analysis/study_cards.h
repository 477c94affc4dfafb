// What the rows of a study say: one card for each recipe that it asks about.
//
// Forks are compared by their trailing loss, the mean over the last half of their steps, minus that of the BF16 fork of
// the same trunk, age and seed, which had the same state and the same data.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tools/analysis/age_law.h"
#include "tools/analysis/analysis.h"
#include "tools/analysis/fork_course.h"
#include "tools/analysis/fork_verdict.h"
#include "tools/analysis/study_ladders.h"

namespace precbench {

/// The gradient of a recipe against BF16's at one age: means over trunks.
struct CardFidelity {
  std::int64_t age = 0;
  double error = 0, cosine = 0, bias = 0;
  std::optional<double> route_flips;  ///< share of slots, of a model with experts
};

/// The same of one block, at the oldest age.
struct CardLayer {
  std::int64_t layer = 0;
  double error = 0, bias = 0;
};

/// How a recipe's difference grows with the fork: its mean over a tenth of the steps.
struct StepDifference {
  double step = 0;  ///< the last of that tenth
  MeanWithInterval difference;
};

/// Price of switching to the recipe before any update: its loss minus BF16's at the same weights and tokens, in nats.
struct SwitchPrice {
  double mean = 0;
  std::optional<double> low, high;  ///< 95% interval; null where neither trunks nor batches give one
  /// Where it comes from: over the trunks, from the fidelity probe's batches or the forks' first step; over the batches of
  /// the probe where there are fewer trunks than a verdict takes.
  enum class Source : std::uint8_t { trunks, batches, first_step } source = Source::trunks;
};
const char* name_of(SwitchPrice::Source source);

/// A recipe's prices at one age of the trunks. The settled one is the verdict's difference at that age.
struct CardPrice {
  std::int64_t age = 0;
  std::optional<double> tokens_per_parameter;  ///< that the model had seen; null where nobody said
  std::optional<SwitchPrice> at_switch;
  std::optional<ForkCourse> course;  ///< null for fewer than two trunks, and for forks too short to have one
};

/// How a recipe's settled price grows with the age of the model, in a study with three or more ages.
struct CardAgeLaw {
  AgeLaw law;
  double youngest = 0, oldest = 0;  ///< tokens per parameter, measured
  /// Price at the oldest age as predicted by a law that was fitted without it; null for fewer than four ages. It tests the law:
  /// the measured price should lie within.
  std::optional<MeanWithInterval> forecast;
};

struct ControlResult {
  std::string name;           ///< "rowwise_e5m2 apart from rowwise"
  std::optional<bool> found;  ///< null: it did not run
};

struct StudyCard {
  std::string model, machine, study;  ///< study: as in StudyPlace
  ForkVerdict verdict;                ///< and the recipe's name
  const Record* fork = nullptr;  ///< one of the recipe's, for its setting; one that ended well where any did
  std::optional<double> floor;   ///< nats
  double margin = 0;             ///< nats
  double bf16_loss = 0;          ///< nats, mean over its forks
  std::int64_t fork_steps = 0;
  std::vector<CardFidelity> fidelity;
  std::vector<CardPrice> prices;  ///< by age, youngest first
  std::optional<CardAgeLaw> age_law;  ///< null where fit_age_law() finds none
  std::optional<std::int64_t> trained_tokens;  ///< as in StudyPlace
  std::optional<bool> steady;                  ///< as in StudyPlace
  std::vector<CardLayer> layers;
  std::vector<StepDifference> curve;
  Ladder outlier_ffn, outlier_norm, outlier_vo, learning_rate, bits, exponent_bits, batch;
  Ladder bf16_learning_rate;            ///< at which factors of the rate BF16 itself is stable
  std::vector<ControlResult> controls;  ///< of the study, the same in all its cards
};

/// By model, then by recipe, in the order of their names; none where no record belongs to a study. They point to the
/// records, which must outlive them.
std::vector<StudyCard> study_cards(const RecordRefs& records);

/// Returns the settled price at an age: the mean difference of the last half of the forks' steps, nats. Null where the card
/// has no interval at that age.
std::optional<MeanWithInterval> settled_at(const StudyCard& card, std::int64_t age);
/// "at 0.18 to 0.73 tokens per parameter": of all ages of a card.
std::string age_words(const StudyCard& card);
/// "equivalent for 36m at 0.18 to 0.73 tokens per parameter": a verdict is about a model of an age.
std::string verdict_words(const StudyCard& card);

/// What cards.json holds.
nlohmann::ordered_json cards_to_json(const std::vector<StudyCard>& cards);

}  // namespace precbench
