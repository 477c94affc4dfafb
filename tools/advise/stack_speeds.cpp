// Multiplies speeds by the factors of a stack. See stack_speeds.h.
#include "tools/advise/stack_speeds.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/base/errors.h"

namespace precbench {
namespace {

/// Returns the product of two values with intervals whose errors are independent, in the logarithm.
MeanWithInterval product(const MeanWithInterval& a, const MeanWithInterval& b) {
  const double mean = a.mean * b.mean;
  const auto width = [](double one, double other) { return std::hypot(std::log(one), std::log(other)); };
  return {mean, mean * std::exp(-width(a.low / a.mean, b.low / b.mean)),
          mean * std::exp(width(a.high / a.mean, b.high / b.mean))};
}

const SpeedRow* bf16_of(const SpeedTable& table, const SpeedRow& row) {
  const SpeedRow* found = nullptr;
  for (const SpeedRow& one : table.rows)
    if (one.is_bf16() && one.tokens_per_s && !one.fields.is_null() && (!found || one.source == row.source))
      found = &one;
  return found;
}

}  // namespace

SpeedTable in_stack(const SpeedTable& table, const std::string& stack, const AdviseHost& host) {
  SpeedTable result = table;
  result.stack = stack;
  std::vector<std::string> missing;
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    const SpeedRow& own = table.rows[i];
    SpeedRow& row = result.rows[i];
    const SpeedRow* bf16 = bf16_of(table, own);
    row.stack = stack, row.own_tokens_per_s = own.tokens_per_s, row.own_speedup = own.speedup;
    row.joules_per_token = std::nullopt;
    if (!own.tokens_per_s || own.fields.is_null()) continue;
    const SpeedRow& base = bf16 ? *bf16 : own;
    const auto factors = host.stack_speed(
        {stack, table.gpu.name, own.fields, *own.tokens_per_s, base.fields, *base.tokens_per_s});
    if (!factors)
      throw InvalidInput(fmt::format("--stack: no factor of {} is known on {}", stack, table.gpu.name));
    row.tokens_per_s = *own.tokens_per_s * factors->speed.mean;
    if (own.speedup && !own.is_bf16()) row.speedup = product(*own.speedup, factors->speedup);
    for (const std::string& line : factors->no_evidence)
      if (std::find(missing.begin(), missing.end(), line) == missing.end()) missing.push_back(line);
  }
  // Rows of adapters go from the most exact weights to the least.
  if (result.part == TrainedPart::lora) return result;
  std::stable_sort(result.rows.begin(), result.rows.end(), [](const SpeedRow& a, const SpeedRow& b) {
    return a.tokens_per_s.value_or(0) > b.tokens_per_s.value_or(0);
  });
  result.notes.push_back(fmt::format(
      "{}: our speed times a factor, from measured and published comparisons (results/predicted/stacks.md).",
      stack));
  for (const std::string& line : missing)
    result.notes.push_back(
        fmt::format("{}: estimated from other recipes, machines or steps, with a wide interval.", line));
  return result;
}

}  // namespace precbench
