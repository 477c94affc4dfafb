// Tests the age section of a report on studies with a known law.
#include <fmt/format.h>

#include <cmath>
#include <string>

#include "kernels/testing/catch.h"
#include "tools/analysis/study_samples.h"
#include "tools/report/sections_testing.h"
#include "tools/text/gnuplot.h"

using namespace precbench;
using study_samples::Rows;

namespace {

constexpr const char* kTitle = "How does the loss gap grow with age?";
constexpr std::int64_t kAges[] = {150, 400, 1600, 4000};

/// Adds forks whose gap is scale x age^exponent at every age except the oldest, where it is `oldest` times
/// that.
void add_forks(Rows& rows, const std::string& recipe, double scale, double exponent, double oldest = 1) {
  for (std::int64_t trunk = 1; trunk <= 3; ++trunk)
    for (const std::int64_t age : kAges) {
      const double own = exponent + 0.005 * static_cast<double>(trunk - 2);
      double gap = scale * std::pow(static_cast<double>(age), own);
      if (age == kAges[3]) gap *= oldest;
      Record& row = rows.add(recipe, StudyPart::fork, trunk, age, gap);
      if (recipe != "bf16") Rows::ask(row);
    }
}

std::vector<Record> records_of(const Rows& rows) {
  std::vector<Record> records;
  for (const LocatedRecord* row : rows.refs()) records.push_back(row->record);
  return records;
}

std::vector<Record> aged_study() {
  Rows rows;
  rows.add_trunks();
  add_forks(rows, "bf16", 0, 0);
  add_forks(rows, "tensorwise", 0.001, 0.3);
  add_forks(rows, "blockwise", 0.002, 0);
  add_forks(rows, "mxfp8", 0.001, 0.3, 2);
  return records_of(rows);
}

/// Returns "+0.385% [", the beginning of a gap in nats as a share of the samples' BF16 loss.
std::string share_words(double gap) {
  const RecordSet set = samples::set_of(aged_study());
  return fmt::format("{:+.3g}% [", 100 * gap / make_input(set).cards.front().gaps.front().bf16_loss);
}

}  // namespace

TEST_CASE("age section: shows the share at every age and exponent and forecast and extrapolation", "[study][age]") {
  const std::string section = section_of(aged_study(), kTitle);
  INFO(section);
  const auto rows = lines_with(section, "llama3.2-1b  tensorwise");
  REQUIRE(rows.size() == 4);  // one per age
  // 0.001 x 4000^0.3 = 0.01204; the mean over three slightly different exponents is 0.01205.
  CHECK(contains(rows.back(), "0.053"));
  CHECK(contains(rows.back(), share_words(0.01205)));
  CHECK(contains(rows.back(), "+0.01205 ["));
  // Tokens per parameter at steps 150 and 4,000 of 8 x 2048 tokens, of 1.24 billion parameters. At ten times the age the
  // share is 10^0.3 = 2.00 times that at the oldest.
  const auto law = lines_with(section, "tensorwise: the law from");
  REQUIRE(law.size() == 1);
  CHECK(contains(law.front(), "from 0.002 to 0.053 tokens per parameter has an exponent of +0.30 [+0.29, +0.31]"));
  CHECK(contains(law.front(), "and " + share_words(0.01205)));
  CHECK(contains(law.front(), "at 10 times the oldest age it gives " + share_words(0.02405)));
  CHECK(contains(section, "the loss gap as a share of BF16's loss grows with age for mxfp8, tensorwise"));
  CHECK(contains(section, "no trend is shown for blockwise"));
}

TEST_CASE("age section: the law is of the share and grows as BF16's loss falls", "[study][age]") {
  Rows rows;
  rows.add_trunks();
  for (std::int64_t trunk = 1; trunk <= 3; ++trunk)
    for (const std::int64_t age : kAges) {
      const double bf16 = std::pow(static_cast<double>(age), -0.2);
      const double gap = 0.002 * bf16 * std::pow(static_cast<double>(age), 0.3);
      for (const char* recipe : {"bf16", "tensorwise"}) {
        Record& row = rows.add(recipe, StudyPart::fork, trunk, age, 0);
        const bool asked = recipe != std::string("bf16");
        for (double& loss : row.training->loss) loss = bf16 + (asked ? gap + 1e-9 * static_cast<double>(trunk) : 0);
        if (asked) Rows::ask(row);
      }
    }
  const auto law = lines_with(section_of(records_of(rows), kTitle), "tensorwise: the law from");
  REQUIRE(law.size() == 1);
  CHECK(contains(law.front(), "exponent of +0.30 "));
}

TEST_CASE("age section: a gap off the law lies outside the forecast", "[study][age]") {
  const RecordSet set = samples::set_of(aged_study());
  const ReportInput input = make_input(set);
  int laws = 0;
  for (const StudyCard& card : input.cards) {
    INFO(card.verdict.recipe);
    REQUIRE(card.age_law);
    REQUIRE(card.age_law->forecast);
    const MeanWithInterval measured = *loss_gap_at(card, kAges[3]), forecast = *card.age_law->forecast;
    const bool within = forecast.low <= measured.mean && measured.mean <= forecast.high;
    CHECK(within == (card.verdict.recipe != "mxfp8"));
    ++laws;
  }
  CHECK(laws == 3);
}

TEST_CASE("age section: an age that its forks extend by more than a third is not part of the law",
          "[study][age]") {
  Rows rows;
  rows.add_trunks();
  for (const char* recipe : {"bf16", "tensorwise"}) {
    const double scale = recipe == std::string("bf16") ? 0 : 0.001;
    add_forks(rows, recipe, scale, 0.3);
    // A tenth of a fork's steps: the model is another one at the end of the fork, and the gap is off the law.
    for (std::int64_t trunk = 1; trunk <= 3; ++trunk) {
      Record& row = rows.add(recipe, StudyPart::fork, trunk, 2, 100 * scale);
      if (scale > 0) Rows::ask(row);
    }
  }
  const auto line = lines_with(section_of(records_of(rows), kTitle), "tensorwise: the law from");
  REQUIRE(line.size() == 1);
  CHECK(contains(line.front(), "from 0.002 to 0.053 tokens per parameter has an exponent of +0.30 [+0.29, +0.31]"));
}

TEST_CASE("age section: a model of one age is compared with the law of another", "[study][age]") {
  std::vector<Record> records = aged_study();
  Rows other;
  const auto trained = [](Record& row) {
    auto model = *row.definition->model;
    model["name"] = "trained";
    row.definition->model = std::make_shared<const nlohmann::ordered_json>(model);
    row.case_fields["init_from"] = "trained.safetensors";
    row.study->study = "fedcba9876543210";
    row.study->trained_tokens = 1'000'000'000'000;
  };
  other.add_trunks(trained);
  other.add_forks("bf16", 0, 0, trained);
  other.add_forks("tensorwise", 0.05, 1e-5, [&](Record& row) { trained(row), Rows::ask(row); });
  for (Record& record : records_of(other)) records.push_back(std::move(record));
  const std::string section = section_of(records, kTitle);
  INFO(section);
  CHECK(contains(section, "tensorwise: the law of llama3.2-1b, extrapolated to "));
  CHECK(contains(section, "trained was measured there at " + share_words(0.05)));
}

TEST_CASE("age section: the figure has a point for every age and a line for every law",
          "[study][age][figure]") {
  const RecordSet set = samples::set_of(aged_study());
  Document document = make_report(set);
  draw_figures(document, "", "");
  const Figure* figure = nullptr;
  for (const Section& section : document.sections)
    for (const Figure& one : section.figures)
      if (one.script == "gap_over_age") figure = &one;
  REQUIRE(figure != nullptr);
  CHECK(contains(figure->data, "\"tensorwise, llama3.2-1b\"\n0.00198864813"));
  const std::size_t laws = figure->data.find("$laws << END");
  REQUIRE(laws != std::string::npos);
  int gaps = 0;
  for (std::size_t at = laws; (at = figure->data.find("\n\n\n", at)) != std::string::npos; ++at) ++gaps;
  CHECK(gaps == 3);
  if (!gnuplot_is_there()) return;
  CHECK(document.notice.empty());
  CHECK(contains(figure->svg, "tensorwise, llama3.2-1b"));
  CHECK(contains(figure->svg, ">loss gap (% of BF16's loss)<"));
  CHECK(contains(figure->svg, ">0.1<"));  // a tick as a number, not as text of an exponent
  CHECK(!contains(figure->svg, "^{"));
  CHECK(!contains(figure->svg, "10^"));
}

TEST_CASE("age section: none where ages span less than a factor of ten", "[study][age]") {
  Rows rows;
  rows.add_trunks();
  rows.add_frame();
  rows.add_forks("blockwise", 0.0012, 1e-5, Rows::ask);
  CHECK(section_of(records_of(rows), kTitle) == "");
}

TEST_CASE("cards_to_json: age_law has the trunks and exponent and forecast", "[study][age]") {
  const RecordSet set = samples::set_of(aged_study());
  for (const auto& card : cards_to_json(make_input(set).cards)) {
    const auto& law = card.at("age_law");
    CHECK(law.at("trunks").size() == 3);
    CHECK(law.at("exponent").at("low") <= law.at("exponent").at("mean"));
    CHECK(law.at("oldest") > law.at("youngest"));
    CHECK(law.at("exponent_of_share").at("mean").is_number());
    CHECK(law.at("forecast_of_oldest").at("loss_gap").is_number());
    CHECK(law.at("share_forecast_of_oldest").at("share").is_number());
  }
}
