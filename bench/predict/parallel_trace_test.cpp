// Parallel traces: their FLOPs are one rank's divided by the ranks, and every block has the collectives of the scheme.
#include "bench/predict/parallel_trace.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>

#include "bench/predict/cost_model.h"
#include "bench/predict/predict.h"
#include "kernels/base/errors.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"

namespace precbench {
namespace {

Case small_case(const std::string& recipe = "bf16") {
  Case c;
  c.model = "llama3.2-1b";
  c.layers = 2;
  c.recipe = recipe;
  c.seq = 1024;
  c.batch = 1;
  return c;
}

Trace trace_of(const Case& c, const ParallelLayout& layout, const RecomputeShare& recompute = {}) {
  const ModelConfig model = find_model(c.model);
  const Plan plan = local_plan(c, model, layout);
  const Trace local = dry_run(plan, nullptr).trace;
  if (!layout.divides_expert_rows()) return parallel_trace(local, plan, layout, recompute);
  const Trace experts = dry_run(expert_plan(c, model, layout), nullptr).trace;
  return parallel_trace(local, plan, layout, recompute, &experts);
}

/// Two blocks of 32 experts of width 1024, of which a token takes 8.
Case small_moe(const std::string& recipe = "bf16") {
  Case c = small_case(recipe);
  c.model = "moe-4b-a1b";
  return c;
}

/// Returns the FLOPs of the GEMMs of experts in a step.
double expert_flops_of(const Trace& trace) {
  double flops = 0;
  for (const CountedOp& op : trace.counted())
    if (std::string(op.cost.name).starts_with("grouped_matmul"))
      flops += op.cost.flops * static_cast<double>(op.calls);
  return flops;
}

/// Returns the bytes of the largest buffer that is exchanged.
double largest_exchange(const Trace& trace) {
  double bytes = 0;
  for (const TraceCollective& one : trace.collectives)
    if (one.name == "all_to_all") bytes = std::max(bytes, one.buffer_bytes);
  return bytes;
}

// Tokens of 1024 that go to a rank with 4 of 32 experts, if 8 are drawn without repetition: all but those whose 8 are
// among the other 28.
constexpr double kSentShare = 1 - 3108105.0 / 10518300;  // 1 - C(28, 8) / C(32, 8)

/// Returns the FLOPs of the ops of a class in a step.
double flops_of(const Trace& trace, OpClass op_class) {
  double flops = 0;
  for (const CountedOp& op : trace.counted())
    if (op.cost.op_class == op_class) flops += op.cost.flops * static_cast<double>(op.calls);
  return flops;
}

/// Returns the calls of each collective of a communicator with this many ranks at this distance.
std::map<std::string, int> calls_of(const Trace& trace, std::size_t ranks, int stride) {
  std::map<std::string, int> calls;
  for (std::size_t i = 0; i < trace.events.size(); ++i) {
    if (trace.events[i].kind != TraceEvent::Kind::start) continue;
    const TraceCollective& one = trace.collectives[static_cast<std::size_t>(trace.events[i].index)];
    const std::vector<int>& members = trace.comms[static_cast<std::size_t>(one.comm)];
    if (members.size() == ranks && members.at(1) - members.at(0) == stride)
      calls[one.name] += static_cast<int>(trace.times(i));
  }
  return calls;
}

double bytes_of_op(const Trace& trace, const std::string& name) {
  double bytes = 0;
  for (const CountedOp& op : trace.counted())
    if (op.cost.name == name) bytes += op.cost.bytes * static_cast<double>(op.calls);
  return bytes;
}

TEST_CASE("parallel_trace: one rank of everything is the trace of the dry run", "[predict]") {
  const Plan plan = validate(small_case());
  const Trace local = dry_run(plan, nullptr).trace;
  const Trace same = trace_of(small_case(), {});
  CHECK(same.events.size() == local.events.size());
  for (const OpClass op_class : {OpClass::gemm, OpClass::attention, OpClass::head_loss})
    CHECK(flops_of(same, op_class) == flops_of(local, op_class));
}

TEST_CASE("parallel_trace: tensor ranks divide FLOPs and norms and gather and scatter rows", "[predict]") {
  for (const char* recipe : {"bf16", "tensorwise", "mxfp8"}) {
    INFO(recipe);
    const Trace one = trace_of(small_case(recipe), {});
    for (const int t : {2, 4}) {
      const Trace many = trace_of(small_case(recipe), {.tensor = t});
      for (const OpClass op_class : {OpClass::gemm, OpClass::attention})
        CHECK(flops_of(many, op_class) == Approx(flops_of(one, op_class) / t));
      const auto calls = calls_of(many, static_cast<std::size_t>(t), 1);
      // Two blocks: each gathers twice forward and four times backward, and scatters twice each way. The embedding
      // scatters forward and gathers backward, the head the other way round.
      CHECK(calls.at("all_gather") == 2 * 6 + 2);
      CHECK(calls.at("reduce_scatter") == 2 * 4 + 2);
    }
  }
  const double norms = bytes_of_op(trace_of(small_case(), {}), "add_rmsnorm");
  CHECK(bytes_of_op(trace_of(small_case(), {.tensor = 4}), "add_rmsnorm") == Approx(norms / 4).epsilon(0.01));
}

/// Returns the large collectives of tensor ranks in order: "all_gather 4194304".
std::vector<std::string> tensor_traffic(const Trace& trace) {
  constexpr double kLarge = 1 << 20;  // more than statistics of rows and gradients of norms
  std::vector<std::string> found;
  for (const TraceEvent& event : trace.events) {
    if (event.kind != TraceEvent::Kind::start) continue;
    const TraceCollective& one = trace.collectives[static_cast<std::size_t>(event.index)];
    const std::vector<int>& ranks = trace.comms[static_cast<std::size_t>(one.comm)];
    if (one.lane != kSharedLane && ranks[1] - ranks[0] == 1 && one.buffer_bytes > kLarge)
      found.push_back(one.name.substr(0, one.name.find(' ')) + " " +
                      std::to_string(static_cast<std::int64_t>(one.buffer_bytes)));
  }
  return found;
}

TEST_CASE("parallel_trace: the rules of tensor ranks exchange what their own step does, in its order",
          "[predict][tensor]") {
  const CostModel cost_model(find_machine("h200"));
  const ModelConfig model = find_model("llama3.2-1b");
  for (const char* recipe :
       {"bf16", "tensorwise", "tensorwise_delayed", "rowwise", "blockwise", "mxfp8", "nvfp4_all"})
    for (const char* parallel : {"ddp", "fsdp"})
      for (const char* recompute : {"none", "norm", "block"})
        for (const ParallelLayout& layout : {ParallelLayout{.tensor = 2, .data = 2},
                                             {.tensor = 4, .context = 2},
                                             {.tensor = 2, .data = 2, .tensor_fp8 = false}}) {
          Case c = small_case(recipe);
          c.device = "cuda", c.seq = 8192, c.parallel = parallel, c.recompute = recompute;
          INFO(recipe << " " << parallel << " " << recompute << " tensor " << layout.tensor << " "
                      << layout.tensor_fp8);
          // Traces with two blocks and with four.
          std::array<Trace, 2> own, by_rule;
          for (const std::size_t i : {0, 1}) {
            c.layers = i == 0 ? 2 : 4;
            const Plan plan = traced_plan(c, model, layout);
            REQUIRE(plan.fields.tensor == layout.tensor);
            own[i] = dry_run(plan, nullptr).trace;
            by_rule[i] = parallel_trace(dry_run(local_plan(c, model, layout), nullptr).trace,
                                        local_plan(c, model, layout), layout);
          }
          std::vector<std::string> traffic[] = {tensor_traffic(by_rule[0]), tensor_traffic(own[0])};
          // A block's gradient is gathered after the block has run again, by rule before that.
          if (c.recompute == "block")
            for (std::vector<std::string>& calls : traffic) std::sort(calls.begin(), calls.end());
          CHECK(traffic[0] == traffic[1]);
          for (const OpClass op_class : {OpClass::gemm, OpClass::attention})
            CHECK(flops_of(by_rule[0], op_class) == Approx(flops_of(own[0], op_class)));
          const auto seconds_of_two_blocks = [&](const std::array<Trace, 2>& traces) {
            return estimate_step(cost_model, traces[1], layout.ranks()).seconds -
                   estimate_step(cost_model, traces[0], layout.ranks()).seconds;
          };
          // Rules leave out the sum of the norms' gradients, 8 KiB each.
          CHECK(seconds_of_two_blocks(by_rule) == Approx(seconds_of_two_blocks(own)).epsilon(0.04));
        }
}

TEST_CASE("parallel_trace: tensor gathers move FP8 where one scale holds for all rows", "[predict]") {
  const auto largest = [](const Trace& trace, const char* name) {
    double bytes = 0;
    for (const TraceCollective& one : trace.collectives)
      if (one.name == name) bytes = std::max(bytes, one.buffer_bytes);
    return bytes;
  };
  const double activations = 1024 * 2048;
  const Trace tensorwise = trace_of(small_case("tensorwise"), {.tensor = 2});
  bool in_fp8 = false;
  for (const TraceCollective& one : tensorwise.collectives)
    in_fp8 = in_fp8 || (one.name == "all_gather" && one.buffer_bytes == activations);
  CHECK(in_fp8);
  CHECK(largest(tensorwise, "reduce_scatter") == 2 * activations);
  CHECK(largest(trace_of(small_case("mxfp8"), {.tensor = 2}), "all_gather") == 2 * activations);
}

TEST_CASE("parallel_trace: overlapped tensor collectives start before the GEMM that they run beside",
          "[predict]") {
  const auto waits_right_after_start = [](const Trace& trace) {
    int count = 0;
    for (std::size_t i = 1; i < trace.events.size(); ++i)
      count += trace.events[i].kind == TraceEvent::Kind::wait &&
               trace.events[i - 1].kind == TraceEvent::Kind::start;
    return count;
  };
  const Trace apart = trace_of(small_case(), {.tensor = 2});
  const Trace beside = trace_of(small_case(), {.tensor = 2, .tensor_overlap = true});
  CHECK(calls_of(apart, 2, 1) == calls_of(beside, 2, 1));
  CHECK(waits_right_after_start(beside) < waits_right_after_start(apart));
}

TEST_CASE("parallel_trace: context ranks divide the attention of the whole sequence", "[predict]") {
  const Trace one = trace_of(small_case(), {});
  for (const int n : {2, 4}) {
    const Trace many = trace_of(small_case(), {.context = n});
    CHECK(flops_of(many, OpClass::attention) == Approx(flops_of(one, OpClass::attention) / n));
    CHECK(flops_of(many, OpClass::gemm) == Approx(flops_of(one, OpClass::gemm) / n));
    bool late = false;
    for (const OpCost& op : many.ops)
      late = late || (op.op_class == OpClass::attention && op.shape[2] == 1024 &&
                      op.shape[3] == 1024 - 1024 / (2 * n));
    CHECK(late);
  }
  // Keys and values: gathered once forward and once backward, their gradients scattered.
  const auto calls = calls_of(trace_of(small_case(), {.tensor = 2, .context = 2}), 2, 2);
  CHECK(calls.at("all_gather") == 2 * 2);
  CHECK(calls.at("reduce_scatter bf16") == 2);
}

TEST_CASE("parallel_trace: experts of tensor ranks work on the rows of a rank's norm", "[predict]") {
  for (const char* recipe : {"bf16", "tensorwise", "mxfp8"}) {
    INFO(recipe);
    const ParallelLayout layout{.tensor = 2, .data = 4, .experts = 8};
    const Trace trace = trace_of(small_moe(recipe), layout);
    // 512 of 1024 rows are routed by each tensor rank, to 8 experts each; as many come back from 8 ranks. Three
    // matrices of 2048 x 1024, each multiplied once forward and twice backward, in two blocks.
    const double rows = 512 * 8;
    CHECK(expert_flops_of(trace) == Approx(2 * 3 * 3 * 2 * rows * 2048 * 1024));
    // A row goes once to each of 8 ranks that has one of its experts.
    const double sent = 8 * 512 * kSentShare * 2048 * 2;
    CHECK(largest_exchange(trace) == Approx(sent).epsilon(0.005));
    const auto exchanges = calls_of(trace, 8, 1);
    CHECK(exchanges.contains("all_to_all"));
    // Tensor ranks gather before attention forward, for its first GEMM's weight gradient and before its last one's
    // backward, and scatter once each way; embedding and head gather and scatter once each.
    const auto calls = calls_of(trace, 2, 1);
    CHECK(calls.at("all_gather") == 2 * 3 + 2);
    CHECK(calls.at("reduce_scatter") == 2 * 2 + 2);
  }
  // Gradients of what all ranks have are reduced in FP32, half of a matrix each; those of experts have no replicas.
  const ParallelLayout layout{.tensor = 2, .data = 4, .experts = 8};
  const Plan plan = local_plan(small_moe(), find_model("moe-4b-a1b"), layout);
  const double shared = static_cast<double>(parameter_count(plan.model) - 2 * 16 * 3 * 2048 * 1024) * 4;
  double reduced = 0;
  const Trace trace = trace_of(small_moe(), layout);
  for (const TraceEvent& event : trace.events)
    if (event.kind == TraceEvent::Kind::start)
      if (const TraceCollective& one = trace.collectives[static_cast<std::size_t>(event.index)];
          one.name == "all_reduce" && one.buffer_bytes > 1024)
        reduced += one.buffer_bytes;
  CHECK(reduced == Approx(shared).epsilon(0.001));
  // Half of the heads, whole rows.
  const Trace one = trace_of(small_moe(), {}),
              two = trace_of(small_moe(), {.tensor = 2, .data = 4, .experts = 8});
  CHECK(flops_of(two, OpClass::attention) == Approx(flops_of(one, OpClass::attention) / 2));
  CHECK(bytes_of_op(two, "add_rmsnorm") == Approx(bytes_of_op(one, "add_rmsnorm") / 2).epsilon(0.01));
}

TEST_CASE("parallel_trace: experts without tensor ranks exchange whole rows", "[predict]") {
  const Trace trace = trace_of(small_moe(), {.data = 8, .experts = 8});
  CHECK(expert_flops_of(trace) == Approx(2 * 3 * 3 * 2 * 1024.0 * 8 * 2048 * 1024));
  CHECK(largest_exchange(trace) == Approx(8 * 1024 * kSentShare * 2048 * 2).epsilon(0.005));
}

TEST_CASE("parallel_trace: rows cost what the network moves of them", "[predict]") {
  // On a network so slow that nothing else counts, a micro-step is as much longer as its exchanges are: rows sent and
  // returned, forward and backward, in two blocks. 7 of 8 parts leave the rank.
  const auto seconds = [](double gb_per_s) {
    Machine machine = find_machine("h200");
    machine.levels.front().gb_per_s = gb_per_s;
    machine.levels.front().achieved = {{"", {{2, 1.0}}}};
    const CostModel model(machine);
    const Trace trace = trace_of(small_moe(), {.data = 8, .experts = 8});
    return time_of_events(trace, model.rates_of(trace), 0, trace.update_begin).seconds;
  };
  const double rows = 8 * 1024 * kSentShare * 2048 * 2, indices = 8 * 1024 * kSentShare * 8 * 4;
  // Experts of a slot and their weights go out forward, the weights' gradients come back; counts of rows are few.
  const double bytes = 2 * (4 * rows + 3 * indices) * 7 / 8;
  // Gradients of what all ranks have are reduced beside: those of attention, router and embedding.
  const ModelConfig model = cut_to(find_model("moe-4b-a1b"), 2);
  const double shared = static_cast<double>(parameter_count(model) - 2 * 32 * 3 * 2048 * 1024) * 4;
  const double slower = (bytes + 2 * shared * 7 / 8) * (1 / 0.5e9 - 1 / 1e9);
  CHECK(seconds(0.5) - seconds(1) == Approx(slower).epsilon(0.02));
}

TEST_CASE("optimizer_shards: experts have as many replicas as ranks beyond those that share them",
          "[predict]") {
  const ParallelLayout layout{.tensor = 2, .data = 8, .experts = 8, .sharded_optimizer = true};
  Case c = small_moe();
  const Plan plan = local_plan(c, find_model(c.model), layout);
  // A rank has 4 of 32 experts in each of two blocks, which 2 of 16 ranks share; the rest is shared by 8 data ranks.
  const double experts = 2 * 4 * 3 * 2048 * 1024;
  CHECK(plan.parameters.expert_ranks == 4);
  const auto others = static_cast<double>(parameter_count(plan.model)) - 4 * experts;
  CHECK(optimizer_shards(plan, layout) == Approx((others + experts) / (others / 8 + experts / 2)));
  CHECK(optimizer_shards(local_plan(small_case(), find_model("llama3.2-1b"), {.data = 8}), {.data = 8}) == 8);
  // Weights that FSDP shards have no replica: the optimizer of experts alone is divided, by those that hold the same
  // ones.
  Case sharded = c;
  sharded.parallel = "fsdp";
  const double shard = others / 8;
  CHECK(optimizer_shards(local_plan(sharded, find_model(c.model), layout), layout) ==
        Approx((shard + experts) / (shard + experts / 2)));
  // Blocks without experts count as shared, wherever they are.
  for (const auto& [dense, interval] : {std::pair{1, 1}, {0, 2}}) {
    ModelConfig model = find_model(c.model);
    model.layers = 2;
    model.moe.dense_layers = dense;
    model.moe.layer_interval = interval;
    const Plan some = local_plan(c, model, layout);
    const auto rest = static_cast<double>(parameter_count(some.model)) - 4 * experts / 2;
    CHECK(optimizer_shards(some, layout) == Approx((rest + experts / 2) / (rest / 8 + experts / 4)));
  }
}

TEST_CASE("local_plan: refuses experts that do not divide", "[predict]") {
  const ModelConfig model = find_model("moe-4b-a1b");
  const auto refusal = [&](const ParallelLayout& layout) {
    return refusal_of([&] { local_plan(small_moe(), model, layout); });
  };
  CHECK(contains(refusal({.data = 64, .experts = 64}), "64 expert ranks do not divide 32 experts"));
  CHECK(contains(refusal({.data = 4, .experts = 8}), "or 4 ranks of a stage"));
  CHECK(contains(refusal({.tensor = 4, .data = 2, .experts = 2}), "2 expert ranks do not divide"));
  CHECK(refusal({.tensor = 2, .data = 4, .experts = 8}).empty());
}

TEST_CASE("parallel_trace: data ranks lie a tensor and a context group apart", "[predict]") {
  Case c = small_case();
  c.parallel = "fsdp";
  const Trace trace = trace_of(c, {.tensor = 4, .data = 2});
  CHECK(calls_of(trace, 2, 4).contains("all_gather"));
}

TEST_CASE("parallel_trace: a sharded optimizer scatters gradients and gathers weights and updates its share",
          "[predict]") {
  const Trace replicated = trace_of(small_case(), {.data = 4});
  const Trace sharded = trace_of(small_case(), {.data = 4, .sharded_optimizer = true});
  const int gradients = calls_of(replicated, 4, 1).at("all_reduce");
  const auto calls = calls_of(sharded, 4, 1);
  CHECK(calls.at("reduce_scatter") > 0);
  CHECK(calls.at("reduce_scatter") == calls.at("all_gather"));
  CHECK(calls.at("reduce_scatter") <= gradients);
  CHECK(bytes_of_op(sharded, "adamw") == Approx(bytes_of_op(replicated, "adamw") / 4));
}

TEST_CASE("parallel_trace: recomputation runs the stated share of GEMMs and attention again", "[predict]") {
  Case c = small_case();
  const double once = flops_of(trace_of(c, {}), OpClass::gemm);
  c.recompute = "block";
  const Trace all = trace_of(c, {}), half = trace_of(c, {}, {1, 0.5, 0});
  const double again = flops_of(all, OpClass::gemm) - once;
  CHECK(again > 0);
  CHECK(flops_of(half, OpClass::gemm) == Approx(once + again / 2));
  CHECK(flops_of(half, OpClass::attention) < flops_of(all, OpClass::attention));
}

TEST_CASE("local_plan: refuses ranks that do not divide", "[predict]") {
  const ModelConfig model = find_model("llama3.2-1b");
  CHECK(contains(refusal_of([&] { local_plan(small_case(), model, {.tensor = 3}); }),
                 "3 tensor ranks do not divide"));
  CHECK(contains(refusal_of([&] { local_plan(small_case(), model, {.context = 3}); }),
                 "3 context ranks do not divide a sequence of 1024 tokens"));
  CHECK(contains(refusal_of([&] { local_plan(small_case(), find_model("command-r-35b"), {.tensor = 2}); }),
                 "parallel residuals"));
}

}  // namespace
}  // namespace precbench
