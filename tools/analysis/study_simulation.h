// Simulated studies with a known truth, as rows that a study would write. Noise floor, controls and margin are
// estimated by study_cards.h as in a real study.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tools/analysis/study_cards.h"
#include "tools/analysis/study_samples.h"

namespace precbench::study_simulation {

using study_samples::kMargin;
using study_samples::Rows;

inline constexpr int kStudies = 2000;
inline constexpr double kBf16Loss = 2.4, kMarginNats = kMargin * kBf16Loss, kHalf = kMarginNats / 2;
inline constexpr std::array<std::int64_t, 2> kAges = {100, 200};

/// Scatter of forks, and true effects of the controls, in nats.
struct Scatter {
  const char* like;
  double last_bit;     ///< of a fork's loss due to rounding alone; determines the noise floor
  double trunk, fork;  ///< of a recipe's difference: shared by forks of a trunk, and of each fork
  double control;      ///< of a control's difference from its base recipe
  double e5m2, floor;  ///< true costs of the controls that must be told apart from their base recipe
  double e4m1;         ///< true cost of the control that must be beyond the bound
};
/// Rounded from results/h200/study-36m*.jsonl.xz and results/cpu/study-tiny.jsonl.xz.
inline constexpr Scatter kOnGpu{"36m on an H200", 1.5e-5, 7e-5, 7e-5, 1e-4, 0.0020, 0.0006, 0.012};
inline constexpr Scatter kOnCpu{"tiny on a CPU", 5e-5, 3e-4, 6e-4, 5e-4, 0.0011, 0.0007, 0.0095};
/// Factor by which large harm scatters more between trunks than small differences do.
inline constexpr double kHarmScatter = 3;

/// Typical cost of FP8 recipes at 36M parameters, nats.
inline constexpr double kUsual = 0.15 * kMarginNats;

/// The default design: two ages, one seed per trunk, five recipes, one of which is also a control.
class SimulatedStudies {
 public:
  SimulatedStudies(const Scatter& scatter, int trunks, unsigned seed)
      : scatter_(scatter), trunks_(trunks), random_(seed) {
    recipes_ = {{"blockwise", "", kUsual},
                {"tensorwise", "", kUsual},
                {"rowwise", "", kUsual},
                {"mxfp8", "", kUsual},
                {"mxfp8_floor", "mxfp8", scatter.floor},
                {"rowwise_e5m2", "rowwise", scatter.e5m2},
                {"rowwise_e4m1", "", scatter.e4m1}};
    for (int trunk = 1; trunk <= trunks; ++trunk)
      for (const std::int64_t age : kAges) {
        add("bf16", trunk, age);
        Rows::perturb(add("ulp", trunk, age, "bf16"));
        for (const Simulated& recipe : recipes_) {
          Record& row = add(recipe.name, trunk, age);
          row.study->asked = !recipe.name.starts_with("rowwise_");
          if (!recipe.variant_of.empty()) row.study->apart_from = recipe.variant_of;
          row.study->breaks = recipe.name == "rowwise_e4m1";
        }
      }
    refs_ = rows_.refs();
  }

  /// Sets the true difference from BF16; for a control, from its base recipe.
  void set(const std::string& name, double truth) {
    for (Simulated& recipe : recipes_)
      if (recipe.name == name) recipe.truth = truth;
  }

  /// Draws another study of this truth and returns its cards. `against`: as in study_cards().
  std::vector<StudyCard> draw(const std::optional<std::string>& against = std::nullopt) {
    for (int trunk = 1; trunk <= trunks_; ++trunk) {
      std::map<std::string, double> shared;
      for (const Simulated& recipe : recipes_)
        if (recipe.variant_of.empty()) shared[recipe.name] = normal(scatter_.trunk * width(recipe));
      for (const std::int64_t age : kAges) {
        for (const char* bf16 : {"bf16", "ulp"}) lose(bf16, trunk, age, 0);
        std::map<std::string, double> difference;
        for (const Simulated& recipe : recipes_) {
          difference[recipe.name] =
              recipe.truth + (recipe.variant_of.empty()
                                  ? shared[recipe.name] + normal(scatter_.fork * width(recipe))
                                  : difference[recipe.variant_of] + normal(scatter_.control));
          lose(recipe.name, trunk, age, difference[recipe.name]);
        }
      }
    }
    return study_cards(refs_, against);
  }

 private:
  struct Simulated {
    std::string name, variant_of;
    double truth;
  };
  static constexpr std::size_t kSteps = 2;  // smallest length with a last half

  Record& add(const std::string& name, int trunk, std::int64_t age, const std::string& recipe = "") {
    Record& row = rows_.add(recipe.empty() ? name : recipe, StudyPart::fork, trunk, age, 0);
    row.study->sizes = {{trunks_, 1, std::ssize(kAges)}};
    by_place_[{name, trunk, age}] = &row;
    return row;
  }
  double normal(double deviation) { return deviation * normal_(random_); }
  double width(const Simulated& recipe) const { return recipe.name == "rowwise_e4m1" ? kHarmScatter : 1; }
  void lose(const std::string& name, int trunk, std::int64_t age, double difference) {
    by_place_.at({name, trunk, age})
        ->training->loss.assign(kSteps, kBf16Loss + difference + normal(scatter_.last_bit));
  }

  Scatter scatter_;
  int trunks_;
  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
  std::vector<Simulated> recipes_;
  Rows rows_;
  RecordRefs refs_;
  std::map<std::tuple<std::string, int, std::int64_t>, Record*> by_place_;
};

/// Returns the fraction of `count` studies for which `wanted` is true.
template <class Wanted>
double share(SimulatedStudies& studies, const Wanted& wanted, int count = kStudies,
             const std::optional<std::string>& against = std::nullopt) {
  int found = 0;
  for (int i = 0; i < count; ++i) found += wanted(studies.draw(against));
  return static_cast<double>(found) / count;
}

/// Three standard errors above the nominal level.
inline const double kNominal = 0.05 + 3 * std::sqrt(0.05 * 0.95 / kStudies);

/// Default designs on a GPU and on a CPU.
inline const std::vector<std::pair<Scatter, int>> kDefaults = {{kOnGpu, 3}, {kOnCpu, 5}};

}  // namespace precbench::study_simulation
