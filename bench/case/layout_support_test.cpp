// Rules of layouts that are only predicted: each names the flag, the rule and the nearest value that works.

#include <functional>
#include <string>

#include "bench/case/plan.h"
#include "kernels/base/errors.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"

using namespace precbench;

namespace {

/// Returns a valid layout of llama3.1-8b, which has 32 layers, 32 heads, 8 key heads and a vocabulary of 128,256.
Case layout_case() {
  Case c;
  c.device = "cuda";
  c.model = "llama3.1-8b";
  c.seq = 4096;
  c.batch = 1;
  c.gpus = 64;
  c.tensor = 4;
  c.pipeline = 4;
  c.micro_batches = 8;
  return c;
}

std::string reason_with(const std::function<void(Case&)>& change) {
  Case c = layout_case();
  change(c);
  return layout_unsupported_reason(validate(c, Refusals::kept)).value_or("");
}

}  // namespace

TEST_CASE("layout_unsupported_reason: layouts that divide the model have none", "[layout]") {
  CHECK(reason_with([](Case&) {}) == "");
  CHECK(reason_with([](Case& c) { c.virtual_stages = 2; }) == "");
  CHECK(reason_with([](Case& c) { c.context = 2; }) == "");
  CHECK(reason_with([](Case& c) { c.tensor = 16; }) == "");  // two ranks have the same key head
  CHECK(reason_with([](Case& c) { c.accumulation = 8; }) == "");
  CHECK(reason_with([](Case& c) { c.pipeline = 17, c.gpus = 68; }) == "");  // 34 with embedding and head
  CHECK(reason_with([](Case& c) {
          c.model = "qwen3-30b-a3b";
          c.ep = 8, c.exchange = "slots";
        }) == "");
}

TEST_CASE("layout_unsupported_reason: tensor ranks divide heads, widths, vocabulary and tokens", "[layout]") {
  CHECK(reason_with([](Case& c) { c.tensor = 3; }) ==
        "--tensor 3: does not divide heads (32); the nearest that works: --tensor 2");
  CHECK(reason_with([](Case& c) { c.tensor = 64; }) ==
        "--tensor 64: does not divide heads (32); the nearest that works: --tensor 16");
  CHECK(
      reason_with([](Case& c) { c.seq = 4098; }) ==
      "--tensor 4: does not divide the 4098 tokens of a sequence that sequence parallelism divides; the nearest "
      "that works: --tensor 2");
  CHECK(reason_with([](Case& c) { c.model = "gpt2", c.seq = 1024, c.pipeline = 1, c.micro_batches = 0; }) ==
        "--tensor 4: does not divide vocab (50257); the nearest that works: --tensor 1");
  CHECK(reason_with([](Case& c) { c.model = "qwen2.5-0.5b", c.tensor = 7, c.gpus = 112; }) ==
        "--tensor 7: does not divide ffn (4864); the nearest that works: --tensor 2");
}

TEST_CASE("layout_unsupported_reason: stages divide the layers, and no more than there are", "[layout]") {
  CHECK(
      reason_with([](Case& c) { c.pipeline = 5; }) ==
      "--pipeline 5: 32 layers, or 34 with embedding and head, do not divide into as many stages; the nearest that "
      "works: --pipeline 4");
  CHECK(reason_with([](Case& c) { c.pipeline = 64; }) ==
        "--pipeline 64: more stages than 32 layers; the nearest that works: --pipeline 16");
  CHECK(
      reason_with([](Case& c) { c.virtual_stages = 3; }) ==
      "--virtual-stages 3: 32 layers do not divide into 4 stages of as many groups; the nearest that works: "
      "--virtual-stages 2");
  CHECK(
      reason_with([](Case& c) { c.virtual_stages = 2, c.micro_batches = 6; }) ==
      "--micro-batches 6: an interleaved schedule needs a multiple of --pipeline 4; the nearest that works: "
      "--micro-batches 4");
  CHECK(reason_with([](Case& c) { c.virtual_stages = 2, c.micro_batches = 0, c.accumulation = 2; }) ==
        "--accumulation 2: an interleaved schedule needs a multiple of --pipeline 4; the nearest that works: "
        "--accumulation 4");
  const auto many_passes = [](Case& c) {
    c.model = "llama3.1-405b", c.tensor = 1, c.gpus = c.pipeline = 63, c.virtual_stages = 2;
    c.micro_batches = 0, c.accumulation = 16380;
  };
  CHECK(
      reason_with(many_passes) ==
      "--accumulation 16380: with 63 stages of 2 groups more passes than the 1048576 that are simulated; the nearest "
      "that works: --accumulation 8316");
  CHECK(
      reason_with([](Case& c) { c.gpus = 60; }) ==
      "--gpus 60: not a multiple of 16, the ranks of a replica (tensor 4 x context 1 x pipeline 4); the nearest that "
      "works: --gpus 64");
}

TEST_CASE("layout_unsupported_reason: stages of a model with several kinds of blocks need not be equal",
          "[layout]") {
  const auto of_deepseek = [](std::int64_t pipeline) {
    return reason_with([&](Case& c) { c.model = "deepseek-v3", c.tensor = 1, c.pipeline = pipeline; });
  };
  CHECK(of_deepseek(4).empty());  // 61 layers, three of them without experts
  CHECK_THAT(of_deepseek(64), Catch::Matchers::StartsWith("--pipeline 64: more stages than 61 layers"));
}

TEST_CASE("layout_unsupported_reason: flags that contradict each other", "[layout]") {
  CHECK(
      reason_with([](Case& c) { c.accumulation = 4; }) ==
      "--micro-batches 8: contradicts --accumulation 4: under a pipeline both are the micro-batches of a step; give "
      "one of them");
  CHECK(reason_with([](Case& c) { c.pipeline = 1; }) ==
        "--micro-batches 8: are those of a pipeline; add --pipeline N, or use --accumulation 8");
  CHECK(reason_with([](Case& c) { c.pipeline = 1, c.micro_batches = 0, c.virtual_stages = 2; }) ==
        "--virtual-stages 2: divides the layers of pipeline stages; add --pipeline N");
}

TEST_CASE("resolve: a pipeline's tokens per step are refused by the flag that was given", "[layout]") {
  const auto refusal = [](std::int64_t micro_batches, std::int64_t accumulation) {
    Case c = layout_case();
    c.seq = 131'072, c.batch = 1024;
    c.micro_batches = micro_batches, c.accumulation = accumulation;
    return refusal_of([&] { validate(c); });
  };
  CHECK_THAT(refusal(16, 1), Catch::Matchers::StartsWith("--batch, --seq, --micro-batches, --gpus: "));
  CHECK_THAT(refusal(0, 16), Catch::Matchers::StartsWith("--batch, --seq, --accumulation, --gpus: "));
}

TEST_CASE("layout_unsupported_reason: models that are not predicted on these ranks say so", "[layout]") {
  const auto begins = [](const std::function<void(Case&)>& change, const std::string& text) {
    CHECK_THAT(reason_with(change), Catch::Matchers::StartsWith(text));
  };
  begins([](Case& c) { c.model = "deepseek-v3", c.pipeline = 1, c.micro_batches = 0; },
         "--tensor 4: latent attention (MLA) on tensor ranks is not predicted; use --tensor 1");
  begins(
      [](Case& c) { c.model = "gemma-2-2b"; },
      "--tensor 4: a norm on the output of a half, or on all heads together, on tensor ranks is not predicted");
  begins([](Case& c) { c.recipe = "nvfp4", c.steps = 100; },
         "--pipeline 4: blocks of which nvfp4 leaves some in BF16 are not predicted in stages");
  begins([](Case& c) { c.recompute = "block:8"; },
         "--pipeline 4: blocks of which --recompute block:8 recomputes some are not predicted in stages");
  begins([](Case& c) { c.lora_rank = 16; }, "--tensor 4: LoRA on tensor ranks is not predicted");
  begins(
      [](Case& c) { c.model = "qwen3-30b-a3b"; },
      "--tensor 4: expert ranks must be whole groups of tensor ranks that divide 128 experts and the 16 ranks of a "
      "stage, not --ep 1; the nearest that works: --ep 4");
  begins([](Case& c) { c.model = "qwen3-30b-a3b", c.ep = 8; },
         "--tensor 4: rows are predicted to travel to experts by all-to-all");
}

TEST_CASE("layouts are predicted only: no plan with one can run, and ids without one stay", "[layout]") {
  Case plain = layout_case();
  plain.tensor = plain.pipeline = 1;
  plain.micro_batches = 0;
  const Plan plan = validate(plain), layout = validate(layout_case());
  CHECK_FALSE(is_predicted_only(plain));
  CHECK_FALSE(unsupported_reason(plan));
  CHECK(unsupported_reason(layout) ==
        "--tensor 4: predicted only, a run does not support it; use sweep --dry-run --on MACHINE");
  CHECK_THROWS_AS(refuse_predicted_only({plan, layout}), InvalidInput);
  CHECK_NOTHROW(refuse_predicted_only({plan}));
  const nlohmann::ordered_json fields = case_to_json(plain);
  for (const char* name :
       {"tensor", "pipeline", "virtual_stages", "micro_batches", "shard_optimizer", "overlap"}) {
    CHECK_FALSE(fields.contains(name));
    CHECK_FALSE(field_to_json(plain, *find_field(name)).is_null());
  }
  CHECK(layout.id != plan.id);
  CHECK(case_from_json(case_to_json(layout_case())) == layout_case());
  // Ranks of a replica share its tokens: 64 / 16 replicas of 8 sequences.
  CHECK(layout.tokens_per_step() == 4 * 8 * 4096);
}

TEST_CASE("a sharded optimizer needs replicas, and like overlapped traffic it is predicted only",
          "[layout]") {
  const auto reason = [](const std::string& parallel, std::int64_t group, std::int64_t ep) {
    return reason_with([&](Case& c) {
      c.model = ep > 1 ? "qwen3-30b-a3b" : c.model;
      c.parallel = parallel, c.shard_group = group, c.shard_optimizer = "on";
      c.tensor = 1, c.ep = ep;
      if (ep > 1) c.exchange = "slots";
    });
  };
  CHECK(reason("ddp", 1, 1) == "");
  CHECK(reason("hsdp", 8, 1) == "");
  CHECK(reason("fsdp", 1, 8) == "");  // experts of 8 ranks have two replicas in a stage of 16
  CHECK(reason("fsdp", 1, 1) ==
        "--shard-optimizer on: no rank has a replica of its weights' shard; use --shard-optimizer off");
  CHECK(reason("fsdp", 1, 16) != "");
  CHECK(reason_with([](Case& c) { c.gpus = 16, c.parallel = "ddp", c.shard_optimizer = "on"; }) ==
        "--shard-optimizer on: no rank has a replica of its weights; use --shard-optimizer off");
  for (const char* flag : {"shard_optimizer", "overlap"}) {
    Case c = layout_case();
    c.tensor = c.pipeline = 1;
    c.micro_batches = 0;
    set_text(c, *find_field(flag), flag == std::string("overlap") ? "context" : "on");
    CHECK(is_predicted_only(c));
    const std::string why = unsupported_reason(validate(c)).value_or("");
    CHECK(contains(why, "predicted only, a run does not support it; use sweep --dry-run --on MACHINE"));
  }
}
