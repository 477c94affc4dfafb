// Ops of blocks other than Llama's: gains minus 1, other activations, and soft-capped logits. On the CPU device
// against FP64, on other devices against the CPU device.
#include <cmath>

#include "kernels/device/compare_testing.h"
#include "kernels/device/op_testing.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

constexpr float kEps = 1e-6f;
constexpr Activation kActivations[] = {Activation::silu, Activation::gelu_tanh, Activation::gelu};

/// PyTorch's definitions: F.silu, F.gelu(approximate="tanh"), F.gelu.
double activated(Activation activation, double x) {
  if (activation == Activation::silu) return x / (1 + std::exp(-x));
  if (activation == Activation::gelu) return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / 3.14159265358979324) * (x + 0.044715 * x * x * x)));
}

std::vector<double> gated(Activation activation, std::int64_t M, std::int64_t F,
                          const std::vector<double>& gate_up) {
  std::vector<double> s(M * F);
  for (std::int64_t m = 0; m < M; ++m)
    for (std::int64_t f = 0; f < F; ++f)
      s[m * F + f] = activated(activation, gate_up[m * 2 * F + f]) * gate_up[m * 2 * F + F + f];
  return s;
}

double capped_loss(const std::vector<double>& logits, std::int32_t target, double cap) {
  double total = 0;
  for (const double z : logits) total += std::exp(cap * std::tanh(z / cap));
  return std::log(total) - cap * std::tanh(logits[target] / cap);
}

}  // namespace

TEST_CASE("swiglu: every activation and its derivative match FP64", "[cpu][swiglu]") {
  const auto device = make_cpu_device(2);
  for (const Activation activation : kActivations) {
    INFO(static_cast<int>(activation));
    const std::int64_t M = 7, F = 19;
    const std::vector<float> values = normal(1, M * 2 * F, 2.0f), ds = normal(2, M * F);
    const Owned in(DType::f32, M, 2 * F, values), gradient(DType::f32, M, F, ds);
    const Owned s(DType::f32, M, F), again(DType::f32, M, F), dgate_up(DType::f32, M, 2 * F);
    QuantizedTensor out = operand(s), out_again = operand(again), d = operand(dgate_up);
    device->swiglu({out, in, activation});
    device->swiglu_backward({d, out_again, gradient, in, activation});
    const std::vector<double> x(values.begin(), values.end());
    CHECK(relative_error(s.floats(), gated(activation, M, F, x)) < kFp32Error);
    CHECK(again.bytes() == s.bytes());
    check_gradient([&](const std::vector<double>& moved) { return dot(gated(activation, M, F, moved), ds); },
                   x, dgate_up.floats());
  }
}

TEST_CASE("swiglu: GELU reaches its limits far from 0", "[cpu][swiglu]") {
  const auto device = make_cpu_device(1);
  for (const Activation activation : {Activation::gelu_tanh, Activation::gelu}) {
    const Owned in(DType::f32, 1, 4, {-100, 100, 2, 2}), ds(DType::f32, 1, 2, {1, 1});
    const Owned s(DType::f32, 1, 2), again(DType::f32, 1, 2), dgate_up(DType::f32, 1, 4);
    QuantizedTensor out = operand(s), out_again = operand(again), d = operand(dgate_up);
    device->swiglu({out, in, activation});
    device->swiglu_backward({d, out_again, ds, in, activation});
    CHECK(s.floats() == std::vector<float>{0, 200});
    CHECK(dgate_up.floats() == std::vector<float>{0, 2, 0, 100});
  }
}

TEST_CASE("rmsnorm and rope: gains minus 1 give the bits of the gains", "[cpu][rmsnorm][rope]") {
  const auto device = make_cpu_device(2);
  const std::int64_t M = 70, C = 24;
  const std::vector<float> minus_one = normal(1, C, 0.1f);
  std::vector<float> gains = minus_one;
  for (float& gain : gains) gain += 1.0f;
  const Owned x(DType::f32, M, C, normal(2, M * C)), dh(DType::f32, M, C, normal(3, M * C));
  struct Norm {
    Owned rstd, h, again, dx, dweight;
  };
  const auto run = [&](const std::vector<float>& weight, float offset) {
    const Owned w(DType::f32, 1, C, weight);
    Norm n{
        {DType::f32, M, 1}, {DType::f32, M, C}, {DType::f32, M, C}, {DType::f32, M, C}, {DType::f32, 1, C}};
    QuantizedTensor h = operand(n.h), again = operand(n.again), dx = operand(n.dx);
    device->add_rmsnorm({h, {}, n.rstd, x, {}, w, kEps, offset});
    device->recompute_rmsnorm({again, x, n.rstd, w, offset});
    device->rmsnorm_backward({dx, n.dweight, false, {}, dh, x, n.rstd, w, offset});
    return n;
  };
  const Norm a = run(minus_one, 1), b = run(gains, 0);
  CHECK(a.h.bytes() == b.h.bytes());
  CHECK(a.again.bytes() == a.h.bytes());
  CHECK(a.dx.bytes() == b.dx.bytes());
  CHECK(a.dweight.bytes() == b.dweight.bytes());

  const AttentionShape s{2, 5, 2, 1, 8};
  const std::int64_t rows = s.tokens(), W = s.qkv_width(), D = s.head_dim;
  const Owned qkv(DType::f32, rows, W, normal(4, rows * W)), dout(DType::f32, rows, W, normal(5, rows * W));
  struct Turned {
    Owned out, dqkv, dq_norm, dk_norm;
  };
  const auto turn = [&](float offset) {
    const auto weight = [&](std::uint64_t seed) {
      std::vector<float> values = normal(seed, D, 0.1f);
      for (float& value : values) value += 1.0f - offset;
      return Owned(DType::f32, 1, D, values);
    };
    const Owned q = weight(6), k = weight(7);
    const RopeOptions options{.shape = s, .q_norm = q, .k_norm = k, .gain_offset = offset};
    Turned t{{DType::f32, rows, W}, {DType::f32, rows, W}, {DType::f32, 1, D}, {DType::f32, 1, D}};
    QuantizedTensor d = operand(t.dqkv);
    device->rope({t.out, qkv, options});
    device->rope_backward({d, t.dq_norm, t.dk_norm, false, dout, qkv, options});
    return t;
  };
  const Turned c = turn(1), d = turn(0);
  CHECK(c.out.bytes() == d.out.bytes());
  CHECK(c.dqkv.bytes() == d.dqkv.bytes());
  CHECK(c.dq_norm.bytes() == d.dq_norm.bytes());
  CHECK(c.dk_norm.bytes() == d.dk_norm.bytes());
}

TEST_CASE("cross_entropy: soft-capped loss and gradient match FP64", "[cpu][cross_entropy]") {
  const auto device = make_cpu_device(2);
  const std::int64_t M = 5, V = 50;
  constexpr float kScale = 0.125f, kCap = 3.0f;
  const std::vector<float> values = normal(1, M * V, 4.0f);
  const std::vector<std::int32_t> targets = {0, 7, 49, 12, 12};
  const Owned logits(DType::f32, M, V, values), loss(DType::f32, M, 1);
  device->cross_entropy({loss, logits, Owned(targets), kScale, kCap});
  const std::vector<float> gradient = logits.floats();
  for (std::int64_t m = 0; m < M; ++m) {
    const std::vector<double> row(values.begin() + m * V, values.begin() + (m + 1) * V);
    CHECK(std::fabs(loss.floats()[m] - capped_loss(row, targets[m], kCap)) < 8 * kFp32Error);
    check_gradient([&](const std::vector<double>& x) { return kScale * capped_loss(x, targets[m], kCap); },
                   row, {gradient.begin() + m * V, gradient.begin() + (m + 1) * V});
  }
}

// ---- any device against the CPU device

PRECBENCH_OP_TEST(activations_on, "swiglu and swiglu_backward with every activation") {
  for (const Activation activation : kActivations)
    for (const Size& size : {Size{128, 256}, Size{133, 208}}) {
      b.start();
      HostMemory& host = b.host();
      const std::int64_t M = size.M, F = size.C;
      INFO(M << " x " << F << ", activation " << static_cast<int>(activation));
      const Tensor gate_up = host.random(DType::bf16, M, 2 * F, 3.0f),
                   ds = host.random(DType::bf16, M, F, 1.0f);
      HostMemory::set(gate_up, 0, -1000.0f);
      HostMemory::set(gate_up, 1, 1000.0f);
      const auto cpu_run = [&](DType dtype, Tensor& dgate_up) {
        QuantizedTensor s, d;
        s.value = host.tensor(dtype, M, F);
        dgate_up = d.value = host.tensor(dtype, M, 2 * F);
        b.cpu().swiglu_backward(
            {d, s, host.converted(ds, dtype), host.converted(gate_up, dtype), activation});
        return s.value;
      };
      Tensor naive_d, true_d;
      const Tensor naive = cpu_run(DType::bf16, naive_d), truth = cpu_run(DType::f32, true_d);
      const Tensor dev_in = b.put(gate_up), dev_ds = b.put(ds);
      const Tensor s = b.check_operand("s", M, F, [&](QuantizedTensor& out) {
        b.device().swiglu({out, dev_in, activation});
      });
      check_twice("s", s, naive, HostMemory::values(truth));
      const Tensor d = b.check_operand("dgate_up", M, 2 * F, [&](QuantizedTensor& out) {
        QuantizedTensor again = b.operand({}, M, F);
        b.device().swiglu_backward({out, again, dev_ds, dev_in, activation});
        CHECK(same_bits(b.fetch(again.value), s));
      });
      check_twice("dgate_up", d, naive_d, HostMemory::values(true_d));
    }
}

PRECBENCH_OP_TEST(gains_minus_one_on, "norms whose weights are the gains minus 1") {
  for (const Size& size : {Size{256, 256}, Size{37, 264}, Size{5, 8200}}) {
    b.start();
    HostMemory& host = b.host();
    const std::int64_t M = size.M, C = size.C;
    INFO(M << " x " << C);
    const Tensor x = host.random(DType::bf16, M, C, 2.0f), weight = host.random(DType::bf16, 1, C, 0.3f),
                 dh = host.random(DType::bf16, M, C, 1.0f);
    struct Results {
      Tensor h, dx, dweight;
    };
    const auto cpu_run = [&](DType dtype, DType gradient) {
      QuantizedTensor h, dx;
      h.value = host.tensor(dtype, M, C);
      dx.value = host.tensor(dtype, M, C);
      const Tensor rstd = host.tensor(DType::f32, M, 1), dweight = host.tensor(gradient, 1, C);
      const Tensor in = host.converted(x, dtype), w = host.converted(weight, dtype);
      b.cpu().add_rmsnorm({h, {}, rstd, in, {}, w, kEps, 1.0f});
      b.cpu().rmsnorm_backward({dx, dweight, false, {}, host.converted(dh, dtype), in, rstd, w, 1.0f});
      return Results{h.value, dx.value, dweight};
    };
    const Results naive = cpu_run(DType::bf16, DType::bf16), truth = cpu_run(DType::f32, DType::f32);
    const Tensor dev_x = b.put(x), dev_weight = b.put(weight), dev_dh = b.put(dh);
    const Tensor rstd = b.output(DType::f32, M, 1), dweight = b.output(DType::bf16, 1, C);
    const Tensor h = b.check_operand("h", M, C, [&](QuantizedTensor& out) {
      b.device().add_rmsnorm({out, {}, rstd, dev_x, {}, dev_weight, kEps, 1.0f});
    });
    const Tensor again = b.check_operand("h again", M, C, [&](QuantizedTensor& out) {
      b.device().recompute_rmsnorm({out, dev_x, rstd, dev_weight, 1.0f});
    });
    const Tensor dx = b.check_operand("dx", M, C, [&](QuantizedTensor& out) {
      b.device().rmsnorm_backward({out, dweight, false, {}, dev_dh, dev_x, rstd, dev_weight, 1.0f});
    });
    CHECK(same_bits(again, h));
    check_twice("h", h, naive.h, HostMemory::values(truth.h));
    check_twice("dx", dx, naive.dx, HostMemory::values(truth.dx));
    check_twice("dweight", b.fetch(dweight), naive.dweight, HostMemory::values(truth.dweight));
  }
}

PRECBENCH_OP_TEST(rope_gains_minus_one_on, "rope with QK-norm whose weights are the gains minus 1") {
  struct Form {
    AttentionShape shape;
    bool over_heads;
  };
  for (const Form& form :
       {Form{{2, 33, 4, 2, 64}, false}, Form{{1, 20, 3, 1, 256}, false}, Form{{1, 20, 12, 4, 48}, true}}) {
    b.start();
    HostMemory& host = b.host();
    const AttentionShape& s = form.shape;
    const std::int64_t M = s.tokens(), W = s.qkv_width(), D = s.head_dim;
    INFO("D " << D << (form.over_heads ? " over heads" : ""));
    const std::int64_t sizes[2] = {form.over_heads ? s.heads * D : D, form.over_heads ? s.kv_heads * D : D};
    const Tensor qkv = host.random(DType::bf16, M, W, 1.0f), dout = host.random(DType::bf16, M, W, 1.0f);
    const Tensor q = host.random(DType::bf16, 1, sizes[0], 0.3f),
                 k = host.random(DType::bf16, 1, sizes[1], 0.3f);
    struct Results {
      Tensor out, dqkv, dq, dk;
    };
    const auto cpu_run = [&](DType dtype) {
      const RopeOptions o{.shape = s,
                          .q_norm = host.converted(q, dtype),
                          .k_norm = host.converted(k, dtype),
                          .gain_offset = 1.0f};
      const Results r{host.tensor(dtype, M, W), host.tensor(dtype, M, W), host.tensor(dtype, 1, sizes[0]),
                      host.tensor(dtype, 1, sizes[1])};
      QuantizedTensor d;
      d.value = r.dqkv;
      const Tensor in = host.converted(qkv, dtype);
      b.cpu().rope({r.out, in, o});
      b.cpu().rope_backward({d, r.dq, r.dk, false, host.converted(dout, dtype), in, o});
      return r;
    };
    const Results naive = cpu_run(DType::bf16), truth = cpu_run(DType::f32);
    const RopeOptions o{.shape = s, .q_norm = b.put(q), .k_norm = b.put(k), .gain_offset = 1.0f};
    const Tensor dev_qkv = b.put(qkv), dev_dout = b.put(dout), out = b.output(DType::bf16, M, W),
                 dq = b.output(DType::bf16, 1, sizes[0]), dk = b.output(DType::bf16, 1, sizes[1]);
    b.device().rope({out, dev_qkv, o});
    b.check("out", out, naive.out, truth.out);
    const Tensor d = b.check_operand("dqkv", M, W, [&](QuantizedTensor& x) {
      b.device().rope_backward({x, dq, dk, false, dev_dout, dev_qkv, o});
    });
    check_twice("dqkv", d, naive.dqkv, HostMemory::values(truth.dqkv));
    b.check("dq_norm", dq, naive.dq, truth.dq);
    b.check("dk_norm", dk, naive.dk, truth.dk);
  }
}

PRECBENCH_OP_TEST(softcap_on, "cross_entropy and compare_logits with soft-capped logits") {
  constexpr float kScale = 1.0f / 1024, kCap = 5.0f;
  for (const Size& size : {Size{300, 256}, Size{17, 1001}, Size{2, 121001}}) {
    b.start();
    HostMemory& host = b.host();
    const auto [M, V] = size;
    INFO(M << " x " << V);
    const Tensor logits = host.random(DType::bf16, M, V, 6.0f), other = host.random(DType::bf16, M, V, 6.0f),
                 targets = host.tokens(M, V);
    std::vector<double> true_loss(M), true_gradient(M * V);
    for (std::int64_t r = 0; r < M; ++r) {
      const auto capped = [&](std::int64_t v) {
        return kCap * std::tanh(static_cast<double>(HostMemory::get(logits, r * V + v)) / kCap);
      };
      double sum = 0;
      for (std::int64_t v = 0; v < V; ++v) sum += std::exp(capped(v));
      const std::int32_t target = targets.as<std::int32_t>()[r];
      true_loss[r] = std::log(sum) - capped(target);
      for (std::int64_t v = 0; v < V; ++v)
        true_gradient[r * V + v] =
            (std::exp(capped(v)) / sum - (v == target)) * kScale * (1 - std::pow(capped(v) / kCap, 2));
    }
    const Tensor compared = b.output(DType::f32, M, 2), cpu_compared = host.tensor(DType::f32, M, 2);
    const Tensor loss = host.tensor(DType::f32, M, 1), dev_loss = b.output(DType::f32, M, 1);
    const Tensor dev_logits = b.put(logits), dev_targets = b.put(targets);
    b.device().compare_logits({compared, b.put(other), dev_logits, dev_targets, kCap});
    b.cpu().compare_logits({cpu_compared, other, logits, targets, kCap});
    const Tensor result = b.fetch(compared);
    for (std::int64_t i = 0; i < 2 * M; ++i)  // tanh of another library
      CHECK(std::fabs(HostMemory::get(result, i) - HostMemory::get(cpu_compared, i)) <=
            1e-5 * (1 + std::fabs(HostMemory::get(cpu_compared, i))));
    b.device().cross_entropy({dev_loss, dev_logits, dev_targets, kScale, kCap});
    b.cpu().cross_entropy({loss, logits, targets, kScale, kCap});
    check_twice("loss", b.fetch(dev_loss), loss, true_loss);
    check_twice("dlogits", b.fetch(dev_logits), logits, true_gradient);
  }
}
