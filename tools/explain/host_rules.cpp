// Rules about the host: what it does between launches, and what the GPU waits for. See rules.h.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "tools/explain/rules.h"

namespace precbench {
namespace {

/// Longer work of the host between two launches loads code or plans kernels.
constexpr double kLongestHostNs = 1e6;
/// Shorter copies are parts of other operations.
constexpr double kLongCopyNs = 100'000;
/// Waiting for launches below this share of the step may come from the profiler.
constexpr double kLeastLaunchBound = 0.15;

bool is_benchmark(const StepRepairs& step, const Work& work) {
  return step.trace.any_around(
      work.op, [](const std::string& name) { return name.find("benchmark") != std::string::npos; });
}

/// Returns the time that kernels still wait for launches after the other repairs: with one launch for all it is gone.
double waiting_left(const StepRepairs& step) {
  ReplayItems repaired = step.remaining;
  for (ReplayItem& item : repaired) item.host = 0;
  return step.time_of(step.remaining) - step.time_of(repaired);
}

}  // namespace

void find_recompilation(StepRepairs& step) {
  if (step.gaps.compile_time == 0) return;
  ReplayItems repaired = step.items;
  for (ReplayItem& item : repaired) {
    item.compile = 0;
    // Stretches this long between launches load code or plan kernels; benchmarks of kernels end with the
    // compilation, too.
    item.host = std::min(item.host, kLongestHostNs);
    if (!item.waits && is_benchmark(step, step.work_of(item))) remove_launch(item);
  }
  step.add(
      {.id = "recompilation",
       .title = "torch.compile compiles inside the step",
       .evidence = fmt::format("The host compiled for {:.1f} ms, in which the GPU waited {:.1f} ms.",
                               ms_of(step.gaps.compile_time), ms_of(step.gaps[GapCause::compile])),
       .repair =
           "keep shapes equal in all steps, or mark the changing size as dynamic (torch._dynamo.mark_dynamic)"},
      repaired, true);
}

void find_waiting(StepRepairs& step) {
  const std::int64_t sync = step.gaps[GapCause::synchronize], host = step.gaps[GapCause::host];
  ReplayItems repaired = step.items;
  double holes = 0, compile = 0;
  int waits = 0;
  for (std::size_t i = 0; i < repaired.size(); ++i) {
    ReplayItem& item = repaired[i];
    // A wait for a copy goes with the copy.
    std::size_t launch = i;
    while (launch > 0 && step.items[launch].waits) --launch;
    const bool copy = !step.items[launch].waits &&
                      step.work_of(step.items[launch]).work_class == WorkClass::copy &&
                      step.items[launch].duration > kLongCopyNs;
    if (item.waits && !copy) {
      ++waits;
      item.waits = false;
      item.removed = true;
    }
    holes += item.hole;
    compile += item.compile;
    item.hole = 0;
  }
  if (waits == 0 && holes == 0) return;
  const bool idle = static_cast<double>(host) > static_cast<double>(sync) || waits == 0;
  step.add(
      {.id = "launch_gaps",
       .title = idle ? "The GPU waits while the host does something else"
                     : "The host waits for the GPU and falls behind",
       .evidence =
           idle
               ? fmt::format(
                     "In {:.2f} ms of the step the host launched nothing; the GPU was idle for {:.2f} ms after it.",
                     ms_of(holes), ms_of(host + sync))
               : fmt::format(
                     "The host waited {} times, the longest in {}; the GPU was idle for {:.2f} ms after it.",
                     waits, step.gaps.waited_in, ms_of(host + sync)),
       .repair =
           idle
               ? "prepare batches ahead in other processes, and do nothing else between launches"
               : "remove synchronization from the step: .item(), print, torch.cuda.synchronize, copies to the host"},
      repaired, true);
}

void find_copies(StepRepairs& step) {
  ReplayItems repaired = step.items;
  for (std::size_t i = 0; i < repaired.size(); ++i) {
    if (step.items[i].waits || step.work_of(step.items[i]).work_class != WorkClass::copy ||
        step.items[i].duration < kLongCopyNs)
      continue;
    remove_launch(repaired[i]);
    for (std::size_t j = i + 1; j < repaired.size() && step.items[j].waits; ++j)
      repaired[j].waits = false, repaired[j].removed = true;
  }
  step.add(
      {.id = "memcpy",
       .title = "Copies between host and GPU are exposed",
       .evidence = fmt::format("For {:.2f} ms the GPU only copied.", ms_of(step.work.time(WorkClass::copy))),
       .repair =
           "keep the data on the GPU, or copy from pinned memory on another stream (non_blocking=True)"},
      repaired, true);
}

void find_graph_breaks(StepRepairs& step) {
  // A compiled region inside another one is what follows a break.
  const auto is_region = [](const std::string& name) { return name.starts_with("Torch-Compiled Region"); };
  int breaks = 0;
  for (const HostEvent& op : step.trace.ops) {
    if (op.start >= step.work.host_end) break;
    if (op.start < step.work.host_begin || !is_region(step.trace.name(op.name))) continue;
    breaks += step.trace.any_around(op.parent, is_region);
  }
  if (breaks == 0) return;
  const double lost = waiting_left(step);
  if (step.add({.id = "graph_breaks",
                .title = "Graph breaks divide the compiled model",
                .evidence =
                    fmt::format("{} times a compiled graph ended early; kernels wait {:.2f} ms for the host.",
                                breaks, ms_of(lost)),
                .repair = "find them with torch.compile(fullgraph=True) or TORCH_LOGS=graph_breaks"},
               step.now - lost))
    for (ReplayItem& item : step.remaining) item.host = 0;
}

void find_launch_bound(StepRepairs& step) {
  const double lost = waiting_left(step);
  if (lost < kLeastLaunchBound * step.now) return;
  const auto kernels = std::count_if(step.remaining.begin(), step.remaining.end(),
                                     [](const ReplayItem& item) { return !item.waits && !item.removed; });
  step.add({.id = "launch_bound",
            .title = "The host launches kernels more slowly than the GPU runs them",
            .evidence = fmt::format(
                "{} kernels wait {:.2f} ms for the host, if {:.0f}% of its traced time is the profiler's.",
                kernels, ms_of(lost), 100 * (1 - step.host_share)),
            .repair = "CUDA graphs (torch.compile(mode=\"reduce-overhead\")), or a larger batch"},
           step.now - lost);
}

}  // namespace precbench
