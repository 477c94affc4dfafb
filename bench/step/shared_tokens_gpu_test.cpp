// Context and tensor ranks on GPUs over NCCL: they train like one GPU with whole sequences and matrices, in a CUDA graph
// or not. Skipped with fewer than two GPUs.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>

#include "bench/case/plan.h"
#include "bench/step/rank_testing.h"
#include "bench/step/step_runner.h"
#include "kernels/testing/temp_directory.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

constexpr int kSharedSteps = 4;

struct SharedSetting {
  std::string recipe = "bf16", parallel = "ddp";
  int ranks = 1, context = 1, head_dim = 128;
  std::int64_t batch = 1, accumulation = 1;
  bool graph = false, experts = false;
  std::string recompute = "none";
  int tensor = 1;
  std::string tensor_gather = "auto", context_exchange = "auto", attention = "auto";
  int window = 0;
};

Plan plan_of_shared(const SharedSetting& setting) {
  const TempDirectory directory;
  Case c;
  c.model = directory.write(
      "gqa.json",
      fmt::format(R"({{"layers": 2, "width": 256, "ffn": 512, "heads": 4, "kv_heads": 2,
                                  "head_dim": {}, "vocab": 512, "qk_norm": true{}{}}})",
                  setting.head_dim, setting.experts ? R"(, "experts": 4, "top_k": 2, "expert_ffn": 256)" : "",
                  setting.window ? fmt::format(R"(, "sliding_window": {})", setting.window) : ""));
  c.device = best_device();
  c.recipe = setting.recipe;
  c.seq = 1024;
  c.batch = setting.batch;
  c.accumulation = setting.accumulation;
  c.gpus = setting.ranks;
  c.context = setting.context;
  c.tensor = setting.tensor;
  c.tensor_gather = setting.tensor_gather;
  if (setting.experts) c.ep = setting.ranks;
  c.parallel = setting.parallel;
  c.recompute = setting.recompute;
  c.context_exchange = setting.context_exchange;
  c.attention = setting.attention;
  c.reduce_amax = setting.ranks > 1 && setting.recipe != "bf16" ? "on" : "off";
  c.lr = 1e-3;
  return validate(c);
}

struct SharedTrained {
  std::vector<double> losses, norms;
  Named gradients;  ///< of the first step
};

SharedTrained train_sharing(const SharedSetting& setting) {
  const Plan plan = plan_of_shared(setting);
  INFO(unsupported_reason(plan).value_or(""));
  REQUIRE(!unsupported_reason(plan));
  SharedTrained trained;
  run_gpu_ranks(plan, [&](Rank& rank, const DataSource& data) {
    const bool first = rank.comm().rank() == 0;
    StepRunner runner(rank, data, setting.graph ? GraphMode::on : GraphMode::off);
    for (int step = 0; step < kSharedSteps; ++step) {
      const StepResult result = runner.run(step, 0).result;
      if (first) trained.losses.push_back(result.loss), trained.norms.push_back(result.grad_norm);
      if (step > 0) continue;
      Named gradients = saved(rank.parameters(), Parameters::Kind::gradients);  // a collective
      if (first) trained.gradients = std::move(gradients);
    }
  });
  return trained;
}

void check_alike(const SharedTrained& x, const SharedTrained& one, bool quantized) {
  // Gradients of keys and values are rounded to BF16 on each rank and in their sum; a quantized gradient may
  // then have another code. The difference of the first step grows with each step.
  CHECK(std::fabs(x.losses[0] / one.losses[0] - 1) <= 1e-4);
  CHECK(std::fabs(x.norms[0] / one.norms[0] - 1) <= (quantized ? 2e-2 : 5e-3));
  const Farthest gradient = farthest(x.gradients, one.gradients);
  INFO(gradient.name << ": " << gradient.distance);
  CHECK(gradient.distance <= (quantized ? 0.25 : 4e-2));
  for (std::size_t step = 1; step < one.losses.size(); ++step)
    CHECK(std::fabs(x.losses[step] / one.losses[step] - 1) <= 1e-3);
}

}  // namespace

TEST_CASE("NCCL: two context ranks train like one GPU", "[gpu][comm][context]") {
  if (!gpus_or_skip()) return;
  // Heads of 32 have neither Hopper kernels nor, with own, cuDNN's.
  for (const auto& [recipe, head_dim, batch, attention] : {std::tuple{"bf16", 128, 1, "auto"},
                                                           {"bf16", 64, 3, "auto"},
                                                           {"bf16", 256, 2, "auto"},
                                                           {"bf16", 128, 2, "cudnn"},
                                                           {"bf16", 32, 2, "own"},
                                                           {"tensorwise", 128, 1, "auto"},
                                                           {"blockwise", 128, 2, "auto"}}) {
    const bool quantized = std::string(recipe) != "bf16";
    const SharedTrained one =
        train_sharing({.recipe = recipe, .head_dim = head_dim, .batch = batch, .attention = attention});
    for (const char* parallel : {"ddp", "fsdp"}) {
      std::vector<double> losses;
      for (const bool graph : {false, true}) {
        INFO(recipe << ", heads of " << head_dim << ", batch " << batch << ", " << parallel << ", attention "
                    << attention << (graph ? " in a graph" : ""));
        const SharedTrained two = train_sharing({.recipe = recipe,
                                                 .parallel = parallel,
                                                 .ranks = 2,
                                                 .context = 2,
                                                 .head_dim = head_dim,
                                                 .batch = batch,
                                                 .graph = graph,
                                                 .attention = attention});
        check_alike(two, one, quantized);
        // cuDNN adds up gradients of queries in any order.
        if (graph && std::string(attention) != "cudnn") CHECK(two.losses == losses);
        losses = two.losses;
      }
    }
  }
}

TEST_CASE("NCCL: context ranks that pass keys around a ring train like one GPU",
          "[gpu][comm][context][ring]") {
  const int gpus = gpus_or_skip();
  if (!gpus) return;
  for (const auto& [recipe, head_dim, batch, attention] : {std::tuple{"bf16", 128, 1, "auto"},
                                                           {"bf16", 64, 3, "auto"},
                                                           {"tensorwise", 256, 1, "auto"},
                                                           {"bf16", 128, 2, "cudnn"},
                                                           {"bf16", 64, 1, "cudnn"}}) {
    const SharedTrained one = train_sharing({.recipe = recipe, .head_dim = head_dim, .batch = batch});
    for (int ranks = 2; ranks <= std::min(gpus, 4); ranks *= 2) {
      std::vector<double> losses;
      for (const bool graph : {false, true}) {
        INFO(recipe << ", heads of " << head_dim << ", batch " << batch << ", " << ranks
                    << " ranks, attention " << attention << (graph ? " in a graph" : ""));
        const SharedTrained ring = train_sharing({.recipe = recipe,
                                                  .parallel = "fsdp",
                                                  .ranks = ranks,
                                                  .context = ranks,
                                                  .head_dim = head_dim,
                                                  .batch = batch,
                                                  .graph = graph,
                                                  .recompute = graph ? "block" : "none",
                                                  .context_exchange = "ring",
                                                  .attention = attention});
        check_alike(ring, one, std::string(recipe) != "bf16");
        // cuDNN adds up gradients of queries in any order.
        if (graph && std::string(attention) == "auto") CHECK(ring.losses == losses);
        losses = ring.losses;
      }
    }
  }
}

TEST_CASE("NCCL: context ranks attend in a window like one GPU", "[gpu][comm][context][ring]") {
  if (!gpus_or_skip()) return;
  for (const int window :
       {100, 300, 700})  // within a chunk of 256 tokens, into the one before, and into several
    for (const char* attention : {"auto", "own"}) {
      const SharedTrained one = train_sharing({.attention = attention, .window = window});
      for (const char* exchange : {"gather", "ring"}) {
        INFO("window " << window << ", attention " << attention << ", " << exchange);
        check_alike(train_sharing({.parallel = "fsdp",
                                   .ranks = 2,
                                   .context = 2,
                                   .graph = true,
                                   .context_exchange = exchange,
                                   .attention = attention,
                                   .window = window}),
                    one, false);
      }
    }
}

TEST_CASE("NCCL: context ranks recompute, accumulate and divide experts like one GPU",
          "[gpu][comm][context]") {
  if (!gpus_or_skip()) return;
  const SharedTrained one = train_sharing({.accumulation = 2});
  check_alike(train_sharing({.parallel = "fsdp",
                             .ranks = 2,
                             .context = 2,
                             .accumulation = 2,
                             .graph = true,
                             .recompute = "block"}),
              one, false);
  const SharedTrained experts = train_sharing({.experts = true});
  const SharedTrained apart = train_sharing({.ranks = 2, .context = 2, .graph = true, .experts = true});
  // A token close to a tie may switch experts.
  CHECK(std::fabs(apart.losses[0] / experts.losses[0] - 1) <= 1e-4);
  CHECK(std::fabs(apart.norms[0] / experts.norms[0] - 1) <= 1e-2);
}

TEST_CASE("NCCL: context ranks and data ranks train like ranks with whole sequences",
          "[gpu][comm][context]") {
  if (gpus_or_skip() < 4) return;
  const SharedTrained one = train_sharing({.batch = 2});
  for (const char* parallel : {"ddp", "fsdp"}) {
    INFO(parallel);
    check_alike(train_sharing({.parallel = parallel, .ranks = 4, .context = 2, .graph = true}), one, false);
    SharedTrained all = train_sharing({.batch = 1});
    check_alike(train_sharing({.parallel = parallel, .ranks = 4, .context = 4, .graph = true}), all, false);
  }
}

TEST_CASE("NCCL: two tensor ranks train like one GPU", "[gpu][comm][tensor]") {
  if (!gpus_or_skip()) return;
  for (const char* recipe : {"bf16", "tensorwise", "rowwise", "blockwise", "mxfp8"}) {
    const bool quantized = std::string(recipe) != "bf16";
    const SharedTrained one = train_sharing({.recipe = recipe});
    for (const char* recompute : {"none", "block"}) {
      std::vector<double> losses;
      for (const char* gather : {"bf16", "fp8"})
        for (const bool graph : {false, true}) {
          if (std::string(gather) == "fp8" && std::string(recipe) != "tensorwise") continue;
          INFO(recipe << ", recompute " << recompute << ", gather " << gather
                      << (graph ? " in a graph" : ""));
          const SharedTrained two = train_sharing({.recipe = recipe,
                                                   .ranks = 2,
                                                   .graph = graph,
                                                   .recompute = recompute,
                                                   .tensor = 2,
                                                   .tensor_gather = gather});
          check_alike(two, one, quantized);
          // Neither a graph nor an FP8 gather changes a bit.
          if (!losses.empty()) CHECK(two.losses == losses);
          losses = two.losses;
        }
    }
  }
}

TEST_CASE("NCCL: tensor, context and data ranks train like one GPU", "[gpu][comm][tensor][context]") {
  if (gpus_or_skip() < 4) return;
  const SharedTrained one = train_sharing({.batch = 2}), whole = train_sharing({});
  for (const char* parallel : {"ddp", "fsdp"}) {
    INFO(parallel);
    check_alike(train_sharing({.parallel = parallel, .ranks = 4, .graph = true, .tensor = 2}), one, false);
    check_alike(train_sharing({.parallel = parallel, .ranks = 4, .context = 2, .graph = true, .tensor = 2}),
                whole, false);
  }
}

TEST_CASE("NCCL: a collective in a lane of its own does not wait for a long one", "[gpu][comm][context]") {
  const int ranks = gpus_or_skip();
  if (!ranks) return;
  constexpr std::int64_t kLong = std::int64_t{1} << 24, kShort = 1024;
  std::vector<std::int64_t> wrong(ranks);
  on_gpus(ranks, [&](int r, Device& device, Comm& comm) {
    const std::int64_t bytes = std::int64_t{1} << 30;
    const DeviceBlock block(device, bytes);
    Arena arena(block.data(), bytes);
    std::vector<int> everyone(ranks);
    for (int i = 0; i < ranks; ++i) everyone[i] = i;
    const std::unique_ptr<Comm> lane = comm.subset(everyone, Lane::own);
    const Tensor large = arena.push(Segment::other, DType::f32, 1, kLong),
                 small = arena.push(Segment::other, DType::f32, 1, kShort);
    std::vector<float> got(kShort), all(kLong);
    for (int round = 0; round < 100; ++round) {
      device.fill({large, static_cast<float>(round)});
      device.fill({small, static_cast<float>(r + round)});
      const Comm::Ticket ticket = comm.start_all_reduce(large);
      lane->all_reduce(small);
      device.download(got.data(), small);
      for (const float x : got) wrong[r] += x != static_cast<float>(ranks * (ranks - 1) / 2 + ranks * round);
      comm.wait(ticket);
    }
    device.download(all.data(), large);
    for (const float x : all) wrong[r] += x != 99.0f * static_cast<float>(ranks);
  });
  CHECK(wrong == std::vector<std::int64_t>(ranks));
}
