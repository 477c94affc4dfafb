// Files that a case reads and writes besides its record: weights, data, held-out text. None of it may affect
// the training.
#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <utility>
#include <vector>

#include "bench/case/case_testing.h"
#include "bench/measure/session_testing.h"
#include "kernels/testing/temp_directory.h"
#include "kernels/testing/text_checks.h"
#include "models/checkpoint/safetensors.h"

using namespace precbench;

TEST_CASE("run_case: saving weights does not affect the step's memory", "[session]") {
  const TempDirectory directory;
  Case c = testing::with_flags(tiny_case(), "--gpus 2 --parallel fsdp --steps 2");
  c.save_init = directory / "init.safetensors";
  c.save_final = directory / "final.safetensors";
  c.save_grads = directory / "grads.safetensors";
  check_complete(run_case(validate(c)), c);
}

TEST_CASE("run_case: a case whose final weights cannot be written keeps its row", "[session]") {
  const TempDirectory directory;
  Case c = tiny_case();
  c.steps = 2;
  c.save_final = directory / "gone/final.safetensors";
  const Record record = run_case(validate(c));
  check_complete(record, c);
  REQUIRE(record.warnings.size() == 1);
  CHECK(record.warnings[0].starts_with("not written: --save-final: " + c.save_final + ": cannot be written"));
}

TEST_CASE("run_case: held-out losses change neither training nor memory nor steps", "[session][held_out]") {
  const TempDirectory directory;
  const std::string held_out = directory.write("held.u16", []() {
    std::string bytes;
    for (int i = 0; i < 32 * 11 + 1; ++i) bytes += {static_cast<char>(i * i % 251), '\0'};
    return bytes;
  }());
  for (const char* recipe : {"bf16", "mxfp8"})
    for (const auto& [gpus, parallel] : {std::pair{1, "ddp"}, {2, "ddp"}, {2, "fsdp"}}) {
      INFO(recipe << ", " << gpus << " ranks, " << parallel);
      Case c = tiny_case();
      c.recipe = recipe;
      c.gpus = gpus;
      c.parallel = parallel;
      c.batch = 4 / gpus;
      c.steps = 5;
      c.save_final = directory / "plain.safetensors";
      const Record plain = run_case(validate(c));
      CHECK(plain.training->evaluations.empty());
      c.eval_data = held_out;
      c.eval_tokens = 32 * 9 + 1;
      c.eval_every = 2;
      const std::string weights = file_text(c.save_final);
      c.save_final = directory / "evaluated.safetensors";
      const Record record = run_case(validate(c));
      check_complete(record, c);
      check_same_training(record, plain);
      CHECK(!weights.empty());
      CHECK(file_text(c.save_final) == weights);
      CHECK(record.warnings == std::vector<std::string>{});
      std::vector<std::int64_t> steps;
      for (const Evaluation& evaluation : record.training->evaluations) {
        steps.push_back(evaluation.step);
        CHECK(evaluation.tokens == 32 * 10);
        CHECK(evaluation.loss_error.value_or(0) > 0);
        CHECK((evaluation.loss == evaluation.bf16_loss) == (c.recipe == "bf16"));
        CHECK(std::fabs(*evaluation.loss - *evaluation.bf16_loss) < 0.02);
      }
      CHECK(steps == std::vector<std::int64_t>{2, 4, 5});
    }
}

TEST_CASE("run_case: held-out text that was trained on is a warning", "[session][held_out]") {
  const TempDirectory directory;
  std::string text, other;
  for (int i = 0; i < 4000; ++i) {
    text += static_cast<char>('a' + (i * 7919 + i * i * 31 + i / 26) % 26);
    other += static_cast<char>('A' + (i * 104729 + i * i * 17 + i / 26) % 26);
  }
  Case c = tiny_case();
  c.steps = 31;  // 124 sequences: the whole text once
  c.data = directory.write("text.txt", text);
  c.eval_tokens = 320;
  const auto warnings = [&](const std::string& held_out) {
    c.eval_data = directory.write(fmt::format("{}.txt", held_out.substr(0, 8)), held_out);
    const Record record = run_case(validate(c));
    CHECK(record.status == Status::ok);
    return record.warnings;
  };
  CHECK(warnings(other) == std::vector<std::string>{});
  CHECK(warnings(text) ==
        std::vector<std::string>{
            "--eval-data: holds what --data holds: its loss is one of text that was trained on"});
  // A part of the text from an arbitrary place.
  const auto part = warnings(text.substr(1234, 600));
  REQUIRE(part.size() == 1);
  CHECK(part[0].starts_with("--eval-data: "));
  CHECK(part[0].ends_with(" of 10 sequences begin with 16 tokens in a row that were trained on"));
}

TEST_CASE("run_case: data that was not read completely is a warning", "[session]") {
  const TempDirectory directory;
  directory.write("a.txt", std::string(400, 'x'));
  std::filesystem::create_symlink(directory / "nowhere", directory / "b.txt");
  Case c = tiny_case();
  c.steps = 2;
  c.data = directory.path();
  const Record record = run_case(validate(c));
  CHECK(record.status == Status::ok);
  REQUIRE(record.warnings.size() == 1);
  CHECK(record.warnings[0].starts_with("not all of the data was read: text: " + c.data));
  CHECK(record.warnings[0].ends_with("1 unreadable skipped"));
}

TEST_CASE("run_case: data that was read more than once is a warning", "[session]") {
  const TempDirectory directory;
  std::string text;
  for (int i = 0; i < 1601; ++i) text += static_cast<char>('a' + i * i % 23);
  Case c = tiny_case();  // 4 sequences of 32 tokens a step
  c.data = directory.write("text.txt", text);
  c.steps = 12;
  CHECK(run_case(validate(c)).warnings.empty());  // 48 of 50 sequences
  c.steps = 25;
  CHECK(run_case(validate(c)).warnings ==
        std::vector<std::string>{
            "--data: 100 sequences of 32 tokens were read, and the data has 50: each was read 2.0 times"});
  c.gpus = 2;
  c.batch = 2;
  CHECK(run_case(validate(c)).warnings.size() == 1);
}

TEST_CASE("run_case: a weight that is not finite is attributed to its own layer", "[session]") {
  const TempDirectory directory;
  Case c = tiny_case();
  c.steps = 1;
  c.save_init = directory / "init.safetensors";
  REQUIRE(run_case(validate(c)).status == Status::ok);
  const SafetensorsFile good(c.save_init);
  const std::string name = "model.layers.1.self_attn.k_proj.weight";
  std::vector<NamedTensor> tensors;
  std::vector<std::vector<float>> values;
  for (const StoredTensor& stored : good.tensors()) {
    std::vector<float>& copy = values.emplace_back(static_cast<std::size_t>(stored.size()));
    copy_to_f32(copy.data(), stored);
    if (stored.name == name) copy[5] = NAN;
    tensors.push_back({stored.name, "F32", stored.shape, copy.data()});
  }
  c.save_init.clear();
  c.init_from = directory / "bad.safetensors";
  write_safetensors(c.init_from, tensors, good.metadata());
  for (const auto& [gpus, parallel] : {std::pair{1, "ddp"}, {2, "ddp"}, {2, "fsdp"}}) {
    INFO(gpus << " ranks, " << parallel);
    c.gpus = gpus;
    c.parallel = parallel;
    c.batch = 4 / gpus;
    const Record record = run_case(validate(c));
    CHECK(record.status == Status::diverged);
    CHECK(record.error.value_or("") ==
          "the loss is not finite at step 1; first weight that is not finite, before any step: " + name);
  }
}

TEST_CASE("run_case: saved weights can be loaded and saved gradients are those of the first step",
          "[session]") {
  const TempDirectory directory;
  Case c = tiny_case();
  c.steps = 2;
  c.save_init = directory / "init.safetensors";
  c.save_final = directory / "final.safetensors";
  c.save_grads = directory / "grads.safetensors";
  const Record first = run_case(validate(c));
  CHECK(first.status == Status::ok);

  Case again = tiny_case();
  again.steps = 2;
  again.seed = c.seed;
  again.init_from = c.save_init;
  CHECK(run_case(validate(again)).training->loss == first.training->loss);

  // The saved gradients have the norm of the first step.
  double squares = 0;
  const SafetensorsFile grads(c.save_grads);
  CHECK(grads.tensors().size() == 4 * 9 + 2);
  for (const StoredTensor& tensor : grads.tensors()) {
    std::vector<float> values(tensor.size());
    copy_to_f32(values.data(), tensor);
    for (const float v : values) squares += static_cast<double>(v) * v;
  }
  CHECK(std::fabs(std::sqrt(squares) / first.training->grad_norm[0] - 1) < 1e-6);

  // A checkpoint of another model is refused with the tensor that does not fit.
  again.model = "15m";
  again.init_from = c.save_final;
  CHECK(contains(refusal_of([&] { run_case(validate(again)); }),
                 "q_proj.weight has shape [128, 128], the model 15m expects [512, 512]"));
}
