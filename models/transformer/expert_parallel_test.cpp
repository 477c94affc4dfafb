// Expert parallelism: a step on several CPU ranks that divide the experts, against one rank with all experts
// and all tokens.
#include "kernels/base/errors.h"
#include "models/transformer/expert_parallel_testing.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

/// Routes every token to the first experts during its lifetime.
class AllToFirst {
 public:
  AllToFirst(TestStep& step, const RoutingRule& rule) : block_(step.device(), step.M() * rule.top_k * 4) {
    const Tensor experts{block_.data(), DType::i32, step.M(), rule.top_k};
    std::vector<std::int32_t> index = forced_experts(Routing::one, 0, rule, step.M());
    step.device().upload(experts, index.data());
    step.parameters().routers()->force(experts, std::move(index));
  }

 private:
  DeviceBlock block_;
};

Named all_but_experts(const Named& tensors) {
  Named rest;
  for (const auto& [name, values] : tensors)
    if (name.find(".experts.") == std::string::npos) rest[name] = values;
  return rest;
}

/// Compares FP32 steps, which differ only in the order of sums.
void check_close(const Outcome& got, const Outcome& wanted) {
  REQUIRE(got.losses.size() == wanted.losses.size());
  double most = 0;
  for (std::size_t i = 0; i < wanted.losses.size(); ++i)
    most = std::max(most, std::fabs(double{got.losses[i]} / wanted.losses[i] - 1));
  CHECK(most <= 32 * kRoundoff);
  const Farthest gradient = farthest(got.gradients, wanted.gradients);
  INFO(gradient.name);
  CHECK(gradient.distance <= 64 * kRoundoff);
}

}  // namespace

TEST_CASE("expert parallelism: experts equal one rank's bit for bit if every slot's row is returned",
          "[moe][ep]") {
  for (const char* recipe :
       {"bf16", "rowwise", "rowwise_gw_hp", "blockwise", "blockwise_pow2", "mxfp8", "flow"})
    for (const char* model : {"tiny-moe", "tiny-moe-shared", "weighted input", "partial blocks"}) {
      const bool plain = std::string(recipe) == "bf16", shared = std::string(model) == "tiny-moe-shared",
                 partial = std::string(model) == "partial blocks";
      if (partial && !std::string(recipe).starts_with("blockwise")) continue;
      if (!plain && !shared && !partial)
        continue;  // the exchange of weights and sums does not depend on the recipe
      StepSetup setup = setup_of("tiny-moe", recipe);
      setup.model = std::string(model) == "weighted input" ? weighted_input()
                    : partial                              ? experts_with_partial_blocks()
                                                           : find_model(model);
      if (!partial) setup.model.layers = 3;
      const Outcome one = on_one_rank(setup);
      setup.slots_come_back = true;
      for (const int ranks : {2, 4}) {
        if (!plain && ranks == 2) continue;
        INFO(model << " " << recipe << " on " << ranks << " ranks");
        setup.parallel = {.data = ranks};
        setup.expert_ranks = ranks;
        const Outcome many = on_ranks(setup, ranks);
        CHECK((many.losses == one.losses));
        // Gradients of the first block's experts depend on all later blocks.
        const Named experts = experts_of(many.gradients);
        const std::int64_t stacks = setup.model.layers * setup.model.moe.rule.experts;
        CHECK(experts.size() == 3 * static_cast<std::size_t>(stacks));
        CHECK(first_difference(experts, experts_of(one.gradients)) == "");
        if (ranks == 4) continue;
        // Other gradients are summed per rank first.
        const Farthest gradient = farthest(many.gradients, one.gradients);
        INFO(gradient.name);
        CHECK(gradient.distance <= 64 * kRoundoff);
      }
    }
}

TEST_CASE(
    "expert parallelism: losses and gradients equal one rank's within rounding under DDP and FSDP and HSDP",
    "[moe][ep]") {
  for (const char* model : {"tiny-moe-shared", "weighted input", "like gpt-oss"})
    for (const bool recompute : {false, true}) {
      StepSetup setup = setup_of("tiny-moe-shared");
      const bool at_input = std::string(model) == "weighted input",
                 biased = std::string(model) == "like gpt-oss";
      if (at_input) setup.model = weighted_input();
      if (biased) setup.model = like_gpt_oss();
      setup.model.moe.shared_gate = !at_input && !biased;
      setup.model.layers = 3;
      setup.reference = true;
      setup.recompute = recompute ? kRecomputeBlocks : Recompute{};
      setup.z_loss = 1e-3f;
      const Outcome one = on_one_rank(setup);
      for (const auto& [ep, parallel] : {std::pair{2, ParallelDims{.data = 2}},
                                         {2, ParallelDims{.shard = 2}},
                                         {4, ParallelDims{.data = 4}},
                                         {2, ParallelDims{.data = 4}},
                                         {2, ParallelDims{.shard = 4}},
                                         {4, ParallelDims{.shard = 4}},
                                         {2, ParallelDims{.data = 2, .shard = 2}},
                                         {4, ParallelDims{.data = 2, .shard = 2}}}) {
        INFO(model << ", " << parallel.data << " x " << parallel.shard << " ranks, ep " << ep);
        setup.parallel = parallel;
        setup.expert_ranks = ep;
        const Outcome many = on_ranks(setup, parallel.ranks());
        check_close(many, one);
      }
    }
}

TEST_CASE(
    "expert parallelism: with all tokens on two experts gradients are finite and unused experts' are zero",
    "[moe][ep]") {
  for (const char* recipe : {"bf16", "tensorwise", "blockwise"}) {
    INFO(recipe);
    StepSetup setup = setup_of("tiny-moe", recipe);
    setup.parallel = {.data = 4};
    setup.expert_ranks = 4;
    setup.B = 1;
    std::vector<Named> gradients(4);
    on_cpu_ranks(4, [&](Device&, Comm& comm) {
      TestStep step(setup, make_cpu_device(1), &comm);
      step.parameters().initialize(1, 0.05f);
      const AllToFirst forced(step, setup.model.moe.rule);
      step.forward_backward(random_tokens(2, kLength, setup.model.vocab),
                            random_tokens(3, kLength, setup.model.vocab));
      gradients[comm.rank()] = step.gradients();
    });
    for (const auto& [name, values] : gradients[0]) {
      INFO(name);
      CHECK(std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); }));
      const bool zero = std::all_of(values.begin(), values.end(), [](float v) { return v == 0; });
      if (name.find("experts.5.") != std::string::npos) CHECK(zero);
      if (name.find("experts.1.") != std::string::npos) CHECK_FALSE(zero);
    }
  }
}

TEST_CASE("expert parallelism: slots for all tokens and sync give the same bits as gather", "[moe][ep]") {
  for (const bool at_input : {false, true}) {
    StepSetup setup = setup_of("tiny-moe-shared");
    if (at_input) setup.model = weighted_input();
    setup.model.layers = 3;
    setup.reference = true;  // in BF16 partial sums would be rounded at different places
    for (const int ranks : {2, 4}) {
      INFO((at_input ? "weights at the input, " : "") << ranks << " ranks");
      setup.parallel = {.data = ranks};
      setup.expert_ranks = ranks;
      setup.exchange = kGather;
      const Outcome gathered = on_ranks(setup, ranks);
      setup.exchange = slots_of(kSequences / ranks * kLength);
      const Outcome slots = on_ranks(setup, ranks);
      CHECK((slots.losses == gathered.losses));
      CHECK(first_difference(slots.gradients, gathered.gradients) == "");
      setup.exchange = kSync;
      const Outcome sync = on_ranks(setup, ranks);
      CHECK((sync.losses == slots.losses));
      CHECK(first_difference(sync.gradients, slots.gradients) == "");
    }
  }
}

TEST_CASE("expert parallelism: capacity drops the same slots as with all experts on every rank",
          "[moe][ep]") {
  for (const char* recipe : {"bf16", "blockwise"})
    for (const char* model : {"tiny-moe", "weighted input"}) {
      StepSetup setup = setup_of("tiny-moe", recipe);
      if (std::string(model) == "weighted input") setup.model = weighted_input();
      setup.model.layers = 3;
      setup.slots_come_back = true;
      for (const auto& [ranks, ep] : {std::pair{2, 2}, {4, 2}, {4, 4}}) {
        INFO(model << " " << recipe << " on " << ranks << " ranks, ep " << ep);
        setup.parallel = {.data = ranks};
        setup.expert_ranks = 1, setup.capacity = 0;
        const Outcome all = on_ranks(setup, ranks);
        setup.capacity = 0.75;
        const Outcome whole = on_ranks(setup, ranks);
        CHECK((whole.losses != all.losses));
        CHECK(std::all_of(whole.dropped.begin(), whole.dropped.end(), [](double n) { return n > 0; }));
        setup.expert_ranks = ep;
        const Outcome apart = on_ranks(setup, ranks);
        CHECK((apart.losses == whole.losses));
        CHECK(apart.dropped == whole.dropped);
        CHECK(apart.rows == whole.rows);
      }
    }
}

TEST_CASE("expert parallelism: every exchange drops the slots that ranks with all experts drop",
          "[moe][ep]") {
  for (const bool at_input : {false, true}) {
    StepSetup setup = setup_of("tiny-moe-shared");
    if (at_input) setup.model = weighted_input();
    setup.model.layers = 3;
    setup.reference = true;
    setup.capacity = 0.75;
    for (const auto& [ranks, ep] : {std::pair{2, 2}, {4, 2}, {4, 4}}) {
      setup.parallel = {.data = ranks};
      setup.expert_ranks = 1, setup.exchange = kGather;
      const Outcome whole = on_ranks(setup, ranks);
      setup.expert_ranks = ep;
      for (const ExchangeOptions& exchange : {kGather, slots_of(kSequences / ranks * kLength), kSync}) {
        INFO((at_input ? "weights at the input, " : "")
             << ranks << " ranks, ep " << ep << ", exchange " << static_cast<int>(exchange.mode));
        setup.exchange = exchange;
        const Outcome apart = on_ranks(setup, ranks);
        CHECK(apart.dropped == whole.dropped);
        CHECK(apart.rows == whole.rows);
        check_close(apart, whole);
      }
    }
  }
}

TEST_CASE("expert parallelism: dropped slots and their counts are the same under every exchange",
          "[moe][ep]") {
  StepSetup setup = setup_of("tiny-moe-shared");
  setup.reference = true;
  setup.capacity = 0.75;
  for (const int ranks : {2, 4}) {
    setup.parallel = {.data = ranks};
    setup.expert_ranks = ranks;
    setup.exchange = kGather;
    const Outcome gathered = on_ranks(setup, ranks);
    for (const ExchangeOptions& exchange : {slots_of(kSequences / ranks * kLength), kSync}) {
      setup.exchange = exchange;
      const Outcome other = on_ranks(setup, ranks);
      CHECK((other.losses == gathered.losses));
      CHECK(first_difference(other.gradients, gathered.gradients) == "");
    }
  }
  setup.reference = false;
  setup.B = 1;
  setup.parallel = {.data = 2};
  setup.expert_ranks = 2;
  for (const ExchangeOptions& exchange : {kGather, slots_of(kLength), slots_of(kLength / 8), kSync}) {
    setup.exchange = exchange;
    std::vector<std::vector<RouterLoad>> loads(2);
    on_cpu_ranks(2, [&](Device&, Comm& comm) {
      TestStep step(setup, make_cpu_device(1), &comm);
      step.parameters().initialize(1, 0.05f);
      const AllToFirst forced(step, setup.model.moe.rule);
      step.forward_backward(random_tokens(2, kLength, setup.model.vocab),
                            random_tokens(3, kLength, setup.model.vocab));
      loads[comm.rank()] = step.parameters().routers()->load();
    });
    // Both experts of all tokens are on the first rank. Each takes at most three quarters of an even load
    // from every rank, and some of these find no free slot.
    const double most = std::ceil(0.75 * kLength * 2 / 8);
    const double kept = exchange.slots > 0 ? std::min(most, static_cast<double>(exchange.slots)) : most;
    CHECK((kept < most) == (exchange.slots == kLength / 8));
    for (int rank = 0; rank < 2; ++rank)
      for (const RouterLoad& layer : loads[rank]) {
        CHECK(layer.rows == (rank == 0 ? 2 * 2 * kept : 0));
        CHECK(layer.dropped == 2 * (kLength - kept));
      }
  }
}

TEST_CASE("expert parallelism: FP8 dispatch changes only expert gradients whose columns are requantized",
          "[moe][ep]") {
  for (const char* recipe :
       {"tensorwise", "rowwise", "blockwise", "blockwise, partial", "blockwise_pow2", "mxfp8", "flow"})
    for (const bool slots : {false, true}) {
      const bool one_scale = std::string(recipe) == "tensorwise",
                 partial = std::string(recipe) == "blockwise, partial";
      // The scale covers the received rows with BF16 dispatch, all rows of the group with FP8.
      if (one_scale && slots) continue;
      StepSetup setup = setup_of("tiny-moe-shared", partial ? "blockwise" : recipe);
      if (partial) setup.model = experts_with_partial_blocks();
      const int ranks = 2;
      const std::int64_t tokens = kSequences / ranks * kLength;
      setup.parallel = {.data = ranks};
      setup.expert_ranks = ranks;
      setup.exchange = slots ? slots_of(tokens) : kGather;
      INFO(recipe << (slots ? " in slots" : " gathered"));
      const Outcome values = on_ranks(setup, ranks);
      setup.exchange.codes = true;
      const Outcome codes = on_ranks(setup, ranks);
      CHECK((codes.losses == values.losses));
      CHECK(first_difference(all_but_experts(codes.gradients), all_but_experts(values.gradients)) == "");
      const Named from_codes = experts_of(codes.gradients), from_values = experts_of(values.gradients);
      if (one_scale || setup.recipe.flow) {
        CHECK(first_difference(from_codes, from_values) == "");
        continue;
      }
      CHECK(first_difference(from_codes, from_values) != "");
      const Farthest gradient = farthest(from_codes, from_values);
      INFO(gradient.name);
      CHECK(gradient.distance <= 0.06);  // both operands are rounded differently, to three bits
    }
}

TEST_CASE("expert parallelism: tokens without a free slot are dropped and counted", "[moe][ep]") {
  StepSetup setup = setup_of("tiny-moe", "blockwise");
  setup.B = 1;
  setup.parallel = {.data = 2};
  setup.expert_ranks = 2;
  const std::int64_t kept = kLength / 4;
  setup.exchange = slots_of(kept);
  std::vector<std::vector<RouterLoad>> loads(2);
  std::vector<double> losses(2);
  on_cpu_ranks(2, [&](Device&, Comm& comm) {
    TestStep step(setup, make_cpu_device(1), &comm);
    step.parameters().initialize(1, 0.05f);
    const AllToFirst forced(step, setup.model.moe.rule);
    losses[comm.rank()] = step.forward_backward(random_tokens(2, kLength, setup.model.vocab),
                                                random_tokens(3, kLength, setup.model.vocab));
    loads[comm.rank()] = step.parameters().routers()->load();
  });
  for (int rank = 0; rank < 2; ++rank) {
    CHECK(std::isfinite(losses[rank]));
    for (const RouterLoad& layer : loads[rank]) {
      CHECK(layer.dropped == 2 * (kLength - kept));  // both experts of a token are on the first rank
      CHECK(layer.rows == (rank == 0 ? 2 * 2 * kept : 0));
    }
  }
}
