// Whole cases that train adapters: ranks, files, evaluation and checkpoints.
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "bench/measure/session_testing.h"
#include "bench/predict/predict.h"
#include "kernels/testing/temp_directory.h"
#include "models/checkpoint/safetensors.h"

using namespace precbench;

namespace {

Case lora_session_case() {
  Case c = tiny_case();
  c.lora_rank = 4;
  c.steps = 3;
  return c;
}

std::set<std::string> names_in_file(const std::string& path) {
  std::set<std::string> names;
  const SafetensorsFile file(path);
  for (const StoredTensor& stored : file.tensors()) names.insert(stored.name);
  return names;
}

}  // namespace

TEST_CASE("run_case with --lora: measured memory is predicted, and ranks agree", "[session][lora]") {
  for (const char* recipe : {"bf16", "tensorwise", "mxfp8"}) {
    INFO(recipe);
    Case c = lora_session_case();
    c.recipe = recipe;
    const Record one = run_case(resolve(c));
    REQUIRE(one.status == Status::ok);
    CHECK(Schema::record().violations(nlohmann::ordered_json(one)) == std::vector<std::string>{});
    CHECK(one.training->params_total == 4 * 14);
    CHECK(one.memory->measured->peak == one.memory->predicted->peak);
    CHECK(one.memory->measured->quantized_weights == one.memory->predicted->quantized_weights);
    CHECK((one.memory->measured->quantized_weights > 0) == (std::string(recipe) != "bf16"));
    c.gpus = 2, c.batch = 2;
    const Record two = run_case(resolve(c));
    REQUIRE(two.status == Status::ok);
    CHECK(std::fabs(two.training->loss.front() / one.training->loss.front() - 1) < 1e-3);
    c.gpus = 1, c.accumulation = 2, c.recompute = "block";
    const Record accumulated = run_case(resolve(c));
    REQUIRE(accumulated.status == Status::ok);
    CHECK(std::fabs(accumulated.training->loss.back() / one.training->loss.back() - 1) < 2e-3);
  }
}

TEST_CASE("dry_run with --lora: the GEMMs of a step are the model FLOPs and few zeros", "[lora]") {
  Case c = lora_session_case();
  c.seq = 128;
  c.lora_rank = 8;
  const Plan plan = resolve(c);
  const double counted = dry_run(plan, nullptr).model_flops() / static_cast<double>(plan.tokens_per_step());
  // B of q, k and v is block-diagonal, and so is that of gate and up (lora_layers.h).
  CHECK(counted > static_cast<double>(plan.flops_per_token()));
  CHECK(counted < 1.15 * static_cast<double>(plan.flops_per_token()));
  c.lora_rank = 0;
  CHECK(static_cast<double>(plan.flops_per_token()) <
        0.8 * static_cast<double>(resolve(c).flops_per_token()));
}

TEST_CASE("run_case with --lora: files have the model or the adapters", "[session][lora]") {
  const TempDirectory directory;
  Case base = tiny_case();
  base.steps = 2;
  base.save_final = directory / "base.safetensors";
  REQUIRE(run_case(resolve(base)).status == Status::ok);
  Case c = lora_session_case();
  c.init_from = base.save_final;
  c.save_init = directory / "first.safetensors";
  c.save_final = directory / "adapter_model.safetensors";
  c.checkpoint_dir = directory / "checkpoints";
  c.checkpoint_every = 2;
  const Plan plan = resolve(c);
  const Record record = run_case(plan);
  REQUIRE(record.status == Status::ok);
  CHECK(record.warnings.empty());
  const std::set<std::string> names = names_in_file(c.save_final);
  CHECK(names == names_in_file(c.save_init));
  CHECK(names.size() == 4 * 14);
  CHECK(names.count("base_model.model.model.layers.3.mlp.down_proj.lora_B.weight") == 1);
  std::ifstream stream(directory / "adapter_config.json");
  const nlohmann::json config = nlohmann::json::parse(stream);
  CHECK(config.at("r") == 4);
  CHECK(config.at("lora_alpha") == 8);
  CHECK(config.at("target_modules").size() == 7);
  // A fork needs nothing but the checkpoint, and its model is that of the trunk.
  Case fork = lora_session_case();
  fork.fork_from = (std::filesystem::path(c.checkpoint_dir) / plan.id / "step-000002").string();
  fork.steps = 1;
  const Record forked = run_case(resolve(fork));
  INFO(forked.error.value_or(""));
  REQUIRE(forked.status == Status::ok);
  CHECK(std::fabs(forked.training->loss.front() / record.training->loss.front() - 1) < 0.1);
}

TEST_CASE("run_case with --lora: gradients of adapters are compared with BF16's", "[session][lora]") {
  Case c = lora_session_case();
  c.recipe = "mxfp8";
  c.fidelity_batches = 2;
  c.perturb = "ulp";
  const Record record = run_case(resolve(c));
  INFO(record.error.value_or(""));
  REQUIRE(record.status == Status::ok);
  REQUIRE(!record.fidelity.empty());
  std::set<std::string> roles;
  for (const GradientFidelity& role : record.fidelity.front().roles) roles.insert(role.name);
  CHECK(roles == std::set<std::string>{"qkv", "o", "gate_up", "down"});
}
