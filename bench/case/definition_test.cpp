// The definition of a case, how its record stores it, and that the id depends on it.
#include "bench/case/definition.h"

#include <filesystem>
#include <map>
#include <set>

#include "bench/case/case_testing.h"
#include "bench/case/plan.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"
#include "kernels/testing/text_checks.h"
#include "results/record/schema.h"

using namespace precbench;
using precbench::testing::case_with;

namespace {

std::string id_of(const Case& c) { return validate(c).id; }

/// Returns the id that the case would have if its names stood for something else.
template <class Change>
std::string id_after(const Case& c, Change&& change) {
  Definition definition = validate(c);
  change(definition);
  return case_id(c, definition);
}

}  // namespace

TEST_CASE("case_id: ids of three cases are pinned", "[definition]") {
  // A change here orphans every existing record and baseline. It needs a new method version.
  CHECK(id_of(Case{}) == "be6f8a161ea79863");
  CHECK(id_of(case_with("recipe", "mxfp8")) == "e35a33c739bcf1fa");
  CHECK(id_of(case_with("model", "llama3.1-8b")) == "444475be6547b74e");
}

TEST_CASE("define: the fingerprint of a checkpoint does not follow what lies in its folder", "[definition]") {
  // A link there may lead to the root of a file system, which takes long to walk.
  const TempDirectory directory;
  directory.write("trunk/weights.safetensors", "weights");
  directory.write("elsewhere/large.safetensors", "others");
  const auto fingerprint = [&](const std::string& trunk) {
    return validate(case_with("fork_from", directory / trunk)).init.fingerprint;
  };
  std::filesystem::copy(directory / "trunk", directory / "copy");
  std::filesystem::create_directory_symlink(directory / "elsewhere", directory / "copy/link");
  std::filesystem::create_directory(directory / "copy/folder");
  directory.write("copy/folder/x.safetensors", "more");
  REQUIRE(fingerprint("trunk"));
  CHECK(fingerprint("copy") == fingerprint("trunk"));
}

TEST_CASE("case_id: changes with the work and with nothing else", "[definition]") {
  const TempDirectory directory;
  const std::map<std::string, std::string> others = {
      {"model", "15m"},
      {"recipe", "mxfp8"},
      {"data", directory.write("data.txt", "text")},
      {"init_from", directory.write("w.safetensors", "weights")},
      {"fork_from", directory.write("trunk/weights.safetensors", "others")},
      {"head", "recipe"},
      {"warmup", "37"},
      {"stress", "vo:2"},
      {"fidelity_stress", "vo:2"},
      {"keep_bf16", "first:1"},
      {"layers", "2"},
      {"routing", "zipf:1.5"},
      {"switch_recipe", "bf16@5"},
      {"beta1", "0.5"},
      {"beta2", "0.5"},
      {"momentum", "0.5"},
      {"checkpoint_at", "5"},
      {"sensitivity", "gemms"},
      {"eval_recipes", "mxfp8"},
      {"glob", "*.c"}};
  Case base = case_with("recipe", "rowwise");  // bf16 keeps no blocks and converts no head
  Case ten_steps = base;
  ten_steps.steps = 10;
  Case experts = base;
  experts.model = "tiny-moe";
  std::set<std::string> ids = {id_of(base), id_of(ten_steps), id_of(experts)};
  for (const Field& field : case_fields()) {
    INFO(field.name);
    const std::string name = field.name;
    const bool number = !std::holds_alternative<std::string Case::*>(field.member);
    const auto other = others.find(name);
    Case c = std::string(field.group) == "Mixture of experts" ? experts : base;
    set_text(c, field,
             other != others.end()   ? other->second
             : number                ? "37"
             : field.choices.empty() ? "some,text"
                                     : field.choices.back());
    if (name == "parallel" || name == "shard_group")
      c.parallel = "hsdp", c.shard_group = name == "parallel" ? 2 : 37;
    if (name == "schedule" || name.starts_with("checkpoint_") || name == "switch_recipe") c.steps = 10;
    if (name == "attention" || name == "gemm") c.device = "cuda";
    if (name == "momentum") c.optimizer = "muon";
    if (name == "lora_alpha") c.lora_rank = 4;
    if (name == "packing") c.data = "chats.jsonl";
    if (name == "eval_recipes") c.eval_data = "chats.jsonl";
    if (name == "fidelity_stress" || name == "sensitivity") c.fidelity_batches = 1;
    // A glob only selects the files of a data folder.
    CHECK(ids.insert(id_of(c)).second == (changes_work(name) && name != "glob"));
  }
}

TEST_CASE("case_to_json: MoE fields are absent from dense rows and refused for dense models",
          "[definition][moe]") {
  const nlohmann::ordered_json dense = case_to_json(Case{});
  Case c;
  c.model = "tiny-moe";
  for (const std::string name :
       {"routing", "capacity", "aux", "z_loss", "ep", "exchange", "slots", "dispatch", "layers"}) {
    INFO(name);
    const Field& field = *find_field(name);
    CHECK_FALSE(dense.contains(name));
    CHECK_FALSE(case_to_json(c).contains(name));
    Case other = c;
    set_text(other, field, name == "routing" ? "one" : field.choices.empty() ? "3" : field.choices.back());
    CHECK(case_to_json(other).contains(name));
    CHECK(case_from_json(case_to_json(other)) == other);
    other.model = "tiny";
    if (name != "layers")
      CHECK(refusal_of([&] { validate(other); }) == flag_of(field) + ": tiny has no experts");
  }
  Case nothing = c;
  nothing.capacity = 0;
  CHECK(refusal_of([&] { validate(nothing); }) == "--capacity: must be above 0, or auto, not 0");
  const auto routing = [&](const char* word) {
    return refusal_of([&] { validate(case_with("routing", word)); });
  };
  for (const char* word : {"", "zipf", "zipf:", "zipf:x", "zipf:-1", "zipf:17", "balanced:1", "some"})
    CHECK(contains(routing(word), "is not learned, balanced, zipf:A with A from 0 to 16, or one"));
  Case cut = case_with("model", "qwen3-30b-a3b");
  cut.layers = 6;
  const Plan plan = validate(cut);
  CHECK(plan.model.layers == 6);
  const auto model = definition_record(plan).model;
  CHECK(model->at("cuts") == "6 of 48 layers");
  CHECK(model->at("name") == "qwen3-30b-a3b-6-layers");
  cut.layers = 49;
  CHECK(refusal_of([&] { validate(cut); }) == "--layers: qwen3-30b-a3b has 48 layers, not 49");
}

TEST_CASE("unsupported_reason: recipes that MoE models take", "[definition][moe]") {
  for (const char* recipe :
       {"bf16", "tensorwise", "rowwise", "tensorwise_delayed", "blockwise", "blockwise_pow2", "mxfp8"}) {
    INFO(recipe);
    Case c = case_with("recipe", recipe);
    c.model = "tiny-moe";
    CHECK(!unsupported_reason(validate(c)));
  }
}

TEST_CASE("unsupported_reason: blockwise takes widths that end within a block", "[definition]") {
  const auto why = [](const char* model, const char* recipe, bool flow) {
    Case c = case_with("recipe", recipe);
    c.model = model;
    c.flow = flow ? "on" : "off";
    c.batch = 1;
    return unsupported_reason(validate(c)).value_or("");
  };
  for (const char* model : {"smollm2-135m", "smollm2-360m", "gpt-oss-20b", "deepseek-v2-lite", "deepseek-v3"})
    for (const char* recipe : {"blockwise", "blockwise_pow2"}) {
      INFO(model << " " << recipe);
      CHECK(why(model, recipe, false) == "");
    }
  CHECK(why("smollm2-135m", "blockwise_pow2", true) ==
        "qkv: N=960 is not a multiple of 128 (flow: FP8 data is transposed in squares)");
}

TEST_CASE("case_id: an edited model preset gives another id", "[definition]") {
  const Case c = case_with("model", "llama3.1-8b");
  const std::string id = id_of(c);
  CHECK(id_after(c, [](Definition&) {}) == id);
  std::set<std::string> ids = {id};
  const auto other = [&](auto&& change) { return ids.insert(id_after(c, change)).second; };
  CHECK(other([](Definition& d) { d.model.layers += 1; }));
  CHECK(other([](Definition& d) { d.model.ffn += 128; }));
  CHECK(other([](Definition& d) { d.model.rope_theta *= 2; }));
  CHECK(other([](Definition& d) { d.model.norm_eps = 1e-6; }));
  CHECK(other([](Definition& d) { d.model.rope_scaling = {}; }));
  CHECK(other([](Definition& d) { d.model.rope_scaling.factor = 32; }));
  CHECK(other([](Definition& d) { d.model.tied = true; }));
  CHECK(other([](Definition& d) { d.model.qk_norm = true; }));
  CHECK(other([](Definition& d) { d.model.qkv_bias = true; }));
  CHECK(other([](Definition& d) { d.model.sliding_window = 4096; }));
}

TEST_CASE("case_id: an edited recipe gives another id but not an edited reference", "[definition]") {
  const Case c = case_with("recipe", "mxfp8");
  std::set<std::string> ids = {id_of(c)};
  const auto other = [&](auto&& change) { return ids.insert(id_after(c, change)).second; };
  CHECK(other([](Definition& d) { d.recipe.fprop.a.scale_rounding = ScaleRounding::floor; }));
  CHECK(other([](Definition& d) { d.recipe.dgrad.b.dtype = DType::e5m2; }));
  CHECK(other([](Definition& d) { d.recipe.wgrad.a = QuantFormat{}; }));
  CHECK(other([](Definition& d) { d.recipe.wgrad.fast_accum = true; }));
  CHECK(other([](Definition& d) { d.converted[0] = {}; }));
  CHECK(other([](Definition& d) { d.head_converted = true; }));
  CHECK(other([](Definition& d) { d.init.deviation = 0.03; }));
  CHECK(!other([](Definition& d) { d.recipe.reference = "another paper"; }));
}

TEST_CASE("case_id: a model or recipe file counts by its content and not its layout or name",
          "[definition]") {
  const TempDirectory directory;
  nlohmann::json row = recipe_to_json(find_recipe("mxfp8"));
  row["name"] = "own";
  Case c;
  c.recipe = directory.write("own.json", row.dump());
  const std::string before = id_of(c);
  directory.write("own.json", row.dump(2));
  CHECK(id_of(c) == before);
  Case copy = c;
  copy.recipe = directory.write("copy.json", row.dump());
  CHECK(id_of(copy) == before);
  row["wgrad"]["a"]["scale_rounding"] = "even";
  directory.write("own.json", row.dump());
  CHECK(id_of(c) != before);
}

TEST_CASE("case_id: data counts by kind and content and not by path", "[definition]") {
  const TempDirectory a, b;
  const auto data_of = [](const std::string& path) { return validate(case_with("data", path)).data; };
  const DataDefinition text = data_of(a.write("one.txt", "some text"));
  CHECK(text.kind == "text");
  CHECK(text.fingerprint.has_value());
  CHECK(id_of(case_with("data", a / "one.txt")) == id_of(case_with("data", b.write("two.txt", "some text"))));
  CHECK(id_of(case_with("data", a / "one.txt")) !=
        id_of(case_with("data", b.write("three.txt", "other text"))));
  const DataDefinition tokens = data_of(b.write("one.u16", "some text"));
  CHECK((tokens.kind == "u16" && tokens.fingerprint == text.fingerprint));
  CHECK(id_of(case_with("data", b / "one.u16")) != id_of(case_with("data", a / "one.txt")));
  CHECK(data_of(b.write("one.jsonl", "some text")).kind == "jsonl");
  const TempDirectory only_lines;
  only_lines.write("one.jsonl", "some text");
  CHECK(data_of(only_lines.path().string()).kind == "text");  // in a folder they are text
  CHECK((data_of("synthetic").kind == "synthetic" && !data_of("synthetic").fingerprint));
}

TEST_CASE("case_id: held-out text and its length count but not the interval", "[definition]") {
  const TempDirectory directory;
  Case c = case_with("eval_data", directory.write("held.txt", "some text"));
  const std::string id = id_of(c);
  CHECK(id != id_of(Case{}));
  CHECK(validate(c).held_out.has_value());
  CHECK(id_of(case_with("eval_data", directory.write("copy.txt", "some text"))) == id);
  CHECK(id_of(case_with("eval_data", directory.write("other.txt", "other text"))) != id);
  c.eval_every = 10;
  CHECK(id_of(c) == id);
  c.eval_tokens = 128;
  CHECK(id_of(c) != id);
}

TEST_CASE("case_id: recipes to read the weights in count once each, by content, and BF16 not at all",
          "[definition]") {
  const TempDirectory directory;
  Case c = case_with("eval_data", directory.write("held.txt", "some text"));
  const std::string none = id_of(c);
  const auto id_with = [&](const std::string& recipes) {
    c.eval_recipes = recipes;
    return id_of(c);
  };
  CHECK(id_with("bf16") == none);
  const std::string two = id_with("rowwise,mxfp8");
  CHECK(two != none);
  CHECK(two != id_with("rowwise"));
  CHECK(two == id_with("rowwise,bf16,mxfp8,rowwise"));
  // Without its history, delayed scaling is that of the tensor itself; the recipes differ in name alone.
  c.eval_recipes = "tensorwise_delayed";
  REQUIRE(validate(c).readings.size() == 1);
  CHECK_FALSE(validate(c).readings[0].recipe.delayed());
  CHECK(refusal_of([&] { id_with("rowwis"); }).starts_with("--eval-recipes: "));
  c = Case{};
  CHECK(refusal_of([&] { id_with("rowwise"); }) ==
        "--eval-recipes: needs held-out text to evaluate on: add --eval-data");
}

TEST_CASE("definition_record: contains the whole model and recipe", "[definition]") {
  Case c = case_with("recipe", "mxfp8_floor");
  c.keep_bf16 = "first:1,last:1";
  Record record = start_record(validate(c));
  record.status = Status::crashed;
  record.error = "signal 11";
  CHECK(Schema::record().violations(record) == std::vector<std::string>{});
  const nlohmann::ordered_json json = nlohmann::ordered_json(record).at("definition");
  CHECK(model_from_json(nlohmann::json(json.at("model"))) == find_model("tiny"));
  nlohmann::json row = json.at("recipe");
  CHECK(row.at("blocks") == "1-2");
  CHECK(row.at("head") == false);
  row.erase("blocks"), row.erase("head");
  CHECK(recipe_from_json(row) == find_recipe("mxfp8_floor"));
  CHECK(json.at("data").dump() == R"({"kind":"synthetic","fingerprint":null,"seed":42})");
  CHECK(json.at("init").dump() == R"({"kind":"normal","fingerprint":null,"deviation":0.02,"seed":42})");
}

TEST_CASE("definition_record: contains every key of each recipe", "[definition]") {
  for (const Recipe& recipe : named_recipes()) {
    INFO(recipe.name);
    Case c = case_with("recipe", recipe.name);
    c.steps = 100;  // for schedules
    const nlohmann::ordered_json written = *definition_record(validate(c)).recipe,
                                 row = recipe_to_json(recipe);
    for (const auto& [key, value] : row.items())
      if (key != "layers" && key != "schedule") CHECK(written.value(key, nlohmann::ordered_json()) == value);
  }
}

TEST_CASE("validate: every preset and recipe resolves to a plan of its case with a unique id",
          "[definition]") {
  std::set<std::string> ids;
  for (const ModelConfig& model : model_presets())
    for (const Recipe& recipe : builtin_recipes()) {
      Case c = case_with("model", model.name);
      c.recipe = recipe.name;
      const Plan plan = validate(c);
      CHECK((plan.model == model && plan.recipe == recipe && plan.fields == c));
      CHECK(ids.insert(plan.id).second);
      CHECK(Schema::record().violations(start_record(plan)) == std::vector<std::string>{});
    }
}
