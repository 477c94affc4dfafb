// --flow (transposed FP8 data) from the case to the record: casts are counted; memory is predicted; ranks,
// recomputation and checkpoints agree; unsupported recipes are refused.
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "bench/measure/checkpoint_testing.h"
#include "bench/predict/predict.h"
#include "kernels/base/errors.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"

using namespace precbench;

namespace {

Case flow_case(const char* model = "tiny", const char* flow = "on") {
  Case c = tiny_case();
  c.model = model;
  c.layers = 2;
  c.recipe = "blockwise_pow2";
  c.flow = flow;
  c.batch = 2;
  c.seq = 64;
  c.steps = 3;
  c.lr = 1e-3;
  return c;
}

std::vector<double> losses_of(const Case& c) {
  const Record record = run_ok(c);
  return {record.training->loss.begin(), record.training->loss.end()};
}

void check_casts(const Case& c, std::int64_t standalone, std::int64_t fused, std::int64_t transposes) {
  INFO(c.model << " flow " << c.flow);
  const Record record = run_ok(c);
  REQUIRE(record.flow);
  CHECK(record.flow->on == (c.flow == "on"));
  CHECK(record.flow->casts.standalone == standalone);
  CHECK(record.flow->casts.fused == fused);
  CHECK(record.flow->transposes == transposes);
  CHECK(record.memory->measured->activations == record.memory->predicted->activations);
  valid_json(record);
}

}  // namespace

TEST_CASE("run_case: casts of a step are counted with and without flow", "[session][flow]") {
  // Two blocks. Rows and columns: two norms, SwiGLU's output and its gradient, the gradients of o, down and
  // qkv. Rows of attention's output, whose columns are cast by themselves.
  check_casts(flow_case("tiny", "off"), 2, 2 * 15, 0);
  // Remaining with flow: rows of each, and columns of SwiGLU's output and gradient.
  check_casts(flow_case("tiny", "on"), 0, 2 * 10, 2 * 6);
  // Experts' columns are cast where rows are gathered; the other casts are those of a dense block.
  check_casts(flow_case("tiny-moe", "off"), 2, 2 * 15, 0);
  check_casts(flow_case("tiny-moe", "on"), 0, 2 * 10, 2 * 6);
}

TEST_CASE("run_case: the record has the errors of transposed FP8 data", "[session][flow]") {
  for (const char* model : {"tiny", "tiny-moe-shared"}) {
    INFO(model);
    const Record record = run_case(validate(flow_case(model)));
    REQUIRE(record.flow);
    std::set<std::string> roles;
    for (const Conversion& c : record.flow->conversion) {
      INFO(c.role);
      roles.insert(c.role);
      REQUIRE((c.e_conv && c.e_total && c.e_direct && c.underflow_percent));
      // A single cast to E4M3 errs by about 2.6%; the second rounds only values below the smallest normal.
      CHECK((*c.e_direct > 0.02 && *c.e_direct < 0.03));
      CHECK(std::fabs(*c.e_total / *c.e_direct - 1) < 0.1);
      CHECK(*c.e_conv < 0.01);
      CHECK(*c.underflow_percent < 5);
    }
    std::set<std::string> expected = {"down.dy", "gate_up.x", "o.dy", "o.x", "qkv.dy", "qkv.x"};
    if (std::string(model) != "tiny") expected.insert({"shared_down.dy", "shared_gate_up.x"});
    CHECK(roles == expected);
    // The list of all operands' errors has these too, as their columns.
    for (const QuantizationStats& s : record.quantization) roles.erase(s.role.substr(0, s.role.find(' ')));
    CHECK(roles.empty());
  }
  CHECK(run_case(validate(flow_case("tiny", "off"))).flow->conversion.empty());
  // FP8 data from another rank has no BF16 value to compare with; BF16 rows have.
  for (const char* dispatch : {"bf16", "fp8"}) {
    Case c = flow_case("tiny-moe");
    c.gpus = c.ep = 2, c.dispatch = dispatch;
    const Record record = run_case(validate(c));
    REQUIRE(record.flow);
    int unknown = 0;
    for (const Conversion& made : record.flow->conversion) {
      INFO(dispatch << " " << made.role);
      CHECK(made.e_conv);
      CHECK(made.e_total.has_value() == made.e_direct.has_value());
      if (made.e_total)
        CHECK((*made.e_total > 0.02 && *made.e_direct > 0.02));
      else
        ++unknown;
    }
    CHECK(unknown == (std::string(dispatch) == "fp8" ? 2 : 0));
  }
}

TEST_CASE("run_case: flow agrees on ranks and recomputed and in micro-steps and after a checkpoint",
          "[session][flow]") {
  for (const char* model : {"tiny", "tiny-moe"}) {
    INFO(model);
    Case c = flow_case(model);
    c.batch = 4;
    if (validate(c).model.moe) c.aux = 0;  // its f is computed per micro-batch
    const std::vector<double> one = losses_of(c);
    CHECK(one != losses_of([&] {
            Case without = c;
            without.flow = "off";
            return without;
          }()));
    Case recomputed = c;
    for (const char* recompute : {"block", "norm", "attention+ffn+norm"}) {
      recomputed.recompute = recompute;
      CHECK(losses_of(recomputed) == one);
    }
    Case split = c;
    split.batch = 2, split.gpus = 2;
    const std::vector<double> ddp = losses_of(split);
    split.parallel = "fsdp";
    const std::vector<double> fsdp = losses_of(split);
    split.parallel = "ddp", split.gpus = 1, split.accumulation = 2;
    const std::vector<double> micro_steps = losses_of(split);
    for (std::size_t step = 0; step < one.size(); ++step)
      for (const auto* other : {&ddp, &fsdp, &micro_steps}) {
        // Sums over tokens in another order, and BF16 weights that it may round the other way.
        CHECK(std::fabs((*other)[step] / one[step] - 1) <= 2e-4);
      }
  }
  const TempDirectory directory;
  Case c = flow_case();
  c.steps = 6;
  const std::vector<double> straight = losses_of(c);
  c = with_checkpoints(c, directory / "checkpoints", 3);
  CHECK(losses_of(c) == straight);
  std::filesystem::remove_all(checkpoint_at(c, 6));
  CHECK(losses_of(c) == straight);
}

TEST_CASE("run_case: flow needs FP8 data that can be transposed and changes the case id", "[flow]") {
  const Case off = flow_case("tiny", "off"), on = flow_case();
  CHECK(validate(on).id != validate(off).id);
  CHECK_FALSE(case_to_json(off).contains("flow"));
  CHECK(case_to_json(on).at("flow") == "on");
  CHECK(case_from_json(case_to_json(on)) == on);
  const auto why = [](const char* recipe) {
    Case c = flow_case();
    c.recipe = recipe;
    const Record record = run_case(validate(c));
    CHECK(record.status == Status::unsupported);
    return record.error.value_or("");
  };
  CHECK(why("bf16") ==
        "--flow on: bf16 has no quantized data to transpose: fprop.a is bf16, not e4m3 1x128 f32_pow2");
  CHECK(
      why("blockwise") ==
      "--flow on: blockwise has no quantized data to transpose: fprop.a is e4m3 1x128 f32, not e4m3 1x128 f32_pow2");
  CHECK(
      why("mxfp8") ==
      "--flow on: mxfp8 has no quantized data to transpose: fprop.a is e4m3 1x32 ue8m0/rceil, not e4m3 1x128 f32_pow2");
  Case apart = flow_case("tiny-moe");
  apart.gpus = apart.ep = 2;
  apart.dispatch = "fp8";
  const Record codes = run_ok(apart);
  CHECK(codes.moe->columns == "transposed");
  // A recipe file with "flow" is equivalent; recipes without suitable formats cannot have it.
  nlohmann::json row = recipe_to_json(find_recipe("blockwise_pow2"));
  row["name"] = "own";
  row["flow"] = true;
  CHECK(recipe_from_json(row).flow);
  CHECK(recipe_to_json(recipe_from_json(row)) == row);
  row["dgrad"]["a"]["format"] = "e5m2";
  CHECK_THROWS_AS(recipe_from_json(row), InvalidInput);
  const TempDirectory directory;
  row["dgrad"]["a"]["format"] = "e4m3";
  Case own = flow_case("tiny", "off");
  own.recipe = directory.write("own.json", row.dump());
  CHECK(losses_of(own) == losses_of(on));
}
