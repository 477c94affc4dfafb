// --kept from the case to the record, on ranks, with adapters, a later recipe and a recipe file: the same losses, memory as
// predicted, another case id, and what is kept in the definition.
#include "bench/measure/session_testing.h"
#include "kernels/numerics/recipe.h"

using namespace precbench;

namespace {

Record kept_record(Case c, const char* stack) {
  c.kept = stack;
  const Record record = run_case(validate(c));
  INFO(c.recipe << " as " << stack << ": " << record.error.value_or("no error"));
  REQUIRE(record.status == Status::ok);
  const nlohmann::ordered_json json = record;
  CHECK(Schema::record().violations(json) == std::vector<std::string>{});
  CHECK(json.at("memory").at("measured") == json.at("memory").at("predicted"));
  return record;
}

}  // namespace

TEST_CASE("run_case: kept activations change memory and no loss, with ranks and adapters",
          "[session][kept]") {
  Case c = tiny_case();
  c.batch = 2;
  c.steps = 2;
  c.recipe = "tensorwise_delayed";
  Case sharded = c, context = c, adapters = c, later = c;
  sharded.gpus = 2, sharded.parallel = "fsdp", sharded.recompute = "norm";
  context.gpus = 2, context.parallel = "fsdp", context.context = 2, context.seq = 64;
  adapters.lora_rank = 4, adapters.recipe = "tensorwise";
  later.recipe = "tensorwise", later.switch_recipe = "bf16@1", later.keep_bf16 = "last:1";
  for (const Case& one : {c, sharded, context, adapters, later}) {
    const Record least = kept_record(one, "precbench");
    for (const char* stack : {"transformer_engine", "torchao", "coat"}) {
      const Record kept = kept_record(one, stack);
      CHECK(kept.id != least.id);
      CHECK(kept.memory->measured->activations != least.memory->measured->activations);
      const bool exact = std::string(stack) != "coat";
      CHECK((kept.training->loss == least.training->loss) == exact);
      const nlohmann::ordered_json recipe = nlohmann::ordered_json(kept).at("definition").at("recipe");
      CHECK(recipe.at("kept").at("attention") == name_of(kept_by(stack).attention));
      CHECK(recipe.at("kept").contains("norm_input") == !exact);
    }
  }
}

TEST_CASE("run_case: selective recomputation keeps what the stack says and changes no loss",
          "[session][kept]") {
  Case c = tiny_case();
  c.steps = 2;
  for (const char* recipe : {"bf16", "tensorwise", "mxfp8"}) {
    c.recipe = recipe;
    c.recompute = "none";
    const Record none = kept_record(c, "torchao");
    c.recompute = "block";
    const Record block = kept_record(c, "torchao");
    c.recompute = "selective";
    const Record outputs = kept_record(c, "torchao"), attention = kept_record(c, "torchao_nvfp4");
    const auto bytes = [](const Record& record) { return record.memory->measured->activations; };
    CHECK(outputs.training->loss == none.training->loss);
    CHECK(attention.training->loss == none.training->loss);
    CHECK(bytes(outputs) < bytes(none));
    CHECK(bytes(attention) > bytes(block));
    CHECK((bytes(attention) < bytes(outputs)) == (c.recipe != "bf16"));
    const auto kept = [](const Record& record) {
      return nlohmann::ordered_json(record).at("definition").at("recipe").at("kept");
    };
    CHECK(kept(outputs).at("gemm_output") == "value");
    CHECK(!kept(attention).contains("gemm_output"));
    CHECK(!kept(none).contains("gemm_output"));
  }
}

TEST_CASE("run_case: what a recipe file keeps is that of the same stack by flag", "[session][kept]") {
  Case c = tiny_case();
  c.steps = 2;
  c.recipe = PRECBENCH_SOURCE_DIR "/bench/sweeps/coat_fp8.json";
  const Record own = kept_record(c, "recipe"), by_flag = kept_record(c, "coat");
  CHECK(own.id == by_flag.id);
  CHECK(own.training->loss == by_flag.training->loss);
  CHECK(kept_record(c, "precbench").id != own.id);
}
