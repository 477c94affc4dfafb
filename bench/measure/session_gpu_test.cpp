// Whole cases on a GPU: options that must not change a bit, and records of cases that fail.
#include "bench/measure/session.h"

#include <stdlib.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <map>

#include "bench/measure/session_testing.h"
#include "bench/process/case_process_testing.h"
#include "bench/step/checkpoint.h"
#include "bench/sweep/sweep.h"
#include "kernels/device/buffers.h"
#include "kernels/gpu/gpu_testing.h"
#include "kernels/numerics/recipe.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"
#include "results/record/record_file.h"
#include "results/record/schema.h"

using namespace precbench;

namespace {

constexpr const char* kBadKernel = "a case whose kernel reads where nothing is";
constexpr int kSteps = 10;

Case gpu_case() {
  Case c;
  c.device = "cuda";
  c.deterministic = "on";
  c.batch = 4;
  c.seq = 64;
  c.steps = kSteps;
  c.lr = 3e-3;
  return c;
}

Record run_valid(const Case& c) {
  const Record record = run_case(validate(c));
  INFO(record.error.value_or("no error"));
  CHECK(Schema::record().violations(nlohmann::ordered_json(record)) == std::vector<std::string>{});
  CHECK(record.env.gpu.has_value());
  return record;
}

Record run_gpu(const Case& c) {
  const Record record = run_valid(c);
  INFO(record.error.value_or("no error"));
  REQUIRE(record.status == Status::ok);
  REQUIRE(record.training->loss.size() == kSteps);
  return record;
}

/// Looks tokens up in a table at an address where nothing is.
Record read_where_nothing_is(const Case& c, const NodeShare&, StepBoard&) {
  setenv("CUDA_LAUNCH_BLOCKING", "1", 1);  // attributes the error to its op
  const std::unique_ptr<Device> gpu = make_gpu_device(0);
  Buffers buffers(*gpu);
  const std::vector<std::int32_t> ones(64, 1);
  const Tensor tokens = buffers.tensor(DType::i32, 64, 1), x = buffers.tensor(DType::bf16, 64, 128);
  Tensor nowhere = buffers.tensor(DType::bf16, 256, 128);
  nowhere.data = reinterpret_cast<void*>(std::uintptr_t{4096});
  gpu->upload(tokens, ones.data());
  gpu->synchronize();
  gpu->embedding({x, tokens, nowhere});
  gpu->synchronize();
  return start_record(validate(c));
}

}  // namespace

TEST_CASE("run_case: held-out losses between replayed steps change no bit of the training on a GPU",
          "[gpu][held_out]") {
  if (!gpu_here()) return;
  const TempDirectory directory;
  std::string text;
  for (int i = 0; i < 2000; ++i) text += static_cast<char>('a' + i * i % 23);
  for (const char* recipe : {"bf16", "tensorwise", "blockwise", "mxfp8"})
    for (const char* graph : {"on", "off"}) {
      INFO(recipe << ", graph " << graph);
      Case c = gpu_case();
      c.recipe = recipe;
      c.graph = graph;
      const Record plain = run_gpu(c);
      c.eval_data = directory.write("held.txt", text);
      c.eval_tokens = 1280;
      c.eval_every = 3;
      const Record record = run_gpu(c);
      check_same_training(record, plain);
      CHECK(record.memory->measured->activations == plain.memory->measured->activations);
      REQUIRE(record.training->evaluations.size() == 4);
      const Evaluation& last = record.training->evaluations.back();
      CHECK((last.step == kSteps && last.tokens == 1280));
      CHECK(std::fabs(*last.loss - *last.bf16_loss) < 0.02);
    }
}

TEST_CASE("run_case: recomputation in a graph changes no bit and takes the predicted memory on a GPU",
          "[gpu][recompute]") {
  if (!gpu_here()) return;
  for (const char* model : {"tiny", "tiny-moe-shared"})
    for (const char* recipe : {"bf16", "tensorwise", "blockwise", "mxfp8"}) {
      Case c = gpu_case();
      c.model = model, c.recipe = recipe;
      c.accumulation = 2;
      const Record plain = run_gpu(c);
      for (const char* recompute : {"norm", "attention", "ffn", "attention+ffn+norm", "block:1", "block"}) {
        INFO(model << " " << recipe << ", recompute " << recompute);
        c.recompute = recompute;
        const Record record = run_gpu(c);
        check_same_training(record, plain);
        const nlohmann::ordered_json memory = nlohmann::ordered_json(record).at("memory");
        CHECK(memory.at("measured") == memory.at("predicted"));
        if (!plain.moe) CHECK(record.memory->measured->activations < plain.memory->measured->activations);
      }
    }
}

TEST_CASE("run_case: two GPUs that reduce whole gradients once train like replicas in the predicted memory",
          "[gpu][comm]") {
  if (!gpu_here() || find_gpus().count < 2) return;
  for (const char* recipe : {"bf16", "tensorwise"})
    for (const char* recompute : {"none", "attention+ffn+norm"}) {
      INFO(recipe << ", recompute " << recompute);
      Case c = gpu_case();
      c.recipe = recipe, c.recompute = recompute;
      c.gpus = 2, c.accumulation = 3, c.clip = 0;
      const Record ddp = run_gpu(c);
      c.parallel = "fsdp", c.grad_sync = "last";
      const Record last = run_gpu(c);
      CHECK(last.training->loss == ddp.training->loss);
      CHECK(last.communication->wire_bytes == last.communication->predicted_wire_bytes);
      CHECK(last.memory->measured->gradients == last.memory->predicted->gradients);
      CHECK(last.memory->measured->peak == last.memory->predicted->peak);
      // Control: with sums over ranks in every micro-step the losses part.
      c.grad_sync = "every";
      CHECK(run_gpu(c).training->loss != ddp.training->loss);
    }
}

TEST_CASE("run_case: a fidelity probe on a GPU changes no bit of the training and agrees with the CPU",
          "[gpu][fidelity]") {
  if (!gpu_here()) return;
  for (const char* recipe : {"bf16", "tensorwise", "blockwise", "mxfp8"}) {
    INFO(recipe);
    Case c = gpu_case();
    c.recipe = recipe;
    const Record plain = run_gpu(c);
    c.fidelity_batches = 2;
    c.fidelity_stress = "ffn:16";
    const Record record = run_gpu(c);
    check_same_training(record, plain);
    CHECK(record.memory->measured->activations == plain.memory->measured->activations);
    c.device = "cpu";
    c.steps = 1;
    const Record cpu = run_case(validate(c));
    REQUIRE(record.fidelity.size() == 2);
    for (std::size_t i = 0; i < 2; ++i) {
      const Fidelity &here = record.fidelity[i], &there = cpu.fidelity.at(i);
      INFO(here.stress);
      CHECK(std::fabs(*here.loss_bf16 - *there.loss_bf16) < 1e-3);
      CHECK((here.whole.error.mean == 0) == (c.recipe == "bf16"));
      // Activations are rounded elsewhere, so that the quantization errors differ but have the same size.
      CHECK(std::fabs(*here.whole.error.mean - *there.whole.error.mean) <= 0.15 * *there.whole.error.mean);
    }
  }
}

TEST_CASE("run_case: sensitivity cells on a GPU change no bit of the training and agree with the CPU",
          "[gpu][fidelity][sensitivity]") {
  if (!gpu_here()) return;
  for (const char* recipe : {"tensorwise", "rowwise", "mxfp8", "nvfp4_all"}) {
    INFO(recipe);
    Case c = gpu_case();
    c.recipe = recipe;
    c.seq = 128;
    const Record plain = run_gpu(c);
    c.fidelity_batches = 2, c.sensitivity = "gemms,operands,roles,blocks,elements,scales";
    const Record record = run_gpu(c);
    check_same_training(record, plain);
    c.device = "cpu", c.deterministic = "off", c.steps = 1;
    const Record cpu = run_case(validate(c));
    REQUIRE(cpu.sensitivity);
    const auto &here = record.sensitivity->cells, &there = cpu.sensitivity->cells;
    REQUIRE(here.size() == there.size());
    for (std::size_t i = 0; i < here.size(); ++i) {
      INFO(here[i].group << " " << name_of(here[i].kind) << " " << here[i].part << ": gradient error "
                         << *here[i].whole.error.mean << ", on the CPU " << *there[i].whole.error.mean);
      CHECK((here[i].group == there[i].group && here[i].part == there[i].part));
      CHECK(here[i].kept_flops == there[i].kept_flops);
      if (here[i].kind == CellKind::control) {
        CHECK((here[i].loss_difference.mean == 0 && here[i].whole.error.mean == 0));
        continue;
      }
      // Activations are rounded elsewhere, so that the quantization errors differ but have the same size.
      CHECK(std::fabs(*here[i].whole.error.mean - *there[i].whole.error.mean) <=
            0.15 * *there[i].whole.error.mean);
      CHECK(std::fabs(*here[i].loss_difference.mean - *there[i].loss_difference.mean) < 2e-3);
    }
  }
}

namespace {

/// Runs a case with its step captured in a graph and op by op, and checks that both train alike.
std::pair<Record, Record> captured_and_eager(Case c) {
  const Record captured = run_gpu(c);
  c.graph = "off";
  const Record eager = run_gpu(c);
  check_same_training(captured, eager);
  CHECK(captured.training->loss.back() < captured.training->loss.front());
  return {captured, eager};
}

}  // namespace

TEST_CASE("run_case: the GPU's rates are measured unless other cases run at the same time", "[gpu]") {
  if (!gpu_here()) return;
  const Plan plan = validate(gpu_case());
  NodeShare share = all_ranks(1);
  CHECK(run_case(plan, share).metrics->peaks->measured_bf16_tflops);
  share.beside_others = true;
  const Record shared = run_case(plan, share);
  CHECK(shared.status == Status::ok);
  CHECK_FALSE(shared.metrics->peaks->measured_bf16_tflops);
  CHECK_FALSE(shared.metrics->mfu_measured);
}

TEST_CASE("run_case: a captured step equals the eager step bit for bit", "[gpu]") {
  if (!gpu_here()) return;
  std::vector<std::string> names = {"nvfp4_all"};
  for (const Recipe& recipe : builtin_recipes()) names.push_back(recipe.name);
  for (const std::string& name : names) {
    INFO(name);
    Case c = gpu_case();
    c.recipe = name;
    captured_and_eager(c);
  }
}

TEST_CASE("run_case: an MoE model's captured step equals the eager step although its routing changes",
          "[gpu][moe]") {
  if (!gpu_here()) return;
  for (const char* recipe :
       {"bf16", "tensorwise", "rowwise", "rowwise_gw_hp", "blockwise", "blockwise_pow2", "mxfp8"}) {
    INFO(recipe);
    Case c = gpu_case();
    c.model = "tiny-moe-shared";
    c.recipe = recipe;
    const auto [captured, eager] = captured_and_eager(c);
    CHECK(captured.moe->load.layers == eager.moe->load.layers);
    CHECK(captured.moe->grouped == eager.moe->grouped);
  }
}

TEST_CASE("run_case: a deterministic case repeats itself with every attention implementation", "[gpu]") {
  if (!gpu_here()) return;
  for (const char* attention : {"auto", "own"}) {
    Case c = gpu_case();
    c.attention = attention;
    // Several blocks of keys for each query, so that backward has sums whose order could change.
    c.batch = 2;
    c.seq = 512;
    const Record first = run_gpu(c), second = run_gpu(c);
    INFO(first.support->attention.value_or("?"));
    check_same_training(first, second);
    if (c.attention == "own") CHECK(first.support->attention == "own");
  }
}

TEST_CASE("run_case: a diverging GPU run names its step and the first bad gradient", "[gpu]") {
  if (!gpu_here()) return;
  for (const char* graph : {"on", "off"}) {
    Case c = gpu_case();
    c.graph = graph;
    c.lr = 1e30;
    const Record record = run_valid(c);
    INFO(record.error.value_or("no error"));
    CHECK(record.status == Status::diverged);
    const std::string error = record.error.value_or("");
    CHECK(error.find(" is not finite at step 2; first bad gradient: model.") != std::string::npos);
    REQUIRE(record.training.has_value());
    CHECK(record.training->loss.size() == 2);
    CHECK(!record.metrics.has_value());
  }
}

TEST_CASE("run_case: a case that does not fit a GPU is oom and has its prediction", "[gpu]") {
  if (!gpu_here()) return;
  Case c = gpu_case();
  c.model = "llama3.1-405b";
  const Record record = run_valid(c);
  CHECK(record.status == Status::oom);
  INFO(record.error.value_or("no error"));
  CHECK(record.error.value_or("").find(" GiB do not fit: ") != std::string::npos);
  REQUIRE(record.memory.has_value());
  REQUIRE(record.memory->predicted.has_value());
  CHECK(record.memory->predicted->peak > *record.env.gpu->memory);
  // A case that fits can run in the same process.
  run_gpu(gpu_case());
}

TEST_CASE("a case whose kernel reads where nothing is", "[.]") {
  be_child(kBadKernel, read_where_nothing_is);
}

TEST_CASE("run_sweep: a kernel error is a crashed row with the op and CUDA's message", "[gpu]") {
  if (!gpu_here()) return;
  const TempDirectory directory;
  const SweepOptions options = sweep_into(directory, kBadKernel);
  Case c = gpu_case();
  CHECK(run_sweep({c}, options) == kSweepFailures);
  const RecordSet set = read_records({options.out});
  REQUIRE(set.records.size() == 1);
  const Record& record = set.records[0].record;
  CHECK(record.status == Status::crashed);
  const std::string error = record.error.value_or("");
  INFO(error);
  CHECK(error.find("embedding: ") != std::string::npos);
  CHECK(error.find("(CUDA error 700)") != std::string::npos);
  CHECK(record.env.gpu.has_value());
  run_gpu(gpu_case());  // only the child had the error
}

TEST_CASE("run_case: a case on GPUs resumes from its checkpoint with the same bits", "[checkpoint][gpu]") {
  if (!gpu_here()) return;
  const auto check = [](Case c) {
    INFO(c.gpus << " GPUs " << c.parallel << ", master " << c.master << ", moments " << c.moments);
    const TempDirectory directory;
    const Record straight = run_gpu(c);
    c.checkpoint_every = kSteps / 2;
    c.checkpoint_dir = directory / "checkpoints";
    const std::string end = checkpoint_folder(validate(c)) + "/step-000010";
    CHECK(run_gpu(c).training->loss == straight.training->loss);
    std::map<std::string, std::string> files;
    for (const char* kind : {"weights", "m", "v"}) files[kind] = file_text(end + "/" + kind + ".safetensors");
    std::filesystem::remove_all(end);  // as if it had been killed in the last step
    const Record rest = run_gpu(c);
    CHECK(rest.training->loss == straight.training->loss);
    CHECK(rest.warnings.size() == straight.warnings.size() + 1);
    for (const auto& [kind, bytes] : files) {
      INFO(kind);
      CHECK(!bytes.empty());
      CHECK(file_text(end + "/" + kind + ".safetensors") == bytes);
    }
  };
  for (const char* master : {"fp32", "bf16", "bf16_sr"})
    for (const char* moments : {"fp32", "bf16"}) {
      Case c = gpu_case();
      c.master = master, c.moments = moments;
      check(c);
      if (find_gpus().count < 2) continue;
      c.gpus = 2;
      for (const char* parallel : {"ddp", "fsdp"}) {
        c.parallel = parallel;
        check(c);
      }
      c.accumulation = 2, c.grad_sync = "last", c.recompute = "attention+ffn+norm";
      check(c);
    }
}
