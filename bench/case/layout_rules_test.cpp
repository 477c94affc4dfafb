// Rules of predicted layouts: each names the flag, the rule and the nearest value that works.
#include "bench/case/rules_testing.h"

using namespace precbench;
using namespace precbench::testing;

TEST_CASE("rules of layouts: each names the flag, the rule and the nearest value that works",
          "[rules][layout]") {
  // llama3.1-8b has 32 layers, 32 heads, 8 key heads and a vocabulary of 128,256.
  const auto plan_of = [](Case c) {
    c.device = "cuda";
    if (c.model == "tiny") c.model = "llama3.1-8b";
    if (!is_set(c, &Case::seq)) c.seq = 4096;
    if (!is_set(c, &Case::gpus)) c.gpus = 64;
    c.batch = 1;
    return validate(c);
  };
  const auto told = [](const Plan& plan) { return layout_unsupported_reason(plan).value_or(""); };
  check_samples(
      Verdict::unpredicted,
      {
          {"--tensor 4 --pipeline 4 --micro-batches 8", ""},
          {"--tensor 4 --pipeline 4 --virtual-stages 2 --micro-batches 8", ""},
          {"--tensor 4 --pipeline 4 --context 2", ""},
          {"--tensor 16 --pipeline 4", ""},  // two ranks have the same key head
          {"--tensor 4 --pipeline 4 --micro-batches 8 --accumulation 8", ""},
          {"--tensor 4 --pipeline 17 --gpus 68", ""},  // 34 with embedding and head
          {"--tensor 4 --pipeline 4 --model qwen3-30b-a3b --ep 8 --exchange slots", ""},
          {"--tensor 3 --pipeline 4",
           "--tensor 3: does not divide heads (32); the nearest that works: --tensor 2"},
          {"--tensor 64 --pipeline 4",
           "--tensor 64: does not divide heads (32); the nearest that works: --tensor 16"},
          {"--tensor 4 --pipeline 4 --seq 4098",
           "--tensor 4: does not divide the 4098 tokens of a sequence that sequence parallelism divides; the nearest that "
           "works: --tensor 2"},
          {"--tensor 4 --model gpt2 --seq 1024",
           "--tensor 4: does not divide vocab (50257); the nearest that works: --tensor 1"},
          {"--tensor 7 --pipeline 4 --model qwen2.5-0.5b --gpus 112",
           "--tensor 7: does not divide ffn (4864); the nearest that works: --tensor 2"},
          {"--tensor 4 --model deepseek-v3",
           "--tensor 4: latent attention (MLA) on tensor ranks is not predicted; use --tensor 1"},
          {"--tensor 4 --model pythia-1b",
           "--tensor 4: a block with parallel residuals on tensor ranks is not predicted; use --tensor 1"},
          {"--tensor 4 --model gemma-2-2b",
           "--tensor 4: a norm on the output of a half, or on all heads together, on tensor ranks is not predicted; use "
           "--tensor 1"},
          {"--tensor 4 --lora-rank 16", "--tensor 4: LoRA on tensor ranks is not predicted; use --tensor 1"},
          {"--tensor 4 --model tiny-moe-shared --ep 4 --exchange slots",
           "--tensor 4: shared experts (tiny-moe-shared) on tensor ranks are not predicted; use --tensor 1"},
          {"--tensor 4 --pipeline 4 --model qwen3-30b-a3b",
           "--tensor 4: expert ranks must be whole groups of tensor ranks that divide 128 experts and the 16 ranks of a "
           "stage, not --ep 1; the nearest that works: --ep 4"},
          {"--tensor 4 --pipeline 4 --model qwen3-30b-a3b --ep 8",
           "--tensor 4: rows are predicted to travel to experts by all-to-all, as many as even routing sends; use "
           "--exchange slots without --slots"},
          {"--tensor 4 --virtual-stages 2",
           "--virtual-stages 2: divides the layers of pipeline stages; add --pipeline N"},
          {"--tensor 4 --micro-batches 8",
           "--micro-batches 8: are those of a pipeline; add --pipeline N, or use --accumulation 8"},
          {"--pipeline 4 --micro-batches 8 --accumulation 4",
           "--micro-batches 8: contradicts --accumulation 4: under a pipeline both are the micro-batches of a step; give "
           "one of them"},
          {"--pipeline 4 --recipe nvfp4 --steps 100", ""},
          {"--pipeline 4 --recompute block:8", ""},
          {"--pipeline 5",
           "--pipeline 5: 32 layers, or 34 with embedding and head, do not divide into as many stages; the nearest that "
           "works: --pipeline 4"},
          {"--pipeline 64",
           "--pipeline 64: more stages than 32 layers; the nearest that works: --pipeline 32"},
          {"--pipeline 4 --model deepseek-v3", ""},  // 61 layers, three of them without experts
          {"--pipeline 64 --model deepseek-v3", "--pipeline 64: more stages than 61 layers"},
          {"--pipeline 4 --virtual-stages 3",
           "--virtual-stages 3: 32 layers do not divide into 4 stages of as many groups; the nearest that works: "
           "--virtual-stages 2"},
          {"--pipeline 4 --virtual-stages 2 --micro-batches 6",
           "--micro-batches 6: an interleaved schedule needs a multiple of --pipeline 4; the nearest that works: "
           "--micro-batches 4"},
          {"--pipeline 4 --virtual-stages 2 --accumulation 2",
           "--accumulation 2: an interleaved schedule needs a multiple of --pipeline 4; the nearest that works: "
           "--accumulation 4"},
          {"--pipeline 63 --virtual-stages 2 --accumulation 16380 --model llama3.1-405b --gpus 63",
           "--accumulation 16380: with 63 stages of 2 groups more passes than the 1048576 that are simulated; the nearest "
           "that works: --accumulation 8316"},
          {"--pipeline 4 --context 3 --gpus 48",
           "--context 3: seq 4096 is not a multiple of 6, two chunks per rank"},
          {"--tensor 4 --pipeline 4 --gpus 60",
           "--gpus 60: not a multiple of 16, the ranks of a replica (tensor 4 x context 1 x pipeline 4); the nearest that "
           "works: --gpus 64"},
          {"--pipeline 4 --shard-optimizer on", ""},
          {"--pipeline 4 --shard-optimizer on --parallel hsdp --shard-group 8", ""},
          // Experts of 8 ranks have two replicas in a stage of 16.
          {"--pipeline 4 --shard-optimizer on --parallel fsdp --model qwen3-30b-a3b --ep 8 --exchange slots",
           ""},
          {"--pipeline 4 --shard-optimizer on --parallel fsdp",
           "--shard-optimizer on: no rank has a replica of its weights' shard; use --shard-optimizer off"},
          {"--tensor 4 --pipeline 4 --shard-optimizer on --gpus 16",
           "--shard-optimizer on: no rank has a replica of its weights; use --shard-optimizer off"},
      },
      plan_of, told);
}

TEST_CASE("tensor_hosts_reason: a group's ranks are on one host, or the nearest number that works is named",
          "[rules][layout]") {
  const auto why = [](std::int64_t tensor, std::int64_t gpus, const std::vector<std::string>& hosts,
                      const char* model = "llama3.1-8b") {
    Case c;
    c.device = "cuda", c.model = model, c.tensor = tensor, c.gpus = gpus, c.seq = 4096, c.batch = 1;
    return tensor_hosts_reason(c, hosts);
  };
  CHECK_FALSE(why(1, 2, {"a", "b"}));
  CHECK_FALSE(why(2, 4, {"a", "b"}));
  CHECK_FALSE(why(4, 8, {"a", "a", "b", "b"}));
  CHECK_FALSE(why(2, 2, {"a", "a"}));
  const std::string rule = "tensor ranks exchange activations in every layer and must be on one host, but ";
  CHECK(why(2, 2, {"a", "b"}) ==
        "--tensor 2: " + rule + "rank 0 is on a and rank 1 on b; the nearest that works: --tensor 1");
  CHECK(why(8, 16, {"a", "b", "c", "d"}) ==
        "--tensor 8: " + rule + "rank 0 is on a and rank 4 on b; the nearest that works: --tensor 4");
  // Processes that a launcher deals out in turn.
  CHECK(why(4, 8, {"a", "b", "a", "b"}) ==
        "--tensor 4: " + rule + "rank 0 is on a and rank 2 on b; the nearest that works: --tensor 2");
  // A host has seven ranks, but the model does not divide into as many.
  CHECK(why(14, 14, {"a", "b"}, "qwen2.5-0.5b") ==
        "--tensor 14: " + rule + "rank 0 is on a and rank 7 on b; the nearest that works: --tensor 1");
}
