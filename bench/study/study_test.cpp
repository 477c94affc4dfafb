// A study's settings, the cases that it consists of, and its run with real cases of a small model in child
// processes, which are this test binary.
#include "bench/study/study.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "bench/measure/session.h"
#include "bench/process/case_process_testing.h"
#include "bench/process/sweep_status.h"
#include "bench/step/checkpoint.h"
#include "bench/study/study_plan.h"
#include "bench/study/study_settings.h"
#include "bench/study/study_time.h"
#include "kernels/gpu/device_info.h"
#include "tools/testing/catch.h"
#include "tools/testing/processes.h"
#include "tools/testing/text.h"

using namespace precbench;

namespace {

constexpr const char* kRealCase = "one case of a study";

StudySettings read(const std::string& text) {
  const TempDirectory directory;
  StudySettings settings = default_study({});
  read_study_file(directory.write("study.toml", text), settings);
  return settings;
}

std::string refusal(const std::string& text) {
  const std::string message = refusal_of([&] { read(text); });
  const std::size_t place = message.find("study.toml");
  return place == std::string::npos ? message : message.substr(place + std::string("study.toml").size());
}

/// Plans a study of tiny with these recipes on the CPU, without any checkpoints.
StudyPlan plan_of(StudySettings& settings, const std::string& recipes) {
  settings.work["recipe"] = {recipes};
  settings.work["device"] = {"cpu"};
  return StudyPlan(settings, "tiny", "out");
}

/// Returns the number of cases by part.
std::map<StudyPart, int> counts(const std::vector<StudyCase>& cases) {
  std::map<StudyPart, int> counts;
  for (const StudyCase& one : cases) ++counts[one.place.part];
  return counts;
}

}  // namespace

TEST_CASE("one case of a study", "[.]") {
  be_child(kRealCase, [](const Case& c, const NodeShare& share, StepBoard& board) {
    return run_case(resolve(c), share, &board);
  });
}

TEST_CASE("read_study_file: a file changes its keys and leaves the rest", "[study]") {
  const StudySettings settings = read(
      "[work]\nmodel = \"15m\"\nseq = 64\n[trunk]\nages = [30, 65, 90]\nlr = 2e-3\n[fork]\nsteps = 40\n"
      "[ladder]\noutlier_ffn = []\nbits = 1\n[control]\nbreak = []\napart = [\"mxfp8_floor:mxfp8\"]\n"
      "[verdict]\nmargin = 0.01\n");
  const StudySettings defaults = default_study({});
  CHECK(settings.work.at("seq").front() == "64");
  CHECK(settings.work.at("batch") == defaults.work.at("batch"));
  CHECK(settings.ages == std::vector<std::int64_t>{30, 65, 90});
  CHECK(settings.trunk.at("lr").front() == "2e-3");
  CHECK(settings.fork.at("lr") == defaults.fork.at("lr"));
  CHECK(settings.fork_steps == 40);
  CHECK(settings.outlier_ffn.empty());
  CHECK(settings.outlier_norm == defaults.outlier_norm);
  CHECK(settings.apart.size() == 1);
  CHECK(settings.breaks.empty());
  CHECK(settings.margin == 0.01);
}

TEST_CASE("read_study_file: invalid settings are refused with their line", "[study]") {
  CHECK(refusal("[trunks]\n").starts_with(":1: unknown section [trunks]"));
  CHECK(refusal("seq = 3\n").starts_with(":1: seq belongs in a section"));
  CHECK(refusal("[fork]\nstep = 3\n") == ":2: unknown key step in [fork]; did you mean steps?");
  CHECK(refusal("[work]\nsteps = 3\n").starts_with(":2: --steps: not available in a study"));
  CHECK(refusal("[work]\nseed = 3\n").starts_with(":2: --seed: not available in a study"));
  CHECK(refusal("[work]\nlr = 1e-3\n").starts_with(":2: --lr: not available in a study"));
  CHECK(refusal("[fork]\nsteps = 3\n") == ":2: steps: 3 is not in [12, 1000000000]");
  CHECK(refusal("[trunk]\nages = []\n").starts_with(":2: ages: no age"));
  CHECK(refusal("[verdict]\nmargin = much\n") == ":2: margin: \"much\" is not a number");
  CHECK(refusal("[control]\napart = [\"mxfp8\"]\n") == ":2: apart: \"mxfp8\" is not CONTROL:RECIPE");
  CHECK(refusal("[control]\napart = [\"rowwise_e5m2:rowise\"]\n") ==
        ":2: apart: unknown recipe \"rowise\"; did you mean rowwise?");
  CHECK(refusal("\n[control]\nbreak = [\"rowwise_e4m1\", \"mxpf8\"]\n") ==
        ":3: break: unknown recipe \"mxpf8\"; did you mean mxfp8?");
  CHECK(refusal("[work]\nbatch = [1, 2]\n") == ":2: --batch: a study takes one value");
}

TEST_CASE("StudyPlan: trunks and for each state forks of every recipe and BF16 and the controls",
          "[study]") {
  StudySettings settings = default_study({});
  settings.trunks = 3, settings.ages = {10, 20}, settings.seeds = 2;
  settings.learning_rate = {1, 3, 10}, settings.bits = 2, settings.exponent_bits = 2,
  settings.ladder_trunks = 1;
  settings.batch = {1, std::stoll(settings.work.at("batch").front())};  // includes the forks' own batch
  const StudyPlan plan = plan_of(settings, "blockwise,mxfp8_floor");
  REQUIRE(plan.trunks().size() == 3);
  const std::vector<Plan> trunks = resolve(plan.trunks());
  for (const Plan& trunk : trunks) {
    CHECK((trunk.fields.recipe == "bf16" && trunk.fields.steps == 20));
    CHECK(checkpoint_steps(trunk.fields) == settings.ages);  // and no other state is kept on disk
    CHECK(trunk.fields.checkpoint_keep == "all");
  }
  const std::vector<StudyCase> forks = plan.forks(trunks);
  auto parts = counts(forks);
  // bf16, bf16 perturbed, blockwise, mxfp8_floor, and the controls rowwise_e5m2, rowwise, mxfp8, rowwise_e4m1
  CHECK(parts[StudyPart::fork] == 3 * 2 * 2 * 8);
  CHECK(parts[StudyPart::learning_rate] == 2 * 3);
  CHECK(parts[StudyPart::batch] == 3);
  CHECK(parts[StudyPart::bits] == 2 * 2);
  CHECK(parts[StudyPart::exponent_bits] == 2);  // from E4M3 to E3M3; there is no E2M3

  std::set<std::int64_t> seeds, trunk_seeds;
  for (const Plan& trunk : trunks) trunk_seeds.insert(trunk.fields.seed);
  std::map<std::string, std::set<std::string>> by_data;  // recipes
  for (const auto& [fields, place] : forks) {
    CHECK(!trunk_seeds.contains(fields.seed));  // forks read the text in another order than any trunk
    CHECK(fields.fork_from == checkpoint_at(trunks[static_cast<std::size_t>(place.trunk - 1)], place.age));
    if (place.part != StudyPart::fork) continue;
    seeds.insert(fields.seed);
    by_data[fields.fork_from + std::to_string(fields.seed)].insert(fields.recipe + fields.perturb);
  }
  CHECK(seeds.size() == 3 * 2);
  CHECK(by_data.size() == 3 * 2 * 2);
  for (const auto& [data, recipes] : by_data) CHECK(recipes.size() == 8);
}

TEST_CASE("StudyPlan: sensitivity is measured at the oldest state for each requested recipe",
          "[study][sensitivity]") {
  StudySettings settings = default_study({});
  settings.trunks = 3, settings.ages = {10, 20}, settings.ladder_trunks = 2;
  const auto cases_of = [&] {
    const StudyPlan plan = plan_of(settings, "blockwise,mxfp8_floor,coat");
    return plan.forks(resolve(plan.trunks()));
  };
  const std::vector<StudyCase> without = cases_of();
  CHECK(counts(without)[StudyPart::sensitivity] == 0);
  set_sensitivity(settings, {"gemms", "blocks"});
  settings.sensitivity_batches = 3;
  const std::vector<StudyCase> with = cases_of();
  // Two recipes on two trunks; coat's moments quantize no GEMM.
  CHECK(counts(with)[StudyPart::sensitivity] == 2 * 2);
  CHECK(with.size() == without.size() + 4);
  settings.sensitivity_only = true;
  const std::vector<StudyCase> only = cases_of();
  REQUIRE(only.size() == 4);
  for (const auto& [fields, place] : only) {
    CHECK((place.part == StudyPart::sensitivity && place.asked && place.age == 20 && place.trunk <= 2));
    CHECK((fields.sensitivity == "gemms,blocks" && fields.fidelity_batches == 3 && fields.steps == 1));
    CHECK(cells_of(fields) == 2 + 6 + 8);
    CHECK(contains(fields.fork_from, "step-000020"));
  }
}

TEST_CASE("read_study_file: sensitivity cells are read and invalid ones refused",
          "[study][sensitivity]") {
  CHECK(default_study({}).sensitivity.empty());
  CHECK(read("[sensitivity]\ncells = [\"gemms\", \"best\"]\nbatches = 5\n").sensitivity == "gemms,best");
  CHECK(read("[sensitivity]\ncells = []\n").sensitivity.empty());
  CHECK(contains(refusal("[sensitivity]\ncells = [\"gems\"]\n"),
                 ":2: cells: --sensitivity: \"gems\" is none of"));
  CHECK(refusal("[sensitivity]\nbatches = 0\n") == ":2: batches: 0 is not in [1, 10000]");
  CHECK(refusal("[work]\nsensitivity = \"gemms\"\n").starts_with(":2: --sensitivity: not available in a study"));
  StudyCommand command;
  command.axes = {{"recipe", {"rowwise"}}, {"device", {"cpu"}}};
  command.sensitivity_only = true;
  CHECK(refusal_of([&] { study(command); }) == "--sensitivity-only: needs cells: add --sensitivity standard");
  command.axes["sensitivity"] = {"block"};
  CHECK(contains(refusal_of([&] { study(command); }),
                 "--sensitivity: \"block\" is none of standard, all, gemms"));
}

TEST_CASE("study: --sensitivity-only measures cells and a full study continues from it",
          "[study][sensitivity]") {
  const TempDirectory directory;
  const std::string model = directory.write(
      "small.json", R"({"layers":2,"width":32,"ffn":64,"heads":2,"kv_heads":2,"vocab":256,"tied":true})");
  const std::string config = directory.write(
      "study.toml",
      "[work]\nseq = 32\nbatch = 1\n[trunk]\ntrunks = 2\nages = [2]\n[fork]\nsteps = 12\n[fidelity]\nbatches = 1\n"
      "[ladder]\noutlier_ffn = []\noutlier_norm = []\noutlier_vo = []\nlearning_rate = []\nbits = 0\n"
      "[control]\napart = []\nbreak = []\n");
  const std::string out = directory / "out";
  const auto run = [&](const std::string& more) {
    const Answer answer = output_of(fmt::format(PRECBENCH_BINARY_DIR
                                                "/precbench study --model {} --recipe rowwise --device cpu "
                                                "--config {} --out {} --sensitivity standard {}",
                                                model, config, out, more));
    INFO(answer.text);
    REQUIRE(answer.status == kSweepDone);
    return answer.text;
  };
  const auto rows = [&] {
    std::map<StudyPart, int> parts;
    for (const LocatedRecord& located : read_records({out + "/records.jsonl"}).records) {
      CHECK(located.record.status == Status::ok);
      ++parts[located.record.study->part];
      CHECK(located.record.sensitivity.has_value() == (located.record.study->part == StudyPart::sensitivity));
    }
    return parts;
  };
  const std::string dry = run("--sensitivity-only --dry-run");
  CHECK(contains(dry, "sensitivity of rowwise on " + model + ", trunk 1 at age 2: at most "));
  const std::string only = run("--sensitivity-only");
  CHECK(contains(only, "Where the loss comes from: rowwise on small (trunk 1 at age 2)"));
  CHECK(contains(only, "What buys the loss back: rowwise on small (trunk 1 at age 2)"));
  CHECK(rows() == std::map<StudyPart, int>{{StudyPart::trunk, 1}, {StudyPart::sensitivity, 1}});
  run("");
  CHECK(rows() == std::map<StudyPart, int>{
                      {StudyPart::trunk, 2}, {StudyPart::fork, 2 * 3}, {StudyPart::sensitivity, 1}});
}

TEST_CASE("StudyPlan: a recipe that only changes optimizer state is forked without a gradient probe", "[study]") {
  StudySettings settings = default_study({});
  const StudyPlan plan = plan_of(settings, "coat,mxfp8");
  int coats = 0;
  for (const auto& [fields, place] : plan.forks(resolve(plan.trunks())))
    if (place.part == StudyPart::fork && fields.recipe == "coat") {
      CHECK((place.asked && fields.fidelity_batches == 0));
      ++coats;
    }
  CHECK(coats == settings.trunks * static_cast<std::int64_t>(settings.ages.size()) * settings.seeds);
  CHECK(refusal_of([&] { plan_of(settings, "bf16"); }).starts_with("--recipe: a study compares recipes"));
}

TEST_CASE("study_id: another model or text or margin gives another study", "[study]") {
  const TempDirectory directory;
  const auto id_of = [&](int width, const std::string& text, double margin) {
    const std::string model = directory.write(
        "model.json",
        fmt::format(R"({{"layers":1,"width":{},"ffn":64,"heads":2,"kv_heads":2,"vocab":256,"tied":true}})",
                    width));
    StudySettings settings = default_study({});
    settings.work["data"] = {text}, settings.work["recipe"] = {"rowwise"}, settings.work["device"] = {"cpu"};
    settings.margin = margin;
    return StudyPlan(settings, model, "out").trunks().front().place.study;
  };
  const std::string words = directory.write("words.txt", std::string(4096, 'a')),
                    copy = directory.write("copy.txt", std::string(4096, 'a')),
                    others = directory.write("others.txt", std::string(4096, 'b'));
  const std::string first = id_of(32, words, 0.0025);
  CHECK(id_of(32, copy, 0.0025) == first);
  CHECK(id_of(64, words, 0.0025) != first);
  CHECK(id_of(32, others, 0.0025) != first);
  CHECK(id_of(32, words, 0.005) != first);
}

TEST_CASE("StudyPlan: ladders of bits step each format to the next narrower one", "[study]") {
  const TempDirectory directory;
  nlohmann::json row = recipe_to_json(find_recipe("tensorwise"));
  row["name"] = "wide";
  row["fprop"]["a"]["format"] = "e5m3";
  row["fprop"]["b"]["format"] = "e3m4";
  StudySettings settings = default_study({});
  settings.bits = 2, settings.exponent_bits = 2;
  settings.work["recipe"] = {directory.write("wide.json", row.dump())}, settings.work["device"] = {"cpu"};
  const StudyPlan plan(settings, "tiny", directory / "out");
  plan.write_recipes();
  const auto formats = [&](const std::string& name) {
    const Recipe recipe = find_recipe(directory / ("out/recipes/" + name + ".json"));
    return std::string(element_name(recipe.fprop.a)) + " " + element_name(recipe.fprop.b) + " " +
           element_name(recipe.dgrad.a) + " " + element_name(recipe.dgrad.b);
  };
  CHECK(formats("wide_minus1") == "e5m2 e3m3 e5m1 e4m2");
  CHECK(formats("wide_minus2") == "e5m1 e3m3 e5m1 e4m1");
  CHECK(formats("wide_minus1_exponent") == "e4m3 e3m4 e4m2 e3m3");
  CHECK(formats("wide_minus2_exponent") == "e3m3 e3m4 e4m2 e3m3");
  // A recipe that does not fit on the disk is an error, not a shorter file.
  const std::string last = directory / "out/recipes/wide_minus2_exponent.json";
  std::filesystem::remove(last);
  std::filesystem::create_symlink("/dev/full", last);
  CHECK(refusal_of([&] { plan.write_recipes(); }) ==
        "--out: cannot write " + last + ": No space left on device");
}

TEST_CASE("StudyPlan: FP8-Flow has no rungs of bits", "[study]") {
  StudySettings settings = default_study({});
  settings.bits = 2, settings.exponent_bits = 2;
  const TempDirectory directory;
  nlohmann::json flow = recipe_to_json(find_recipe("blockwise_pow2"));
  flow["name"] = "transposed", flow["flow"] = true;
  const auto rungs = [&](const std::string& recipe) {
    const StudyPlan plan = plan_of(settings, recipe);
    auto parts = counts(plan.forks(resolve(plan.trunks())));
    return std::pair(parts[StudyPart::bits], parts[StudyPart::exponent_bits]);
  };
  CHECK(rungs(directory.write("flow.json", flow.dump())) == std::pair(0, 0));
  CHECK(rungs("blockwise_pow2") == std::pair(2, 1));
}

TEST_CASE("study: impossible forks are refused before the trunks run", "[study]") {
  const TempDirectory directory;
  StudyCommand command;
  command.axes = {{"model", {"tiny-moe"}}, {"recipe", {"rowwise"}}, {"device", {"cpu"}}};
  command.config = directory.write("study.toml", "[ladder]\nchannels = 4000\n");
  command.out = directory / "out";
  command.options.quiet = true;
  command.options.child = {"/bin/false"};  // fails if a step is timed before
  for (const bool dry_run : {true, false}) {
    command.dry_run = dry_run;
    CHECK(refusal_of([&] { study(command); }) ==
          command.config + ":2: channels: 4000 channels requested, ffn of a block has 128");
    CHECK(!std::filesystem::exists(*command.out));
  }
}

TEST_CASE("StudyPlan: channels of unused ladders are not limited", "[study]") {
  StudySettings settings = default_study({});
  settings.channels = 4000, settings.fidelity_batches = 0;
  CHECK(plan_of(settings, "rowwise").trunks().size() == 5);
}

TEST_CASE("measure_pace: returns nothing if steps take too long and throws if they fail", "[study]") {
  Case c;
  c.device = "cpu";
  CHECK(!measure_pace({"/bin/sleep", "3600"}, c, "rowwise", 0.1));
  CHECK(contains(refusal_of([&] { measure_pace({"/bin/false"}, c, "rowwise", 3600); }),
                 "tiny bf16 does not run here"));
}

TEST_CASE("study: a dry run checks its folder and creates none", "[study]") {
  const TempDirectory directory;
  const std::string file = directory.write("file", "");
  StudyCommand command;
  command.axes = {{"recipe", {"rowwise"}}, {"device", {"cpu"}}};
  command.options.child = {"/bin/false"};
  command.dry_run = true;
  command.out = file;
  CHECK(refusal_of([&] { study(command); }) == "--out: cannot make " + file + ": Not a directory");
  command.out = directory / "new/out";
  CHECK(contains(refusal_of([&] { study(command); }), "does not run here"));
  CHECK(!std::filesystem::exists(directory / "new"));
}

TEST_CASE("StudyPlan: a control that is also requested is one row with both roles", "[study]") {
  StudySettings settings = default_study({});
  const StudyPlan plan = plan_of(settings, "mxfp8_floor");
  const auto forks = plan.forks(resolve(plan.trunks()));
  const auto floor = std::find_if(forks.begin(), forks.end(), [](const StudyCase& one) {
    return one.fields.recipe == "mxfp8_floor" && one.place.part == StudyPart::fork;
  });
  REQUIRE(floor != forks.end());
  CHECK(floor->place.asked);
  CHECK(floor->place.apart_from == "mxfp8");
  CHECK_THROWS_AS(plan_of(settings, "bf16"), InvalidInput);
}

TEST_CASE("study: fewer trunks than a verdict needs are a warning", "[study]") {
  const TempDirectory directory;
  const std::string text = directory.write("text.txt", std::string(20000, 'x')),
                    model = directory.write(
                        "small.json",
                        R"({"layers":1,"width":32,"ffn":64,"heads":2,"kv_heads":2,"vocab":256})");
  const auto said = [&](int trunks) {
    const Answer answer = output_of(fmt::format(
        PRECBENCH_BINARY_DIR
        "/precbench study --model {} --recipe rowwise --device cpu --data {} --out {} --config {} --dry-run",
        model, text, directory / "out",
        directory.write("study.toml",
                        fmt::format("[work]\nseq = 32\nbatch = 1\n[trunk]\ntrunks = {}\nages = [2]\n"
                                    "[fork]\nsteps = 12\n",
                                    trunks))));
    INFO(answer.text);
    CHECK(answer.status == kSweepDone);
    return answer.text;
  };
  const std::string why = ": every verdict will be inconclusive; a verdict needs at least 3\n";
  CHECK(contains(said(1), "precbench: 1 trunk" + why));
  CHECK(contains(said(2), "precbench: 2 trunks" + why));
  CHECK(!contains(said(3), "inconclusive"));
}

TEST_CASE("default_study: with --init-from trunks re-warm at a low rate until the loss is steady", "[study][init]") {
  for (const bool gpu : {false, true}) {
    const StudySettings plain = default_study({.on_gpu = gpu}),
                        trained = default_study({.on_gpu = gpu, .trained = true});
    CHECK_FALSE(plain.steady);
    CHECK(trained.steady);
    for (const Axes* part : {&trained.trunk, &trained.fork}) {
      CHECK(part->at("lr").front() == "1e-4");
      CHECK(part->at("warmup").front() == "20");
    }
    CHECK(trained.fork_steps == 150);
    CHECK(trained.trunks >= 3);
    CHECK(trained.work == plain.work);
    const std::vector<std::int64_t> ages = trained.kept_ages();
    CHECK(ages.size() >= 3);
    for (std::size_t i = 1; i < ages.size(); ++i) CHECK(ages[i] == 2 * ages[i - 1]);
  }
}

TEST_CASE("kept_ages: with steady ages they are at least two doublings of the first",
          "[study][init]") {
  CHECK(read("[trunk]\nages = \"steady\"\n[rewarm]\nfirst = 20\nmost = 170\n").kept_ages() ==
        std::vector<std::int64_t>{20, 40, 80, 160});
  CHECK(read("[trunk]\nages = [10, 20]\n[rewarm]\nfirst = 20\n").kept_ages() == std::vector<std::int64_t>{10, 20});
  CHECK(refusal_of([] { read("[trunk]\nages = \"steady\"\n[rewarm]\nfirst = 20\nmost = 39\n").kept_ages(); })
            .starts_with("[rewarm]: first = 20 and most = 39 leave no age to compare with"));
  CHECK(refusal("[trunk]\nages = \"steadily\"\n") == ":2: ages: \"steadily\" is not a whole number");
  CHECK(refusal("[trunk]\ntrained_tokens = \"lots\"\n") ==
        ":2: trained_tokens: \"lots\" is not a number of tokens, such as 300B, 2T or 1.5e9");
}

TEST_CASE("study: a study that is interrupted and started again ends with the same rows and cards", "[study]") {
  const TempDirectory directory;
  const std::string model = directory.write(
      "small.json", R"({"layers":1,"width":32,"ffn":64,"heads":2,"kv_heads":2,"vocab":256,"tied":true})");
  const std::string config = directory.write(
      "study.toml",
      "[work]\nseq = 32\nbatch = 1\n[trunk]\ntrunks = 2\nages = [2, 4]\n[fork]\nsteps = 12\n[fidelity]\nbatches = 1\n"
      "[ladder]\noutlier_ffn = [8]\noutlier_norm = []\noutlier_vo = [8]\nlearning_rate = [3]\nbits = 1\nexponent_bits = 1\nchannels = 1\n"
      "[control]\napart = [\"rowwise_e5m2:rowwise\"]\nbreak = []\n");
  const std::string out = directory / "whole", records = out + "/records.jsonl", cards = out + "/cards.json";
  const auto run = [&] {
    const Answer answer = output_of(fmt::format(PRECBENCH_BINARY_DIR
                                                "/precbench study --model {} --recipe rowwise --device cpu "
                                                "--config {} --out {}",
                                                model, config, out));
    INFO(answer.text);
    REQUIRE(answer.status == kSweepDone);
  };
  run();
  const auto rows_in = [&] {
    std::map<std::string, nlohmann::ordered_json> rows;
    for (const LocatedRecord& located : read_records({records}).records) {
      const Record& r = located.record;
      REQUIRE(r.study);
      CHECK(r.status == Status::ok);
      if (!r.training) continue;
      const nlohmann::ordered_json json = r;
      rows[r.id] = {{"loss", json.at("training").at("loss")},
                    {"fidelity", json.at("fidelity")},
                    {"study", json.at("study")}};
    }
    return rows;
  };
  const auto whole = rows_in();
  // 2 trunks; at 2 ages bf16, perturbed, rowwise, rowwise_e5m2; 2 learning rates, 1 rung of mantissas, 1 of
  // exponents
  CHECK(whole.size() == 2 + 2 * 2 * 4 + 2 + 1 + 1);
  const std::string text = file_text(records), whole_cards = file_text(cards);
  REQUIRE(contains(whole_cards, "\"rowwise\""));

  // The same rows as a kill leaves them, with the cards of that time.
  const auto end_of_line = [&](std::size_t lines) {
    std::size_t end = 0;
    while (lines-- > 0) end = text.find('\n', end) + 1;
    return end;
  };
  const std::size_t last_rung = text.rfind('\n', text.rfind("\"part\":\"learning_rate\"")) + 1;
  REQUIRE(last_rung > end_of_line(4));
  const std::map<std::string, std::size_t> cuts = {{"after the trunks", end_of_line(2)},
                                                   {"within the forks", end_of_line(6)},
                                                   {"within a ladder", last_rung},
                                                   {"within a line", end_of_line(9) + 300}};
  for (const auto& [where, cut] : cuts) {
    INFO(where);
    std::filesystem::resize_file(directory.write("whole/records.jsonl", text), cut);
    std::filesystem::remove(cards);
    run();
    CHECK(rows_in() == whole);
    CHECK(file_text(cards) == whole_cards);
  }

  // Starts afresh; the old rows are moved aside.
  std::filesystem::remove(records + ".1");
  const Answer fresh =
      output_of(fmt::format(PRECBENCH_BINARY_DIR
                            "/precbench study --model {} --recipe rowwise --device cpu --config {} "
                            "--out {} --fresh",
                            model, config, out));
  INFO(fresh.text);
  CHECK(fresh.status == kSweepDone);
  CHECK(!contains(fresh.text, "finished already"));
  CHECK(rows_in() == whole);
  CHECK(std::filesystem::exists(records + ".1"));
  CHECK(!std::filesystem::exists(records + ".2"));

  // Without the second trunk's states, which its finished row does not replace.
  std::filesystem::resize_file(directory.write("whole/records.jsonl", text), text.size() / 2);
  for (const auto& entry : std::filesystem::directory_iterator(out + "/checkpoints"))
    if (!contains(text.substr(0, text.find('\n')), entry.path().filename().string()))
      std::filesystem::remove_all(entry.path());
  run();
  CHECK(rows_in() == whole);
  CHECK(file_text(cards) == whole_cards);
}

TEST_CASE("study: steady ages and trained tokens need weights that were trained before", "[study][init]") {
  StudySettings settings = default_study({});
  settings.steady = true;
  CHECK(contains(refusal_of([&] { plan_of(settings, "rowwise"); }), "add --init-from, or give the ages"));
  const auto refused = [](const std::string& flags) {
    const Answer answer = output_of(PRECBENCH_BINARY_DIR "/precbench study --recipe rowwise --device cpu " + flags);
    CHECK(answer.status == 2);
    return answer.text;
  };
  CHECK(refused("--trained-tokens 2T") ==
        "precbench: --trained-tokens: needs pretrained weights: add --init-from\n");
  CHECK(refused("--init-from w.safetensors --trained-tokens 2X") ==
        "precbench: --trained-tokens: \"2X\" is not a number of tokens, such as 300B, 2T or 1.5e9\n");
}

TEST_CASE("StudyPlan: forks begin at the chosen age and record that it is steady", "[study][init]") {
  StudySettings settings = default_study({.trained = true});
  settings.work["init_from"] = {"w.safetensors"};
  settings.trained_tokens = 2'000'000'000'000;
  const TempDirectory directory;
  directory.write("w.safetensors", "");
  settings.work["init_from"] = {directory / "w.safetensors"};
  const StudyPlan plan = plan_of(settings, "rowwise");
  const std::vector<std::int64_t> kept = settings.kept_ages();
  for (const StudyCase& trunk : plan.trunks()) {
    CHECK(trunk.fields.steps == kept.back());
    CHECK(checkpoint_steps(trunk.fields) == kept);
    CHECK((trunk.place.trained_tokens == 2'000'000'000'000 && !trunk.place.steady));
  }
  const std::vector<Plan> trunks = resolve(plan.trunks());
  const auto planned = plan.forks(trunks), chosen = plan.forks(trunks, {{kept[1]}, true});
  CHECK(planned.size() == chosen.size());
  for (const StudyCase& fork : chosen) {
    CHECK(fork.place.age == kept[1]);
    CHECK(fork.place.steady == true);
    CHECK(fork.fields.init_from.empty());
    CHECK(fork.fields.fork_from == checkpoint_at(trunks[static_cast<std::size_t>(fork.place.trunk - 1)], kept[1]));
  }
}

TEST_CASE("study: a CUDA dry run without a GPU prints the plan without a time", "[study][init]") {
  if (find_gpus().count > 0) return;  // with a GPU the steps would be timed
  const TempDirectory directory;
  const std::string text = directory.write("text.txt", std::string(2'000'000, 'x'));
  const Answer answer = output_of(fmt::format(
      PRECBENCH_BINARY_DIR "/precbench study --dry-run --device cuda --model tiny --recipe rowwise --data {} --out {}",
      text, directory / "out"));
  INFO(answer.text);
  CHECK(answer.status == kSweepDone);
  CHECK(contains(answer.text, "the plan has no estimate of the study's time"));
  CHECK(contains(answer.text, "study of tiny on cuda: 3 trunks, forks of 150 steps after 200, 400;"));
  CHECK(contains(answer.text, "trunks, BF16"));
  CHECK(!std::filesystem::exists(directory / "out"));
}

TEST_CASE("study: with --init-from it re-warms and chooses the age and forks there again after a restart", "[study][init]") {
  const TempDirectory directory;
  std::string letters;
  std::uint32_t state = 1;
  for (int i = 0; i < 20000; ++i) {
    state = state * 1664525u + 1013904223u;
    letters += static_cast<char>('a' + (state >> 24) % 26);
  }
  const std::string text = directory.write("text.txt", letters);
  const std::string model = directory.write(
      "small.json", R"({"layers":1,"width":32,"ffn":64,"heads":2,"kv_heads":2,"vocab":256,"tied":true})");
  const std::string weights = directory / "weights.safetensors";
  const Answer made = output_of(fmt::format(
      PRECBENCH_BINARY_DIR "/precbench run --model {} --recipe bf16 --device cpu --seq 32 --batch 1 --steps 2 --data {} "
                           "--save-final {}",
      model, text, weights));
  INFO(made.text);
  REQUIRE(made.status == 0);
  // With a tiny rate the loss is steady at once; with a usual one the loss of undertrained weights falls to
  // the end.
  for (const auto& [rate, age, steady] : {std::tuple("1e-9", 4, true), std::tuple("1e-3", 16, false)}) {
    const std::string config = directory.write(
        "study.toml",
        fmt::format("[work]\nseq = 32\nbatch = 4\n[trunk]\ntrunks = 2\nlr = {}\nwarmup = 1\n[rewarm]\nfirst = 4\nmost = "
                    "16\n[fork]\nsteps = 12\nwarmup = 2\n[fidelity]\nbatches = 2\n[ladder]\noutlier_ffn = []\nbits = 0\n"
                    "[control]\napart = []\nbreak = []\n",
                    rate));
    const std::string out = directory / rate;
    const auto run = [&] {
      return output_of(fmt::format(
          PRECBENCH_BINARY_DIR "/precbench study --model {} --recipe rowwise --device cpu --config {} --data {} --out {} "
                               "--init-from {} --trained-tokens 3M",
          model, config, text, out, weights));
    };
    const Answer answer = run();
    INFO(answer.text);
    REQUIRE(answer.status == kSweepDone);
    CHECK(contains(answer.text, steady ? "BF16's loss is steady from step 4 on"
                                       : "BF16's loss is still moving at the last age"));
    CHECK(contains(answer.text, "forks of 12 steps after 4, 8 or 16 of BF16"));
    int forks = 0;
    for (const LocatedRecord& located : read_records({out + "/records.jsonl"}).records) {
      const StudyPlace& place = *located.record.study;
      CHECK(place.trained_tokens == 3'000'000);
      if (place.part == StudyPart::trunk) {
        CHECK_FALSE(place.steady);
        continue;
      }
      ++forks;
      CHECK(place.age == age);
      CHECK(place.steady == steady);
    }
    CHECK(forks == 2 * 3);  // two trunks; bf16, bf16 perturbed, rowwise
    const std::string cards = file_text(out + "/cards.json");
    CHECK(contains(cards, "\"trained_tokens\": 3000000"));
    const std::string rows = file_text(out + "/records.jsonl");
    const Answer again = run();
    INFO(again.text);
    CHECK(again.status == kSweepDone);
    CHECK(file_text(out + "/records.jsonl") == rows);
    CHECK(file_text(out + "/cards.json") == cards);
  }
}
