// RoPE with and without QK-norm on the CPU device: values against FP64, gradients against finite differences.
#include "kernels/cpu/op_testing.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

// 66 and more tokens cross the 64 rows of a gain gradient's partial sum; B = 2 restarts the positions.
constexpr AttentionShape kShapes[] = {{1, 1, 1, 1, 2}, {2, 5, 4, 2, 6}, {2, 33, 4, 1, 10}, {1, 130, 2, 2, 4}};

/// qkv [M, width] and gains [2, D] (q's, k's; empty: no QK-norm) to the turned rows.
std::vector<double> rope(const AttentionShape& s, double theta, double eps, const std::vector<double>& qkv,
                         const std::vector<double>& gains) {
  std::vector<double> out = qkv;
  const std::int64_t D = s.head_dim;
  for (std::int64_t row = 0; row < s.tokens(); ++row)
    for (std::int64_t h = 0; h < s.heads + s.kv_heads; ++h) {
      double* head = out.data() + row * s.qkv_width() + h * D;
      double squares = 0;
      for (std::int64_t i = 0; i < D; ++i) squares += head[i] * head[i];
      for (std::int64_t i = 0; !gains.empty() && i < D; ++i)
        head[i] *= gains[(h < s.heads ? 0 : D) + i] / std::sqrt(squares / static_cast<double>(D) + eps);
      for (std::int64_t i = 0; i < D / 2; ++i) {
        const double angle = static_cast<double>(row % s.T) / std::pow(theta, 2.0 * i / D);
        const double a = head[i], b = head[i + D / 2];
        head[i] = a * std::cos(angle) - b * std::sin(angle);
        head[i + D / 2] = a * std::sin(angle) + b * std::cos(angle);
      }
    }
  return out;
}

RopeOptions options_of(const AttentionShape& s, const Tensor& q_norm, const Tensor& k_norm) {
  return {.shape = s, .theta = 10000.0f, .norm_eps = 1e-5f, .q_norm = q_norm, .k_norm = k_norm};
}

}  // namespace

TEST_CASE("rope turns q and k by position and leaves v", "[cpu][rope]") {
  const auto device = make_cpu_device(2);
  for (const AttentionShape& s : kShapes)
    for (bool with_norm : {false, true}) {
      INFO("B " << s.B << " T " << s.T << " heads " << s.heads << " norm " << with_norm);
      const std::int64_t D = s.head_dim, W = s.qkv_width();
      const Owned qkv(DType::f32, s.tokens(), W, normal(1, s.tokens() * W));
      const Owned q_norm(DType::f32, 1, D, normal(2, D)), k_norm(DType::f32, 1, D, normal(3, D));
      RopeOptions options = with_norm ? options_of(s, q_norm, k_norm) : options_of(s, {}, {});
      std::vector<double> gains;
      if (with_norm) {
        gains = q_norm.doubles();
        for (double g : k_norm.doubles()) gains.push_back(g);
      }
      // A second theta on the same device: nothing of the first may be left over.
      for (float theta : {10000.0f, 500000.0f}) {
        options.theta = theta;
        const Owned out(DType::f32, s.tokens(), W);
        device->rope(out, qkv, options);
        CHECK(relative_error(out.floats(), rope(s, theta, options.norm_eps, qkv.doubles(), gains)) <
              kFp32Error);
        if (with_norm) continue;
        const Owned in_place = qkv;
        device->rope(in_place, in_place, options);
        CHECK(in_place.bytes() == out.bytes());
      }
    }
}

TEST_CASE("rope_backward is the derivative of rope", "[cpu][rope]") {
  const auto device = make_cpu_device(2);
  for (const AttentionShape& s : kShapes)
    for (bool with_norm : {false, true}) {
      INFO("B " << s.B << " T " << s.T << " heads " << s.heads << " norm " << with_norm);
      const std::int64_t D = s.head_dim, W = s.qkv_width(), size = s.tokens() * W;
      const Owned qkv(DType::f32, s.tokens(), W, normal(1, size));
      const Owned q_norm(DType::f32, 1, D, normal(2, D)), k_norm(DType::f32, 1, D, normal(3, D));
      const Owned dout(DType::f32, s.tokens(), W, normal(4, size));
      const Owned dqkv(DType::f32, s.tokens(), W), dq_norm(DType::f32, 1, D), dk_norm(DType::f32, 1, D);
      const RopeOptions options = with_norm ? options_of(s, q_norm, k_norm) : options_of(s, {}, {});
      QuantizedTensor gradient = operand(dqkv);
      if (with_norm)
        device->rope_backward(gradient, dq_norm, dk_norm, false, dout, qkv, options);
      else
        device->rope_backward(gradient, {}, {}, false, dout, {}, options);

      std::vector<double> gains;
      if (with_norm) {
        gains = q_norm.doubles();
        for (double g : k_norm.doubles()) gains.push_back(g);
      }
      const std::vector<double> x = qkv.doubles();
      const auto loss = [&](const std::vector<double>& moved, const std::vector<double>& gain) {
        return dot(rope(s, options.theta, options.norm_eps, moved, gain), dout.floats());
      };
      check_gradient([&](const std::vector<double>& moved) { return loss(moved, gains); }, x, dqkv.floats(),
                     size > 500 ? 41 : 1);
      if (!with_norm) continue;
      std::vector<float> dgains = dq_norm.floats();
      for (float g : dk_norm.floats()) dgains.push_back(g);
      check_gradient([&](const std::vector<double>& moved) { return loss(x, moved); }, gains, dgains);

      const Owned q_before(DType::f32, 1, D, normal(5, D)), k_before(DType::f32, 1, D, normal(6, D));
      const Owned q_total = q_before, k_total = k_before;
      device->rope_backward(gradient, q_total, k_total, true, dout, qkv, options);
      std::vector<double> q_expected = q_before.doubles(), k_expected = k_before.doubles();
      for (std::int64_t i = 0; i < D; ++i) {
        q_expected[i] += dq_norm.floats()[i];
        k_expected[i] += dk_norm.floats()[i];
      }
      CHECK(relative_error(q_total.floats(), q_expected) < kFp32Error);
      CHECK(relative_error(k_total.floats(), k_expected) < kFp32Error);
    }
}

TEST_CASE("rope in BF16 is FP32 rounded once", "[cpu][rope]") {
  const auto device = make_cpu_device(2);
  const AttentionShape s{2, 33, 4, 2, 8};
  const std::int64_t D = s.head_dim, W = s.qkv_width(), M = s.tokens();
  const std::vector<float> values = rounded(normal(1, M * W)), grads = rounded(normal(4, M * W));
  const std::vector<float> q_gain = rounded(normal(2, D)), k_gain = rounded(normal(3, D));
  std::vector<Owned> out, dqkv, dq_norm, dk_norm;
  for (DType dtype : {DType::f32, DType::bf16}) {
    const Owned qkv(dtype, M, W, values), dout(dtype, M, W, grads);
    const Owned q_norm(dtype, 1, D, q_gain), k_norm(dtype, 1, D, k_gain);
    out.emplace_back(dtype, M, W);
    dqkv.emplace_back(dtype, M, W);
    dq_norm.emplace_back(dtype, 1, D);
    dk_norm.emplace_back(dtype, 1, D);
    const RopeOptions options = options_of(s, q_norm, k_norm);
    device->rope(out.back(), qkv, options);
    QuantizedTensor gradient = operand(dqkv.back());
    device->rope_backward(gradient, dq_norm.back(), dk_norm.back(), false, dout, qkv, options);
  }
  for (const auto* pair : {&out, &dqkv, &dq_norm, &dk_norm})
    CHECK((*pair)[1].floats() == rounded((*pair)[0].floats()));
}
