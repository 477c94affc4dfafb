// Tests studies in a report: cards, the summary, and that other sections ignore their rows.
#include <initializer_list>
#include <utility>

#include "kernels/testing/catch.h"
#include "tools/analysis/study_samples.h"
#include "tools/report/sections_testing.h"

using namespace precbench;
using study_samples::Rows;

namespace {

/// Returns a study in which blockwise trains like BF16 and tensorwise is worse.
std::vector<Record> study_records() {
  Rows rows;
  rows.add_frame();
  rows.add_forks("blockwise", 0.0012, 1e-5, Rows::ask);
  rows.add_forks("tensorwise", 0.02, 1e-5, Rows::ask);
  std::vector<Record> records;
  for (const LocatedRecord* row : rows.refs()) records.push_back(row->record);
  return records;
}

}  // namespace

TEST_CASE("summary section: the fastest recipe is one that its study shows to train", "[study]") {
  CHECK(contains(section_of(with_speeds({}), "Summary"), "x with tensorwise"));  // nothing is known of any
  const std::string summary = section_of(with_speeds(study_records()), "Summary");
  CHECK(contains(summary, "llama3.2-1b 1.25x with blockwise"));
  CHECK(contains(summary, ", +0.00120 nats"));
  CHECK(!contains(summary, "x with tensorwise"));
  CHECK(contains(summary, "blockwise: equivalent for llama3.2-1b at "));
  CHECK(contains(summary, "tensorwise: worse for llama3.2-1b at "));
}

TEST_CASE("summary section: reports a study's verdicts or that there is no evidence", "[study]") {
  const std::string nothing = "do not show whether any recipe converges";
  const auto summary = [](const std::vector<Record>& studies, const char* timed_model) {
    std::vector<Record> records = with_speeds(studies);
    for (Record& record : records)
      if (!record.study) record = with(with(record, "steps", "auto"), "model", timed_model);
    return section_of(records, "Summary");
  };
  CHECK(contains(summary({}, "llama3.2-1b"), nothing));
  const std::string judged = summary(study_records(), "llama3.2-1b");
  INFO(judged);
  CHECK_FALSE(contains(judged, nothing));
  CHECK(contains(judged, "blockwise: equivalent for llama3.2-1b at "));
  CHECK_FALSE(contains(judged, "not judged for"));
  // The timed model is not the study's, so nothing is known about it.
  const std::string other = summary(study_records(), "llama3.1-8b");
  INFO(other);
  CHECK_FALSE(contains(other, nothing));
  CHECK(contains(other, "; not judged for llama3.1-8b."));
}

TEST_CASE("summary section: a study's verdict applies to timed rows of the same model file and modifiers",
          "[study]") {
  const auto summary = [](const char* key, const char* of_study, const char* of_timed) {
    std::vector<Record> records = with_speeds(study_records());
    for (Record& record : records)
      record = with(with(record, "steps", "auto"), key, record.study ? of_study : of_timed);
    return section_of(records, "Summary");
  };
  // tensorwise is faster, but its study says that it is worse.
  CHECK(contains(summary("model", "own/mine.json", "own/mine.json"), "own/mine.json 1.25x with blockwise"));
  CHECK(contains(summary("head", "recipe", "recipe"), "llama3.2-1b 1.25x with blockwise + head recipe"));
  const std::string plain = summary("head", "recipe", "bf16");
  INFO(plain);
  CHECK_FALSE(contains(plain, "1.25x with blockwise"));
}

TEST_CASE("study section: an MoE study shows route flips", "[study][moe]") {
  std::vector<Record> records = study_records();
  for (Record& row : records) row.fidelity.clear();
  CHECK(!contains(section_of(records, "Does it train?"), "route flips"));
  const MeanInterval value{0.05, {}, {}};
  for (Record& row : records)
    if (row.study->asked && row.case_fields["recipe"] == "blockwise")
      row.fidelity = {{"none", 1, 2.5, value, {value, value, value}, {}, {}, RouteFlips{0.0325, {0.0325}}}};
  const std::string section = section_of(records, "Does it train?");
  CHECK(contains(section, "route flips"));
  CHECK(contains(section, "3.25%"));

  // Older rows of a continued study lack route flips.
  for (Record& row : records)
    if (row.study->trunk == 1 && !row.fidelity.empty()) row.fidelity[0].route_flips.reset();
  CHECK(contains(section_of(records, "Does it train?"), "3.25%"));
}

TEST_CASE("summary section: of several studies of a model the worst verdict and highest gap count",
          "[study]") {
  std::vector<Record> records = study_records();
  // Another study in which blockwise harms; its id sorts first, then last.
  for (const char* study : {"0000000000000000", "ffffffffffffffff"}) {
    std::vector<Record> both = records;
    for (Record row : records) {
      if (row.study->asked && row.case_fields["recipe"] == "blockwise")
        for (double& loss : row.training->loss) loss += 0.02;
      row.study->study = study;
      both.push_back(row);
    }
    const std::string summary = section_of(with_speeds(both), "Summary");
    INFO(study << ": " << summary);
    CHECK(!contains(summary, "x with blockwise"));
    for (Record& row : both)
      if (row.study->study == study && row.case_fields["recipe"] == "blockwise")
        for (double& loss : row.training->loss) loss -= 0.0195;
    CHECK(contains(section_of(with_speeds(both), "Summary"), ", +0.00170 nats"));
  }
}

TEST_CASE("study section: one trunk shows its difference without an interval and judges no control",
          "[study]") {
  std::vector<Record> records = study_records();
  std::erase_if(records, [](const Record& record) { return record.study->trunk > 1; });
  const std::string section = section_of(records, "Does it train?");
  INFO(section);
  // The three trunks are 1e-5 apart around +0.02000; this is the lowest.
  CHECK(contains(section, "+0.01999 [one trunk]"));
  CHECK(contains(section, "rowwise_e5m2 apart from rowwise not judged with 1 trunk (+0.00299)"));
  CHECK_FALSE(contains(section, "NOT FOUND"));
  CHECK(contains(section_of(records, "How large is the loss gap?"), "+0.01999 [one trunk]"));
  // Three trunks find the controls.
  CHECK(contains(section_of(study_records(), "Does it train?"), "rowwise_e5m2 apart from rowwise found"));
}

TEST_CASE("study section: recipes are compared at equal age", "[study]") {
  Rows rows;
  rows.add_frame();
  rows.add_forks("blockwise", 0, 1e-5, [](Record& row) {
    Rows::ask(row);
    for (double& loss : row.training->loss) loss += row.study->age == 100 ? 0.0010 : 0.0004;
  });
  rows.add_forks("tensorwise", 0, 1e-5, [](Record& row) {
    Rows::ask(row);
    for (double& loss : row.training->loss) loss += row.study->age == 100 ? 0.0003 : 0.0008;
  });
  std::vector<Record> records;
  for (const LocatedRecord* row : rows.refs()) records.push_back(row->record);
  const std::string cards = section_of(records, "Does it train?");
  const auto cells_of = [&](const std::string& recipe) {
    const auto lines = lines_with(cards, "llama3.2-1b  " + recipe);
    REQUIRE(lines.size() == 1);
    return lines.front();
  };
  INFO(cards);
  const std::size_t young = cards.find("after 100 steps [95%"), old = cards.find("after 200 steps [95%");
  CHECK((young < old && old != std::string::npos));
  CHECK(cells_of("blockwise").find("+0.00100 ") < cells_of("blockwise").find("+0.00040 "));
  CHECK(cells_of("tensorwise").find("+0.00030 ") < cells_of("tensorwise").find("+0.00080 "));
  CHECK(contains(cells_of("tensorwise"), "+0.00080 "));
  CHECK(contains(cells_of("blockwise"), "+0.00040 "));

  // With too many ages for a table only the oldest are shown.
  for (std::int64_t age = 1; age <= 50; ++age)
    for (const char* recipe : {"bf16", "blockwise"})
      Rows::ask(rows.add(recipe, StudyPart::fork, 1, age, recipe[0] == 'b' && recipe[1] == 'l' ? 0.001 : 0));
  records.clear();
  for (const LocatedRecord* row : rows.refs()) records.push_back(row->record);
  const std::string many = section_of(records, "Does it train?");
  CHECK(!contains(many, "after 40 steps "));
  CHECK(contains(many, "after 41 steps "));
  CHECK(contains(many, "after 200 steps "));
}

TEST_CASE("ladders section: outlier ladders share one limit and mark recipes beyond it without outliers",
          "[study]") {
  Rows rows;
  rows.add_frame();
  const auto climb = [&](const char* recipe, double plain, double low, double high) {
    rows.add_forks(recipe, 0.001, 1e-5, [=](Record& row) {
      Rows::ask(row);
      const auto under = [](const char* stress, double error) {
        const MeanInterval value{error, {}, {}};
        return Fidelity{stress, 1, 2.5, value, {value, value, value}, {}, {}};
      };
      row.fidelity = {under("none", plain), under("ffn:8:4", low), under("ffn:16:4", high)};
    });
  };
  climb("blockwise", 0.06, 0.07, 0.19);
  climb("tensorwise", 0.06, 0.19, 1.4);
  climb("mxfp8", 0.06, 0.3, 1.4);
  climb("nvfp4", 0.21, 0.22, 1.1);
  std::vector<Record> records;
  for (const LocatedRecord* row : rows.refs()) records.push_back(row->record);
  const std::string section = section_of(records, "How far from breaking?");
  INFO(section);
  const auto says = [&](const char* recipe, const char* words) {
    const auto lines = lines_with(section, std::string("llama3.2-1b  ") + recipe + " ");
    REQUIRE(lines.size() == 1);
    CHECK(contains(lines.front(), words));
    CHECK(!contains(lines.front(), "2^0"));
  };
  says("blockwise", "holds 2^16");
  says("tensorwise", "holds 2^8, breaks 2^16");
  says("mxfp8", "  breaks 2^8");
  says("nvfp4", "above 20% without");
}

TEST_CASE("ladders section: reports the end of BF16's own learning rate ladder", "[study]") {
  const auto section = [](std::initializer_list<std::pair<double, double>> costs) {
    Rows rows;
    rows.add_frame();
    rows.add_forks("blockwise", 0.0012, 1e-5, Rows::ask);
    for (const auto& [factor, cost] : costs)
      for (const auto& [recipe, more] : {std::pair("bf16", 0.0), {"blockwise", 0.001}})
        rows.add(recipe, StudyPart::learning_rate, 1, 200, cost + more, factor);
    std::vector<Record> records;
    for (const LocatedRecord* row : rows.refs()) records.push_back(row->record);
    return section_of(records, "How far from breaking?");
  };
  CHECK(contains(section({{3, 0.0}, {10, 0.5}}),
                 "BF16 itself is stable on llama3.2-1b at 3 times the fork's learning rate, "
                 "and not at 10."));
  CHECK(contains(section({{3, 0.0}}), "at 3 times the fork's learning rate, the highest tried."));
  const std::string none = section({{3, 0.5}});
  CHECK(contains(
      none,
      "is not stable on llama3.2-1b at 3 times the fork's learning rate, so that this ladder says nothing"));
  CHECK_FALSE(contains(none, "holds x"));
}

TEST_CASE("report: study rows appear as cards and in no speed table", "[study]") {
  const std::string cards = section_of(study_records(), "Does it train?");
  CHECK(contains(cards, "llama3.2-1b on NVIDIA H200: forks of 48 steps from 3 trunks"));
  CHECK(contains(cards, "rowwise_e5m2 apart from rowwise found"));
  CHECK(contains(cards, "+0.00120 ["));
  CHECK(section_of(study_records(), "Results") == "");
  CHECK(section_of(with_speeds(study_records()), "Results") == section_of(with_speeds({}), "Results"));
  CHECK(section_of(with_speeds({}), "Does it train?") == "");
}

TEST_CASE("contrast section: recipes are compared with the incumbent of the records or of the report",
          "[study]") {
  const std::string title = "Better than the incumbent?";
  std::vector<Record> records = study_records();
  CHECK(section_of(records, title).empty());
  for (Record& record : records)
    if (record.study->asked && record.case_fields["recipe"] == "tensorwise")
      record.study->against = "blockwise";
  const std::string text = section_of(records, title);
  INFO(text);
  CHECK(contains(text, "tensorwise: worse than blockwise for llama3.2-1b at "));
  CHECK(contains(text, "+0.01880 [+0.01880, +0.01880]"));
  CHECK_FALSE(contains(text, "blockwise: "));

  const RecordSet set = samples::set_of(study_records());
  bool found = false;
  for (const Section& section : make_report(set, {.against = "tensorwise"}).sections)
    if (section.title == title) {
      REQUIRE(section.lines.size() == 1);
      CHECK(contains(section.lines.front(), "blockwise: better than tensorwise for llama3.2-1b at "));
      found = true;
    }
  CHECK(found);
  CHECK(refusal_of([&] { make_report(set, {.against = "mxfp8"}); }) ==
        "--against: no study here judges \"mxfp8\"; they judge blockwise, tensorwise");
}

TEST_CASE("outputs section: distances of a study's recipes are shown by age", "[study]") {
  const std::string title = "How far are the outputs?";
  std::vector<Record> records = study_records();
  for (Record& record : records)
    for (Fidelity& one : record.fidelity) one.outputs.reset();
  CHECK(section_of(records, title).empty());
  for (Record& record : records)
    for (Fidelity& one : record.fidelity) {
      const double size = record.study->trunk == 1 ? 0.02 : 0.05;
      one.outputs = OutputDistance{1000, true, {size, {}, {}}, 10 * size, {size / 100, {}, {}}, size};
    }
  const std::string text = section_of(records, title);
  INFO(text);
  CHECK(contains(text, "0.04000"));  // the mean of 0.02, 0.05 and 0.05
  CHECK(contains(text, "0.5000"));   // the largest
  CHECK(contains(text, "0.0004"));
  CHECK(contains(text, "3000"));
  CHECK(contains(text, "Tokens are those of --eval-data."));
}
