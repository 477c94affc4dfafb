// Attention checks. See check_attention.h.
#include "kernels/checks/check_attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/device/native_path.h"

namespace precbench::checks {
namespace {

/// An error in lse is a relative error of the probabilities, which are then rounded to BF16 (2^-9): 1/32 of
/// that. -inf where a query sees no key.
Finding judge_lse(const AttentionResult& got, const AttentionResult& truth, const std::string& path,
                  const std::string& what) {
  double sum = 0, largest = 0;
  bool none_as_none = true;
  for (std::size_t i = 0; i < truth.lse.size(); ++i) {
    if (std::isinf(truth.lse[i]) || std::isinf(got.lse[i])) {
      none_as_none &= truth.lse[i] == got.lse[i];
      continue;
    }
    const double error = std::fabs(got.lse[i] - truth.lse[i]);
    sum += error * error;
    largest = std::isnan(error) ? INFINITY : std::max(largest, error);
  }
  const double rms = std::sqrt(sum / static_cast<double>(truth.lse.size())), bound = 0x1p-14;
  return {path, what + ", lse",
          fmt::format("error {:.2e}, bound {:.2e}; worst {:.2e}{}", rms, bound, largest,
                      none_as_none ? "" : "; a query without keys differs"),
          none_as_none && rms <= bound && largest <= 16 * bound};
}

}  // namespace

double AttentionPart::distance(const AttentionResult& x, const AttentionResult& truth) const {
  return rms_difference(x.*values, truth.*values, width, first, count);
}

double AttentionPart::largest(const AttentionResult& x, const AttentionResult& truth) const {
  double most = 0;
  const std::vector<double>&got = x.*values, &want = truth.*values;
  for (std::size_t row = 0; row < got.size(); row += static_cast<std::size_t>(width))
    for (std::int64_t c = first; c < first + count; ++c) {
      const std::size_t at = row + static_cast<std::size_t>(c);
      const double error = std::fabs(got[at] - want[at]);
      most = std::isnan(error) ? INFINITY : std::max(most, error);
    }
  return most;
}

std::vector<AttentionPart> parts_of(const AttentionShape& s) {
  const std::int64_t q = s.q_width(), k = s.k_width(), v = s.kv_width() - k, fused = s.qkv_width();
  const std::int64_t first = s.square() ? q : 0, width = s.square() ? fused : s.kv_width();
  const auto of_keys = s.square() ? &AttentionResult::dqkv : &AttentionResult::dkv;
  return {{"out", &AttentionResult::out, s.out_width(), 0, s.out_width()},
          {"dq", &AttentionResult::dqkv, fused, 0, q},
          {"dk", of_keys, width, first, k},
          {"dv", of_keys, width, first + k, v}};
}

Findings judge_attention(const AttentionShape& s, const AttentionResult& got, const AttentionResult& truth,
                         const AttentionResult& naive, const std::string& path, const std::string& what) {
  Findings findings;
  const std::vector<AttentionPart> parts = parts_of(s);
  // Where terms cancel exactly (dq and dk of a first token are 0), the FP32 rounding errors of those terms
  // remain.
  const AttentionPart& dv = parts.back();
  const std::vector<double> zeros((truth.*dv.values).size());
  const double fp32_noise =
      std::ldexp(rms_difference(truth.*dv.values, zeros, dv.width, dv.first, dv.count), -16);
  for (const AttentionPart& part : parts) {
    const double error = part.distance(got, truth), worst = part.largest(got, truth);
    const double bound = 2 * part.distance(naive, truth) + fp32_noise;
    // Few large values may dominate the roundings: the plain program's own largest error counts, too.
    const double worst_bound = std::max(16 * bound, 4 * part.largest(naive, truth));
    findings.push_back(
        {path, fmt::format("{}, {}", what, part.name),
         fmt::format("error {:.2e}, bound {:.2e}; worst {:.2e} of {:.2e}", error, bound, worst, worst_bound),
         error <= bound && worst <= worst_bound});
  }
  findings.push_back(judge_lse(got, truth, path, what));
  return findings;
}

Findings check_attention(Device& device, const AttentionShape& shape, float deviation) {
  AttentionProblem problem(device, shape, deviation);
  const auto reference = [&](auto zero) {
    return attention_reference<decltype(zero)>(shape, problem.qkv_values, problem.dout_values,
                                               problem.kv_values);
  };
  problem.clear();
  problem.forward();
  problem.backward();
  return judge_attention(
      shape, problem.result(), reference(0.0), reference(0.0f), attention_path(device.attention_name()),
      fmt::format("B {} T {} heads {}:{} of {}{}", shape.B, shape.T, shape.heads, shape.kv_heads,
                  shape.head_dim, shape.value_dim ? fmt::format(" and {}", shape.value_dim) : ""));
}

}  // namespace precbench::checks
