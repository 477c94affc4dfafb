// Whole cases that train adapters: ranks, files, evaluation and checkpoints.
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "bench/case/case_testing.h"
#include "bench/measure/session_testing.h"
#include "bench/predict/predict.h"
#include "kernels/testing/temp_directory.h"
#include "kernels/testing/text_checks.h"
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

/// Trains the tiny model. Returns the file of its weights.
std::string trained_base(const TempDirectory& directory) {
  Case base = tiny_case();
  base.steps = 2;
  base.save_final = directory / "base.safetensors";
  run_ok(base);
  return base.save_final;
}

}  // namespace

TEST_CASE("run_case with --lora: measured memory is predicted, and ranks agree", "[session][lora]") {
  for (const char* recipe : {"bf16", "tensorwise", "mxfp8", "nf4_weights"}) {
    INFO(recipe);
    Case c = lora_session_case();
    c.recipe = recipe;
    const Record one = run_ok(c);
    valid_json(one);
    CHECK(one.training->params_total == 4 * 14);
    CHECK(one.memory->measured->peak == one.memory->predicted->peak);
    CHECK(one.memory->measured->quantized_weights == one.memory->predicted->quantized_weights);
    CHECK((one.memory->measured->quantized_weights > 0) == (std::string(recipe) != "bf16"));
    CHECK(one.memory->measured->weights == one.memory->predicted->weights);
    c.gpus = 2, c.batch = 2;
    const Record two = run_ok(c);
    CHECK(std::fabs(two.training->loss.front() / one.training->loss.front() - 1) < 1e-3);
    c.gpus = 1, c.accumulation = 2, c.recompute = "block";
    const Record accumulated = run_ok(c);
    CHECK(std::fabs(accumulated.training->loss.back() / one.training->loss.back() - 1) < 2e-3);
  }
}

TEST_CASE("dry_run with --lora: BF16 weights beside their copies are kept for the fidelity probe alone",
          "[lora]") {
  Case c = lora_session_case();
  c.seq = 128;
  const auto memory_of = [](const Case& one) { return predict(validate(one), nullptr).memory; };
  const ModelConfig model = validate(c).model;
  std::int64_t matrices = 0;
  for (const LinearSpec& linear : block_of(model, 0).linears) matrices += model.layers * linear.size();
  const MemorySegments bf16 = memory_of(c);
  for (const auto& [recipe, bytes] : {std::pair{"rowwise", 2.0},
                                      {"fp8_weights", 1.0},
                                      {"nvfp4_weights", 0.5625},
                                      {"nf4_weights", 0.5625}}) {
    INFO(recipe);
    c.recipe = recipe;
    c.fidelity_batches = 0;
    const MemorySegments dropped = memory_of(c);
    c.fidelity_batches = 1;
    const MemorySegments kept = memory_of(c);
    CHECK(bf16.weights - dropped.weights == 2 * matrices);
    CHECK(kept.weights == bf16.weights);
    // The scales of rows add at most 4 bytes for 96 elements; per-step copies of one matrix may be there at the peak.
    CHECK(static_cast<double>(dropped.quantized_weights) >= bytes * static_cast<double>(matrices));
    CHECK(static_cast<double>(dropped.quantized_weights) <= (bytes + 0.15) * static_cast<double>(matrices));
    if (recipe != std::string("rowwise")) CHECK(dropped.peak < bf16.peak);
  }
}

TEST_CASE("run_case with --lora: a case without BF16 weights resumes with the same bits", "[session][lora]") {
  const TempDirectory directory;
  const std::string base = trained_base(directory);
  for (const bool from_file : {false, true}) {
    INFO((from_file ? "from a file" : "random"));
    Case c = lora_session_case();
    c.recipe = "nf4_weights";
    c.steps = 4;
    if (from_file) c.init_from = base;
    c.save_final = directory / "whole.safetensors";
    c.checkpoint_dir = directory / (from_file ? "file" : "random");
    c.checkpoint_every = 2, c.checkpoint_keep = "all";
    const Record whole = run_ok(c);
    const std::filesystem::path steps = std::filesystem::path(c.checkpoint_dir) / validate(c).id;
    CHECK(names_in_file((steps / "step-000002" / "frozen.safetensors").string()).count("model.norm.weight") ==
          1);
    CHECK(names_in_file((steps / "step-000002" / "frozen.safetensors").string())
              .count("model.layers.0.mlp.down_proj.weight") == 0);
    std::filesystem::remove_all(steps / "step-000004");
    const std::string adapters = file_text(c.save_final);
    const Record rest = run_ok(c);
    REQUIRE(rest.warnings.size() == 1);
    CHECK(rest.warnings[0].starts_with("resumed from the checkpoint "));
    CHECK(rest.training->loss == whole.training->loss);
    CHECK(file_text(c.save_final) == adapters);
    // A fork would need the BF16 weights, which the checkpoint does not have.
    Case fork = lora_session_case();
    fork.fork_from = (steps / "step-000002").string();
    fork.steps = 1;
    CHECK(contains(refusal_of([&] { run_case(validate(fork)); }), "in memory as quantized copies alone"));
  }
}

TEST_CASE("run_case with --lora: a fork of a BF16 base quantizes its weights", "[session][lora]") {
  const TempDirectory directory;
  Case trunk = lora_session_case();
  trunk.steps = 2, trunk.checkpoint_every = 2, trunk.checkpoint_dir = directory / "checkpoints";
  run_ok(trunk);
  Case fork = lora_session_case();
  fork.fork_from =
      (std::filesystem::path(trunk.checkpoint_dir) / validate(trunk).id / "step-000002").string();
  fork.recipe = "nf4_weights";
  const Record dropped = run_ok(fork);
  fork.fidelity_batches = 1;  // keeps the BF16 weights
  const Record kept = run_ok(fork);
  CHECK(kept.training->loss == dropped.training->loss);
}

TEST_CASE("run_case with --lora: ranks that share frozen weights train the adapters of ranks that do not",
          "[session][lora]") {
  const TempDirectory directory;
  Case c = lora_session_case();
  c.batch = 1, c.gpus = 4;
  const std::int64_t whole_base = predict(validate(c), nullptr).memory.weights;
  for (const char* recipe : {"bf16", "mxfp8", "nf4_weights"}) {
    c.recipe = recipe;
    std::string replicas;
    for (const char* parallel : {"ddp", "fsdp", "hsdp"}) {
      INFO(recipe << " " << parallel);
      c.parallel = parallel;
      c.shard_group = std::string(parallel) == "hsdp" ? 2 : 1;
      c.save_final = directory / "adapters.safetensors";
      const Plan plan = validate(c);
      const Record record = run_case(plan);
      INFO(record.error.value_or(""));
      REQUIRE(record.status == Status::ok);
      valid_json(record);
      CHECK(record.memory->measured->peak == record.memory->predicted->peak);
      if (replicas.empty()) replicas = file_text(c.save_final);
      CHECK(file_text(c.save_final) == replicas);
      if (parallel != std::string("ddp"))
        CHECK(static_cast<double>(record.memory->measured->weights) < 0.6 * static_cast<double>(whole_base));
    }
  }
  c.parallel = "fsdp", c.shard_group = 1, c.steps = 4;
  c.checkpoint_dir = directory / "checkpoints", c.checkpoint_every = 2, c.checkpoint_keep = "all";
  const Record whole = run_ok(c);
  std::filesystem::remove_all(std::filesystem::path(c.checkpoint_dir) / validate(c).id / "step-000004");
  const Record rest = run_ok(c);
  REQUIRE(rest.warnings.size() == 1);
  CHECK(rest.training->loss == whole.training->loss);
}

TEST_CASE("dry_run with --lora: the GEMMs of a step are the model FLOPs and few zeros", "[lora]") {
  Case c = lora_session_case();
  c.seq = 128;
  c.lora_rank = 8;
  const Plan plan = validate(c);
  const double counted = dry_run(plan, nullptr).model_flops() / static_cast<double>(plan.tokens_per_step());
  // B of q, k and v is block-diagonal, and so is that of gate and up (lora_layers.h).
  CHECK(counted > static_cast<double>(plan.flops_per_token()));
  CHECK(counted < 1.15 * static_cast<double>(plan.flops_per_token()));
  c.lora_rank = 0;
  CHECK(static_cast<double>(plan.flops_per_token()) <
        0.8 * static_cast<double>(validate(c).flops_per_token()));
}

TEST_CASE("run_case with --lora: files have the model or the adapters", "[session][lora]") {
  const TempDirectory directory;
  const std::string base = trained_base(directory);
  Case c = lora_session_case();
  c.init_from = base;
  c.save_init = directory / "first.safetensors";
  c.save_final = directory / "adapter_model.safetensors";
  c.checkpoint_dir = directory / "checkpoints";
  c.checkpoint_every = 2;
  const Plan plan = validate(c);
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
  const Record forked = run_ok(fork);
  CHECK(std::fabs(forked.training->loss.front() / record.training->loss.front() - 1) < 0.1);
}

TEST_CASE("run_case with --lora: gradients of adapters are compared with BF16's", "[session][lora]") {
  Case c = testing::with_flags(lora_session_case(), "--recipe mxfp8 --fidelity-batches 2 --perturb ulp");
  const Record record = run_ok(c);
  REQUIRE(!record.fidelity.empty());
  std::set<std::string> roles;
  for (const GradientFidelity& role : record.fidelity.front().roles) roles.insert(role.name);
  CHECK(roles == std::set<std::string>{"qkv", "o", "gate_up", "down"});
}
