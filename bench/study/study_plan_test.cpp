// The cases that a study consists of.
#include "bench/study/study_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "bench/step/checkpoint.h"
#include "bench/study/study_settings.h"
#include "bench/study/study_time.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"
#include "kernels/testing/text_checks.h"

using namespace precbench;

namespace {

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

TEST_CASE("StudyPlan: the forks' learning rate can decay to zero while the trunks' is constant", "[study]") {
  StudySettings settings = default_study({});
  settings.fork["schedule"] = {"linear"};
  settings.sensitivity = "gemms";
  const StudyPlan plan = plan_of(settings, "blockwise");
  const std::vector<Plan> trunks = validate(plan.trunks());
  for (const Plan& trunk : trunks) CHECK(trunk.optimizer.schedule == Schedule::constant);
  for (const StudyCase& one : plan.forks(trunks)) {
    // Sensitivity takes one step, after its measurement.
    const bool decays = one.place.part != StudyPart::sensitivity;
    CHECK(one.fields.schedule == (decays ? "linear" : "constant"));
  }
}

TEST_CASE("StudyPlan: trunks and for each state forks of every recipe and BF16 and the controls", "[study]") {
  StudySettings settings = default_study({});
  settings.trunks = 3, settings.ages = {10, 20}, settings.seeds = 2;
  settings.learning_rate = {1, 3, 10}, settings.bits = 2, settings.exponent_bits = 2,
  settings.ladder_trunks = 1;
  settings.batch = {1, std::stoll(settings.work.at("batch").front())};  // includes the forks' own batch
  const StudyPlan plan = plan_of(settings, "blockwise,mxfp8_floor");
  REQUIRE(plan.trunks().size() == 3);
  const std::vector<Plan> trunks = validate(plan.trunks());
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
    CHECK(place.sizes.has_value() == (place.part == StudyPart::fork));
    if (place.part != StudyPart::fork) continue;
    CHECK(*place.sizes == std::vector<StudySize>{{3, 2, 2}});
    seeds.insert(fields.seed);
    by_data[fields.fork_from + std::to_string(fields.seed)].insert(fields.recipe + fields.perturb);
  }
  CHECK(seeds.size() == 3 * 2);
  CHECK(by_data.size() == 3 * 2 * 2);
  for (const auto& [data, recipes] : by_data) CHECK(recipes.size() == 8);
}

TEST_CASE("StudyPlan: an incumbent takes part and the other recipes name it", "[study]") {
  StudySettings settings = default_study({});
  settings.trunks = 3, settings.ages = {10};
  settings.against = "mxfp8";
  const StudyPlan plan = plan_of(settings, "blockwise,tensorwise");
  std::map<std::string, std::set<std::string>> asked;  // incumbents by recipe
  for (const auto& [fields, place] : plan.forks(validate(plan.trunks()))) {
    if (place.asked && place.part == StudyPart::fork) asked[fields.recipe].insert(place.against.value_or(""));
    if (!place.asked || place.part != StudyPart::fork) CHECK_FALSE(place.against);
  }
  CHECK(asked == std::map<std::string, std::set<std::string>>{
                     {"blockwise", {"mxfp8"}}, {"tensorwise", {"mxfp8"}}, {"mxfp8", {""}}});
  // Named in --recipe too, it is the same study.
  const StudyPlan same = plan_of(settings, "blockwise,tensorwise,mxfp8");
  CHECK(same.forks(validate(same.trunks())).size() == plan.forks(validate(plan.trunks())).size());
  CHECK(same.trunks().front().place.study == plan.trunks().front().place.study);
  settings.against = "";
  CHECK(plan_of(settings, "blockwise").trunks().front().place.study == plan.trunks().front().place.study);

  settings.against = "bf16";
  CHECK(refusal_of([&] { plan_of(settings, "blockwise"); }) ==
        "--against: bf16: every recipe is compared with bf16 anyway; name another");
  settings.against = "blockwise";
  CHECK(refusal_of([&] { plan_of(settings, "blockwise"); }) ==
        "--against: blockwise is the only recipe; name the ones to compare in --recipe");
  settings.against = "mxpf8";
  CHECK(refusal_of([&] { plan_of(settings, "blockwise"); }) ==
        "unknown recipe \"mxpf8\"; did you mean mxfp8?");
}

TEST_CASE("StudyPlan: sensitivity is measured at the oldest state for each requested recipe",
          "[study][sensitivity]") {
  StudySettings settings = default_study({});
  settings.trunks = 3, settings.ages = {10, 20}, settings.ladder_trunks = 2;
  const auto cases_of = [&] {
    const StudyPlan plan = plan_of(settings, "blockwise,mxfp8_floor,coat");
    return plan.forks(validate(plan.trunks()));
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

TEST_CASE("StudyPlan: a recipe that only changes optimizer state is forked without a gradient probe",
          "[study]") {
  StudySettings settings = default_study({});
  const StudyPlan plan = plan_of(settings, "coat,mxfp8");
  int coats = 0;
  for (const auto& [fields, place] : plan.forks(validate(plan.trunks())))
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
    auto parts = counts(plan.forks(validate(plan.trunks())));
    return std::pair(parts[StudyPart::bits], parts[StudyPart::exponent_bits]);
  };
  CHECK(rungs(directory.write("flow.json", flow.dump())) == std::pair(0, 0));
  CHECK(rungs("blockwise_pow2") == std::pair(2, 1));
}

TEST_CASE("StudyPlan: a model that cannot have outliers of norms has the other ladders", "[study]") {
  const TempDirectory directory;
  const auto stresses = [&](const char* norms) {
    const std::string model = directory.write(
        std::string(norms) + ".json",
        std::string(R"({"layers": 2, "width": 64, "ffn": 128, "heads": 2, "vocab": 256, "norms": ")") +
            norms + "\"}");
    StudySettings settings = default_study({});
    settings.work["recipe"] = {"rowwise"};
    settings.work["device"] = {"cpu"};
    settings.outlier_norm = {8};
    std::set<std::string> words;
    const StudyPlan plan(settings, model, "out");
    for (const StudyCase& one : plan.forks(validate(plan.trunks()))) words.insert(one.fields.fidelity_stress);
    return words;
  };
  CHECK(contains(*stresses("before").rbegin(), "norm:8"));
  CHECK_FALSE(contains(*stresses("after").rbegin(), "norm:"));
  CHECK(contains(*stresses("after").rbegin(), "vo:"));
}

TEST_CASE("StudyPlan: channels of unused ladders are not limited", "[study]") {
  StudySettings settings = default_study({});
  settings.channels = 4000, settings.fidelity_batches = 0;
  CHECK(plan_of(settings, "rowwise").trunks().size() == 5);
}

TEST_CASE("StudyPlan: a control that is also requested is one row with both roles", "[study]") {
  StudySettings settings = default_study({});
  const StudyPlan plan = plan_of(settings, "mxfp8_floor");
  const auto forks = plan.forks(validate(plan.trunks()));
  const auto floor = std::find_if(forks.begin(), forks.end(), [](const StudyCase& one) {
    return one.fields.recipe == "mxfp8_floor" && one.place.part == StudyPart::fork;
  });
  REQUIRE(floor != forks.end());
  CHECK(floor->place.asked);
  CHECK(floor->place.apart_from == "mxfp8");
  CHECK_THROWS_AS(plan_of(settings, "bf16"), InvalidInput);
}

TEST_CASE("StudyPlan: forks begin at the chosen age and record that it is steady", "[study][init]") {
  StudySettings settings = default_study({.trained = true});
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
  const std::vector<Plan> trunks = validate(plan.trunks());
  const auto planned = plan.forks(trunks), chosen = plan.forks(trunks, {{kept[1]}, true});
  CHECK(planned.size() == chosen.size());
  for (const StudyCase& fork : chosen) {
    CHECK(fork.place.age == kept[1]);
    CHECK(fork.place.steady == true);
    CHECK(fork.fields.init_from.empty());
    CHECK(fork.fields.fork_from ==
          checkpoint_at(trunks[static_cast<std::size_t>(fork.place.trunk - 1)], kept[1]));
  }
}

TEST_CASE("StudyPlan: steady ages need weights that were trained before", "[study][init]") {
  StudySettings settings = default_study({});
  settings.steady = true;
  CHECK(contains(refusal_of([&] { plan_of(settings, "rowwise"); }), "add --init-from, or give the steps"));
}
