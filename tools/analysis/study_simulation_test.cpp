// Simulates whole studies with a known truth, from rows as a study writes them. Noise floor, controls and
// margin are estimated by study_cards.h as in a real study. Measures error rates and power.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"
#include "tools/analysis/study_cards.h"
#include "tools/analysis/study_samples.h"

using namespace precbench;
using study_samples::kMargin;
using study_samples::Rows;

namespace {

constexpr int kStudies = 2000;
constexpr double kBf16Loss = 2.4, kMarginNats = kMargin * kBf16Loss, kHalf = kMarginNats / 2;
constexpr std::array<std::int64_t, 2> kAges = {100, 200};

/// Scatter of forks, and true effects of the controls, in nats.
struct Scatter {
  const char* like;
  double last_bit;     ///< of a fork's loss due to rounding alone; determines the noise floor
  double trunk, fork;  ///< of a recipe's difference: shared by forks of a trunk, and of each fork
  double control;      ///< of a control's difference from its base recipe
  double e5m2, floor;  ///< true costs of the controls that must be told apart from their base recipe
  double e4m1;         ///< true cost of the control that must be beyond the bound
};
/// Rounded from results/h200/study-36m*.jsonl and results/cpu/study-tiny.jsonl.
constexpr Scatter kOnGpu{"36m on an H200", 1.5e-5, 7e-5, 7e-5, 1e-4, 0.0020, 0.0006, 0.012};
constexpr Scatter kOnCpu{"tiny on a CPU", 5e-5, 3e-4, 6e-4, 5e-4, 0.0011, 0.0007, 0.0095};
/// Factor by which large harm scatters more between trunks than small differences do.
constexpr double kHarmScatter = 3;

/// The default design: two ages, one seed per trunk, five recipes, one of which is also a control.
class SimulatedStudies {
 public:
  SimulatedStudies(const Scatter& scatter, int trunks, unsigned seed)
      : scatter_(scatter), trunks_(trunks), random_(seed) {
    constexpr double kUsual = 0.15 * kMarginNats;  // typical cost of FP8 recipes at 36M parameters
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

  /// Draws another study of this truth and returns its cards.
  std::vector<StudyCard> draw() {
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
    return study_cards(refs_);
  }

 private:
  struct Simulated {
    std::string name, variant_of;
    double truth;
  };
  static constexpr std::size_t kSteps = 2;  // smallest length with a last half

  Record& add(const std::string& name, int trunk, std::int64_t age, const std::string& recipe = "") {
    Record& row = rows_.add(recipe.empty() ? name : recipe, StudyPart::fork, trunk, age, 0);
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
double share(SimulatedStudies& studies, const Wanted& wanted, int count = kStudies) {
  int found = 0;
  for (int i = 0; i < count; ++i) found += wanted(studies.draw());
  return static_cast<double>(found) / count;
}

bool any_equivalent(const std::vector<StudyCard>& cards) {
  return std::any_of(cards.begin(), cards.end(),
                     [](const StudyCard& card) { return card.verdict.outcome == ForkOutcome::equivalent; });
}

auto found(const std::string& control) {
  return [control](const std::vector<StudyCard>& cards) {
    for (const ControlResult& result : cards.front().controls)
      if (result.name.starts_with(control + " ")) return result.found.value();
    throw std::runtime_error("no control " + control);
  };
}

/// Three standard errors above the nominal level.
const double kNominal = 0.05 + 3 * std::sqrt(0.05 * 0.95 / kStudies);

/// Default designs on a GPU and on a CPU.
const std::vector<std::pair<Scatter, int>> kDefaults = {{kOnGpu, 3}, {kOnCpu, 5}};

/// Row of the README's power table, in percent.
struct PowerRow {
  std::string like;
  int trunks;
  std::vector<std::array<double, 3>> cells;  ///< by truth: equivalent, worse, inconclusive
};
constexpr std::array<double, 4> kTruths = {0, 0.25, 0.5, 1};  // in margins

std::vector<PowerRow> power(int count, unsigned seed) {
  std::vector<PowerRow> rows;
  for (const Scatter& scatter : {kOnGpu, kOnCpu})
    for (const int trunks : {3, 5, 8}) {
      PowerRow row{scatter.like, trunks, {}};
      SimulatedStudies studies(scatter, trunks, seed++);
      for (const double truth : kTruths) {
        studies.set("blockwise", truth * kMarginNats);
        std::array<double, 3> shares{};
        for (int i = 0; i < count; ++i)
          for (const StudyCard& card : studies.draw())
            if (card.verdict.recipe == "blockwise") {
              const ForkOutcome outcome = card.verdict.outcome;
              if (outcome == ForkOutcome::equivalent) shares[0] += 100.0 / count;
              if (outcome == ForkOutcome::worse) shares[1] += 100.0 / count;
              if (outcome == ForkOutcome::inconclusive) shares[2] += 100.0 / count;
            }
        row.cells.push_back(shares);
      }
      rows.push_back(row);
    }
  return rows;
}

/// Returns the beginning of a row of the README's table.
std::string head_of(const PowerRow& row) { return fmt::format("| {} | {} |", row.like, row.trunks); }

}  // namespace

TEST_CASE("study simulation: a harm of half the margin is equivalent in at most 5% of studies",
          "[study_simulation]") {
  for (const auto& [scatter, trunks] : kDefaults) {
    SimulatedStudies studies(scatter, trunks, 21);
    for (const char* recipe : {"blockwise", "tensorwise", "rowwise", "mxfp8"}) studies.set(recipe, kHalf);
    CHECK(share(studies, any_equivalent) <= kNominal);
  }
  // The noise floor is near its limit, so that its estimate decides from study to study.
  Scatter noisy = kOnGpu;
  noisy.last_bit = 1.5e-4;
  SimulatedStudies studies(noisy, 3, 22);
  const double blind = share(
      studies,
      [](const std::vector<StudyCard>& cards) { return *cards.front().floor > cards.front().margin / 10; },
      300);
  CHECK((blind > 0.1 && blind < 0.9));
  for (const char* recipe : {"blockwise", "tensorwise", "rowwise", "mxfp8"}) studies.set(recipe, kHalf);
  CHECK(share(studies, any_equivalent) <= kNominal);
}

TEST_CASE(
    "study simulation: controls without effect are found in at most 5% of studies and then nothing is equivalent",
    "[study_simulation]") {
  for (const auto& [scatter, trunks] : kDefaults) {
    SimulatedStudies studies(scatter, trunks, 23);
    CHECK(share(studies, found("rowwise_e5m2"), 200) > 0.9);
    CHECK(share(studies, found("rowwise_e4m1"), 200) > 0.9);
    studies.set("rowwise_e5m2", 0);
    int apart = 0, equivalent = 0, wrongly = 0;
    for (int i = 0; i < kStudies; ++i) {
      const auto cards = studies.draw();
      apart += found("rowwise_e5m2")(cards);
      equivalent += any_equivalent(cards);
      wrongly += any_equivalent(cards) && !found("rowwise_e5m2")(cards);
    }
    CHECK(apart <= kNominal * kStudies);
    CHECK((equivalent > 0 && wrongly == 0));
  }
}

TEST_CASE("study simulation: a control at half the margin is found in at most 5% of studies",
          "[study_simulation]") {
  Scatter wide = kOnGpu;  // trunks differ by more than the margin
  wide.trunk *= 30, wide.fork *= 30;
  for (const auto& [scatter, trunks] : {std::pair(kOnCpu, 5), std::pair(wide, 3)}) {
    SimulatedStudies studies(scatter, trunks, 24);
    studies.set("rowwise_e4m1", kHalf);
    CHECK(share(studies, found("rowwise_e4m1")) <= kNominal);
  }
}

TEST_CASE("study simulation: the power table of the README is right", "[study_simulation]") {
  constexpr int kFewer = 150;
  const std::string readme = file_text(PRECBENCH_SOURCE_DIR "/bench/study/README.md");
  for (const PowerRow& row : power(kFewer, 31)) {
    INFO(head_of(row));
    const std::size_t begin = readme.find(head_of(row));
    REQUIRE(begin != std::string::npos);
    std::istringstream line(
        readme.substr(begin + head_of(row).size(), readme.find('\n', begin) - begin - head_of(row).size()));
    for (const std::array<double, 3>& cell : row.cells)
      for (const double simulated : cell) {
        double said = -1;
        char after = 0;
        REQUIRE(line >> said >> after);
        // Four standard errors of both simulations, plus half a percent of rounding.
        const double chance = std::clamp(said, 1.0, 99.0) / 100;
        CHECK(std::abs(said - simulated) <=
              0.5 + 400 * std::sqrt(chance * (1 - chance) * (1.0 / kFewer + 1.0 / kStudies)));
      }
  }
}

TEST_CASE("study simulation: prints the power table", "[.power]") {
  for (const PowerRow& row : power(kStudies, 41)) {
    fmt::print("{}", head_of(row));
    for (const auto& [equivalent, worse, inconclusive] : row.cells)
      fmt::print(" {:.0f} / {:.0f} / {:.0f} |", equivalent, worse, inconclusive);
    fmt::print("\n");
  }
}
