// Follows how far the host is ahead of the GPU. See gaps.h.
#include "tools/explain/gaps.h"

#include <algorithm>
#include <string_view>
#include <vector>

namespace precbench {
namespace {

/// A call that takes longer waits for the GPU.
constexpr std::int64_t kWaitNs = 50'000;
/// A stretch on the host without operation or call that is longer is no overhead of Python's interpreter.
constexpr std::int64_t kHoleNs = 300'000;
/// A kernel that waited longer in the queue shows that the host is ahead.
constexpr std::int64_t kAheadNs = 30'000;
/// Shorter gaps are those between any two kernels.
constexpr std::int64_t kGapNs = 3'000;

bool is_compilation(std::string_view name) {
  return name.find("(dynamo_timed)") != std::string_view::npos ||
         name.find("compile_inner") != std::string_view::npos ||
         name.find("entire_frame_compile") != std::string_view::npos ||
         name.find("entire_backward_compile") != std::string_view::npos;
}

/// Returns true for a call that only puts work into a queue.
bool is_launch(std::string_view name) {
  return name.find("Launch") != std::string_view::npos || name.find("Memset") != std::string_view::npos;
}

}  // namespace

bool is_synchronization(std::string_view name) {
  return name.find("Synchronize") != std::string_view::npos || name == "cudaMemcpy" ||
         name.starts_with("cudaMemcpy_");
}

namespace {

struct Span {
  std::int64_t begin, end;
};

/// Returns the union of spans, sorted.
std::vector<Span> merged(std::vector<Span> spans) {
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
  std::vector<Span> result;
  for (const Span& span : spans)
    if (!result.empty() && span.begin <= result.back().end)
      result.back().end = std::max(result.back().end, span.end);
    else
      result.push_back(span);
  return result;
}

}  // namespace

std::vector<HostDelay> host_delays(const TrainingTrace& trace, const StepWork& step, Gaps* gaps) {
  std::vector<HostDelay> delays;
  std::vector<Span> busy, compiling;
  const std::int64_t from = step.host_begin, to = step.host_end;
  std::int64_t longest = 0;
  Gaps unused;
  Gaps& told = gaps ? *gaps : unused;
  const auto inside = [&](const HostEvent& event) { return event.end() > from && event.start < to; };
  for (const HostEvent& call : trace.calls) {
    if (call.start >= to) break;
    if (!inside(call)) continue;
    busy.push_back({call.start, call.end()});
    const std::string& name = trace.name(call.name);
    // A launch that waits because the queue is full shows that the host is far ahead.
    if ((call.duration < kWaitNs && !is_synchronization(name)) || is_launch(name)) continue;
    ++told.waits;
    delays.push_back({call.start, call.end(), GapCause::synchronize});
    if (call.duration > longest) {
      longest = call.duration;
      told.waited_in = name;
    }
  }
  for (const HostEvent& op : trace.ops) {
    if (op.start >= to) break;
    if (!inside(op)) continue;
    const std::string& name = trace.name(op.name);
    if (is_compilation(name)) compiling.push_back({std::max(op.start, from), std::min(op.end(), to)});
    if (!name.starts_with("ProfilerStep#")) busy.push_back({op.start, op.end()});
  }
  compiling = merged(std::move(compiling));
  for (const Span& span : compiling) {
    delays.push_back({span.begin, span.end, GapCause::compile});
    told.compile_time += span.end - span.begin;
  }
  busy = merged(std::move(busy));
  std::int64_t at = from;
  const auto hole = [&](std::int64_t begin, std::int64_t end) {
    if (end - begin >= kHoleNs) delays.push_back({begin, end, GapCause::host});
  };
  for (const Span& span : busy) {
    hole(at, std::min(span.begin, to));
    at = std::max(at, span.end);
  }
  if (!busy.empty()) hole(at, to);
  std::sort(delays.begin(), delays.end(),
            [](const HostDelay& a, const HostDelay& b) { return a.end < b.end; });
  return delays;
}

Gaps find_gaps(const TrainingTrace& trace, const StepWork& step) {
  Gaps gaps;
  const std::vector<HostDelay> delays = host_delays(trace, step, &gaps);
  std::int64_t covered = step.begin;
  GapCause current = GapCause::launch;
  std::size_t next = 0;
  WorkClass last = WorkClass::idle;
  for (const Work& work : step.work) {
    const std::int64_t start = std::min(work.start, step.end), gap = start - covered;
    if (work.launched >= 0) {
      // The latest delay that ended before this launch explains why the host is behind, until it is ahead again.
      for (; next < delays.size() && delays[next].begin <= work.launched; ++next)
        if (current != GapCause::compile || delays[next].cause == GapCause::compile ||
            delays[next].cause == GapCause::host || delays[next].begin > covered)
          current = delays[next].cause;
      if (work.start - work.launched > kAheadNs && gap < kGapNs) current = GapCause::launch;
    }
    if (gap > 0) {
      const bool late = gap >= kGapNs && work.launched >= 0 && work.launched > covered - kGapNs;
      const GapCause cause = late ? current : GapCause::device;
      gaps.time[static_cast<std::size_t>(cause)] += gap;
      gaps.count[static_cast<std::size_t>(cause)] += gap >= kGapNs;
      if (cause == GapCause::launch && work.work_class == WorkClass::optimizer &&
          last == WorkClass::optimizer)
        gaps.in_optimizer += gap;
    }
    last = work.work_class;
    covered = std::max(covered, std::min(work.end(), step.end));
  }
  if (step.end > covered) {
    // The tail: the host returned later than the GPU.
    const bool held =
        !delays.empty() && delays.back().end > covered && delays.back().cause != GapCause::synchronize;
    gaps.time[static_cast<std::size_t>(held ? delays.back().cause : GapCause::device)] += step.end - covered;
  }
  return gaps;
}

}  // namespace precbench
