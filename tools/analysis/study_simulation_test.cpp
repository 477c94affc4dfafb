// Simulates whole studies with a known truth (study_simulation.h). Measures error rates and power.
#include "tools/analysis/study_simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"

using namespace precbench;
using namespace precbench::study_simulation;

namespace {

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

/// Row of the page's power table, in percent.
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

/// Returns the beginning of a row of the page's table.
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

TEST_CASE("study simulation: the power table of the page is right", "[study_simulation]") {
  constexpr int kFewer = 150;
  const std::string page = file_text(PRECBENCH_SOURCE_DIR "/bench/study/verdict.md");
  for (const PowerRow& row : power(kFewer, 31)) {
    INFO(head_of(row));
    const std::size_t begin = page.find(head_of(row));
    REQUIRE(begin != std::string::npos);
    std::istringstream line(
        page.substr(begin + head_of(row).size(), page.find('\n', begin) - begin - head_of(row).size()));
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
