// Traces of dry runs: the order of a real step, collectives with their waits, and repeated micro-steps.
#include "bench/predict/trace.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "bench/predict/predict.h"
#include "bench/step/rank_testing.h"
#include "kernels/testing/catch.h"

namespace precbench {
namespace {

Case case_of(const std::string& model, const std::string& recipe, std::int64_t gpus,
             const std::string& parallel, std::int64_t accumulation = 1) {
  Case c;
  c.model = model;
  c.recipe = recipe;
  c.gpus = gpus;
  c.parallel = parallel;
  c.accumulation = accumulation;
  if (parallel == "hsdp") c.shard_group = 2;
  return c;
}

class Names final : public OpObserver {
 public:
  void begin(const OpCost& cost) override { names.emplace_back(cost.name); }
  void end(const OpCost&) override {}
  std::vector<std::string> names;
};

std::vector<std::string> names_of(const std::vector<OpCost>& ops) {
  std::vector<std::string> names;
  for (const OpCost& op : ops) names.emplace_back(op.name);
  return names;
}

/// Returns every event in order: the name of an op, or what starts or is waited for.
std::vector<std::string> names_of_events(const Trace& trace) {
  std::vector<std::string> names;
  for (const TraceEvent& event : trace.events) {
    const auto index = static_cast<std::size_t>(event.index);
    names.push_back(event.kind == TraceEvent::Kind::op ? trace.ops[index].name
                    : event.kind == TraceEvent::Kind::start
                        ? "start " + std::to_string(index)
                        : "wait " + std::to_string(index) + " but " + std::to_string(event.later));
  }
  return names;
}

/// Returns the number of calls by name.
std::map<std::string, std::int64_t> calls_by_name(const Trace& trace) {
  std::map<std::string, std::int64_t> calls;
  for (const auto& [op, count] : trace.counted()) calls[op.name] += count;
  return calls;
}

/// Runs a step on CPU ranks and returns the observer of rank 0. `attach` gives a rank its observer, or none.
template <class Observer>
Observer observed_step(const Plan& plan, const DryRun& dry, void (*attach)(Rank&, Observer*)) {
  Observer observed;
  run_cpu_ranks(plan, dry.extent + watching_bytes(plan), [&](Rank& rank, const DataSource& data) {
    rank.parameters().initialize(plan.seed, kInitialDeviation);
    rank.prepare(data, 1, 0);
    Observer own;
    attach(rank, &own);
    rank.enqueue();
    rank.finish();
    attach(rank, nullptr);
    if (rank.comm().rank() == 0) observed = std::move(own);
  });
  return observed;
}

TEST_CASE("Trace: calls come in the order of a step on the CPU", "[trace]") {
  for (const Case& c : {case_of("tiny", "bf16", 1, "ddp"), case_of("tiny", "tensorwise", 2, "fsdp", 2),
                        case_of("tiny", "mxfp8", 2, "ddp"), case_of("tiny-moe", "blockwise", 1, "ddp", 3)}) {
    INFO(c.model << " " << c.recipe << " " << c.parallel);
    const Plan plan = validate(c);
    const DryRun dry = dry_run(plan, nullptr);
    const auto attach = [](Rank& rank, Names* names) {
      rank.device().set_observer(names);
      rank.comm().set_observer(names);
    };
    CHECK(names_of(dry.ops()) == observed_step<Names>(plan, dry, attach).names);
  }
}

TEST_CASE("Trace: starts, waits, lanes and communicators are those of a step on the CPU", "[trace]") {
  struct Layout {
    std::int64_t gpus, context;
    const char* parallel;
    bool own_lane;
  };
  for (const Layout& layout :
       {Layout{2, 1, "ddp", false}, Layout{2, 1, "fsdp", false}, Layout{2, 2, "ddp", true},
        Layout{2, 2, "fsdp", true}, Layout{4, 2, "ddp", true}, Layout{4, 2, "hsdp", true}}) {
    INFO(layout.gpus << " " << layout.context << " " << layout.parallel);
    Case c = case_of("tiny", "bf16", layout.gpus, layout.parallel);
    c.context = layout.context;
    const Plan plan = validate(c);
    const DryRun dry = dry_run(plan, nullptr);
    const auto attach = [](Rank& rank, TraceWriter* writer) {
      rank.device().set_observer(writer);
      rank.comm().set_comm_observer(writer);
    };
    const Trace measured = observed_step<TraceWriter>(plan, dry, attach).take(1);
    CHECK(measured.collectives == dry.trace.collectives);
    CHECK(measured.comms == dry.trace.comms);
    CHECK(names_of_events(measured) == names_of_events(dry.trace));
    bool own_lane = false;
    for (const TraceCollective& one : dry.trace.collectives) own_lane = own_lane || one.lane > 0;
    CHECK(own_lane == layout.own_lane);
  }
}

TEST_CASE("Trace: every collective is waited for after its start", "[trace]") {
  for (const std::string parallel : {"ddp", "fsdp", "hsdp"}) {
    INFO(parallel);
    const Trace trace = dry_run(validate(case_of("llama3.2-1b", "bf16", 4, parallel, 2)), nullptr).trace;
    std::map<int, int> open;
    bool overlaps = false;
    int waits = 0;
    for (const TraceEvent& event : trace.events) {
      if (event.kind == TraceEvent::Kind::start)
        ++open[trace.collectives[static_cast<std::size_t>(event.index)].comm];
      if (event.kind == TraceEvent::Kind::wait) {
        CHECK(event.later <= open[event.index]);
        open[event.index] = event.later;
        ++waits;
      }
      const auto any = std::any_of(open.begin(), open.end(), [](const auto& one) { return one.second > 0; });
      overlaps = overlaps || (any && event.kind == TraceEvent::Kind::op);
    }
    CHECK(waits > 10);
    CHECK(overlaps);
    for (const auto& [comm, count] : open) CHECK(count == 0);
  }
}

TEST_CASE("Trace: communicators have the ranks of their axes", "[trace]") {
  const Trace trace = dry_run(validate(case_of("llama3.2-1b", "bf16", 4, "hsdp")), nullptr).trace;
  const auto has = [&](const std::vector<int>& ranks) {
    return std::find(trace.comms.begin(), trace.comms.end(), ranks) != trace.comms.end();
  };
  CHECK(has({0, 1}));        // shards are consecutive
  CHECK(has({0, 2}));        // replicas are apart
  CHECK(has({0, 1, 2, 3}));  // the loss
}

TEST_CASE("Trace: micro-steps between the first and the last are traced once", "[trace]") {
  for (const std::string parallel : {"ddp", "fsdp"})
    for (const char* recipe : {"bf16", "tensorwise", "tensorwise_delayed"}) {
      INFO(parallel << " " << recipe);
      const auto calls = [&](std::int64_t accumulation) {
        return calls_by_name(
            dry_run(validate(case_of("llama3.2-1b", recipe, 4, parallel, accumulation)), nullptr).trace);
      };
      const auto three = calls(3), four = calls(4), many = calls(43);
      for (const auto& [name, count] : many) {
        INFO(name);
        CHECK(four.at(name) - three.at(name) == (count - three.at(name)) / 40);
        CHECK((count - three.at(name)) % 40 == 0);
      }
    }
  const Trace trace = dry_run(validate(case_of("llama3.2-1b", "bf16", 4, "fsdp", 43)), nullptr).trace;
  CHECK(trace.micro_steps.size() == 3);
  CHECK(trace.repeats == 41);
  CHECK(trace.update_begin > trace.micro_steps.back());
  CHECK(trace.update_begin < trace.events.size());
}

TEST_CASE("Trace: FLOPs and expert traffic count all micro-steps", "[trace]") {
  const auto run = [](std::int64_t accumulation) {
    Case c = case_of("moe-4b-a1b", "bf16", 4, "fsdp", accumulation);
    c.ep = 4;
    c.routing = "balanced";
    return dry_run(validate(c), nullptr);
  };
  const DryRun one = run(1), many = run(12);
  CHECK(many.model_flops() == Approx(12 * one.model_flops()));
  CHECK(one.experts.dispatch > 0);
  CHECK(many.experts.dispatch == Approx(12 * one.experts.dispatch));
  CHECK(many.experts.combine == Approx(12 * one.experts.combine));
}

}  // namespace
}  // namespace precbench
