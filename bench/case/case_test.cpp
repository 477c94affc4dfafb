// The field table in each of its conversions, and cases that are refused before anything runs.
#include "bench/case/case.h"

#include "bench/case/case_testing.h"
#include "bench/case/plan.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"
#include "kernels/testing/text_checks.h"
#include "results/record/record_line.h"
#include "results/record/record_samples.h"

using namespace precbench;
using precbench::testing::case_with;

namespace {

std::string refused_text(const std::string& name, const std::string& text) {
  Case c;
  return refusal_of([&] { set_text(c, *find_field(name), text); });
}

}  // namespace

TEST_CASE("case_fields: every field converts to text and JSON and back", "[case]") {
  for (const Field& field : case_fields()) {
    INFO(field.name);
    const bool number = !std::holds_alternative<std::string Case::*>(field.member);
    const Case c = case_with(field.name, number                  ? "37"
                                         : field.choices.empty() ? "some,text"
                                                                 : field.choices.back());
    CHECK(!(c == Case{} && get_text(c, field) != get_text(Case{}, field)));
    CHECK(case_from_json(case_to_json(c)) == c);
    CHECK(case_with(field.name, get_text(c, field)) == c);
    CHECK(case_to_json(c).contains(field.name));
    CHECK(find_field(flag_of(field).substr(2)) == &field);
  }
  const auto unused = std::count_if(case_fields().begin(), case_fields().end(),
                                    [](const Field& field) { return field.only_where_used(); });
  CHECK(unused > 0);
  for (const Field& field : case_fields()) {
    INFO(field.name);
    CHECK(only_where_used(field.name) == field.only_where_used());
  }
  CHECK(case_to_json(Case{}).size() + static_cast<std::size_t>(unused) == case_fields().size());
  CHECK(case_from_json(case_to_json(Case{})) == Case{});
}

TEST_CASE("get_text: numbers keep their bits as text", "[case]") {
  const Field& lr = *find_field("lr");
  for (const double value : {1e-5, 0.1, 3e-4, 1.0 / 3, 5e-324}) {
    Case c;
    c.lr = value;
    CHECK(case_with("lr", get_text(c, lr)).lr == value);
    CHECK(case_from_json(nlohmann::ordered_json::parse(case_to_json(c).dump())).lr == value);
  }
}

TEST_CASE("set_text: auto is a word for the number of steps", "[case]") {
  CHECK(case_with("steps", "auto").steps == 0);
  CHECK(case_to_json(Case{})["steps"] == "auto");
  CHECK(case_to_json(case_with("steps", "30"))["steps"] == 30);
  CHECK(refused_text("steps", "0") == "--steps: must be at least 1, or auto, not 0");
  CHECK(refused_text("steps", "many") == "--steps: \"many\" is not a whole number or auto");
}

TEST_CASE("set_text: bad values are refused by flag", "[case]") {
  CHECK(refused_text("seq", "0") == "--seq: must be at least 1, not 0");
  CHECK(refused_text("batch", "-1") == "--batch: must be at least 1, not -1");
  CHECK(refused_text("seq", "12x") == "--seq: \"12x\" is not a whole number");
  CHECK(refused_text("seq", "1.5") == "--seq: \"1.5\" is not a whole number");
  CHECK(refused_text("lr", "nan") == "--lr: \"nan\" is not a number");
  CHECK(refused_text("lr", "-1") == "--lr: must be above 0, not -1");
  for (const char* word : {"-1", "0"})
    CHECK(refused_text("capacity", word) == std::string("--capacity: must be above 0, or auto, not ") + word);
  CHECK(refused_text("beta1", "-1") == "--beta1: must be at least 0, or auto, not -1");
  CHECK(refused_text("weight_decay", "") == "--weight-decay: \"\" is not a number");
  CHECK(refused_text("master", "bf16sr") ==
        "--master: unknown value \"bf16sr\"; did you mean bf16_sr? it is one of fp32, bf16, bf16_sr, "
        "fp16");
  CHECK(refusal_of([] { case_from_json({{"modle", "tiny"}}); }) == "case: unknown key modle");
  CHECK(refusal_of([] { case_from_json({{"master_dtype", "bf16"}}); }) == "case: unknown key master_dtype");
  CHECK(case_from_json({{"seq", 32}, {"grouped", "loop"}}) == case_from_json({{"seq", 32}}));  // an old record
  CHECK(refusal_of([] { case_from_json({{"seq", 1.5}}); }) == "case: seq has the wrong type: 1.5");
}

TEST_CASE("validate: impossible cases are refused", "[case]") {
  CHECK(refusal_of([] { validate(Case{}); }) == "");
  CHECK(refusal_of([] { validate(case_with("model", "llama3.2-1c")); }).find("llama3.2-1b") !=
        std::string::npos);
  CHECK(refusal_of([] { validate(case_with("recipe", "mxfp9")); }).find("mxfp8") != std::string::npos);
  CHECK(refusal_of([] { validate(case_with("lr", "0")); }) == "--lr: must be above 0, not 0");
  CHECK(refusal_of([] { case_with("beta1", "-0.1"); }) == "--beta1: must be at least 0, or auto, not -0.1");
  CHECK(refusal_of([] { case_with("optimizer", "adamv"); })
            .starts_with("--optimizer: unknown value \"adamv\"; did you mean adamw?"));
  CHECK(refusal_of([] { validate(case_from_json({{"gpus", -2}})); }) == "--gpus: must be at least 1, not -2");
}

TEST_CASE("validate: a step of absurd size is refused", "[case]") {
  const auto refused = [](const nlohmann::ordered_json& fields) {
    return refusal_of([&] { validate(case_from_json(fields)); });
  };
  const std::string most = " tokens per step; the limit is 2147483647";
  CHECK(refused({{"batch", 1}, {"seq", 2147483647}}) == "");
  CHECK(refused({{"batch", 1}, {"seq", 2147483648}}).ends_with(most));
  CHECK(refused({{"gpus", std::int64_t{1} << 62}}) ==
        "--gpus: must be at most 1048576, not 4611686018427387904");
  CHECK(refused({{"gpus", std::int64_t{1} << 20}, {"batch", std::int64_t{1} << 50}})
            .ends_with(most));  // 2^77 overflows
  CHECK(refused({{"parallel", "hsdp"}, {"shard_group", (std::int64_t{1} << 32) + 2}}) ==
        "--shard-group: must be at most 1048576, not 4294967298");
}

TEST_CASE("validate: runs longer than a record can hold are refused", "[case]") {
  const auto refused = [](const nlohmann::ordered_json& fields) {
    return refusal_of([&] { validate(case_from_json(fields)); });
  };
  CHECK(refused({{"steps", kMaxSteps}}) == "");
  CHECK(refused({{"steps", kMaxSteps}, {"eval_every", 10}}) == "");
  CHECK(refused({{"steps", kMaxSteps}, {"eval_every", 9}}) ==
        "--eval-every: 111111 evaluations in 1000000 steps; the limit is 100000");

  // A tenth of the longest record that is allowed, with numbers of full length and interleaved.
  Record record = samples::gpu_record("mxfp8", 250);
  constexpr double kLong = 1.2345678901234567e-4;
  Training& training = *record.training;
  for (std::vector<double>* series : {&training.loss, &training.grad_norm, &training.lr})
    series->assign(kMaxSteps / 10, kLong);
  record.timing->samples_ms.assign(2 * kMaxSteps / 10, kLong);
  training.evaluations.assign(kMaxEvaluations / 10, {kMaxSteps, 1 << 20, kLong, kLong, kLong});
  CHECK(10 * nlohmann::ordered_json(record).dump().size() < kRecordLimits.bytes);
}

TEST_CASE("validate: a recipe without any layer is refused unless it converts the head", "[case]") {
  const auto refused = [](const char* keep, const char* recipe, const char* head) {
    return refusal_of([&] {
      validate(case_from_json({{"keep_bf16", keep}, {"recipe", recipe}, {"head", head}}));
    });
  };
  const std::string none =
      " keeps all linear layers of the 4 blocks of tiny in BF16; none would run in mxfp8";
  CHECK(refused("first:99", "mxfp8", "bf16") == "--keep-bf16: first:99" + none);
  CHECK(refused("first:2,last:2", "mxfp8", "bf16") == "--keep-bf16: first:2,last:2" + none);
  CHECK(refused("last:9223372036854775807,first:9223372036854775807", "mxfp8", "bf16").ends_with(none));
  CHECK(refused("first:2,last:1", "mxfp8", "bf16") == "");
  CHECK(refused("first:99", "mxfp8", "recipe") == "");
  CHECK(refused("first:99", "bf16", "bf16") == "");
}

TEST_CASE("check_word: invalid layers and switches are refused by flag", "[case]") {
  const auto refused = [](const char* flag, const char* word) {
    return refusal_of([&] { check_word(*find_field(flag), word); });
  };
  CHECK(refused("keep_bf16", "first:1,o") == "");
  CHECK(refused("keep_bf16", "none") == "");
  CHECK(refused("keep_bf16", "middle:1")
            .starts_with("--keep-bf16: \"middle:1\": \"middle:1\" is unknown or repeated; known: first:N"));
  CHECK(refused("switch_recipe", "bf16@8") == "");
  CHECK(refused("switch_recipe", "bf16").starts_with("--switch-recipe: \"bf16\" is not RECIPE@STEP"));
}
