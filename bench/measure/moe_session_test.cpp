// An MoE model from the case to the record: it trains, with several recipes and on several ranks, and its
// record describes the routing.
#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "bench/case/definition.h"
#include "bench/measure/checkpoint_testing.h"
#include "bench/predict/predict.h"
#include "bench/step/weights.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"
#include "kernels/testing/text_checks.h"
#include "models/checkpoint/safetensors.h"
#include "models/data/data.h"

using namespace precbench;

namespace {

Case moe_case(const char* model = "tiny-moe-shared") {
  Case c = tiny_case();
  c.model = model;
  c.layers = 2;
  c.batch = 2;
  c.seq = 64;
  c.steps = 4;
  c.lr = 1e-3;
  return c;
}

}  // namespace

TEST_CASE("run_case: an MoE model trains and its record describes the routing", "[session][moe]") {
  for (const char* recipe : {"bf16", "tensorwise", "blockwise", "mxfp8"}) {
    INFO(recipe);
    Case c = moe_case();
    c.recipe = recipe;
    c.accumulation = 2;
    const Record record = run_ok(c);
    CHECK(record.warnings.empty());
    REQUIRE(record.moe);
    const MoeRecord& moe = *record.moe;
    const double slots = 2 * 2 * 2 * 64 * 2;  // layers, micro-steps, sequences, tokens, experts
    CHECK(moe.rows.expected == slots);
    CHECK(moe.rows.actual == slots);
    CHECK(moe.rows.dropped == 0);
    CHECK((moe.padding_fraction == 0) == (std::string(recipe) == "bf16"));
    CHECK(moe.load.layers.size() == 2);
    CHECK((*moe.load.max >= 1 && *moe.load.max <= 4));
    CHECK(moe.score == "sigmoid");
    CHECK(moe.flops.actual == moe.rows.actual * 18 * 128 * 128);
    CHECK((*moe.bias_min < 0 && *moe.bias_max > 0));
    CHECK(std::fabs(*moe.bias_max) <= 4.001e-3);  // a thousandth in each of four steps
    CHECK(record.params->total == parameter_count(validate(c).model));
    CHECK(record.breakdown->routing_ms > 0);
    CHECK(record.memory->measured->other == record.memory->predicted->other);
    CHECK(record.memory->measured->activations == record.memory->predicted->activations);
    CHECK(record.memory->measured->gradients == record.memory->predicted->gradients);
    valid_json(record);
  }
}

TEST_CASE("run_case: a dense model's record has no MoE keys", "[session][moe]") {
  Case c = moe_case("tiny");
  const nlohmann::ordered_json json = run_case(validate(c));
  CHECK_FALSE(json.contains("moe"));
  CHECK_FALSE(json.contains("params"));
  CHECK_FALSE(json.at("breakdown").contains("routing_ms"));
}

TEST_CASE("run_case: forced and dropped slots are in the record", "[session][moe]") {
  Case c = moe_case("tiny-moe");
  c.routing = "one";
  c.capacity = 1.5;
  const Record record = run_ok(c);
  CHECK(*record.moe->load.max == 4);  // two of eight experts get everything
  CHECK(record.moe->load.empty_experts == 12);
  CHECK(record.moe->rows.actual == 2 * 2 * 48);  // layers, experts, and 1.5 of the 32 at even load
  CHECK(record.moe->rows.dropped == 2 * 2 * (128 - 48));
  CHECK(record.moe->routing == "one");
  c.routing = "balanced";
  c.capacity = {};
  CHECK(*run_case(validate(c)).moe->load.max == 1);
}

TEST_CASE("run_case: an unlimited capacity drops nothing", "[session][moe]") {
  Case c = moe_case("tiny-moe");
  c.capacity = 1e300;
  const Record record = run_ok(c);
  CHECK(record.moe->rows.actual == 2 * 2 * 128);  // layers, and two experts per token
  CHECK(record.moe->rows.expected == record.moe->rows.actual);
  CHECK(record.moe->rows.dropped == 0);
}

namespace {

/// Writes weights for moe_case("tiny-moe") with NaN embeddings for words [first, first + words). Returns
/// the path.
std::string broken_weights(const TempDirectory& directory, std::int64_t first, std::int64_t words) {
  Case c = moe_case("tiny-moe");
  c.steps = 1;
  c.save_final = (directory.path() / "sound.safetensors").string();
  run_ok(c);
  const SafetensorsFile sound(c.save_final);
  std::vector<float> embeddings;
  std::vector<NamedTensor> tensors;
  for (const StoredTensor& t : sound.tensors()) {
    tensors.push_back({t.name, t.dtype, t.shape, t.data});
    if (t.name != "model.embed_tokens.weight") continue;
    embeddings.resize(static_cast<std::size_t>(t.size()));
    copy_to_f32(embeddings.data(), t);
    const std::int64_t width = t.shape[1];
    std::fill_n(embeddings.begin() + first * width, words * width, std::nanf(""));
    tensors.back() = {t.name, "F32", t.shape, embeddings.data()};
  }
  REQUIRE(!embeddings.empty());
  std::string path = (directory.path() / "broken.safetensors").string();
  write_safetensors(path, tensors, {});
  return path;
}

/// Place of an input token of a step's first micro-step.
struct TokenPlace {
  std::int64_t word = 0, rank = 0;
  std::int64_t token = 0;  ///< index on the rank
};

/// Returns a word that occurs once in the first step of a case, in the second half of a sequence of the last
/// rank.
TokenPlace lone_word(const Case& c) {
  const Plan plan = validate(c);
  const auto data = open_data(data_options(c, plan.model));
  std::map<std::int32_t, std::vector<TokenPlace>> places;
  std::vector<std::int32_t> sequence(static_cast<std::size_t>(c.seq + 1));
  for (std::int64_t i = 0; i < c.batch * c.gpus; ++i) {
    data->sequence(static_cast<std::uint64_t>(i), c.seq, sequence.data());
    for (std::int64_t t = 0; t < c.seq; ++t)
      places[sequence[t]].push_back({sequence[t], i / c.batch, i % c.batch * c.seq + t});
  }
  for (const auto& [word, all] : places)
    if (all.size() == 1 && all[0].rank == c.gpus - 1 && all[0].token % c.seq >= c.seq / 2) return all[0];
  FAIL("no such word");
  return {};
}

void check_line_names(const Case& c, const TokenPlace& place) {
  const Record record = run_case(validate(c));
  CHECK(record.status == Status::diverged);
  INFO(record.error.value_or(""));
  CHECK(contains(
      record.error.value_or(""),
      fmt::format("; first token{} with router logits that are not finite: {} of micro-step 0 at layer 0 "
                  "(not always where it began)",
                  c.gpus > 1 ? fmt::format(" of rank {}", place.rank) : "", place.token)));
}

}  // namespace

TEST_CASE("run_case: router logits that are NaN end a case with an error that names a token",
          "[session][moe]") {
  const TempDirectory directory;
  Case c = moe_case("tiny-moe");
  c.init_from = broken_weights(directory, 0, validate(c).model.vocab);
  for (const int ranks : {1, 2}) {
    INFO("ep " << ranks);
    c.gpus = c.ep = ranks;
    check_line_names(c, {});
  }
}

TEST_CASE("run_case: router logits that are NaN from mid-sequence on name the first such token",
          "[session][moe]") {
  for (const int ranks : {1, 2}) {
    INFO("ep " << ranks);
    const TempDirectory directory;
    Case c = moe_case("tiny-moe");
    c.gpus = c.ep = ranks;
    const TokenPlace place = lone_word(c);
    c.init_from = broken_weights(directory, place.word, 1);
    check_line_names(c, place);
  }
}

TEST_CASE("dry_run: the FLOPs of an MoE model equal the closed form", "[predict][moe]") {
  for (const char* model :
       {"tiny-moe", "tiny-moe-shared", "qwen3-30b-a3b", "deepseek-v2-lite-gqa", "llama4-scout"}) {
    INFO(model);
    Case c = moe_case(model);
    c.seq = 1024;
    const Plan plan = validate(c);
    const DryRun accounts = dry_run(plan, nullptr);
    CHECK(accounts.model_flops() == predict(plan, nullptr).flops_per_step);
  }
}

TEST_CASE("run_case: an MoE model trains alike in any sharding", "[rank][moe]") {
  const auto losses = [](const char* parallel, int gpus, int batch) {
    Case c = moe_case();
    c.parallel = parallel;
    c.gpus = gpus;
    c.batch = batch;
    c.aux = 0;  // its f is computed per micro-batch
    const Record record = run_ok(c);
    return std::vector<double>(record.training->loss.begin(), record.training->loss.end());
  };
  const std::vector<double> one = losses("ddp", 1, 4), ddp = losses("ddp", 2, 2), fsdp = losses("fsdp", 2, 2);
  for (std::size_t step = 0; step < one.size(); ++step) {
    // Sums over tokens in another order, and BF16 weights that it may round the other way.
    CHECK(std::fabs(ddp[step] / one[step] - 1) <= 2e-4);
    CHECK(std::fabs(fsdp[step] / ddp[step] - 1) <= 2e-4);
  }
}

TEST_CASE("run_case: an MoE model's weights are saved and loaded and wrong files are refused",
          "[session][moe]") {
  const TempDirectory directory;
  Case c = moe_case();
  c.save_final = (directory.path() / "final.safetensors").string();
  const Record first = run_ok(c);
  Case next = moe_case();
  next.init_from = c.save_final;
  next.steps = 1;
  const Record second = run_ok(next);
  CHECK(second.warnings.empty());
  CHECK(second.training->loss.front() < first.training->loss.front());
  // The biases continue from their last values.
  CHECK(std::fabs(*second.moe->bias_max) >= *first.moe->bias_max - 1.001e-3);
  CHECK(*second.moe->bias_max > 1.001e-3);

  Case other = next;
  other.layers = 3;
  CHECK(contains(refusal_of([&] { InitialWeights(other.init_from, validate(other).model); }),
                 "model.layers.2."));
  // All tensors except one expert's in the last layer.
  const SafetensorsFile all(c.save_final);
  const std::string lacking = "model.layers.1.mlp.experts.5.up_proj.weight";
  std::vector<NamedTensor> rest;
  for (const StoredTensor& t : all.tensors())
    if (t.name != lacking) rest.push_back({t.name, t.dtype, t.shape, t.data});
  const std::string part = (directory.path() / "part.safetensors").string();
  write_safetensors(part, rest, {});
  CHECK(
      contains(refusal_of([&] { InitialWeights(part, validate(next).model); }), "has no tensor '" + lacking));
  const float zero[4] = {};
  const std::string fused = (directory.path() / "fused.safetensors").string();
  write_safetensors(fused, {{"model.layers.0.mlp.experts.gate_up_proj", "F32", {4}, zero}}, {});
  CHECK(contains(refusal_of([&] { InitialWeights(fused, validate(next).model); }),
                 "holds all experts in one tensor; one tensor per expert is expected"));
}

TEST_CASE("run_case: an MoE model resumes from its checkpoint with the same bits including route biases",
          "[checkpoint][moe]") {
  const TempDirectory directory;
  for (const auto& [parallel, ep] : {std::pair{"ddp", 1}, {"fsdp", 1}, {"ddp", 2}, {"fsdp", 2}}) {
    INFO(parallel << ", ep " << ep);
    Case c = moe_case();
    c.gpus = 2 * ep, c.ep = ep, c.parallel = parallel, c.batch = 1;
    const Record straight = run_ok(c);
    c = with_checkpoints(c, directory / (parallel + std::to_string(ep)), 2);
    run_ok(c);
    std::filesystem::remove_all(checkpoint_at(c, 4));
    const Record rest = run_ok(c);
    REQUIRE(rest.warnings.size() == 1);
    check_same_training(rest, straight);
    CHECK(rest.moe->bias_max == straight.moe->bias_max);
  }
}
