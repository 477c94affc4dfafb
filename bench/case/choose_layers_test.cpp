// Options of case and recipe about layers and steps become layers, an id and lines of a record.
#include "bench/case/choose_layers.h"

#include "bench/case/plan.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"
#include "kernels/testing/text_checks.h"
#include "results/record/schema.h"

using namespace precbench;

namespace {

Case tensorwise(const char* keep, const char* change = "") {
  Case c;  // tiny has four blocks
  c.recipe = "tensorwise";
  c.keep_bf16 = keep;
  c.switch_recipe = change;
  c.steps = 100;
  return c;
}

std::vector<std::string> layers_of(const Case& c) { return validate(c).converted_layers(); }

std::string recipe_text(const Case& c) { return definition_record(validate(c)).recipe->dump(); }

/// Writes a recipe file like tensorwise with additional keys and returns its path.
std::string file(const TempDirectory& directory, const nlohmann::json& more) {
  nlohmann::json row = recipe_to_json(find_recipe("tensorwise"));
  row["name"] = "own";
  row.update(more);
  return directory.write("own.json", row.dump());
}

using Lines = std::vector<std::string>;

}  // namespace

TEST_CASE("converted_layers: names the converted layers by block and role", "[layers]") {
  CHECK(layers_of(tensorwise("")) == Lines{"layers.0-3.{qkv,o,gate_up,down}"});
  CHECK(layers_of(tensorwise("first:1,last:1")) == Lines{"layers.1-2.{qkv,o,gate_up,down}"});
  CHECK(layers_of(tensorwise("last:0.3,o")) == Lines{"layers.0-1.{qkv,gate_up,down}"});
  CHECK(layers_of(tensorwise("first_linear")) ==
        Lines{"layers.0-0.{o,gate_up,down}", "layers.1-3.{qkv,o,gate_up,down}"});
  Case head = tensorwise("qkv,o,gate_up");
  head.head = "recipe";
  CHECK(layers_of(head) == Lines{"layers.0-3.{down}", "lm_head"});
  head.keep_bf16 = "head";
  CHECK(layers_of(head) == Lines{"layers.0-3.{qkv,o,gate_up,down}"});
}

TEST_CASE("keep_bf16: size rules apply to the model's single matrices", "[layers]") {
  Case c = tensorwise("torchao_auto");
  c.model = "llama3.1-8b";
  CHECK(layers_of(c) == Lines{"layers.0-31.{q,o,gate_up,down}"});
  c.model = "llama3.2-1b";
  CHECK(layers_of(c) == Lines{"layers.0-15.{q,o,gate_up,down}"});
  c.recipe = "rowwise";  // q is too small as well: nothing is split
  CHECK(layers_of(c) == Lines{"layers.0-15.{gate_up}"});
  c.keep_bf16 = "min_out:8193";  // gate and up are tested separately; together they have 16384 rows
  CHECK(refusal_of([&] { validate(c); }).ends_with("none would run in rowwise"));
  c.keep_bf16 = "min_out:8192";
  CHECK(layers_of(c) == Lines{"layers.0-15.{gate_up}"});
  c.keep_bf16 = "min_in:2049";
  CHECK(layers_of(c) == Lines{"layers.0-15.{down}"});
  c.recipe = "blockwise", c.keep_bf16 = "min_out:513";
  CHECK(layers_of(c) == Lines{"layers.0-15.{q,o,gate_up,down}"});
  c.recipe = "tensorwise_delayed";
  CHECK(refusal_of([&] { validate(c); }).ends_with("q, k and v cannot be selected separately"));
  c.recipe = "mxfp8", c.keep_bf16 = "torchao_auto";
  CHECK(refusal_of([&] { validate(c); }).starts_with("--keep-bf16: torchao_auto: "));
  c.recipe = "bf16";
  CHECK(layers_of(c) == Lines{});
}

TEST_CASE("keep_bf16: q and k and v may be chosen separately", "[layers]") {
  CHECK(layers_of(tensorwise("k")) == Lines{"layers.0-3.{q,v,o,gate_up,down}"});
  CHECK(layers_of(tensorwise("qkv_apart,last:1")) == Lines{"layers.0-2.{q,k,v,o,gate_up,down}"});
  CHECK(layers_of(tensorwise("first_linear,qkv_apart")) ==
        Lines{"layers.0-0.{k,v,o,gate_up,down}", "layers.1-3.{q,k,v,o,gate_up,down}"});
  CHECK(
      recipe_text(tensorwise("k,v,last:1"))
          .ends_with(R"("blocks":"0-2","linears":{"q":"0-2","k":"none","v":"none","o":"0-2","gate_up":"0-2",)"
                     R"("down":"0-2"},"head":false})"));
  const auto id = [](const char* keep) { return validate(tensorwise(keep)).id; };
  CHECK(id("qkv_apart") != id(""));
  CHECK(id("q") != id("k"));
  // If none of the three is converted, they are not split.
  CHECK(id("q,k,v") == id("qkv"));
  CHECK(id("qkv,k") == id("qkv"));
  Record record = start_record(validate(tensorwise("k,first:1")));
  record.status = Status::crashed;
  CHECK(Schema::record().violations(record) == Lines{});
  Case delayed = tensorwise("k");
  delayed.recipe = "tensorwise_delayed";
  CHECK(
      refusal_of([&] { validate(delayed); }) ==
      "--keep-bf16: tensorwise_delayed has one delayed scale for qkv; q, k and v cannot be selected separately");
}

TEST_CASE("definition_record: lists linears and schedule only if they were chosen", "[layers]") {
  const std::string whole = recipe_text(tensorwise(""));
  CHECK(whole.ends_with(R"("blocks":"0-3","head":false})"));
  CHECK(recipe_text(tensorwise("first:1,last:1")).ends_with(R"("blocks":"1-2","head":false})"));
  CHECK(recipe_text(tensorwise("first_linear,o"))
            .ends_with(R"("blocks":"0-3","linears":{"qkv":"1-3","o":"none","gate_up":"0-3","down":"0-3"},)"
                       R"("head":false})"));
  CHECK(recipe_text(tensorwise("none", "none")) == whole);
  CHECK(recipe_text(tensorwise("", "tensorwise@50")) == whole);
  const std::string change = recipe_text(tensorwise("", "bf16@0.82"));
  CHECK(contains(change, R"("head":false,"schedule":[{"from":82,"name":"bf16",)"));
  CHECK(change.ends_with(R"("blocks":"none","head":false}]})"));
  Record record = start_record(validate(tensorwise("first_linear", "bf16@50")));
  record.status = Status::crashed;
  CHECK(Schema::record().violations(record) == Lines{});
}

TEST_CASE("case_id: other layers or another schedule give another id", "[layers]") {
  const auto id = [](const char* keep, const char* change) { return validate(tensorwise(keep, change)).id; };
  const std::string plain = id("", "");
  CHECK(id("none", "none") == plain);
  CHECK(id("o", "") != plain);
  CHECK(id("o", "") != id("down", ""));
  CHECK(id("first:1,o", "") != id("first:1", ""));
  CHECK(id("", "bf16@50") != plain);
  CHECK(id("", "bf16@50") == id("", "bf16@0.5"));
  CHECK(id("", "bf16@50") != id("", "bf16@51"));
  CHECK(id("", "bf16@50") != id("", "rowwise@50"));
  Case bf16 = tensorwise("o", "bf16@50");
  bf16.recipe = "bf16";
  Case alone = bf16;
  alone.keep_bf16 = alone.switch_recipe = "";
  CHECK(validate(bf16).id == validate(alone).id);
}

TEST_CASE("convert: a recipe file sets layers and schedule and the case overrides them", "[layers]") {
  const TempDirectory directory;
  Case c = tensorwise("");
  c.recipe =
      file(directory, {{"layers", {{"keep_bf16", {"last:0.5"}}}}, {"schedule", {"rowwise@10", "bf16@0.82"}}});
  CHECK(layers_of(c) == Lines{"layers.0-1.{qkv,o,gate_up,down}",
                              "from step 10 rowwise: layers.0-3.{qkv,o,gate_up,down}",
                              "from step 82 bf16: none"});
  c.keep_bf16 = "down";  // for every recipe of the run
  c.switch_recipe = "rowwise@20";
  CHECK(layers_of(c) ==
        Lines{"layers.0-3.{qkv,o,gate_up}", "from step 20 rowwise: layers.0-3.{qkv,o,gate_up}"});
  c.keep_bf16 = c.switch_recipe = "none";
  CHECK(layers_of(c) == Lines{"layers.0-3.{qkv,o,gate_up,down}"});
  c.keep_bf16 = "";
  c.recipe = file(directory, {{"layers", {{"keep_bf16", {"first:4"}}}}});
  CHECK(refusal_of([&] {
          validate(c);
        }).starts_with("own: layers: it keeps all linear layers of the 4 blocks of tiny"));
}

TEST_CASE("validate: an impossible schedule is refused", "[layers]") {
  const auto refused = [](const char* change, std::int64_t steps = 100) {
    Case c = tensorwise("", change);
    c.steps = steps;
    return refusal_of([&] { validate(c); });
  };
  CHECK(refused("bf16@50") == "");
  CHECK(refused("bf16@50", 0) == "--switch-recipe: needs a number of steps: add --steps N");
  CHECK(refused("bf16@100") == "--switch-recipe: bf16@100: step 100 is not between 0 and 100, the last");
  CHECK(refused("rowwise@50,bf16@50") == "--switch-recipe: bf16@50 does not come after rowwise@50");
  CHECK(refused("rowwise@0.5,bf16@0.3") == "--switch-recipe: bf16@0.3 does not come after rowwise@0.5");
  CHECK(refused("rowwise@60,bf16@0.3") ==
        "--switch-recipe: bf16@0.3: step 30 is not between 60 and 100, the last");
  CHECK(refused("bf16@0.82", 4) == "");  // step 4 of 4: never
  CHECK(refused("bf17@50") == "--switch-recipe: unknown recipe \"bf17\"; did you mean bf16?");
  const TempDirectory directory;
  const std::string path = file(directory, {{"schedule", {"bf16@5"}}});
  CHECK(refused((path + "@50").c_str()) ==
        "--switch-recipe: " + path + "@50: that recipe has its own schedule");
}

TEST_CASE("warnings: stochastic rounding in fprop is accepted with a warning", "[layers]") {
  Case c;
  c.recipe = "nvfp4_sr_fwd";
  c.switch_recipe = "none";
  CHECK(validate(c).warnings() ==
        Lines{"nvfp4_sr_fwd: fprop rounds stochastically, whose noise biases the gradient"});
  c.recipe = "nvfp4";
  CHECK(validate(c).warnings().empty());
  CHECK(validate(tensorwise("", "rowwise@50")).warnings() ==
        Lines{"rowwise from step 50 on: step times include both recipes"});
}

TEST_CASE("validate: blocks are gathered in FP8 if all their layers are converted", "[layers]") {
  Case c = tensorwise("first_linear");
  c.gpus = 2;
  c.parallel = "fsdp";
  c.gather = "fp8";
  CHECK(validate(c).parameters.gather_fp8 == std::vector<bool>{false, true, true, true});
}

TEST_CASE("keep_bf16: single blocks and single layers stay in BF16 by index", "[layers]") {
  CHECK(layers_of(tensorwise("block:1,block:3.down")) == Lines{"layers.0-0.{qkv,o,gate_up,down}",
                                                               "layers.2-2.{qkv,o,gate_up,down}",
                                                               "layers.3-3.{qkv,o,gate_up}"});
  CHECK(recipe_text(tensorwise("block:0")) == recipe_text(tensorwise("first:1")));
  CHECK(recipe_text(tensorwise("block:0")) != recipe_text(tensorwise("block:1")));
  CHECK(refusal_of([] { validate(tensorwise("block:4")); }) ==
        "--keep-bf16: block:4: tiny has 4 blocks, counted from 0");
  const TempDirectory directory;
  Case c = tensorwise("");
  c.recipe = file(directory, {{"layers", {{"keep_bf16", {"block:9.o"}}}}});
  CHECK(refusal_of([&] { validate(c); }) == "own: layers: block:9: tiny has 4 blocks, counted from 0");
}
