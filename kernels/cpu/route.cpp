// The router: logits, probabilities, the experts of each token, and the gradients of their weights. All in
// FP32. The choice has no gradient: f, the experts' shares of the slots, is a constant.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/multiply.h"
#include "kernels/cpu/vector.h"

namespace precbench {
namespace {

constexpr float kLeastSum = 1e-20f;  // added to a divisor that is a sum of sigmoids

/// Returns the sum of x(i) * y(i) in order. Products in whole groups of four are rounded before they are added; the
/// rest are added by FMAs. GCC 12 once chose this, and committed records have its bits.
template <class X, class Y>
float sum_of_products(std::int64_t n, X&& x, Y&& y) {
  float sum = 0;
  std::int64_t i = 0;
  for (; i < n / 4 * 4; ++i) sum += x(i) * y(i);
  for (; i < n; ++i) sum = multiply_add(x(i), y(i), sum);
  return sum;
}

/// One token's p, and the sum of all p, which normalizes them to shares.
struct Probabilities {
  float sum = 1;
  float logsumexp = 0;  ///< of the logits
};

Probabilities probabilities(const RoutingRule& rule, const float* z, float* p) {
  const std::int64_t E = rule.experts;
  const float largest = *std::max_element(z, z + E);
  float total = 0;
  for (std::int64_t e = 0; e < E; ++e) total += p[e] = cpu::exp(z[e] - largest);
  const float logsumexp = largest + std::log(total);
  if (rule.score == RouterScore::softmax) {
    for (std::int64_t e = 0; e < E; ++e) p[e] /= total;
    return {1.0f, logsumexp};
  }
  float sum = 0;
  for (std::int64_t e = 0; e < E; ++e) sum += p[e] = cpu::sigmoid(z[e]);
  return {sum, logsumexp};
}

/// Chooses the `count` largest of n values in descending order, ties by lower index; `taken` is scratch.
void choose_largest(const float* values, std::int64_t n, std::int64_t count, std::int32_t* chosen,
                    std::vector<bool>& taken) {
  taken.assign(n, false);
  for (std::int64_t k = 0; k < count; ++k) {
    std::int64_t best = -1;
    for (std::int64_t i = 0; i < n; ++i)
      if (!taken[i] && (best < 0 || values[i] > values[best])) best = i;
    taken[best] = true;
    chosen[k] = static_cast<std::int32_t>(best);
  }
}

/// Excludes the experts outside the best groups.
void leave_out_groups(const RoutingRule& rule, float* keys, std::vector<bool>& taken) {
  const std::int64_t size = rule.experts / rule.groups;
  std::vector<float> scores(rule.groups);
  for (std::int64_t g = 0; g < rule.groups; ++g) {
    float first = -INFINITY, second = -INFINITY;
    for (std::int64_t e = g * size; e < (g + 1) * size; ++e) {
      second = std::max(second, std::min(first, keys[e]));
      first = std::max(first, keys[e]);
    }
    scores[g] = rule.group_score == GroupScore::max ? first : first + second;
  }
  std::vector<std::int32_t> best(rule.group_top_k);
  choose_largest(scores.data(), rule.groups, rule.group_top_k, best.data(), taken);
  for (std::int64_t g = 0; g < rule.groups; ++g)
    if (std::find(best.begin(), best.end(), g) == best.end()) std::fill_n(keys + g * size, size, -INFINITY);
}

void choose_experts(const ops::Route& op, const float* z, const float* p, std::int32_t* index) {
  const RoutingRule& rule = op.rule;
  std::vector<bool> taken;
  if (op.bias.empty() && rule.groups == 1) return choose_largest(z, rule.experts, rule.top_k, index, taken);
  std::vector<float> keys(p, p + rule.experts);
  if (!op.bias.empty())
    for (std::int64_t e = 0; e < rule.experts; ++e) keys[e] += op.bias.as<float>()[e];
  if (rule.group_top_k < rule.groups) leave_out_groups(rule, keys.data(), taken);
  choose_largest(keys.data(), rule.experts, rule.top_k, index, taken);
}

/// Computes g of the chosen experts: their p, or their shares of the sum of p. Returns that sum (else 1).
float gates(const RoutingRule& rule, const float* z, const float* p, const std::int32_t* index, float* g) {
  const std::int64_t K = rule.top_k;
  for (std::int64_t k = 0; k < K; ++k) g[k] = p[index[k]];
  if (!rule.normalise) return 1.0f;
  float sum = 0;
  if (rule.score == RouterScore::softmax) {  // a softmax over the chosen logits: nothing underflows
    float largest = z[index[0]];
    for (std::int64_t k = 1; k < K; ++k) largest = std::max(largest, z[index[k]]);
    for (std::int64_t k = 0; k < K; ++k) sum += g[k] = cpu::exp(z[index[k]] - largest);
  } else {
    for (std::int64_t k = 0; k < K; ++k) sum += g[k];
    sum += kLeastSum;
  }
  for (std::int64_t k = 0; k < K; ++k) g[k] /= sum;
  return sum;
}

/// Computes the gradient of one token's logits from its weights and from the two losses.
void token_gradient(const ops::RouteBackward& op, const std::vector<float>& pulls, std::int64_t t,
                    float* buffer, float* dz) {
  const RoutingRule& rule = op.rule;
  const std::int64_t E = rule.experts, K = rule.top_k;
  const float* z = op.z.as<float>() + t * E;
  const float* dw = op.dw.as<float>() + t * K;
  const std::int32_t* index = op.index.as<std::int32_t>() + t * K;
  const float scale = static_cast<float>(rule.scale);
  float* p = buffer;
  float* g = buffer + E;
  const Probabilities known = probabilities(rule, z, p);
  const float sum = gates(rule, z, p, index, g);
  std::fill_n(dz, E, 0.0f);
  const float mean = sum_of_products(
      K, [&](std::int64_t k) { return g[k] * scale; }, [&](std::int64_t k) { return dw[k]; });
  const bool softmax = rule.score == RouterScore::softmax;
  for (std::int64_t k = 0; k < K; ++k) {
    const float dg = rule.normalise ? multiply_add(scale, dw[k], -mean) : scale * dw[k], chosen = p[index[k]];
    if (softmax)
      dz[index[k]] = g[k] * dg;
    else
      dz[index[k]] = (rule.normalise ? dg / sum : dg) * chosen * (1.0f - chosen);
  }
  if (softmax && !rule.normalise)
    for (std::int64_t e = 0; e < E; ++e) dz[e] = multiply_add(-p[e], mean, dz[e]);
  if (op.balance != 0) {
    const float average = sum_of_products(
        E, [&](std::int64_t e) { return p[e] / known.sum; }, [&](std::int64_t e) { return pulls[e]; });
    for (std::int64_t e = 0; e < E; ++e)
      dz[e] = softmax ? multiply_add(p[e], pulls[e] - average, dz[e])
                      : multiply_add((pulls[e] - average) / known.sum * p[e], 1.0f - p[e], dz[e]);
  }
  if (op.z_loss != 0)
    for (std::int64_t e = 0; e < E; ++e)
      dz[e] = multiply_add(2.0f * op.z_loss * op.loss_scale * known.logsumexp,
                           cpu::exp(z[e] - known.logsumexp), dz[e]);
}

}  // namespace

void CpuDevice::do_route(const ops::Route& op) {
  const RoutingRule& rule = op.rule;
  const std::int64_t T = op.z.rows, E = rule.experts, K = rule.top_k, C = op.x.cols;
  cpu::multiply(threads_, op.z, {widen(0, {{}, op.x, {}}), C, false},
                {widen(1, {{}, op.router, {}}), C, false}, C, 1.0f, false);
  if (!op.logit_bias.empty()) do_add_bias({op.z, op.logit_bias});
  std::int32_t* index = op.index.as<std::int32_t>();
  constexpr std::int64_t kRun =
      64;  // tokens per partial sum of probabilities, independent of the thread count
  const std::int64_t runs = (T + kRun - 1) / kRun;
  std::vector<float> shares(runs * E), squares(runs);
  std::vector<char> finite(T);
  cpu::for_rows(threads_, runs, E, [&](std::int64_t run, float* p) {
    for (std::int64_t t = run * kRun; t < std::min(T, (run + 1) * kRun); ++t) {
      const float* z = op.z.as<float>() + t * E;
      float* weights = op.weights.as<float>() + t * K;
      const Probabilities known = probabilities(rule, z, p);
      if (op.forced.empty())
        choose_experts(op, z, p, index + t * K);
      else
        std::copy_n(op.forced.as<std::int32_t>() + t * K, K, index + t * K);
      gates(rule, z, p, index + t * K, weights);
      finite[t] = cpu::all_finite(z, E);
      for (std::int64_t k = 0; k < K; ++k)
        weights[k] =
            finite[t] ? weights[k] * static_cast<float>(rule.scale) : std::numeric_limits<float>::quiet_NaN();
      for (std::int64_t e = 0; e < E; ++e) shares[run * E + e] += p[e] / known.sum;
      squares[run] = multiply_add(known.logsumexp, known.logsumexp, squares[run]);
    }
  });
  const auto bad = std::find(finite.begin(), finite.end(), 0);
  *op.bad.as<std::int32_t>() = bad == finite.end() ? -1 : static_cast<std::int32_t>(bad - finite.begin());
  float* report = op.report.as<float>();
  std::fill_n(report, E + 2, 0.0f);
  for (std::int64_t i = 0; i < T * K; ++i) report[index[i]] += 1.0f;
  for (std::int64_t e = 0; e < E; ++e) {
    float share = 0;
    for (std::int64_t run = 0; run < runs; ++run) share += shares[run * E + e];
    report[E] +=
        static_cast<float>(E) * report[e] / static_cast<float>(T * K) * share / static_cast<float>(T);
  }
  for (std::int64_t run = 0; run < runs; ++run) report[E + 1] += squares[run] / static_cast<float>(T);
}

void CpuDevice::do_route_backward(const ops::RouteBackward& op) {
  const std::int64_t T = op.z.rows, E = op.rule.experts, K = op.rule.top_k, C = op.x.cols;
  std::vector<float> pulls(E);  // c of the balance loss
  for (std::int64_t e = 0; e < E; ++e)
    pulls[e] = op.balance * op.loss_scale * static_cast<float>(E) * op.report.as<float>()[e] /
               static_cast<float>(T * K);
  float* dz = scratch(2, T * E);
  cpu::for_rows(threads_, T, E + K,
                [&](std::int64_t t, float* buffer) { token_gradient(op, pulls, t, buffer, dz + t * E); });
  if (!op.addend.empty())
    cpu::for_rows(threads_, T, C, [&](std::int64_t t, float* buffer) {
      cpu::store(op.dx, t * C, C, cpu::load(op.addend, t * C, C, buffer));
    });
  cpu::multiply(threads_, op.dx, {dz, E, false}, {widen(1, {{}, op.router, {}}), C, true}, E, 1.0f,
                !op.addend.empty());
  cpu::multiply(threads_, op.drouter, {dz, E, true}, {widen(0, {{}, op.x, {}}), C, true}, T, 1.0f,
                op.accumulate);
  if (!op.dlogit_bias.empty()) do_bias_backward({op.dlogit_bias, op.accumulate, {dz, DType::f32, T, E}});
}

void CpuDevice::do_update_routing_bias(const ops::UpdateRoutingBias& op) {
  const std::int64_t E = op.bias.cols;
  for (std::int64_t layer = 0; layer < op.bias.rows; ++layer) {
    float* bias = op.bias.as<float>() + layer * E;
    const float* counts = op.counts.as<float>() + layer * E;
    double total = 0;
    for (std::int64_t e = 0; e < E; ++e) total += counts[e];
    for (std::int64_t e = 0; e < E; ++e) {
      const double less = total - static_cast<double>(E) * counts[e];  // than the mean; exact
      bias[e] += less > 0 ? op.rate : less < 0 ? -op.rate : 0.0f;
    }
  }
}

}  // namespace precbench
