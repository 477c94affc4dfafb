// Summaries of sums over two gradients: planted errors and biases are found, parts add up to the whole, and
// values that are not finite become null.
#include "bench/step/fidelity_summary.h"

#include <cmath>
#include <functional>
#include <limits>

#include "kernels/device/devices.h"
#include "kernels/numerics/random.h"
#include "kernels/testing/catch.h"
#include "results/record/statistics.h"

using namespace precbench;

namespace {

/// Two blocks with biases and an untied head, which covers every role.
Layout layout_of(bool tied = false) {
  ModelConfig model = find_model("tiny");
  model.layers = 2;
  model.tied = tied;
  model.qkv_bias = true;
  return Layout(model, 1);
}

using Values = std::function<double(const std::string& name, double bf16)>;

/// Returns the sums, computed by the device, of a batch with random BF16 gradients, which `recipe` changes.
BatchFidelity batch_of(const Layout& layout, std::uint64_t seed, const Values& recipe) {
  const std::unique_ptr<Device> device = make_cpu_device(1);
  constexpr int kElements = 512;  // of each parameter
  BatchFidelity batch{2.5, 2.625, {}};
  for (const Unit& unit : layout.units())
    for (const Parameter& p : unit.parameters) {
      std::vector<float> g(kElements), r(kElements);
      for (int i = 0; i < kElements; ++i) {
        g[i] = 1e-3f * irwin_hall_normal(seed + std::hash<std::string>{}(p.name), i);
        r[i] = static_cast<float>(recipe(p.name, g[i]));
      }
      float sums[4] = {};
      device->correlate({{sums, DType::f32, 1, 4},
                         {r.data(), DType::f32, 1, kElements},
                         {g.data(), DType::f32, 1, kElements},
                         false});
      batch.parameters.push_back({sums[0], sums[1], sums[2], sums[3]});
    }
  return batch;
}

const GradientFidelity& part(const std::vector<GradientFidelity>& parts, const std::string& name) {
  for (const GradientFidelity& p : parts)
    if (p.name == name) return p;
  FAIL(name << " is missing");
  throw std::logic_error(name);
}

bool near(const std::optional<double>& value, double expected) {
  return value && std::fabs(*value - expected) < 2e-6;  // the sums are FP32
}

}  // namespace

TEST_CASE("summarize: a shrunk gradient has its bias and no other error", "[fidelity]") {
  const Layout layout = layout_of();
  const Fidelity f =
      summarize("ffn:8:4", layout, {batch_of(layout, 1, [](auto&, double g) { return 0.97 * g; })});
  CHECK((f.stress == "ffn:8:4" && f.batches == 1 && f.loss_bf16 == 2.5));
  CHECK(near(f.whole.bias.mean, -0.03));
  CHECK(near(f.whole.error.mean, 0.03));
  CHECK(near(f.whole.cosine.mean, 1));
  CHECK(f.loss_difference.mean == 0.125);
  for (const MeanInterval* one : {&f.loss_difference, &f.whole.bias, &f.whole.error, &f.whole.cosine})
    CHECK((!one->low && !one->high));
  CHECK(f.roles.size() == 7);
  for (const GradientFidelity& role : f.roles) CHECK(near(role.bias, -0.03));
}

TEST_CASE("summarize: route flips of 1 in every batch average to exactly 1", "[fidelity]") {
  const Layout layout = layout_of();
  BatchFidelity batch = batch_of(layout, 1, [](auto&, double g) { return g; });
  batch.route_flips = {1.0, 1.0};
  // Nine times a ninth rounds to more than 1.
  const Fidelity f = summarize("none", layout, std::vector<BatchFidelity>(9, batch));
  REQUIRE(f.route_flips);
  CHECK(f.route_flips->layers == std::vector<double>{1, 1});
  CHECK(f.route_flips->all == 1);
}

TEST_CASE("summarize: equal gradients have zero error", "[fidelity]") {
  const Layout layout = layout_of();
  const BatchFidelity same = batch_of(layout, 1, [](auto&, double g) { return g; });
  const Fidelity f = summarize("none", layout, {same, same});
  CHECK((f.whole.error.mean == 0 && f.whole.error.low == 0 && f.whole.error.high == 0));
  CHECK((f.whole.cosine.mean == 1 && f.whole.bias.mean == 0));
  for (const auto* parts : {&f.roles, &f.layers})
    for (const GradientFidelity& p : *parts) CHECK((p.error == 0 && p.cosine == 1 && p.bias == 0));
}

TEST_CASE("summarize: an error appears in its role and its block only", "[fidelity]") {
  const auto wrong = [](const char* where) {
    const Layout layout = layout_of();
    return summarize("none", layout, {batch_of(layout, 1, [&](const std::string& name, double g) {
                       return name.ends_with(where) ? -g : g;
                     })});
  };
  const auto check = [&](const char* where, const char* role, const std::string& layer) {
    INFO(where);
    const Fidelity f = wrong(where);
    CHECK(*f.whole.error.mean > 0.1);
    for (const GradientFidelity& p : f.roles) CHECK((*p.error > 0) == (p.name == role));
    REQUIRE(f.layers.size() == 2);
    for (const GradientFidelity& p : f.layers) CHECK((*p.error > 0) == (p.name == layer));
  };
  check("layers.0.self_attn.k_proj.weight", "qkv", "0");
  check("layers.1.self_attn.q_proj.bias", "qkv", "1");
  check("layers.1.self_attn.o_proj.weight", "o", "1");
  check("layers.0.mlp.up_proj.weight", "gate_up", "0");
  check("layers.0.mlp.down_proj.weight", "down", "0");
  check("layers.1.input_layernorm.weight", "norm", "1");
  check("model.norm.weight", "norm", "none");
  check("model.embed_tokens.weight", "embedding", "none");
  check("lm_head.weight", "lm_head", "none");
  const Fidelity reversed = wrong("lm_head.weight");
  CHECK(near(part(reversed.roles, "lm_head").error, 2));
  CHECK(near(part(reversed.roles, "lm_head").cosine, -1));
  CHECK(near(part(reversed.roles, "lm_head").bias, -2));
  const Layout tied = layout_of(true);
  CHECK(summarize("none", tied, {batch_of(tied, 1, [](auto&, double g) { return g; })}).roles.size() == 6);
}

TEST_CASE("summarize: means and intervals are taken over batches", "[fidelity]") {
  const Layout layout = layout_of();
  std::vector<BatchFidelity> batches;
  const double biases[] = {-0.01, -0.02, -0.06};
  for (const double bias : biases)
    batches.push_back(batch_of(layout, batches.size(), [&](auto&, double g) { return (1 + bias) * g; }));
  batches[2].loss = 2.5;
  const Fidelity f = summarize("none", layout, batches);
  CHECK(near(f.whole.bias.mean, -0.03));
  const double half = student_t_quantile(0.975, 2) * std::sqrt(0.0007) / std::sqrt(3.0);  // variance 0.0007
  CHECK(near(f.whole.bias.low, -0.03 - half));
  CHECK(near(f.whole.bias.high, -0.03 + half));
  CHECK(near(part(f.roles, "down").bias, -0.03));
  CHECK(near(part(f.layers, "1").error, 0.03));
  CHECK(near(f.loss_difference.mean, 0.25 / 3));
}

TEST_CASE("summarize: values that are not finite become null and affect nothing else", "[fidelity]") {
  const Layout layout = layout_of();
  BatchFidelity bad = batch_of(layout, 1, [](const std::string& name, double g) {
    return name.ends_with("layers.1.mlp.down_proj.weight") ? std::numeric_limits<double>::quiet_NaN() : g;
  });
  bad.loss = std::numeric_limits<double>::infinity();
  const BatchFidelity good = batch_of(layout, 2, [](auto&, double g) { return g; });
  const Fidelity f = summarize("none", layout, {good, bad});
  for (const MeanInterval* none : {&f.loss_difference, &f.whole.error, &f.whole.cosine, &f.whole.bias})
    CHECK((!none->mean && !none->low && !none->high));
  CHECK(f.loss_bf16 == 2.5);
  CHECK(!part(f.roles, "down").error.has_value());
  CHECK(!part(f.layers, "1").cosine.has_value());
  CHECK(part(f.roles, "o").error == 0);
  CHECK(part(f.layers, "0").bias == 0);
}
