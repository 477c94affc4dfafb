// --grad-sync last: sharded ranks that reduce whole gradients in the last micro-step train like replicas.
#include "bench/step/rank_setup_testing.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

std::string grad_sync_words(const Setup& s) {
  return fmt::format(
      "{} {} ranks {}, accumulation {}, gather {}, reshard {}, master {}, moments {}, grads {}{}", s.recipe,
      s.ranks, s.parallel, s.accumulation, s.gather, s.reshard, s.master, s.moments, s.grads,
      s.tied ? ", tied" : "");
}

/// Returns ddp's training and checks that fsdp with --grad-sync last has its bits.
Trained check_equals_ddp(Setup setup) {
  INFO(grad_sync_words(setup));
  Setup replicas = setup;
  replicas.parallel = "ddp", replicas.gather = "bf16", replicas.reshard = "on";
  Trained ddp = train(replicas);
  setup.parallel = "fsdp";
  setup.grad_sync = "last";
  check_same_bits(train(setup), ddp);
  return ddp;
}

}  // namespace

TEST_CASE("Rank: fsdp with gradients reduced in the last micro-step equals ddp bit for bit", "[rank]") {
  for (const char* recipe :
       {"bf16", "tensorwise", "rowwise", "blockwise", "mxfp8", "nvfp4_all", "tensorwise_delayed", "coat"})
    for (const int ranks : {2, 3})
      check_equals_ddp({.recipe = recipe, .tied = ranks == 3, .ranks = ranks, .accumulation = 5 - ranks});
}

TEST_CASE("Rank: gradients reduced in the last micro-step equal ddp's with every kind of state", "[rank]") {
  std::vector<Setup> setups(9);
  setups[0].master = "bf16", setups[0].reshard = "off";
  setups[1].master = "bf16_sr";
  setups[2].moments = "bf16", setups[2].reshard = "off";
  setups[3].grads = "bf16";
  setups[4].recompute = "block", setups[4].recipe = "tensorwise";
  setups[5].master = "fp16";
  setups[6].recipe = "tensorwise", setups[6].gather = "fp8", setups[6].master = "bf16";
  setups[7].recipe = "blockwise", setups[7].gather = "fp8", setups[7].whole_blocks = true;
  setups[8].recipe = "mxfp8", setups[8].gather = "fp8", setups[8].whole_blocks = true;
  setups[8].reshard = "off";
  for (Setup& setup : setups) {
    setup.ranks = 3, setup.accumulation = 3;
    const Trained ddp = check_equals_ddp(setup);
    // Control: sums in the order of --grad-sync every differ.
    setup.parallel = "fsdp";
    CHECK(first_difference(train(setup).gradients, ddp.gradients) != "");
  }
}

TEST_CASE("Rank: with one micro-step or replicas the gradients' synchronization makes no difference",
          "[rank]") {
  for (const char* parallel : {"ddp", "fsdp"}) {
    Setup setup{.ranks = 2, .parallel = parallel, .accumulation = std::string(parallel) == "ddp" ? 2 : 1};
    INFO(parallel);
    const Trained every = train(setup);
    const std::int64_t bytes = dry_run(plan_of(setup), nullptr).extent;
    setup.grad_sync = "last";
    check_same_bits(train(setup), every);
    CHECK(dry_run(plan_of(setup), nullptr).extent == bytes);
  }
}

TEST_CASE("Rank: gradients of experts reduced in the last micro-step equal ddp's", "[rank][moe][ep]") {
  Setup setup{.ranks = 4, .accumulation = 2};
  setup.model = R"({"layers": 2, "width": 128, "ffn": 128, "heads": 2, "kv_heads": 1, "head_dim": 64,
    "vocab": 256, "qk_norm": true, "tied": false, "experts": 8, "top_k": 2, "expert_ffn": 128,
    "shared_ffn": 128, "score": "sigmoid", "normalise": true, "route_scale": 2.5, "route_bias": true})";
  for (const char* recipe : {"bf16", "blockwise"})
    for (const int ep : {1, 2, 4}) {
      setup.recipe = recipe, setup.ep = ep;
      INFO("ep " << ep);
      check_equals_ddp(setup);
    }
}
