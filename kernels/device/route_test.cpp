// The router against an FP64 reference: choices, weights, losses, and gradients by finite differences.
#include <cmath>

#include "kernels/device/moe_testing.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

using Numbers = std::vector<double>;

struct NamedRule {
  const char* name;
  RoutingRule rule;
  bool bias = false;
  std::int64_t tokens = 193;
  bool logit_bias = false;
};

std::vector<NamedRule> rules() {
  const RoutingRule mixtral{.experts = 8, .top_k = 2};
  RoutingRule plain = mixtral, sigmoid = mixtral, llama4 = mixtral, v2 = mixtral, v3 = mixtral;
  plain.normalise = false;
  sigmoid.score = llama4.score = v3.score = RouterScore::sigmoid;
  llama4.top_k = 1, llama4.normalise = false;
  v2.normalise = false, v2.scale = 16, v2.groups = 4, v2.group_top_k = 2, v2.top_k = 3;
  v3.scale = 2.5, v3.groups = 4, v3.group_top_k = 2, v3.top_k = 3, v3.group_score = GroupScore::top2;
  RoutingRule all = mixtral;
  all.top_k = 8;
  return {{"mixtral", mixtral}, {"not normalised", plain},
          {"sigmoid", sigmoid}, {"llama4", llama4},
          {"deepseek v2", v2},  {"deepseek v3", v3, true},
          {"all experts", all}, {"softmax and a bias", mixtral, true}};
}

Numbers probabilities_of(const RoutingRule& rule, const double* z) {
  Numbers p(rule.experts);
  double sum = 0;
  for (std::int64_t e = 0; e < rule.experts; ++e)
    sum += p[e] = rule.score == RouterScore::softmax ? std::exp(z[e]) : 1 / (1 + std::exp(-z[e]));
  if (rule.score == RouterScore::softmax)
    for (double& v : p) v /= sum;
  return p;
}

/// Returns the `count` largest, lower indices first among equals.
std::vector<std::int32_t> largest_of(const Numbers& values, std::int64_t count) {
  std::vector<std::int32_t> order(values.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int32_t>(i);
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return values[a] > values[b]; });
  order.resize(count);
  return order;
}

std::vector<std::int32_t> choice_of(const RoutingRule& rule, const double* z, const float* bias) {
  Numbers keys = probabilities_of(rule, z);
  for (std::int64_t e = 0; bias && e < rule.experts; ++e) keys[e] += bias[e];
  const std::int64_t size = rule.experts / rule.groups;
  Numbers scores;
  for (std::int64_t g = 0; g < rule.groups; ++g) {
    Numbers group(keys.begin() + g * size, keys.begin() + (g + 1) * size);
    std::sort(group.rbegin(), group.rend());
    scores.push_back(rule.group_score == GroupScore::max ? group[0] : group[0] + group[1]);
  }
  const std::vector<std::int32_t> best = largest_of(scores, rule.group_top_k);
  for (std::int64_t e = 0; e < rule.experts; ++e)
    if (std::find(best.begin(), best.end(), e / size) == best.end()) keys[e] = -INFINITY;
  return largest_of(keys, rule.top_k);
}

Numbers weights_of(const RoutingRule& rule, const double* z, const std::int32_t* index) {
  const Numbers p = probabilities_of(rule, z);
  Numbers w;
  double sum = rule.normalise ? 0 : 1;
  for (std::int64_t k = 0; rule.normalise && k < rule.top_k; ++k) sum += p[index[k]];
  for (std::int64_t k = 0; k < rule.top_k; ++k) w.push_back(rule.scale * p[index[k]] / sum);
  return w;
}

double logsumexp(const double* z, std::int64_t n) {
  double sum = 0;
  for (std::int64_t e = 0; e < n; ++e) sum += std::exp(z[e]);
  return std::log(sum);
}

/// Returns an identity router: z = x.
Tensor identity(HostMemory& host, std::int64_t n) {
  const Tensor t = host.tensor(DType::bf16, n, n);
  for (std::int64_t i = 0; i < t.size(); ++i) HostMemory::set(t, i, i / n == i % n ? 1.0f : 0.0f);
  return t;
}

struct Routed {
  Tensor z, index, weights, report, bad;  // on the device
  std::vector<std::int32_t> chosen;
};

Routed run_route(OpTest& b, const RoutingRule& rule, const Tensor& x, const Tensor& router,
                 const Tensor& bias, const Tensor& forced = {}, const Tensor& logit_bias = {}) {
  const std::int64_t T = x.rows, E = rule.experts, K = rule.top_k;
  Routed r{b.output(DType::f32, T, E),     b.output(DType::i32, T, K), b.output(DType::f32, T, K),
           b.output(DType::f32, 1, E + 2), b.output(DType::i32, 1, 1), {}};
  b.device().route({.z = r.z,
                    .index = r.index,
                    .weights = r.weights,
                    .report = r.report,
                    .bad = r.bad,
                    .x = b.put(x),
                    .router = b.put(router),
                    .bias = b.put(bias),
                    .forced = b.put(forced),
                    .rule = rule,
                    .logit_bias = b.put(logit_bias)});
  r.chosen = integers(b.fetch(r.index));
  return r;
}

}  // namespace

PRECBENCH_OP_TEST(route_on, "route") {
  std::vector<NamedRule> all = rules();
  // As many experts as real models have, and more tokens than a GPU processes at a time.
  all.push_back({.name = "qwen3", .rule = {.experts = 128, .top_k = 8}, .tokens = 61});
  all.push_back({.name = "200 experts", .rule = {.experts = 200, .top_k = 6}, .tokens = 61});
  RoutingRule wide = all[5].rule;
  wide.experts = 256, wide.groups = 8, wide.group_top_k = 4, wide.top_k = 8;
  all.push_back({.name = "wide deepseek v3", .rule = wide, .bias = true, .tokens = 61});
  all.push_back({.name = "many tokens", .rule = {.experts = 40, .top_k = 2}, .tokens = 4700});
  all.push_back({.name = "gpt-oss", .rule = {.experts = 36, .top_k = 4}, .logit_bias = true});
  for (const NamedRule& named : all) {
    INFO(named.name);
    b.start();
    HostMemory& host = b.host();
    const RoutingRule& rule = named.rule;
    const std::int64_t T = named.tokens, E = rule.experts, K = rule.top_k, C = 48;
    const Tensor x = host.random(DType::bf16, T, C, 1.0f), router = host.random(DType::bf16, E, C, 0.3f);
    // Two experts with equal logits for every token.
    for (std::int64_t c = 0; c < C; ++c)
      HostMemory::set(router, 5 * C + c, HostMemory::get(router, 2 * C + c));
    const Tensor bias = named.bias ? host.random(DType::f32, 1, E, 0.2f) : Tensor{};
    const Tensor logit_bias = named.logit_bias ? host.random(DType::bf16, 1, E, 1.0f) : Tensor{};
    const Routed r = run_route(b, rule, x, router, bias, {}, logit_bias);

    Numbers z(T * E);
    for (std::int64_t i = 0; named.logit_bias && i < T * E; ++i) z[i] = HostMemory::get(logit_bias, i % E);
    for (std::int64_t t = 0; t < T; ++t)
      for (std::int64_t e = 0; e < E; ++e)
        for (std::int64_t c = 0; c < C; ++c)
          z[t * E + e] +=
              static_cast<double>(HostMemory::get(x, t * C + c)) * HostMemory::get(router, e * C + c);
    const Tensor got_z = b.fetch(r.z), got_w = b.fetch(r.weights), report = b.fetch(r.report);
    Numbers counts(E), shares(E);
    double squares = 0;
    for (std::int64_t t = 0; t < T; ++t) {
      const double* logits = z.data() + t * E;
      for (std::int64_t e = 0; e < E; ++e)
        REQUIRE(std::fabs(got_z.as<float>()[t * E + e] - logits[e]) <= 1e-5);
      const std::vector<std::int32_t> index(r.chosen.begin() + t * K, r.chosen.begin() + (t + 1) * K);
      REQUIRE(index == choice_of(rule, logits, named.bias ? bias.as<float>() : nullptr));
      const Numbers w = weights_of(rule, logits, index.data()), p = probabilities_of(rule, logits);
      double sum = 0;
      for (const double v : p) sum += v;
      for (std::int64_t k = 0; k < K; ++k) {
        REQUIRE(std::fabs(got_w.as<float>()[t * K + k] - w[k]) <= 2e-6 * rule.scale);
        counts[index[k]] += 1;
      }
      for (std::int64_t e = 0; e < E; ++e) shares[e] += p[e] / sum / T;
      squares += std::pow(logsumexp(logits, E), 2) / T;
    }
    double balance = 0;
    for (std::int64_t e = 0; e < E; ++e) {
      CHECK(report.as<float>()[e] == counts[e]);
      balance += static_cast<double>(E) * counts[e] / static_cast<double>(T * K) * shares[e];
    }
    CHECK(std::fabs(report.as<float>()[E] / balance - 1) <= 1e-5);
    CHECK(std::fabs(report.as<float>()[E + 1] / squares - 1) <= 1e-5);
    CHECK(integers(b.fetch(r.bad)) == std::vector<std::int32_t>{-1});
  }
}

PRECBENCH_OP_TEST(route_ends_on, "route: extreme logits, forced experts and logits that are not finite") {
  const RoutingRule rule{.experts = 4, .top_k = 2};
  HostMemory& host = b.host();
  const Tensor x = host.random(DType::bf16, 6, 4, 1.0f);
  const float rows[4][4] = {
      {0, 0, 0, 0}, {-3e38f, 3e38f, 0, 0}, {-1e4f, -2e4f, -3e4f, -4e4f}, {90, 90, 0, 0}};
  for (std::int64_t i = 0; i < 16; ++i) HostMemory::set(x, i, rows[i / 4][i % 4]);
  HostMemory::set(x, 4 * 4 + 2, NAN);
  HostMemory::set(x, 5 * 4 + 3, -INFINITY);
  const Tensor router = identity(host, 4);
  const auto weights = [&](const Routed& r) { return HostMemory::values(b.fetch(r.weights)); };
  Routed r = run_route(b, rule, x, router, {});
  CHECK(std::vector<std::int32_t>(r.chosen.begin(), r.chosen.begin() + 8) ==
        std::vector<std::int32_t>{0, 1, 1, 2, 0, 1, 0, 1});
  CHECK(Numbers(weights(r)).at(0) == 0.5);
  CHECK(Numbers(weights(r)).at(2) == 1.0);
  CHECK(Numbers(weights(r)).at(4) == 1.0);
  // Multiplied by 0, infinity gives NaN.
  CHECK(integers(b.fetch(r.bad)) == std::vector<std::int32_t>{4});
  for (std::size_t slot = 8; slot < 12; ++slot) CHECK(std::isnan(weights(r)[slot]));
  for (const std::int32_t e : r.chosen) CHECK((e >= 0 && e < 4));
  for (std::size_t t = 0; t < 6; ++t) CHECK(r.chosen[2 * t] != r.chosen[2 * t + 1]);

  const std::vector<std::int32_t> wanted = {3, 0, 3, 0, 3, 0, 2, 3, 3, 0, 3, 0};
  r = run_route(b, rule, x, router, {}, host_integers(host, wanted, 2));
  CHECK(r.chosen == wanted);
  CHECK(std::fabs(weights(r)[6] - 0.5) <= 1e-7);
  CHECK(HostMemory::values(b.fetch(r.report))[0] == 5);
}

PRECBENCH_OP_TEST(route_backward_on, "route_backward is the derivative of the weights and losses") {
  for (const NamedRule& named : rules())
    for (const auto& [balance, z_loss] : {std::pair{0.0, 0.0}, {0.5, 0.0}, {0.0, 0.25}, {0.5, 0.25}}) {
      INFO(named.name << " balance " << balance << " z " << z_loss);
      b.start();
      HostMemory& host = b.host();
      const RoutingRule& rule = named.rule;
      const std::int64_t T = 24, E = rule.experts, K = rule.top_k;
      const double loss_scale = 1.0 / 64;
      const Tensor x = host.random(DType::bf16, T, E, 1.5f), router = identity(host, E);
      const Tensor bias = named.bias ? host.random(DType::f32, 1, E, 0.2f) : Tensor{};
      const Tensor dw = host.random(DType::f32, T, K, 1.0f), addend = host.random(DType::bf16, T, E, 1.0f);
      const Tensor before = host.random(DType::f32, E, E, 1.0f);
      const Routed r = run_route(b, rule, x, router, bias);
      const Tensor report = b.fetch(r.report);
      // The part of the loss that depends on token t.
      const auto loss = [&, balance = balance, z_loss = z_loss](const Numbers& z, std::int64_t t) {
        const double* logits = z.data() + t * E;
        const std::int32_t* index = r.chosen.data() + t * K;
        const Numbers w = weights_of(rule, logits, index), p = probabilities_of(rule, logits);
        double sum = 0, total = 0;
        for (const double v : p) sum += v;
        for (std::int64_t k = 0; k < K; ++k) total += w[k] * dw.as<float>()[t * K + k];
        for (std::int64_t e = 0; e < E; ++e)
          total += loss_scale * balance * static_cast<double>(E) * report.as<float>()[e] /
                   static_cast<double>(T * K) * p[e] / sum;
        return total + loss_scale * z_loss * std::pow(logsumexp(logits, E), 2);
      };
      Numbers z = HostMemory::values(x), dz(T * E);
      for (std::int64_t i = 0; i < T * E; ++i) {
        constexpr double kStep = 1e-6;
        const double at = z[i];
        z[i] = at + kStep;
        const double above = loss(z, i / E);
        z[i] = at - kStep;
        dz[i] = (above - loss(z, i / E)) / (2 * kStep);
        z[i] = at;
      }
      for (const bool accumulate : {false, true}) {
        const Tensor dx = b.output(DType::f32, T, E), drouter = b.put(before),
                     dbias = b.put(before.slice_rows(0, 1));
        b.device().route_backward({.dx = dx,
                                   .drouter = drouter,
                                   .accumulate = accumulate,
                                   .addend = accumulate ? b.put(addend) : Tensor{},
                                   .dw = b.put(dw),
                                   .z = r.z,
                                   .index = r.index,
                                   .report = r.report,
                                   .x = b.put(x),
                                   .router = b.put(router),
                                   .rule = rule,
                                   .balance = static_cast<float>(balance),
                                   .z_loss = static_cast<float>(z_loss),
                                   .loss_scale = static_cast<float>(loss_scale),
                                   .dlogit_bias = dbias});
        const Numbers got_bias = HostMemory::values(b.fetch(dbias));
        for (std::int64_t e = 0; e < E; ++e) {
          double sum = accumulate ? HostMemory::get(before, e) : 0.0;
          for (std::int64_t t = 0; t < T; ++t) sum += dz[t * E + e];
          REQUIRE(std::fabs(got_bias[e] - sum) <= 2e-5 * rule.scale);
        }
        const Numbers got = HostMemory::values(b.fetch(dx)),
                      got_router = HostMemory::values(b.fetch(drouter));
        // FP32 against FP64 differences: a few roundings of numbers up to scale * |dw|.
        for (std::int64_t i = 0; i < T * E; ++i)
          REQUIRE(std::fabs(got[i] - (accumulate ? HostMemory::get(addend, i) : 0.0) - dz[i]) <=
                  2e-6 * rule.scale);
        for (std::int64_t e = 0; e < E; ++e)
          for (std::int64_t c = 0; c < E; ++c) {
            double sum = accumulate ? HostMemory::get(before, e * E + c) : 0.0;
            for (std::int64_t t = 0; t < T; ++t) sum += dz[t * E + e] * z[t * E + c];
            REQUIRE(std::fabs(got_router[e * E + c] - sum) <= 2e-5 * rule.scale);
          }
      }
    }
}

PRECBENCH_OP_TEST(update_routing_bias_on, "update_routing_bias") {
  HostMemory& host = b.host();
  const Tensor bias = host.random(DType::f32, 2, 4, 0.1f), counts = host.tensor(DType::f32, 2, 4);
  const float values[] = {10, 0, 5, 5, 3, 3, 3, 3};
  std::copy(std::begin(values), std::end(values), counts.as<float>());
  const Tensor on_device = b.put(bias);
  b.device().update_routing_bias({on_device, b.put(counts), 0.25f});
  const float steps[] = {-0.25f, 0.25f, 0, 0, 0, 0, 0, 0};
  const Tensor after = b.fetch(on_device);
  for (std::int64_t i = 0; i < 8; ++i) CHECK(after.as<float>()[i] == bias.as<float>()[i] + steps[i]);
}
