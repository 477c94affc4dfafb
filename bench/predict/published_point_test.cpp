// Published points: the committed file is consistent, and every kind of mistake is refused by name.
#include "bench/predict/published_point.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "bench/predict/published_setting.h"
#include "kernels/base/errors.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"

namespace precbench {
namespace {

nlohmann::json one_point() {
  return nlohmann::json::parse(
      R"json({"id": "a", "model": "llama3-8b", "gpu": "h100-sxm", "gpus": 8, "nodes": 1, "dp": 8,
      "fsdp": 8, "tp": 1, "pp": 1, "cp": 1, "micro_batch": 1, "global_batch": 128, "seq": 8192, "precision": "bf16",
      "framework": "megatron", "tokens_per_s_per_gpu": 14451, "tflops_per_gpu": 744, "judged_as": ["absolute_native"],
      "flop_convention": "megatron-bridge (causal attention halved for Llama)"})json");
}

std::string refusal_with(const std::string& change) {
  nlohmann::json point = one_point();
  point.merge_patch(nlohmann::json::parse(change));
  return refusal_of([&] { points_from_json({{"points", {point}}}, "--published: x"); });
}

TEST_CASE("points_from_json: refuses inconsistent points by id", "[published]") {
  CHECK(refusal_with("{}").empty());
  for (const auto& [change, message] : {
           std::pair(R"({"tp": 2})", "--published: x: a: its axes make 16 ranks, not 8 GPUs"),
           std::pair(R"({"tflops_per_gpu": 700})", "14451 tokens/s per GPU are 744 TFLOP/s, not 700"),
           std::pair(R"({"speedup_over_id": "b"})", "a: speedup_over_id: no point \"b\""),
           std::pair(R"({"scaling_from_id": "b"})", "a: scaling_from_id: no point \"b\""),
           std::pair(R"({"note": "x"})", "a: unknown key \"note\""),
           std::pair(R"({"judged_as": ["guess"]})", "judged_as: unknown \"guess\""),
           std::pair(R"({"gpus": "8"})", "gpus: unexpected \"8\""),
           std::pair(R"({"seq": -1})", "seq: unexpected -1"),
           std::pair(R"({"micro_batch": 1.5})", "micro_batch: unexpected 1.5"),
       }) {
    INFO(change);
    CHECK(contains(refusal_with(change), message));
  }
  const nlohmann::json twice = {{"points", {one_point(), one_point()}}};
  CHECK(contains(refusal_of([&] { points_from_json(twice, "x"); }), "x: a: the id occurs twice"));
  CHECK(
      contains(refusal_of([] { points_from_json(nlohmann::json::array(), "x"); }), "x: no list \"points\""));
}

TEST_CASE("published_model: finds presets and embedded shapes and shapes in names", "[published]") {
  CHECK(published_model("llama3-8b").layers == 32);
  CHECK(published_model("mpt-70b").layers == 80);
  const ModelConfig shape = published_model("llama-13b-shape C5120 L40 H40/8 F17920 V128256");
  CHECK(shape.width == 5120);
  CHECK(shape.kv_heads == 8);
  CHECK(shape.head_dim == 128);
  CHECK_THROWS_AS(published_model("nanochat d26 C1664 L26"), InvalidInput);
}

TEST_CASE("published_machine: takes the nodes' size and network from the point", "[published]") {
  PublishedPoint point;
  point.gpu = "h200";
  point.gpus = 32;
  point.nodes = 8;
  CHECK(published_machine(point).levels.front().gpus == 4);
  point.machine_notes = "800 Gb/s a node";
  CHECK(published_machine(point).levels.back().gb_per_s == 800.0 / 8 / 4);
  point.machine_notes = "p5.48xlarge, 3.2 Tb/s EFA a node";
  point.nodes = 4;
  CHECK(published_machine(point).levels.back().gb_per_s == 50);
  point.gpu = "gb200";  // a rack is one domain
  point.nodes = 8;
  CHECK(published_machine(point).levels.front().gpus == 72);
}

TEST_CASE("published_setting: translates a point and names what it assumes", "[published]") {
  const PublishedPoint point = points_from_json({{"points", {one_point()}}}, "x").front();
  const PublishedSetting setting = published_setting(point);
  CHECK(setting.c.accumulation == 16);
  CHECK(setting.c.parallel == "fsdp");
  CHECK(setting.layout.data == 8);
  CHECK(setting.assumed == std::vector<std::string>{"recompute: none"});
  PublishedPoint unsaid = point;
  unsaid.micro_batch = unsaid.global_batch = unsaid.seq = std::nullopt;
  CHECK(published_setting(unsaid).assumed.size() == 4);
  PublishedPoint partial = point;
  partial.recompute = "selective (per op)";
  const RecomputeShare share = published_setting(partial).recompute;
  CHECK(share.blocks == 1);
  CHECK(share.gemms == Approx((1024.0 + 4096 + 14336) / (2 * (4096 + 1024 + 14336))));
  CHECK(share.attention == 0);
  PublishedPoint other = point;
  other.precision = "fp6";
  CHECK(contains(refusal_of([&] { published_setting(other); }), "no recipe like fp6"));
}

}  // namespace
}  // namespace precbench
