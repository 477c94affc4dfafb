// Tests the loss gap section: switch gap, loss gap, course, tokens, and verdicts that name model and age.
#include <functional>
#include <regex>

#include "kernels/testing/catch.h"
#include "tools/analysis/study_samples.h"
#include "tools/report/sections_testing.h"

using namespace precbench;
using study_samples::Rows;

namespace {

/// Returns a study in which blockwise settles 0.0012 and tensorwise 0.02 nats above BF16; calls
/// `change` for every row.
std::vector<Record> gap_records(const std::function<void(Record&)>& change = {}) {
  Rows rows;
  rows.add_trunks();
  rows.add_frame();
  rows.add_forks("blockwise", 0.0012, 1e-5, Rows::ask);
  rows.add_forks("tensorwise", 0.02, 1e-5, Rows::ask);
  std::vector<Record> records;
  for (const LocatedRecord* row : rows.refs()) {
    records.push_back(row->record);
    if (change) change(records.back());
  }
  return records;
}

constexpr const char* kGapTitle = "How large is the loss gap?";

/// Adds held-out losses. That of tensorwise is 0.01 nats above BF16's and a quarter of that in BF16; trunks differ by 0.001.
void evaluate(Record& row) {
  if (row.study->part != StudyPart::fork) return;
  const double trunk = static_cast<double>(row.study->trunk);
  Evaluation last;
  last.step = study_samples::kSteps, last.tokens = 4096, last.loss = last.bf16_loss = 3 + trunk;
  if (row.case_fields.at("recipe") == "tensorwise")
    *last.loss += 0.01 + 0.001 * (trunk - 2), *last.bf16_loss += 0.0025 + 0.001 * (trunk - 2);
  row.training->evaluations = {Evaluation{1, 4096, 9, {}, 9}, last};
}

}  // namespace

TEST_CASE("loss gap section: shows both loss gaps of a recipe with course and tokens", "[study][gap]") {
  const std::string section = section_of(gap_records(), kGapTitle);
  INFO(section);
  const auto lines = lines_with(section, "llama3.2-1b  tensorwise");
  REQUIRE(lines.size() == 1);
  for (const char* cell : {"0.0027", "+0.02000 [+0.01998, +0.02002]", "flat"})
    CHECK(contains(lines.front(), cell));
  // To first order it would be exp(0.02 / 0.0311) = 1.90 and exp(0.02 / 0.0116) = 5.65.
  CHECK(contains(lines.front(), "x2.08 ["));
  CHECK(contains(lines.front(), "x15.5 ["));
  const auto blockwise = lines_with(section, "llama3.2-1b  blockwise");
  REQUIRE(blockwise.size() == 1);
  CHECK(contains(blockwise.front(), "x1.04 ["));
  for (const char* words :
       {"before any update", "when training goes on in the recipe", "runs from scratch",
        "Besiroglu et al. 2024 (arXiv 2404.10102)", "0.0311 nats at 1T and 0.0116 at 15T tokens"})
    CHECK(contains(section, words));
  CHECK(section_of(with_speeds({}), kGapTitle) == "");
}

TEST_CASE("loss gap section: held-out losses minus BF16's stand in the recipe and in BF16, over the trunks",
          "[study][gap]") {
  const std::string section = section_of(gap_records(evaluate), kGapTitle);
  INFO(section);
  const auto lines = lines_with(section, "llama3.2-1b  tensorwise");
  REQUIRE(lines.size() == 1);
  // Half of the interval of three values, 0.001 apart: 4.3027 * 0.001 / sqrt(3).
  CHECK(contains(lines.front(), "+0.01000 [+0.00752, +0.01248]"));
  CHECK(contains(lines.front(), "+0.00250 [+0.00002, +0.00498]"));
  CHECK(contains(section, "held-out, in BF16 [95%], nats"));
  const auto without = [](Record& row) { row.training->evaluations.clear(); };
  CHECK(!contains(section_of(gap_records(without), kGapTitle), "held-out"));
  // An interval over two of three trunks is not shown.
  const auto without_a_trunk = [&](Record& row) {
    evaluate(row);
    if (row.study->trunk == 2) row.training->evaluations.clear();
  };
  CHECK(!contains(section_of(gap_records(without_a_trunk), kGapTitle), "held-out"));
}

TEST_CASE("loss gap section: a recipe that changes during its forks is named, with the step",
          "[study][gap]") {
  const auto with_schedule = [](Record& row) {
    if (row.case_fields.at("recipe") != "tensorwise") return;
    nlohmann::ordered_json recipe = *row.definition->recipe;
    recipe["schedule"] = nlohmann::ordered_json::parse(R"([{"from": 40, "name": "bf16"}])");
    row.definition->recipe = std::make_shared<const nlohmann::ordered_json>(recipe);
  };
  const std::vector<Record> records = gap_records(with_schedule);
  for (const char* title : {kGapTitle, "Does it train?"}) {
    const std::string section = section_of(records, title);
    INFO(section);
    CHECK(lines_with(section, "llama3.2-1b: tensorwise changes to bf16 after step 40 of 48: its").size() ==
          1);
    CHECK(lines_with(section, "changes to").size() == 1);
  }
  CHECK(!contains(section_of(gap_records(), kGapTitle), "changes to"));
}

TEST_CASE("loss gap section: warns if the margin exceeds the break-even gap", "[study][gap]") {
  // (1 - 0.01051 / R)^(-1/0.3658), R = 0.0850 and 0.0316 nats that tokens can still remove.
  CHECK(contains(
      section_of(gap_records(), kGapTitle),
      "the margin of 0.01051 nats exceeds the break-even gap of any speed-up below 1.43x at 1T tokens and 3.02x at "
      "15T tokens."));
}

TEST_CASE("break-even section: sets the break-even gap beside a measured speed-up and the studied gap",
          "[study][gap]") {
  const char* const kPays = "Does the speed-up pay?";
  const std::string section = section_of(with_speeds(gap_records()), kPays);
  INFO(section);
  // The break-even gaps of 1.25 and 1.389 at 1T and 15T tokens, and what 0.0012 and 0.02 nats leave of them.
  const auto blockwise = lines_with(section, "blockwise"), tensorwise = lines_with(section, "tensorwise");
  REQUIRE(blockwise.size() == 1);
  REQUIRE(tensorwise.size() == 1);
  for (const char* cell : {"llama3.2-1b", "1.25x", "0.0067", "0.0025", "raw gap",
                           "+0.0012 [+0.0012, +0.0012]", "1.20x", "1.12x"})
    CHECK(contains(blockwise.front(), cell));
  for (const char* cell : {"1.39x", "0.0096", "0.0036", "+0.0200", "0.67x", "0.09x"})
    CHECK(contains(tensorwise.front(), cell));
  CHECK(contains(section, "Besiroglu et al. 2024"));
  CHECK(section_of(gap_records(), kPays) == "");
  CHECK(section_of(with_speeds({}), kPays) == "");
}

TEST_CASE("break-even section: held-out losses replace the raw gap by that of the deployment",
          "[study][gap]") {
  const std::string section = section_of(with_speeds(gap_records(evaluate)), "Does the speed-up pay?");
  INFO(section);
  const auto tensorwise = lines_with(section, "tensorwise");
  REQUIRE(tensorwise.size() == 1);
  // The raw gap of 0.01 nats would not pay; the weights' 0.0025 do.
  for (const char* cell : {"in BF16", "+0.0025 [+0.0000, +0.0050]", "1.28x"})
    CHECK(contains(tensorwise.front(), cell));
  CHECK(!contains(tensorwise.front(), "raw gap"));
}

TEST_CASE("deployment section: recipes with one answer and one reason share a sentence", "[study][gap]") {
  std::vector<Record> records = gap_records([](Record& row) {
    const std::string recipe = row.case_fields.at("recipe");
    if (recipe == "blockwise") row.case_fields["recipe"] = "tensorwise";  // as evaluate() knows it
    evaluate(row);
    row.case_fields["recipe"] = recipe;
  });
  std::erase_if(records, [](const Record& row) { return row.study->age == 200; });
  const std::string section = section_of(records, "How large is the loss gap, by deployment?");
  INFO(section);
  CHECK(
      lines_with(section, "blockwise, tensorwise: trained in it and served in BF16: equivalent for").size() ==
      1);
  CHECK(lines_with(section, "blockwise, tensorwise: raw gap, in it against BF16 in BF16: worse for").size() ==
        1);
  CHECK(lines_with(section, ": equivalent for").size() + lines_with(section, ": worse for").size() == 2);
}

TEST_CASE("report: equivalent is always followed by the model and its age", "[study][gap]") {
  for (const auto& records : {gap_records(), with_speeds(gap_records()), gap_records(evaluate)}) {
    const RecordSet set = samples::set_of(records);
    const Document document = make_report(set);
    for (const std::string& text :
         {render_term(document), render_markdown(document), render_html(document)}) {
      // Skips quoted uses of the term, and published statements ("equivalent to BF16").
      static const std::regex kVerdict("equivalent(?=[^a-z])");
      int verdicts = 0;
      for (auto at = std::sregex_iterator(text.begin(), text.end(), kVerdict); at != std::sregex_iterator();
           ++at) {
        const auto place = static_cast<std::size_t>(at->position());
        if (text[place - 1] == '"' || text.compare(place - 6, 6, "&quot;") == 0) continue;
        std::string after = std::regex_replace(text.substr(place, 120), std::regex("\\s+"), " ");
        if (after.starts_with("equivalent to BF16") || after.starts_with("equivalent, slightly ahead"))
          continue;
        INFO(after);
        CHECK(std::regex_search(
            after, std::regex("^equivalent (for llama3.2-1b )?at [0-9.]+( to [0-9.]+)? tokens")));
        ++verdicts;
      }
      CHECK(verdicts > 0);
    }
  }
}

TEST_CASE("study section: reports the tokens seen by pretrained weights and whether the loss was steady",
          "[study][gap]") {
  const auto says = [](std::optional<bool> steady) {
    return section_of(gap_records([&](Record& row) {
                        row.study->trained_tokens = 2'000'000'000'000;
                        if (row.study->part != StudyPart::trunk) row.study->steady = steady;
                      }),
                      "Does it train?");
  };
  CHECK(contains(says({}), "The trunks start from weights that had seen 2T tokens."));
  CHECK_FALSE(contains(says({}), "steady"));
  CHECK(contains(says(true), "Forks begin at the first step from which BF16's loss is steady."));
  CHECK(contains(says(false), "BF16's loss was still moving at the last saved step, where forks begin."));
}
