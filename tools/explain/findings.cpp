// Tokens, vocabulary and expected times of a step, from its GEMMs. See findings.h.
#include "tools/explain/findings.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "tools/explain/rules.h"

namespace precbench {
namespace {

/// Finds the number of tokens: most GEMMs have it as m, or as k if they compute a weight's gradient.
std::int64_t tokens_of(const std::vector<Work>& work) {
  std::map<std::int64_t, int> counts;
  for (const Work& one : work)
    if (one.gemm && one.gemm->m > 0 && one.gemm->single()) ++counts[one.gemm->m];
  const auto most =
      std::max_element(counts.begin(), counts.end(), [](auto& a, auto& b) { return a.second < b.second; });
  return most == counts.end() ? 0 : most->first;
}

/// Finds the size of the vocabulary: of an embedding's table, or a large size that few GEMMs have.
std::int64_t vocabulary_of(const TrainingTrace& trace, const StepWork& step) {
  for (const Work& work : step.work)
    for (std::uint32_t op = work.op; op != kNoIndex; op = trace.ops[op].parent) {
      const HostEvent& event = trace.ops[op];
      if (trace.name(event.name) == "aten::embedding" && event.inputs != kNoIndex) {
        const auto& dims = trace.inputs[event.inputs].dims;
        if (!dims.empty() && dims[0].size() == 2) return dims[0][0];
      }
    }
  std::map<std::int64_t, int> counts;
  for (const Work& work : step.work)
    if (work.gemm && work.gemm->single())
      for (const std::int64_t size : {work.gemm->m, work.gemm->n, work.gemm->k})
        if (size >= 16384) ++counts[size];
  for (const auto& [size, count] : counts)
    if (count <= 3) return size;
  return 0;
}

}  // namespace

Explanation explain_trace(const TrainingTrace& trace, const Expectation* expectation) {
  Explanation all;
  all.steps = find_steps(trace);
  const StepWork& step = all.steps.step;
  all.gaps = find_gaps(trace, step);
  all.tokens = tokens_of(step.work);
  all.vocabulary = vocabulary_of(trace, step);
  std::map<std::pair<GemmShape, bool>, GemmRow> rows;
  std::set<std::uint32_t> counted;
  for (const Work& work : step.work) {
    if (work.work_class != WorkClass::gemm) continue;
    const bool wgrad = work.gemm->k_divided || (work.gemm->k == all.tokens && work.gemm->m != all.tokens);
    GemmRow& row = rows[{*work.gemm, wgrad}];
    row.shape = *work.gemm;
    row.wgrad = wgrad;
    row.time += work.duration;
    // Kernels of one call, such as the sum after split-k, share the operation.
    if (work.op == kNoIndex || counted.insert(work.op).second) ++row.calls;
  }
  double measured = 0, expected = 0;
  for (auto& [key, row] : rows) {
    if (expectation) row.expected = expectation->gemm(row.shape, row.shape.format, row.wgrad) * row.calls;
    if (row.expected > 0 && is_16_bit(row.shape.format) && is_aligned(row.shape) && row.shape.single()) {
      measured += static_cast<double>(row.time);
      expected += row.expected;
    }
    all.gemms.push_back(row);
  }
  if (expected > 0) all.calibration = std::clamp(measured / expected, 0.7, 1.5);
  std::stable_sort(all.gemms.begin(), all.gemms.end(), [](const GemmRow& a, const GemmRow& b) {
    return (a.shape.m > 0) != (b.shape.m > 0) ? a.shape.m > 0 : a.time > b.time;
  });
  find_lost_time(trace, all, expectation);
  return all;
}

}  // namespace precbench
