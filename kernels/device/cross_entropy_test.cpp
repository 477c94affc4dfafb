// Softmax cross-entropy on the CPU device: values against FP64, gradient against finite differences.
#include <algorithm>

#include "kernels/device/compare_testing.h"
#include "kernels/device/op_testing.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

double row_loss(const double* logits, std::int64_t V, std::int32_t target) {
  double largest = logits[0], total = 0;
  for (std::int64_t v = 1; v < V; ++v) largest = std::max(largest, logits[v]);
  for (std::int64_t v = 0; v < V; ++v) total += std::exp(logits[v] - largest);
  return largest + std::log(total) - logits[target];
}

std::vector<std::int32_t> targets_of(std::int64_t M, std::int64_t V) {
  std::vector<std::int32_t> targets(M);
  for (std::int64_t m = 0; m < M; ++m) targets[m] = static_cast<std::int32_t>((m * 7 + V - 1) % V);
  return targets;
}

}  // namespace

TEST_CASE("cross_entropy: loss in nats and scaled gradient match FP64", "[cpu][cross_entropy]") {
  const auto device = make_cpu_device(2);
  for (const auto& shape : {std::pair<std::int64_t, std::int64_t>{1, 1}, {5, 2}, {9, 50}, {3, 257}}) {
    const std::int64_t M = shape.first, V = shape.second;
    INFO("M " << M << " V " << V);
    constexpr float kScale = 0.125f;
    const std::vector<float> values = normal(1, M * V, 2.0f);
    const std::vector<std::int32_t> targets = targets_of(M, V);
    const Owned logits(DType::f32, M, V, values), loss(DType::f32, M, 1);
    device->cross_entropy({loss, logits, Owned(targets), kScale});
    const std::vector<float> gradient = logits.floats();
    for (std::int64_t m = 0; m < M; ++m) {
      const std::vector<double> row(values.begin() + m * V, values.begin() + (m + 1) * V);
      // Error relative to the size of the two terms, since their difference may be near 0.
      const double size = 1 + std::fabs(row[targets[m]]) + std::log(static_cast<double>(V));
      CHECK(std::fabs(loss.floats()[m] - row_loss(row.data(), V, targets[m])) < kFp32Error * size);
      if (V == 1) {
        CHECK(gradient[0] == 0);
        continue;
      }
      check_gradient([&](const std::vector<double>& x) { return kScale * row_loss(x.data(), V, targets[m]); },
                     row, {gradient.begin() + m * V, gradient.begin() + (m + 1) * V});
    }
  }
}

TEST_CASE("cross_entropy: logits beyond the range of exp stay finite", "[cpu][cross_entropy]") {
  const auto device = make_cpu_device(1);
  const Owned logits(DType::f32, 3, 2, {1e4f, -1e4f, 1e4f, -1e4f, -3e38f, -3e38f}), loss(DType::f32, 3, 1);
  device->cross_entropy({loss, logits, Owned(std::vector<std::int32_t>{0, 1, 1}), 1.0f});
  CHECK(loss.floats()[0] == 0.0f);
  CHECK(loss.floats()[1] == 2e4f);
  CHECK(logits.floats() == std::vector<float>{0, 0, 1, -1, 0.5f, -0.5f});
}

TEST_CASE("cross_entropy: a NaN makes the loss of its row non-finite and no other", "[cpu][cross_entropy]") {
  const auto device = make_cpu_device(1);
  for (std::size_t at : {0, 3, 17}) {
    std::vector<float> values = normal(1, 3 * 18);
    values[18 + at] = std::nanf("");
    const Owned logits(DType::f32, 3, 18, values), loss(DType::f32, 3, 1);
    device->cross_entropy({loss, logits, Owned(std::vector<std::int32_t>{1, 2, 3}), 1.0f});
    CHECK(std::isfinite(loss.floats()[0]));
    CHECK_FALSE(std::isfinite(loss.floats()[1]));
    CHECK(std::isfinite(loss.floats()[2]));
  }
}

TEST_CASE("cross_entropy: BF16 equals FP32 rounded once", "[cpu][cross_entropy]") {
  const auto device = make_cpu_device(2);
  const std::vector<float> values = rounded(normal(1, 20 * 77));
  const Owned wide(DType::f32, 20, 77, values), narrow(DType::bf16, 20, 77, values);
  const Owned loss32(DType::f32, 20, 1), loss16(DType::f32, 20, 1), targets(targets_of(20, 77));
  device->cross_entropy({loss32, wide, targets, 0.05f});
  device->cross_entropy({loss16, narrow, targets, 0.05f});
  CHECK(loss32.bytes() == loss16.bytes());
  CHECK(narrow.floats() == rounded(wide.floats()));
}

TEST_CASE("cross_entropy: a weight multiplies the loss and the gradient of its row", "[cpu][cross_entropy]") {
  const auto device = make_cpu_device(2);
  const std::vector<float> values = normal(1, 4 * 77);
  const std::vector<float> weights = {1, 0, 2, 0.5f};
  const Owned plain(DType::f32, 4, 77, values), weighted(DType::f32, 4, 77, values);
  const Owned loss(DType::f32, 4, 1), weighted_loss(DType::f32, 4, 1), targets(targets_of(4, 77));
  device->cross_entropy({loss, plain, targets, 0.25f});
  device->cross_entropy({weighted_loss, weighted, targets, 0.25f, 0.0f, Owned(DType::f32, 4, 1, weights)});
  for (std::int64_t m = 0; m < 4; ++m) {
    INFO("row " << m);
    // Powers of two, and a product with 0, are exact.
    CHECK(weighted_loss.floats()[m] == weights[m] * loss.floats()[m]);
    for (std::int64_t v = 0; v < 77; ++v)
      CHECK(weighted.floats()[m * 77 + v] == weights[m] * plain.floats()[m * 77 + v]);
  }
}

TEST_CASE("logit_stats and logit_gradient: one rank's vocabulary gives the bits of cross_entropy",
          "[cpu][cross_entropy]") {
  const auto device = make_cpu_device(2);
  const std::vector<float> values = normal(1, 20 * 77, 2.0f), factors = normal(2, 20);
  for (const float softcap : {0.0f, 3.0f}) {
    const Owned one(DType::f32, 20, 77, values), divided(DType::f32, 20, 77, values),
        targets(targets_of(20, 77)), weights(DType::f32, 20, 1, factors);
    const Owned loss(DType::f32, 20, 1), divided_loss(DType::f32, 20, 1), stats(DType::f32, 20, 3);
    device->cross_entropy({loss, one, targets, 0.05f, softcap, weights});
    device->logit_stats({stats, divided, targets, 0, softcap});
    device->logit_gradient({divided_loss, divided, targets, stats, 0, 0.05f, softcap, weights});
    CHECK(divided_loss.bytes() == loss.bytes());
    CHECK(divided.bytes() == one.bytes());
  }
}

// ---- any device against the CPU device

namespace {

/// Compares loss and gradient with FP64 and with the CPU device; with `weighted` every third row has no loss.
void check_cross_entropy(OpTest& b, const Size& size, bool weighted) {
  b.start();
  HostMemory& host = b.host();
  const auto [M, V] = size;
  INFO(M << " x " << V << (weighted ? ", weighted" : ""));
  const Tensor logits = host.random(DType::bf16, M, V, 3.0f), targets = host.tokens(M, V);
  const Tensor weights = host.tensor(DType::f32, M, 1);
  for (std::int64_t r = 0; r < M; ++r)
    HostMemory::set(weights, r, !weighted ? 1.0f : r % 3 == 1 ? 0.0f : 0.25f * static_cast<float>(r % 3 + 1));
  HostMemory::set(logits, V / 2, 80.0f);  // takes the whole probability of row 0
  targets.as<std::int32_t>()[M - 1] = static_cast<std::int32_t>(V - 1);
  std::vector<double> true_loss(M), true_gradient(M * V);
  constexpr float kScale = 1.0f / 1024;
  for (std::int64_t r = 0; r < M; ++r) {
    double largest = -INFINITY, sum = 0;
    for (std::int64_t v = 0; v < V; ++v)
      largest = std::max<double>(largest, HostMemory::get(logits, r * V + v));
    for (std::int64_t v = 0; v < V; ++v) sum += std::exp(HostMemory::get(logits, r * V + v) - largest);
    const std::int32_t target = targets.as<std::int32_t>()[r];
    const double weight = HostMemory::get(weights, r);
    true_loss[r] = weight * (std::log(sum) + largest - HostMemory::get(logits, r * V + target));
    for (std::int64_t v = 0; v < V; ++v)
      true_gradient[r * V + v] =
          weight * (std::exp(HostMemory::get(logits, r * V + v) - largest) / sum - (v == target)) * kScale;
  }
  const Tensor loss = host.tensor(DType::f32, M, 1), dev_loss = b.output(DType::f32, M, 1);
  const Tensor dev_logits = b.put(logits);
  b.device().cross_entropy(
      {dev_loss, dev_logits, b.put(targets), kScale, 0.0f, weighted ? b.put(weights) : Tensor{}});
  b.cpu().cross_entropy({loss, logits, targets, kScale, 0.0f, weighted ? weights : Tensor{}});
  check_twice("loss", b.fetch(dev_loss), loss, true_loss);
  check_twice("dlogits", b.fetch(dev_logits), logits, true_gradient);
}

}  // namespace

PRECBENCH_OP_TEST(cross_entropy_on, "cross_entropy, loss and gradient") {
  // The last two exceed a block's shared memory; rows of odd width are not aligned.
  for (const Size& size : {Size{300, 256}, Size{17, 1001}, Size{3, 128256}, Size{2, 121001}})
    for (const bool weighted : {false, true}) check_cross_entropy(b, size, weighted);
}

PRECBENCH_OP_TEST(divided_cross_entropy_on,
                  "logit_stats and logit_gradient, over the vocabularies of two ranks") {
  for (const Size& size : {Size{300, 256}, Size{17, 1002}})
    for (const float softcap : {0.0f, 3.0f}) {
      b.start();
      HostMemory& host = b.host();
      const auto [M, V] = size;
      const std::int64_t own = V / 2;
      INFO(M << " x " << V << " softcap " << softcap);
      const Tensor targets = host.tokens(M, V), weights = host.random(DType::f32, M, 1, 1.0f);
      targets.as<std::int32_t>()[0] = static_cast<std::int32_t>(own - 1);  // last of the first rank
      targets.as<std::int32_t>()[1] = static_cast<std::int32_t>(own);
      const Tensor whole = host.tensor(DType::bf16, M, V),
                   parts[] = {host.random(DType::bf16, M, own, 3.0f), host.random(DType::bf16, M, own, 3.0f)};
      for (std::int64_t i = 0; i < M * V; ++i)
        HostMemory::set(whole, i, HostMemory::get(parts[i % V / own], i / V * own + i % own));
      const Tensor loss = host.tensor(DType::f32, M, 1);
      const Tensor dev_targets = b.put(targets), dev_weights = b.put(weights);
      const Tensor stats = b.output(DType::f32, 2 * M, 3);
      const Tensor dev_parts[] = {b.put(parts[0]), b.put(parts[1])};
      b.cpu().cross_entropy({loss, whole, targets, 0.01f, softcap, weights});
      for (int rank = 0; rank < 2; ++rank)
        b.device().logit_stats(
            {stats.slice_rows(rank * M, M), dev_parts[rank], dev_targets, rank * own, softcap});
      for (int rank = 0; rank < 2; ++rank) {
        const Tensor dev_loss = b.output(DType::f32, M, 1);
        b.device().logit_gradient(
            {dev_loss, dev_parts[rank], dev_targets, stats, rank * own, 0.01f, softcap, dev_weights});
        const Tensor got_loss = b.fetch(dev_loss), got = b.fetch(dev_parts[rank]);
        double worst_loss = 0, worst = 0;
        for (std::int64_t r = 0; r < M; ++r) {
          worst_loss = std::max<double>(worst_loss,
                                        std::fabs(HostMemory::get(got_loss, r) - HostMemory::get(loss, r)));
          for (std::int64_t v = 0; v < own; ++v)
            worst = std::max<double>(worst, std::fabs(HostMemory::get(got, r * own + v) -
                                                      HostMemory::get(whole, r * V + rank * own + v)));
        }
        CHECK(worst_loss <= 2e-5);      // FP32 sums of two parts; the losses are up to 40
        CHECK(worst <= 0.04 * 0x1p-8);  // one rounding to BF16 of gradients up to 0.04
      }
    }
}
