// Whole cases on the CPU device: what a record says when a case ends well, and how it says that it did not.
#include "bench/measure/session.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "kernels/numerics/recipe.h"
#include "models/checkpoint/safetensors.h"
#include "results/schema.h"
#include "tools/testing/catch.h"
#include "tools/testing/temp_directory.h"
#include "tools/testing/text.h"

using namespace precbench;

namespace {

Case tiny_case() {
  // One thread: these models are too small for two, which wait for each other where other programs run too.
  setenv("OMP_NUM_THREADS", "1", 1);
  Case c;
  c.device = "cpu";
  c.batch = 4;
  c.seq = 32;
  c.steps = 8;
  c.lr = 3e-3;
  return c;
}

/// Everything that a finished record must say, whatever the case.
void check_complete(const Record& record, const Case& c) {
  INFO(record.error.value_or("no error"));
  CHECK(record.status == Status::ok);
  CHECK(!record.error.has_value());
  CHECK(Schema::record().violations(nlohmann::ordered_json(record)) == std::vector<std::string>{});
  REQUIRE(record.training.has_value());
  const Training& training = *record.training;
  REQUIRE(static_cast<std::int64_t>(training.loss.size()) == c.steps);
  CHECK(training.grad_norm.size() == training.loss.size());
  CHECK(training.lr.size() == training.loss.size());
  CHECK(training.params_changed == training.params_total);
  CHECK(training.params_total == 4 * 9 + 2);
  CHECK(training.tokens_per_step == c.batch * c.seq * c.gpus * c.accumulation);
  // At first nothing is known: ln V, give or take the random logits, whose deviation is 0.02 sqrt(128) =
  // 0.23.
  CHECK(std::fabs(training.loss.front() - *training.uniform_loss) < 0.3);
  REQUIRE(record.timing.has_value());
  CHECK(record.timing->stop_reason == StopReason::fixed_steps);
  CHECK(record.timing->warmup + static_cast<std::int64_t>(record.timing->samples_ms.size()) == c.steps);
  // The host's clock runs through what the samples leave out, too.
  const std::vector<double>& samples = record.timing->samples_ms;
  REQUIRE(record.timing->wall_ms.has_value());
  CHECK(*record.timing->wall_ms * static_cast<double>(samples.size()) >=
        std::accumulate(samples.begin(), samples.end(), 0.0));
  REQUIRE(record.breakdown.has_value());
  CHECK(record.breakdown->gemm_ms > 0);
  // The arena is measured as predicted; the CPU device's own scratch comes on top.
  REQUIRE(record.memory.has_value());
  const MemorySegments &predicted = *record.memory->predicted, &measured = *record.memory->measured;
  const std::int64_t scratch = measured.workspace - predicted.workspace;
  CHECK(scratch > 0);
  CHECK(measured.weights == predicted.weights);
  CHECK(measured.quantized_weights == predicted.quantized_weights);
  CHECK(measured.master == predicted.master);
  CHECK(measured.gradients == predicted.gradients);
  CHECK(measured.moments == predicted.moments);
  CHECK(measured.activations == predicted.activations);
  CHECK(measured.communication == predicted.communication);
  CHECK(measured.other == predicted.other);
  CHECK(measured.peak == predicted.peak + scratch);
}

std::set<std::string> roles_of(const Record& record) {
  std::set<std::string> roles;
  for (const QuantizationStats& stats : record.quantization) roles.insert(stats.role);
  return roles;
}

/// Every operand of every linear layer, in the direction of each GEMM that takes it quantized; but for weights that are kept
/// so, of which there is nothing to compare with.
std::set<std::string> expected_roles(const Recipe& recipe) {
  const std::pair<const char*, QuantFormat> operands[] = {
      {"x rows", recipe.fprop.a}, {"x columns", recipe.wgrad.b},  {"dy rows", recipe.dgrad.a},
      {"w rows", recipe.fprop.b}, {"dy columns", recipe.wgrad.a}, {"w columns", recipe.dgrad.b}};
  std::set<std::string> roles;
  for (const char* linear : {"qkv", "o", "gate_up", "down"})
    for (const auto& [operand, format] : operands)
      if (format.quantized() && !(*operand == 'w' && recipe.optimizer.weights == "e4m3"))
        roles.insert(fmt::format("{}.{}", linear, operand));
  return roles;
}

}  // namespace

TEST_CASE("every recipe trains, and its record is whole", "[session]") {
  const TempDirectory directory;
  std::string pangrams;
  while (pangrams.size() < 4000) pangrams += "the quick brown fox jumps over the lazy dog. ";
  const std::string text = directory.write("pangrams.txt", pangrams);
  double bf16_loss = 0;
  for (const Recipe& recipe : builtin_recipes()) {  // BF16 is the first
    INFO(recipe.name);
    Case c = tiny_case();
    c.recipe = recipe.name;
    c.data = text;
    const Record record = run_case(resolve(c));
    check_complete(record, c);
    const std::vector<double>& loss = record.training->loss;
    CHECK(loss.back() < loss.front() - 2);  // from 256 letters to some frequent ones
    // Recipes follow BF16. Measured within 0.008.
    if (!recipe.quantized()) bf16_loss = loss.back();
    CHECK(std::fabs(loss.back() - bf16_loss) < 0.02);
    CHECK(record.warnings == std::vector<std::string>{});
    CHECK(record.id == resolve(c).id);
    // What does not run natively has no speed.
    CHECK(record.metrics->tokens_per_s.has_value() == !recipe.quantized());
    CHECK(roles_of(record) == expected_roles(recipe));
    CHECK(record.training->converted_layers.empty() == !recipe.quantized());
    CHECK((record.support->path() == ExecutionPath::native) == !recipe.quantized());
    for (const QuantizationStats& stats : record.quantization) {
      INFO(stats.role << " " << stats.format);
      // FP8 keeps 2 or 3 bits of mantissa: 25 to 32 dB. Row and block scales lose nothing to the range.
      REQUIRE(stats.sqnr_db.has_value());
      CHECK(*stats.sqnr_db > (stats.format.rfind("e5m2", 0) == 0 ? 18 : 25));
      CHECK(*stats.sqnr_db < 40);
    }
  }
}

TEST_CASE("NVFP4 trains, but in the last blocks and late, and draws the same numbers again", "[session]") {
  const TempDirectory directory;
  std::string pangrams;
  while (pangrams.size() < 4000) pangrams += "the quick brown fox jumps over the lazy dog. ";
  Case c = tiny_case();
  c.data = directory.write("pangrams.txt", pangrams);
  c.recipe = "nvfp4";
  c.switch_recipe = "none";
  const Record record = run_case(resolve(c));
  check_complete(record, c);
  const std::vector<double>& loss = record.training->loss;
  CHECK(loss.back() < loss.front() - 2);
  CHECK(run_case(resolve(c)).training->loss == loss);
  CHECK(roles_of(record) == expected_roles(find_recipe("nvfp4")));
  CHECK(record.support->path() == ExecutionPath::emulated);
  for (const QuantizationStats& stats : record.quantization) {
    INFO(stats.role << " " << stats.format);
    REQUIRE(stats.sqnr_db.has_value());
    // 17.3 dB of normal values rounded stochastically, 20.5 to nearest; the transform of columns that are nearly
    // constant leaves one large value of 16, and 27.
    CHECK(*stats.sqnr_db > 14);
    CHECK(*stats.sqnr_db < 32);
  }
  // Random numbers are the step's and the seed's, so that rounding to nearest is another run.
  Case nearest = c;
  nearest.recipe = "nvfp4_rne";
  CHECK(run_case(resolve(nearest)).training->loss != loss);

  c.switch_recipe = "";
  const Record switched = run_case(resolve(c));
  check_complete(switched, c);
  CHECK(switched.training->converted_layers ==
        std::vector<std::string>{"layers.0-2.{qkv,o,gate_up,down}", "from step 7 bf16: none"});
  // The same until then.
  CHECK(std::equal(loss.begin(), loss.begin() + 7, switched.training->loss.begin()));
}

TEST_CASE("the collectives of delayed scaling are those of a step with a history", "[session][delayed]") {
  for (const auto& [parallel, gather] : {std::pair{"ddp", "bf16"}, {"fsdp", "fp8"}}) {
    INFO(parallel << " " << gather);
    Case c = tiny_case();
    c.recipe = "tensorwise_delayed";
    c.gpus = 2;
    c.parallel = parallel;
    c.gather = gather;
    c.steps = 3;
    const Record record = run_case(resolve(c));
    check_complete(record, c);
    REQUIRE(record.communication.has_value());
    CHECK(record.communication->wire_bytes == record.communication->predicted_wire_bytes);
    std::int64_t maxima = 0;
    for (const CollectiveRecord& kind : record.communication->collectives)
      if (kind.name == "all_reduce_max") maxima = kind.calls;
    CHECK(maxima == 1);  // of all amaxes together
  }
}

TEST_CASE("what FP8 gradients send is predicted, and is less than FP32 ones", "[session][delayed]") {
  for (const char* recipe : {"msamp_o1", "msamp_o3"})
    for (const char* parallel : {"ddp", "fsdp"})
      for (const std::int64_t steps : {3, 18}) {  // with current scales alone, and past them
        INFO(recipe << " " << parallel << " " << steps);
        Case c = tiny_case();
        c.batch = 1;
        c.recipe = recipe;
        c.gpus = 2;
        c.parallel = parallel;
        c.steps = steps;
        const Record record = run_case(resolve(c));
        check_complete(record, c);
        REQUIRE(record.communication.has_value());
        CHECK(record.communication->wire_bytes == record.communication->predicted_wire_bytes);
        double exchanged = 0, maxima = 0;
        for (const CollectiveRecord& kind : record.communication->collectives) {
          if (kind.name == "all_to_all") exchanged = kind.wire_bytes;
          if (kind.name == "all_reduce_max") maxima = static_cast<double>(kind.calls);
        }
        // A byte of half of all elements, and of the padding of parts.
        const auto half = static_cast<double>(parameter_count(resolve(c).model)) / 2;
        CHECK(exchanged >= half);
        CHECK(exchanged <= half * 1.02);
        CHECK(maxima > 2 * 5);  // of every unit's gradient, as it is sent and as it is kept
      }
}

TEST_CASE("ranks leave one record", "[session]") {
  struct Setting {
    std::int64_t gpus, group;  ///< ranks that share the model
    const char *parallel, *gather;
  };
  std::map<std::string, double> gathered;  // bytes on the wire
  // Three ranks divide few buffers evenly; shared amaxes are small ones.
  for (const auto& [gpus, group, parallel, gather] : {Setting{2, 1, "ddp", "bf16"},
                                                      {3, 1, "ddp", "bf16"},
                                                      {2, 2, "fsdp", "bf16"},
                                                      {2, 2, "fsdp", "fp8"},
                                                      {4, 2, "hsdp", "bf16"},
                                                      {6, 3, "hsdp", "bf16"}}) {
    INFO(gpus << " ranks, " << parallel << " in groups of " << group << ", gather " << gather);
    Case c = tiny_case();
    c.recipe = "tensorwise";
    c.gpus = gpus;
    c.parallel = parallel;
    c.shard_group = c.parallel == "hsdp" ? group : 1;
    c.gather = gather;
    c.reduce_amax = gpus % 3 == 0 ? "on" : "off";
    c.accumulation = 2;
    c.steps = 3;
    const Record record = run_case(resolve(c));
    check_complete(record, c);
    const bool sharded = c.parallel != "ddp";
    CHECK(record.breakdown->communication_ms > 0);
    CHECK((record.memory->measured->communication > 0) == sharded);

    REQUIRE(record.communication.has_value());
    const Communication& communication = *record.communication;
    CHECK(communication.backend == "local");
    CHECK(communication.wire_bytes == communication.predicted_wire_bytes);
    std::map<std::string, CollectiveRecord> kinds;
    double sum = 0;
    for (const CollectiveRecord& kind : communication.collectives) {
      kinds[kind.name] = kind;
      sum += kind.wire_bytes;
      CHECK(!kind.bus_gb_per_s.has_value());  // threads have no bus
    }
    CHECK(sum == communication.wire_bytes);
    CHECK(kinds.count("all_reduce") == 1);
    CHECK(kinds.count("all_gather") == sharded);
    CHECK(kinds.count("reduce_scatter") == sharded);
    if (!sharded) continue;
    // Gradients in FP32, of every unit once per micro-step, between the ranks of a group.
    const double parameters = static_cast<double>(parameter_count(find_model(c.model)));
    const double sent = 2 * 4 * parameters * static_cast<double>(group - 1) / static_cast<double>(group);
    const CollectiveRecord& reduced = kinds["reduce_scatter"];
    CHECK(reduced.wire_bytes >= sent);
    CHECK(reduced.wire_bytes < sent * 1.01);  // shards are padded
    if (group == 2) gathered[c.parallel + c.gather] = kinds["all_gather"].wire_bytes;
  }
  CHECK(gathered["hsdpbf16"] == gathered["fsdpbf16"]);  // groups of two both
  CHECK(gathered["fsdpfp8"] < 0.7 * gathered["fsdpbf16"]);
  CHECK(gathered["fsdpfp8"] > 0.5 * gathered["fsdpbf16"]);
}

TEST_CASE("the stop rules end a case of all ranks at one step", "[session]") {
  Case c = tiny_case();
  c.steps = 0;
  c.gpus = 2;
  c.time_limit = 0.2;
  const Record record = run_case(resolve(c));
  CHECK(record.status == Status::ok);
  REQUIRE(record.timing.has_value());
  CHECK(record.timing->stop_reason != StopReason::fixed_steps);
  CHECK(record.timing->warmup + record.timing->samples_ms.size() == record.training->loss.size());
  CHECK(Schema::record().violations(nlohmann::ordered_json(record)) == std::vector<std::string>{});
}

TEST_CASE("a case repeats itself", "[session]") {
  Case c = tiny_case();
  c.recipe = "mxfp8";
  c.steps = 3;
  const Record first = run_case(resolve(c)), second = run_case(resolve(c));
  CHECK(first.training->loss == second.training->loss);
  CHECK(first.training->grad_norm == second.training->grad_norm);
}

TEST_CASE("a run that blows up is diverged, at its step", "[session]") {
  Case c = tiny_case();
  c.lr = 1e30;
  const Record record = run_case(resolve(c));
  INFO(record.error.value_or("no error"));
  CHECK(record.status == Status::diverged);
  CHECK(record.error.value_or("").find("at step 2") != std::string::npos);
  REQUIRE(record.training.has_value());
  CHECK(record.training->loss.size() == 2);
  CHECK(!record.metrics.has_value());
  CHECK(Schema::record().violations(nlohmann::ordered_json(record)) == std::vector<std::string>{});
}

TEST_CASE("a shape that a recipe cannot take is unsupported, with the dimension", "[session]") {
  Case c = tiny_case();
  c.recipe = "mxfp8";
  c.seq = 100;
  c.batch = 1;
  const Record record = run_case(resolve(c));
  CHECK(record.status == Status::unsupported);
  INFO(record.error.value_or("no error"));
  CHECK(record.error.value_or("").find("qkv: M=100 is not a multiple of 16") != std::string::npos);
  CHECK(record.env->host.has_value());
  CHECK(record.env->threads.value_or(0) == 1);
  CHECK(Schema::record().violations(nlohmann::ordered_json(record)) == std::vector<std::string>{});
}

TEST_CASE("saving does not show in the memory of the step", "[session]") {
  const TempDirectory directory;
  Case c = tiny_case();
  c.gpus = 2;
  c.parallel = "fsdp";
  c.steps = 2;
  c.save_init = directory / "init.safetensors";
  c.save_final = directory / "final.safetensors";
  c.save_grads = directory / "grads.safetensors";
  check_complete(run_case(resolve(c)), c);
}

TEST_CASE("a training whose last weights cannot be written keeps its row", "[session]") {
  const TempDirectory directory;
  Case c = tiny_case();
  c.steps = 2;
  c.save_final = directory / "gone/final.safetensors";
  const Record record = run_case(resolve(c));
  check_complete(record, c);
  REQUIRE(record.warnings.size() == 1);
  CHECK(record.warnings[0].starts_with("--save-final: " + c.save_final + ": cannot be written"));
}

TEST_CASE("held-out losses change nothing of the training, its memory or its steps", "[session][held_out]") {
  const TempDirectory directory;
  const std::string held_out = directory.write("held.u16", []() {
    std::string bytes;
    for (int i = 0; i < 32 * 11 + 1; ++i) bytes += {static_cast<char>(i * i % 251), '\0'};
    return bytes;
  }());
  std::map<std::string, std::vector<double>> losses;  // by recipe
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
      const Record plain = run_case(resolve(c));
      CHECK(plain.training->evaluations.empty());
      c.eval_data = held_out;
      c.eval_tokens = 32 * 9 + 1;
      c.eval_every = 2;
      const std::string weights = file_text(c.save_final);
      c.save_final = directory / "evaluated.safetensors";
      const Record record = run_case(resolve(c));
      check_complete(record, c);
      CHECK(record.training->loss == plain.training->loss);
      CHECK(record.training->grad_norm == plain.training->grad_norm);
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

TEST_CASE("held-out text that was trained on is a warning", "[session][held_out]") {
  const TempDirectory directory;
  std::string text, other;
  for (int i = 0; i < 4000; ++i) {
    text += static_cast<char>('a' + (i * 7919 + i * i * 31 + i / 26) % 26);
    other += static_cast<char>('A' + (i * 104729 + i * i * 17 + i / 26) % 26);
  }
  Case c = tiny_case();
  c.steps = 40;  // 160 sequences: all of the 124 that the text has
  c.data = directory.write("text.txt", text);
  c.eval_tokens = 320;
  const auto warnings = [&](const std::string& held_out) {
    c.eval_data = directory.write(fmt::format("{}.txt", held_out.substr(0, 8)), held_out);
    const Record record = run_case(resolve(c));
    CHECK(record.status == Status::ok);
    return record.warnings;
  };
  CHECK(warnings(other) == std::vector<std::string>{});
  CHECK(warnings(text) ==
        std::vector<std::string>{
            "--eval-data: holds what --data holds: its loss is one of text that was trained on"});
  // A part of it that begins anywhere.
  const auto part = warnings(text.substr(1234, 600));
  REQUIRE(part.size() == 1);
  CHECK(part[0].starts_with("--eval-data: "));
  CHECK(part[0].ends_with(" of 10 sequences begin with 16 tokens in a row that were trained on"));
}

TEST_CASE("data that was not read whole is a warning", "[session]") {
  const TempDirectory directory;
  directory.write("a.txt", std::string(400, 'x'));
  std::filesystem::create_symlink(directory / "nowhere", directory / "b.txt");
  Case c = tiny_case();
  c.steps = 2;
  c.data = directory.path();
  const Record record = run_case(resolve(c));
  CHECK(record.status == Status::ok);
  REQUIRE(record.warnings.size() == 1);
  CHECK(record.warnings[0].starts_with("not all of the data was read: text: " + c.data));
  CHECK(record.warnings[0].ends_with("1 unreadable skipped"));
}

TEST_CASE("weights go out and come in", "[session]") {
  const TempDirectory directory;
  Case c = tiny_case();
  c.steps = 2;
  c.save_init = directory / "init.safetensors";
  c.save_final = directory / "final.safetensors";
  c.save_grads = directory / "grads.safetensors";
  const Record first = run_case(resolve(c));
  CHECK(first.status == Status::ok);

  Case again = tiny_case();
  again.steps = 2;
  again.seed = c.seed;
  again.init_from = c.save_init;
  CHECK(run_case(resolve(again)).training->loss == first.training->loss);

  // The gradients are the first step's: its norm is theirs.
  double squares = 0;
  const SafetensorsFile grads(c.save_grads);
  CHECK(grads.tensors().size() == 4 * 9 + 2);
  for (const StoredTensor& tensor : grads.tensors()) {
    std::vector<float> values(tensor.size());
    copy_to_f32(values.data(), tensor);
    for (const float v : values) squares += static_cast<double>(v) * v;
  }
  CHECK(std::fabs(std::sqrt(squares) / first.training->grad_norm[0] - 1) < 1e-6);

  // A checkpoint of another model is refused with what does not fit.
  again.model = "15m";
  again.init_from = c.save_final;
  CHECK(contains(refusal_of([&] { run_case(resolve(again)); }),
                 "q_proj.weight has shape [128, 128], the model 15m wants [512, 512]"));
}
