// Evidence of the law: taken from studies and runs, written as CSV and read back.
#include "tools/law/gap_evidence.h"

#include <filesystem>
#include <functional>

#include "kernels/base/errors.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"
#include "results/record/record_file.h"
#include "tools/analysis/study_samples.h"

using namespace precbench;
using study_samples::Rows;

TEST_CASE("gap_evidence_of: one gap per recipe and age, with its error over the trunks", "[law]") {
  Rows rows;
  rows.add_frame();
  rows.add_trunks();
  rows.add_forks("mxfp8", 0.001, 1e-5, Rows::ask);
  const auto evidence = gap_evidence_of(study_cards(rows.refs()), "h200/test");
  REQUIRE(evidence.size() == 2);
  const GapEvidence& one = evidence.back();
  CHECK(one.recipe == "mxfp8");
  CHECK(one.records == "h200/test");
  CHECK(one.parameters == Approx(1.236e9).epsilon(1e-3));
  CHECK(one.tokens_per_parameter == Approx(200 * 8 * 2048 / one.parameters));
  CHECK(one.training == TrainingStart::continued);
  CHECK(one.fork_steps == study_samples::kSteps);
  CHECK(one.runs == 3);
  CHECK(one.gap == Approx(0.001).margin(1e-6));
  CHECK(one.gap_error == Approx(1e-5 / std::sqrt(3.0)).epsilon(0.01));
  CHECK(one.bf16_loss == Approx(4.2).epsilon(0.01));
}

TEST_CASE("gap_evidence_of: leaves out small models, adapters and single trunks", "[law]") {
  const auto count = [](int trunks, const std::function<void(Record&)>& change) {
    Rows rows;
    rows.add_frame();
    rows.add_trunks();
    rows.add_forks("mxfp8", 0.001, 1e-5, [&](Record& row) { Rows::ask(row), change(row); });
    RecordRefs refs = rows.refs();
    std::erase_if(refs, [&](const LocatedRecord* one) { return one->record.study->trunk > trunks; });
    return gap_evidence_of(study_cards(refs), "h200/test").size();
  };
  const auto nothing = [](Record&) {};
  CHECK(count(3, nothing) == 2);
  CHECK(count(2, nothing) == 2);
  CHECK(count(1, nothing) == 0);
  CHECK(count(3, [](Record& row) { row.case_fields["lora_rank"] = 8; }) == 0);
  CHECK(count(3, [](Record& row) { row.params = ParameterCounts{20'000'000, 11'000'000}; }) == 2);
  CHECK(count(3, [](Record& row) { row.params = ParameterCounts{20'000'000, 9'000'000}; }) == 0);
}

TEST_CASE("gap_evidence_of_long_runs: pairs runs of equal seed by their held-out loss", "[law]") {
  std::vector<Record> records;
  for (int seed = 1; seed <= 3; ++seed)
    for (const auto& [recipe, gap] : {std::pair("bf16", 0.0), std::pair("mxfp8", 0.01)}) {
      Record r = samples::gpu_record(recipe, 10, 0, seed);
      r.training->tokens_per_step = 1 << 20;
      Evaluation last;
      last.step = std::ssize(r.training->loss), last.tokens = 4096;
      last.loss = 3 + 0.1 * seed + gap + (seed == 2 ? gap / 10 : 0),
      last.bf16_loss = 3 + 0.1 * seed + gap / 2;
      // Read in mxfp8, BF16's weights lose 0.03 nats and the recipe's weights 0.01.
      last.readings = std::vector<Reading>{{"bf16", *last.bf16_loss, {}},
                                           {"mxfp8", *last.bf16_loss + (gap > 0 ? 0.01 : 0.03), {}}};
      r.training->evaluations = {last};
      records.push_back(r);
    }
  const RecordSet set = samples::set_of(records);
  const auto evidence = gap_evidence_of_long_runs(all_of(set), "h200/long");
  REQUIRE(evidence.size() == 1);
  const GapEvidence& one = evidence.front();
  CHECK(one.training == TrainingStart::from_scratch);
  CHECK(one.recipe == "mxfp8");
  CHECK(one.runs == 3);
  CHECK(one.fork_steps == 0);
  CHECK(one.gap == Approx(0.01 + 0.001 / 3));
  CHECK(one.gap_error > 0);
  REQUIRE(one.in_bf16);
  CHECK(one.in_bf16->mean == Approx(0.005));
  CHECK(one.in_bf16->error == Approx(0).margin(1e-9));
  REQUIRE(one.in_recipe);
  CHECK(one.in_recipe->mean == Approx(0.005 - 0.02));
  // Without BF16's weights read in the recipe there is no gap served in it.
  for (Record& r : records)
    if (case_text(r, "recipe") == "bf16") r.training->evaluations.front().readings.reset();
  const RecordSet unread = samples::set_of(records);
  CHECK_FALSE(gap_evidence_of_long_runs(all_of(unread), "h200/long").front().in_recipe);
}

TEST_CASE("evidence_csv: is read back as it was written", "[law]") {
  GapEvidence full;
  full.records = "h200/a", full.parameters = 1.5e9, full.tokens_per_parameter = 13224.5,
  full.recipe = "mxfp8";
  full.fork_steps = 100, full.bf16_loss = 2.25, full.gap = 0.004, full.gap_error = 0.00025, full.runs = 3;
  full.held_out = 0.0041, full.in_bf16 = MeasuredGap{-0.0001, 0.00005},
  full.in_recipe = MeasuredGap{-0.002, 0.0003}, full.at_switch = 0.006;
  GapEvidence bare = full;
  bare.training = TrainingStart::from_scratch, bare.fork_steps = 0;
  bare.held_out = bare.at_switch = std::nullopt, bare.in_bf16 = bare.in_recipe = std::nullopt;
  const std::string csv = evidence_csv({full, bare});
  const auto read = read_evidence(csv);
  REQUIRE(read.size() == 2);
  CHECK(evidence_csv(read) == csv);
  CHECK(read[0].in_bf16->mean == -0.0001);
  CHECK(read[0].in_recipe->error == 0.0003);
  CHECK(read[1].training == TrainingStart::from_scratch);
  CHECK_FALSE(read[1].at_switch);
}

TEST_CASE("read_evidence: a damaged line is refused with its number", "[law]") {
  const std::string good = evidence_csv({[] {
    GapEvidence one;
    one.records = "a", one.recipe = "mxfp8", one.parameters = 1e8, one.tokens_per_parameter = 3,
    one.bf16_loss = 2;
    return one;
  }()});
  CHECK(read_evidence(good).size() == 1);
  const std::string header = good.substr(0, good.find('\n') + 1), row = good.substr(header.size());

  CHECK_THROWS_WITH(read_evidence("records\n"), ContainsText("line 1"));
  CHECK_THROWS_WITH(read_evidence(header + row + "a,b\n"), ContainsText("line 3") && ContainsText("cells"));
  for (const auto& [from, to] :
       {std::pair("continued", "somehow"), std::pair("1e+08", "many"), std::pair("1e+08", "-1")}) {
    std::string bad = row;
    bad.replace(bad.find(from), std::string(from).size(), to);
    CHECK_THROWS_WITH(read_evidence(header + bad), ContainsText("line 2"));
  }
}

TEST_CASE("evidence_in: a folder without records is refused", "[law]") {
  CHECK_THROWS_WITH(evidence_in("/no/such/folder"), ContainsText("--evidence: /no/such/folder is not a folder"));
  const TempDirectory empty;
  CHECK_THROWS_WITH(evidence_in(empty.path().string()), ContainsText("--evidence: no record file"));
}

TEST_CASE("evidence_in: packed records are named and counted like plain ones", "[law]") {
  const TempDirectory plain, packed;
  const std::string records = PRECBENCH_SOURCE_DIR "/results/h200/deployment-gemma3.jsonl.xz";
  const RecordSet set = read_records({records});
  for (const LocatedRecord& located : set.records) append_record(plain / "gemma.jsonl", located.record);
  std::filesystem::create_directories(packed / "h200");
  std::filesystem::copy_file(records, packed / "h200/gemma.jsonl.xz");
  const std::string csv = evidence_csv(evidence_in(packed.path().string()));
  std::string expected = evidence_csv(evidence_in(plain.path().string()));
  for (std::size_t at = 0; (at = expected.find("\ngemma,", at)) != std::string::npos;)
    expected.insert(at + 1, "h200/");
  CHECK(csv == expected);
  CHECK(csv.find("h200/gemma,") != std::string::npos);
}
