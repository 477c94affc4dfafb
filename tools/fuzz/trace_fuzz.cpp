// Fuzzes a trace of torch.profiler (`explain`): what is read is explained, and its classes add up to the step.
#include <nlohmann/json.hpp>
#include <numeric>

#include "tools/explain/explain_output.h"
#include "tools/explain/kineto_reader.h"
#include "tools/fuzz/fuzz.h"

using namespace precbench;

PRECBENCH_FUZZ_TARGET(trace) {
  taken([&] {
    std::size_t at = 0;
    ExplainedTrace one;
    one.trace = read_kineto("trace", [&](char* to, std::size_t most) {
      const std::size_t count = std::min(most, size - at);
      text_of(data, size).copy(to, count, at);
      at += count;
      return count;
    });
    if (one.trace.gpu.empty()) return;
    one.all = explain_trace(one.trace, nullptr);
    const StepWork& step = one.all.steps.step;
    expect(std::accumulate(step.exclusive.begin(), step.exclusive.end(), std::int64_t{0}) == step.duration());
    ExplainedTrace other = one;
    ++other.trace.rank;
    const std::string text = explain_text({one, other}, Screen{80, true, false});
    for (const char c : text) expect(c == '\n' || static_cast<unsigned char>(c) >= ' ');
    explain_json({one, other}).dump();
  });
  return 0;
}
