// Parallel traces: their FLOPs are one rank's divided by the ranks, and every block has the collectives of the scheme.
#include "bench/predict/parallel_trace.h"

#include <map>
#include <string>

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
  const Plan plan = local_plan(c, find_model(c.model), layout);
  return parallel_trace(dry_run(plan, nullptr).trace, plan, layout, recompute);
}

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
  const Plan plan = resolve(small_case());
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
  CHECK(calls.at("all_gather") >= 2 * 2);
  CHECK(calls.at("reduce_scatter") >= 2);
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
}

}  // namespace
}  // namespace precbench
