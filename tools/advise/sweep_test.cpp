// Tests that answers change smoothly with tokens, sizes and GPU counts: a jump needs an input that explains it.
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "kernels/testing/catch.h"
#include "kernels/testing/processes.h"
#include "results/record/record_samples.h"
#include "tools/advise/advice.h"
#include "tools/analysis/token_cost.h"

using namespace precbench;

namespace {

constexpr double kTokenCounts[] = {1e9,  3e9,  1e10, 2e10, 5e10, 1e11, 2e11,   3e11, 5e11,
                                   7e11, 1e12, 2e12, 3e12, 5e12, 1e13, 1.5e13, 2e13, 3.6e13};
constexpr double kSizes[] = {0.1e9, 0.3e9, 0.6e9, 1e9,   3e9,   8e9,  14e9,
                             32e9,  70e9,  123e9, 235e9, 405e9, 671e9};

/// Speeds of five recipes that do not depend on the question, with evidence from trained models and without.
SpeedTable fixed_speeds() {
  SpeedTable table;
  table.bf16_counts = samples::gpu_record("bf16", 250);
  table.bf16_counts.case_fields["gpus"] = 1024;
  table.setting = {{"model", "m"}, {"recipe", "bf16"}, {"gpus", 1024}};
  table.gpu = {"NVIDIA B200", "10.0", std::int64_t{180} << 30, 2250, 8000};
  const auto add = [&](const char* recipe, double speedup) {
    SpeedRow row{recipe};
    row.tokens_per_s = 1e4 * speedup;  // no run is so short that an hour matters
    row.speedup = MeanWithInterval{speedup, 0.95 * speedup, 1.05 * speedup};
    table.rows.push_back(row);
  };
  add("nvfp4", 1.6), add("tensorwise", 1.44), add("mxfp8", 1.43), add("rowwise", 1.38),
      add("rowwise_gw_hp", 1.6);
  add("bf16", 1);
  return table;
}

/// Advice over a series of questions. Requires that no recipe's loss gap or speed-up jumps between neighbours, and that
/// the recommendation does not return to a recipe that it has left.
class Series {
 public:
  /// `step`: ratio of this question's changing number to the last one's.
  void add(const Advice& advice, double step) {
    INFO("tokens " << advice.horizon << ", parameters " << advice.run.parameters);
    REQUIRE(advice.pick);
    for (const AdviceRow& row : advice.rows) {
      if (row.speed.is_bf16()) continue;
      const auto last = gaps_.find(row.speed.recipe);
      // Gaps are a power law of tokens and parameters with exponents below 1, times a loss that changes less.
      if (last != gaps_.end()) {
        CHECK(std::fabs(std::log(row.expected->gap.mean / last->second)) < std::fabs(std::log(step)));
      }
      gaps_[row.speed.recipe] = row.expected->gap.mean;
    }
    const std::string recipe = recommended(advice);
    if (recipe != last_) {
      CHECK_FALSE(left_.contains(recipe));
      left_.insert(last_);
    }
    last_ = recipe;
    CHECK(recipe != "rowwise_gw_hp");
    recipes_.insert(recipe);
  }

  std::size_t recipes() const { return recipes_.size(); }

 private:
  std::map<std::string, double> gaps_;
  std::set<std::string> left_, recipes_;
  std::string last_;
};

}  // namespace

TEST_CASE("make_advice: answers change smoothly over 18 numbers of tokens", "[advise]") {
  const ExpectedGaps expected(committed_law(), {}, {});
  for (const double parameters : {0.6e9, 8e9, 70e9}) {
    Series series;
    double last = 0;
    for (const double tokens : kTokenCounts) {
      series.add(make_advice(fixed_speeds(), expected, {parameters, tokens, Serving::bf16}, std::nullopt, {}),
                 last > 0 ? tokens / last : 2);
      last = tokens;
    }
    CHECK(series.recipes() >= 2);
  }
}

TEST_CASE("make_advice: answers change smoothly over sizes from 0.1B to 671B", "[advise]") {
  const ExpectedGaps expected(committed_law(), {}, {});
  for (const double tokens : {300e9, 1e12, 15e12}) {
    Series series;
    double last = 0;
    for (const double parameters : kSizes) {
      series.add(make_advice(fixed_speeds(), expected, {parameters, tokens, Serving::bf16}, std::nullopt, {}),
                 last > 0 ? parameters / last : 2);
      last = parameters;
    }
  }
}

TEST_CASE("advise: speeds change smoothly with the number of GPUs", "[advise]") {
  double last_rate = 0, last_gain = 0;
  for (const char* gpus : {"8", "16", "32", "64"}) {
    INFO(gpus);
    const Answer answer =
        output_of(std::string("COLUMNS=80 " PRECBENCH_BINARY_DIR "/precbench advise --json --gpu h100 "
                              "--model llama3.1-8b --tokens 1T --recipe tensorwise --gpus ") +
                  gpus);
    REQUIRE(answer.status == 0);
    const auto json = nlohmann::json::parse(answer.text);
    double rate = 0, gain = 0;
    for (const auto& row : json.at("rows")) {
      CHECK(row.at("fits") == true);
      if (row.at("recipe") == "bf16") rate = row.at("tokens_per_s").get<double>() / std::stod(gpus);
      if (row.at("recipe") == "tensorwise") gain = row.at("speedup").at("mean");
    }
    // Two hosts add traffic over NICs, which costs some speed; nothing else changes.
    if (last_rate > 0) {
      CHECK(std::fabs(std::log(rate / last_rate)) < 0.15);
      CHECK(std::fabs(std::log(gain / last_gain)) < 0.1);
    }
    last_rate = rate, last_gain = gain;
    CHECK(json.at("recommended").at("recipe") == "tensorwise");
  }
}
