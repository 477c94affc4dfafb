// The law of the loss gap: what a recipe is expected to cost a model of any size and age, by how its weights are
// served.
//
// The raw gap (weights of the recipe evaluated in the recipe, minus BF16's in BF16) is a share of BF16's loss. Its
// logarithm is fitted to the gaps that this repository measured (gap_evidence.h):
//
//   ln(raw gap / BF16 loss) = offset(recipe) + a ln(parameters / 1B) + b ln(tokens per parameter / 100)
//                             + c (if trained from scratch) + model effect + scatter
//
// Offsets, a, b and c are coefficients. A model effect is how much all gaps of one model lie above or below the law;
// scatter is the rest: text, learning rate, recipe. Both are normal with mean 0; their variances maximize the
// restricted likelihood (mixed_model.h). A forecast is for a model that nobody has studied, so its interval spans the
// errors of the coefficients, another model's effect and scatter. A share of the loss is used because tokens differ in
// length.
//
// Models younger than kYoungestLawAge only tell how recipes compare with each other: each has a level of its own at
// every age and length of the forks.
//
// Only one model was trained from scratch, so c is known for one model. Others may differ from it by as much as c
// itself.
//
// Served in BF16, weights cost a part of the raw gap; served in the recipe, the raw gap minus what the recipe costs
// BF16's weights. Both are ratios to the raw gap, one for FP8 and one for FP4: means over the models, with their spread
// between them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "results/record/statistics.h"
#include "tools/law/gap_evidence.h"
#include "tools/law/mixed_model.h"

namespace precbench {

/// How trained weights are evaluated. raw: the recipe's in the recipe, BF16's in BF16.
enum class Serving : std::uint8_t { bf16, recipe, raw };
const char* name_of(Serving serving);
/// Returns "BF16" or "the recipe", in which weights are served. Not for raw.
const char* served_words(Serving serving);

/// Age from which the law holds, in tokens per parameter. Gaps of younger models fall with age.
inline constexpr double kYoungestLawAge = 0.9;

/// Probability with which an interval of a forecast holds, as in predictions of speed.
inline constexpr double kForecastCoverage = 0.8;

/// Returns half the width of that interval around an estimate with this standard error, by Student's t.
double forecast_half_width(double error, int freedom);

struct GapQuestion {
  std::string recipe;
  double parameters = 0;  ///< active ones of a mixture of experts
  double tokens = 0;      ///< seen by the model when its loss is compared
  Serving serving = Serving::bf16;
  TrainingStart training = TrainingStart::from_scratch;
};

/// A forecast loss gap, as a share of BF16's loss or in nats.
struct GapForecast {
  double median = 0, low = 0, high = 0;
  GapForecast times(double loss) const { return {median * loss, low * loss, high * loss}; }
  bool contains(double gap) const { return low <= gap && gap <= high; }
};

/// Ratio of a served gap to the raw gap: mean over the models and spread between them.
struct ServingRatio {
  double mean = 0, spread = 0;
  int models = 0;
};

class LossLaw {
 public:
  /// Fits the law. Throws InvalidInput if the evidence has too few models of kYoungestLawAge and older.
  explicit LossLaw(const std::vector<GapEvidence>& evidence);

  /// Returns the loss gap as a share of BF16's loss. Null for an unknown recipe, for a model younger than
  /// kYoungestLawAge, and where the evidence lacks the serving. `noise`: standard error, relative to the gap, of a
  /// measurement that the forecast is compared with.
  std::optional<GapForecast> share(const GapQuestion& question, double noise = 0) const;
  /// Returns the gap in nats, at BF16's loss by the scaling law of token_cost.h.
  std::optional<GapForecast> nats(const GapQuestion& question) const;

  /// Returns the gap of a run from scratch of a model whose raw gap, continued from BF16, was measured; in its unit. The
  /// intervals of the measurement, of the factor from scratch and of the deployment count. Null where the evidence lacks one
  /// of them.
  std::optional<GapForecast> from_continued(const std::string& recipe, const MeanWithInterval& raw,
                                            Serving serving) const;

  /// Returns the recipes that the law knows, by name.
  std::vector<std::string> recipes() const;
  bool knows(const std::string& recipe) const;
  /// Returns the number of models of kYoungestLawAge and older that were studied in the recipe.
  int models_of(const std::string& recipe) const;

  /// Share at 1B parameters and 100 tokens per parameter, continued from BF16, as its logarithm. The recipe must be
  /// known.
  Estimate offset(const std::string& recipe) const { return fit_.estimate(offsets_.at(recipe)); }
  Estimate size_exponent() const { return fit_.estimate(first_exponent_); }
  Estimate age_exponent() const { return fit_.estimate(first_exponent_ + 1); }
  /// Logarithm of the factor between runs from scratch and forks; null without runs from scratch.
  std::optional<Estimate> from_scratch() const;
  double between_models() const { return fit_.between; }  ///< standard deviation of the model effects
  double scatter() const { return fit_.within; }          ///< standard deviation of the scatter
  int models() const { return models_; }                  ///< of kYoungestLawAge and older
  int gaps() const { return gaps_; }                      ///< used in the fit
  double largest_model() const { return largest_; }       ///< parameters, of models() alone
  int freedom() const;                                    ///< degrees of freedom of the intervals
  ServingRatio ratio(Serving serving, TrainingStart training, bool fp4) const;

 private:
  /// Returns the coefficients' factors for a gap.
  std::vector<double> factors(const std::string& recipe, double parameters, double age,
                              TrainingStart training) const;

  std::map<std::string, std::size_t> offsets_;  ///< index of each recipe's offset
  std::map<std::string, int> studied_;          ///< models_of()
  std::size_t first_exponent_ = 0;              ///< index of a; those of b and c follow
  bool has_scratch_ = false;
  int models_ = 0, gaps_ = 0;
  double largest_ = 0;
  MixedFit fit_;
  std::map<bool, ServingRatio> in_weights_, in_weights_from_scratch_, of_bf16_weights_;  ///< by FP4 or not
};

/// Returns the law of committed_evidence(), fitted once.
const LossLaw& committed_law();

/// Returns true for recipes with FP4 GEMMs.
bool is_fp4(const std::string& recipe);

/// A model that the law forecast without having seen it.
struct LeftOut {
  double parameters = 0, youngest = 0, oldest = 0;  ///< ages in tokens per parameter
  int gaps = 0, inside = 0;                         ///< inside: the interval holds the measured gap
  double factor = 0;                                ///< geometric mean error, at least 1
  double bias = 0;                                  ///< geometric mean of measured over forecast
};

/// Leaves out one model of kYoungestLawAge and older at a time and forecasts its raw gaps, smallest model first.
std::vector<LeftOut> leave_one_model_out(const std::vector<GapEvidence>& evidence);

}  // namespace precbench
