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
  for (
      const auto& [change, message] : {
          std::pair(R"({"tp": 2})", "--published: x: a: its axes make 16 ranks, not 8 GPUs"),
          std::pair(R"({"tflops_per_gpu": 700})", "14451 tokens/s per GPU are 744 TFLOP/s, not 700"),
          std::pair(R"({"speedup_over_id": "b"})", "a: speedup_over_id: no point \"b\""),
          std::pair(R"({"scaling_from_id": "b"})", "a: scaling_from_id: no point \"b\""),
          std::pair(R"({"scaling_ratio": 0.95})", "a: scaling_ratio needs scaling_from_id"),
          std::pair(R"({"scaling_ratio": 0})", "a: scaling_ratio: 0 is not a number from"),
          std::pair(R"({"note": "x"})", "a: unknown key \"note\""),
          std::pair(R"({"judged_as": ["guess"]})", "judged_as: unknown \"guess\""),
          std::pair(R"({"gpus": "8"})", "a: gpus: \"8\" is not a whole number from 1 to 1048576"),
          std::pair(R"({"seq": -1})", "a: seq: -1 is not a whole number from 1 to 16777216"),
          std::pair(R"({"micro_batch": 1.5})", "micro_batch: 1.5 is not a whole number from 1 to 1048576"),
          std::pair(R"({"vp": 235000000000})", "vp: 235000000000 is not a whole number from 1 to 256"),
          std::pair(R"({"pp": 1e300})", "pp: 1e+300 is not a whole number from 1 to 1024"),
          std::pair(R"({"global_batch": 1000000000})",
                    "global_batch: 1000000000 is not a whole number from 1 to 16777216"),
          std::pair(
              R"({"pp": 8, "dp": 1, "vp": 12, "global_batch": 16000000})",
              "8 stages of 12 groups and 16000000 micro-batches are 1536000000 passes; the limit is 1048576"),
          std::pair(R"({"tokens_per_s_per_gpu": 1e300})",
                    "tokens_per_s_per_gpu: 1e+300 is not a number from 0.001 to 1e+09"),
          std::pair(R"({"peak_gb": 0})", "peak_gb: 0 is not a number from 0.001 to 100000"),
          std::pair(R"({"hsdp": [1, 2, 3]})", "hsdp: unexpected array"),
      }) {
    INFO(change);
    CHECK(contains(refusal_with(change), message));
  }
  const std::string long_text = nlohmann::json{{"caveat", std::string(100'000, 'a')}}.dump();
  CHECK(contains(refusal_with(long_text), "a: caveat: 100000 bytes, and at most 1000 are read"));
  CHECK(refusal_of([] {
          points_from_json({{"points", nlohmann::json(std::vector<int>(4001))}}, "x");
        }) == "x: 4001 points, and at most 4000 are read");
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
  for (const char* name : {"x C5120 L40 H0/8 F17920 V128256", "x C5120 L40 H40/0 F17920 V128256",
                           "x C99999999999999999999 L40 H40/8 F17920 V128256"})
    CHECK(contains(refusal_of([&] { published_model(name); }), "is no dimension of a model"));
  CHECK_THROWS_AS(published_model(std::string(1'000'000, 'C')), InvalidInput);
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
  for (const char* notes : {"... Gb/s a node", "0 Gb/s a node", "99999999999 Tb/s a node"}) {
    point.machine_notes = notes;
    CHECK(contains(refusal_of([&] { published_machine(point); }), "is no rate of a node's network"));
  }
  point.machine_notes = std::string(1'000'000, '1') + " Gb/s a node";
  CHECK(published_machine(point).levels.back().gb_per_s == 50);  // as the preset says
  point.machine_notes = "";
  point.gpu = "h200.json";
  CHECK(contains(refusal_of([&] { published_machine(point); }), "no machine file of the GPU h200.json"));
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
  PublishedPoint uneven = point;
  uneven.dp.reset(), uneven.fsdp.reset();
  uneven.hsdp = true, uneven.gpus = 32, uneven.nodes = 5;  // groups of six
  CHECK(contains(refusal_of([&] { published_setting(uneven); }),
                 "groups of 6 ranks that share states do not divide 32 data and context ranks"));
}

PublishedPoint with(const char* change) {
  nlohmann::json point = one_point();
  point.merge_patch(nlohmann::json::parse(change));
  return points_from_json({{"points", {point}}}, "x").front();
}

TEST_CASE("published_setting: NVFP4 converts all layers and does not overlap tensor traffic", "[published]") {
  const PublishedSetting fp4 =
      published_setting(with(R"({"precision": "nvfp4", "dp": 4, "tp": 2, "fsdp": null})"));
  CHECK(fp4.c.recipe == "nvfp4_all");
  CHECK_FALSE(fp4.layout.tensor_overlap);
  CHECK(fp4.assumed.front() == "layers in BF16: none");
  CHECK(published_setting(with(R"({"dp": 4, "tp": 2, "fsdp": null})")).layout.tensor_overlap);
}

TEST_CASE("published_setting: a sharded pipeline keeps its weights", "[published]") {
  const PublishedSetting setting = published_setting(
      with(R"({"framework": "torchtitan", "gpus": 512, "nodes": 64, "dp": 8, "fsdp": 8, "tp": 8, "pp": 8,
               "micro_batch": null, "global_batch": 256, "caveat": "interleaved 1F1B"})"));
  CHECK(setting.c.parallel == "fsdp");
  CHECK(setting.c.reshard == "off");
  CHECK(setting.c.grad_sync == "last");
  // 256 sequences of 8 data ranks, in as many micro-batches as there are stages.
  CHECK(setting.c.batch == 4);
  CHECK(setting.c.accumulation == 8);
  CHECK(setting.layout.interleave == 2);
  const PublishedSetting replicas =
      published_setting(with(R"({"gpus": 64, "nodes": 8, "dp": 16, "fsdp": 4, "pp": 4})"));
  CHECK(replicas.c.parallel == "hsdp");
  CHECK(replicas.c.shard_group == 4);
  CHECK(replicas.c.reshard == "off");
  CHECK(published_setting(with("{}")).c.reshard == "on");
}

TEST_CASE(
    "published_setting: experts are divided among all ranks of a stage only beside tensor or pipeline ranks",
    "[published]") {
  const auto moe_setting = [](const std::string& axes) {
    return published_setting(
        with((R"({"model": "qwen3-30b-a3b", "tflops_per_gpu": null, "fsdp": null, )" + axes + "}").c_str()));
  };
  const PublishedSetting data = moe_setting(R"("ep": 8)");
  CHECK(data.c.ep == 8);
  CHECK(data.layout.experts == 1);
  const PublishedSetting staged = moe_setting(R"("dp": 4, "pp": 2, "ep": 4)");
  CHECK(staged.layout.experts == 4);
  CHECK(staged.c.ep == 1);
  CHECK(moe_setting(R"("dp": 4, "tp": 2, "ep": 8)").layout.experts == 8);
  CHECK(contains(refusal_of([&] { moe_setting(R"("dp": 4, "tp": 2)"); }), "without expert ranks"));
}

}  // namespace
}  // namespace precbench
