// Helpers for tests of the gate.
#pragma once

#include <algorithm>
#include <string>

#include "kernels/testing/catch.h"
#include "results/record/record_samples.h"
#include "tools/gate/gate.h"

namespace precbench::gate_testing {

inline GateResult judge_one(const Record& baseline, const Record& current, const GateRules& rules = {}) {
  return judge(samples::set_of({baseline}), samples::set_of({current}), rules);
}

inline bool judged(const GateResult& result, const std::string& metric) {
  const auto& metrics = result.cases.at(0).metrics;
  return std::any_of(metrics.begin(), metrics.end(),
                     [&](const MetricResult& m) { return m.metric == metric; });
}

/// Returns a metric of the only case.
inline MetricResult metric_of(const GateResult& result, const std::string& metric) {
  REQUIRE(result.cases.size() == 1);
  for (const MetricResult& one : result.cases.front().metrics)
    if (one.metric == metric) return one;
  FAIL("no metric " + metric);
  return {};
}

inline GateVerdict verdict_of(const GateResult& result, const std::string& metric) {
  return metric_of(result, metric).verdict;
}

/// Returns the verdict on a single case.
inline GateVerdict verdict_on(const Record& baseline, const Record& current, const GateRules& rules = {}) {
  return judge_one(baseline, current, rules).cases.at(0).verdict();
}

}  // namespace precbench::gate_testing
