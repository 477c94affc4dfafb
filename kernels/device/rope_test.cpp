// RoPE without QK-norm, with per-head and with all-heads QK-norm, on the CPU device: values against FP64,
// gradients against finite differences; then any device against the CPU.
#include <array>
#include <limits>
#include <utility>

#include "kernels/device/compare_testing.h"
#include "kernels/device/op_testing.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

// 66 and more tokens cross the 64 rows of a gain gradient's partial sum; B = 2 restarts the positions.
constexpr AttentionShape kRopeShapes[] = {
    {1, 1, 1, 1, 2}, {2, 5, 4, 2, 6}, {2, 33, 4, 1, 10}, {1, 130, 2, 2, 4}};

/// Elements that QK-norm normalizes together: none, one head, or all heads of a row.
enum class Norm : std::uint8_t { none, head, heads };
constexpr Norm kNorms[] = {Norm::none, Norm::head, Norm::heads};
const char* name_of(Norm norm) {
  return norm == Norm::none   ? "no QK-norm"
         : norm == Norm::head ? "QK-norm of a head"
                              : "QK-norm of all heads";
}

/// Returns the number of elements of q (which 0) or k (1) that are normed together.
std::int64_t normed(const AttentionShape& s, Norm norm, int which) {
  return norm == Norm::head ? s.head_dim : (which ? s.kv_heads : s.heads) * s.head_dim;
}

/// FP64 reference: rotates qkv [M, width]; gains are q's, then k's; empty: no QK-norm.
std::vector<double> rope(const AttentionShape& s, double theta, double eps, Norm norm,
                         const std::vector<double>& qkv, const std::vector<double>& gains) {
  std::vector<double> out = qkv;
  const std::int64_t D = s.head_dim;
  for (std::int64_t row = 0; row < s.tokens(); ++row) {
    double* x = out.data() + row * s.qkv_width();
    for (int which = 0; norm != Norm::none && which < 2; ++which) {
      const std::int64_t size = normed(s, norm, which), first = which ? s.heads * D : 0;
      const double* gain = gains.data() + (which ? normed(s, norm, 0) : 0);
      for (std::int64_t at = first; at < first + (which ? s.kv_heads : s.heads) * D; at += size) {
        double squares = 0;
        for (std::int64_t i = 0; i < size; ++i) squares += x[at + i] * x[at + i];
        const double rstd = 1 / std::sqrt(squares / static_cast<double>(size) + eps);
        for (std::int64_t i = 0; i < size; ++i) x[at + i] *= gain[i] * rstd;
      }
    }
    for (std::int64_t h = 0; h < s.heads + s.kv_heads; ++h)
      for (std::int64_t i = 0; i < D / 2; ++i) {
        double* head = x + h * D;
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

TEST_CASE("rope: rows at positions of their own have the bits of rows that are there", "[cpu][rope]") {
  const auto device = make_cpu_device(2);
  for (const Norm norm : {Norm::none, Norm::head}) {
    constexpr std::int64_t kTurn = 7;  // row r of the second run is row r * kTurn of the first
    const AttentionShape whole{1, 130, 4, 2, 6}, packed{2, 65, 4, 2, 6};
    const std::int64_t M = whole.tokens(), W = whole.qkv_width();
    const std::vector<float> values = normal(1, M * W);
    std::vector<float> moved(values.size());
    std::vector<std::int32_t> positions(M);
    for (std::int64_t r = 0; r < M; ++r) {
      positions[r] = static_cast<std::int32_t>(r * kTurn % M);
      std::copy_n(values.begin() + positions[r] * W, W, moved.begin() + r * W);
    }
    const Owned q_norm(DType::f32, 1, 6, normal(2, 6)), k_norm(DType::f32, 1, 6, normal(3, 6));
    const auto options = [&](const AttentionShape& s) {
      return norm == Norm::none ? options_of(s, {}, {}) : options_of(s, q_norm, k_norm);
    };
    RopeOptions at_positions = options(packed);
    at_positions.positions = {positions.data(), DType::i32, M, 1};
    at_positions.position_count = M;
    const Owned in(DType::f32, M, W, values), in_moved(DType::f32, M, W, moved);
    const Owned out(DType::f32, M, W), out_moved(DType::f32, M, W);
    const Owned back(DType::f32, M, W), back_moved(DType::f32, M, W);
    const Owned dq(DType::f32, 1, 6), dk(DType::f32, 1, 6);
    const bool gains = norm != Norm::none;
    device->rope({out, in, options(whole)});
    device->rope({out_moved, in_moved, at_positions});
    device->rope_backward({operand(back), gains ? dq.tensor() : Tensor{}, gains ? dk.tensor() : Tensor{},
                           false, in, in, options(whole)});
    device->rope_backward({operand(back_moved), gains ? dq.tensor() : Tensor{},
                           gains ? dk.tensor() : Tensor{}, false, in_moved, in_moved, at_positions});
    for (const auto& [x, y] : {std::pair{&out, &out_moved}, {&back, &back_moved}}) {
      const std::vector<float> want = x->floats(), got = y->floats();
      for (std::int64_t r = 0; r < M; ++r)
        REQUIRE(std::equal(got.begin() + r * W, got.begin() + (r + 1) * W, want.begin() + positions[r] * W));
    }
  }
}

TEST_CASE("rope: rotates q and k by position and leaves v", "[cpu][rope]") {
  const auto device = make_cpu_device(2);
  for (const AttentionShape& s : kRopeShapes)
    for (const Norm norm : kNorms) {
      INFO("B " << s.B << " T " << s.T << " heads " << s.heads << ", " << name_of(norm));
      const bool with_norm = norm != Norm::none;
      const std::int64_t W = s.qkv_width(), q = normed(s, norm, 0), k = normed(s, norm, 1);
      const Owned qkv(DType::f32, s.tokens(), W, normal(1, s.tokens() * W));
      const Owned q_norm(DType::f32, 1, q, normal(2, q)), k_norm(DType::f32, 1, k, normal(3, k));
      RopeOptions options = with_norm ? options_of(s, q_norm, k_norm) : options_of(s, {}, {});
      std::vector<double> gains;
      if (with_norm) {
        gains = q_norm.doubles();
        for (double g : k_norm.doubles()) gains.push_back(g);
      }
      // A second theta on the same device: no cached table of the first may be used.
      for (float theta : {10000.0f, 500000.0f}) {
        options.theta = theta;
        const Owned out(DType::f32, s.tokens(), W);
        device->rope({out, qkv, options});
        CHECK(relative_error(out.floats(), rope(s, theta, options.norm_eps, norm, qkv.doubles(), gains)) <
              kFp32Error);
        if (with_norm) continue;
        const Owned in_place = qkv;
        device->rope({in_place, in_place, options});
        CHECK(in_place.bytes() == out.bytes());
      }
    }
}

TEST_CASE("rope_backward: is the derivative of rope", "[cpu][rope]") {
  const auto device = make_cpu_device(2);
  for (const AttentionShape& s : kRopeShapes)
    for (const Norm norm : kNorms) {
      INFO("B " << s.B << " T " << s.T << " heads " << s.heads << ", " << name_of(norm));
      const bool with_norm = norm != Norm::none;
      const std::int64_t W = s.qkv_width(), size = s.tokens() * W;
      const std::int64_t q = normed(s, norm, 0), k = normed(s, norm, 1);
      const Owned qkv(DType::f32, s.tokens(), W, normal(1, size));
      const Owned q_norm(DType::f32, 1, q, normal(2, q)), k_norm(DType::f32, 1, k, normal(3, k));
      const Owned dout(DType::f32, s.tokens(), W, normal(4, size));
      const Owned dqkv(DType::f32, s.tokens(), W), dq_norm(DType::f32, 1, q), dk_norm(DType::f32, 1, k);
      const RopeOptions options = with_norm ? options_of(s, q_norm, k_norm) : options_of(s, {}, {});
      QuantizedTensor gradient = operand(dqkv);
      if (with_norm)
        device->rope_backward({gradient, dq_norm, dk_norm, false, dout, qkv, options});
      else
        device->rope_backward({gradient, {}, {}, false, dout, {}, options});

      std::vector<double> gains;
      if (with_norm) {
        gains = q_norm.doubles();
        for (double g : k_norm.doubles()) gains.push_back(g);
      }
      const std::vector<double> x = qkv.doubles();
      const auto loss = [&](const std::vector<double>& moved, const std::vector<double>& gain) {
        return dot(rope(s, options.theta, options.norm_eps, norm, moved, gain), dout.floats());
      };
      check_gradient([&](const std::vector<double>& moved) { return loss(moved, gains); }, x, dqkv.floats(),
                     size > 500 ? 41 : 1);
      if (!with_norm) continue;
      std::vector<float> dgains = dq_norm.floats();
      for (float g : dk_norm.floats()) dgains.push_back(g);
      check_gradient([&](const std::vector<double>& moved) { return loss(x, moved); }, gains, dgains);

      const Owned q_before(DType::f32, 1, q, normal(5, q)), k_before(DType::f32, 1, k, normal(6, k));
      const Owned q_total = q_before, k_total = k_before;
      device->rope_backward({gradient, q_total, k_total, true, dout, qkv, options});
      std::vector<double> q_expected = q_before.doubles(), k_expected = k_before.doubles();
      for (std::int64_t i = 0; i < q; ++i) q_expected[i] += dq_norm.floats()[i];
      for (std::int64_t i = 0; i < k; ++i) k_expected[i] += dk_norm.floats()[i];
      CHECK(relative_error(q_total.floats(), q_expected) < kFp32Error);
      CHECK(relative_error(k_total.floats(), k_expected) < kFp32Error);
    }
}

TEST_CASE("rope: BF16 equals FP32 rounded once", "[cpu][rope]") {
  const auto device = make_cpu_device(2);
  const AttentionShape s{2, 33, 4, 2, 8};
  const std::int64_t W = s.qkv_width(), M = s.tokens();
  const std::vector<float> values = rounded(normal(1, M * W)), grads = rounded(normal(4, M * W));
  for (const Norm norm : {Norm::head, Norm::heads}) {
    const std::int64_t q = normed(s, norm, 0), k = normed(s, norm, 1);
    const std::vector<float> q_gain = rounded(normal(2, q)), k_gain = rounded(normal(3, k));
    std::vector<Owned> out, dqkv, dq_norm, dk_norm;
    for (DType dtype : {DType::f32, DType::bf16}) {
      const Owned qkv(dtype, M, W, values), dout(dtype, M, W, grads);
      const Owned q_norm(dtype, 1, q, q_gain), k_norm(dtype, 1, k, k_gain);
      out.emplace_back(dtype, M, W);
      dqkv.emplace_back(dtype, M, W);
      dq_norm.emplace_back(dtype, 1, q);
      dk_norm.emplace_back(dtype, 1, k);
      const RopeOptions options = options_of(s, q_norm, k_norm);
      device->rope({out.back(), qkv, options});
      QuantizedTensor gradient = operand(dqkv.back());
      device->rope_backward({gradient, dq_norm.back(), dk_norm.back(), false, dout, qkv, options});
    }
    for (const auto* pair : {&out, &dqkv, &dq_norm, &dk_norm})
      CHECK((*pair)[1].floats() == rounded((*pair)[0].floats()));
  }
}

// ---- any device against the CPU device

namespace {

/// Returns the gradient of q's (which 0) or k's (1) gain in FP64: dout rotated back times the normed input,
/// summed over all rows and norm groups.
std::vector<double> true_dgains(const AttentionShape& s, Norm norm, const Tensor& qkv, const Tensor& dout,
                                const RopeOptions& o, int which) {
  const std::int64_t D = s.head_dim, W = s.qkv_width(), size = normed(s, norm, which);
  const std::int64_t begin = which ? s.heads * D : 0, end = begin + (which ? s.kv_heads : s.heads) * D;
  std::vector<double> dgain(size);
  for (std::int64_t row = 0; row < s.tokens(); ++row)
    for (std::int64_t first = begin; first < end; first += size) {
      const auto x = [&](std::int64_t i) -> double { return HostMemory::get(qkv, row * W + first + i); };
      const auto dy = [&](std::int64_t i) -> double { return HostMemory::get(dout, row * W + first + i); };
      double squares = 0;
      for (std::int64_t i = 0; i < size; ++i) squares += x(i) * x(i);
      const double rstd = 1.0 / std::sqrt(squares / static_cast<double>(size) + o.norm_eps);
      for (std::int64_t i = 0; i < size; ++i) {
        const std::int64_t pair = i % D % (D / 2);
        if (i % D != pair) continue;
        const double angle = row % s.T * std::pow(static_cast<double>(o.theta), -2.0 * pair / D);
        const double cos = static_cast<float>(std::cos(angle)), sin = static_cast<float>(std::sin(angle));
        dgain[i] += (dy(i) * cos + dy(i + D / 2) * sin) * x(i) * rstd;
        dgain[i + D / 2] += (dy(i + D / 2) * cos - dy(i) * sin) * x(i + D / 2) * rstd;
      }
    }
  return dgain;
}

}  // namespace

PRECBENCH_OP_TEST(rope_on, "rope and rope_backward, with and without QK-norm") {
  std::vector<std::pair<AttentionShape, Norm>> cases;
  for (const AttentionShape& shape : {AttentionShape{2, 64, 4, 2, 64}, AttentionShape{1, 40, 3, 1, 32},
                                      AttentionShape{3, 7, 2, 2, 128}, AttentionShape{1, 33, 5, 5, 16}})
    for (const Norm norm : kNorms) cases.emplace_back(shape, norm);
  // All threads that a block may have; head counts that are not powers of two; a grid that loops over rows.
  cases.emplace_back(AttentionShape{1, 9, 64, 64, 128}, Norm::heads);
  cases.emplace_back(AttentionShape{1, 20, 12, 4, 48}, Norm::heads);
  if (!b.on_cpu()) cases.emplace_back(AttentionShape{2, 1500, 16, 16, 128}, Norm::heads);
  for (const auto& [shape, kind] : cases) {
    const bool norm = kind != Norm::none;
    b.start();
    HostMemory& host = b.host();
    const std::int64_t M = shape.tokens(), W = shape.qkv_width();
    const std::int64_t sizes[2] = {normed(shape, kind, 0), normed(shape, kind, 1)};
    INFO("T " << shape.T << ", heads " << shape.heads << ", D " << shape.head_dim << ", " << name_of(kind));
    const Tensor qkv = host.random(DType::bf16, M, W, 1.0f), dout = host.random(DType::bf16, M, W, 1.0f);
    const Tensor gains[2] = {host.random(DType::bf16, 1, sizes[0], 1.0f),
                             host.random(DType::bf16, 1, sizes[1], 1.0f)};
    const auto options = [&](auto&& place) {
      RopeOptions o{.shape = shape, .q_norm = {}, .k_norm = {}};
      if (norm) o.q_norm = place(gains[0]), o.k_norm = place(gains[1]);
      return o;
    };
    const auto run = [&](DType dtype, DType grad, Tensor& out, Tensor(&dgain)[2], bool accumulate) {
      const RopeOptions o = options([&](const Tensor& t) { return host.converted(t, dtype); });
      const Tensor in = host.converted(qkv, dtype);
      out = host.tensor(dtype, M, W);
      b.cpu().rope({out, in, o});
      QuantizedTensor d;
      d.value = host.tensor(dtype, M, W);
      for (int i = 0; i < 2; ++i) dgain[i] = norm ? host.converted(gains[i], grad) : Tensor{};
      b.cpu().rope_backward({d, dgain[0], dgain[1], accumulate, host.converted(dout, dtype), in, o});
      return d.value;
    };
    const RopeOptions dev_options = options([&](const Tensor& t) { return b.put(t); });
    const Tensor dev_qkv = b.put(qkv), dev_dout = b.put(dout);
    const Tensor out = b.output(DType::bf16, M, W);
    b.device().rope({out, dev_qkv, dev_options});
    for (const DType grad : {DType::f32, DType::bf16})
      for (const bool accumulate : {false, true}) {
        Tensor naive_out, true_out, naive_dgain[2], unused[2];
        const Tensor naive_d = run(DType::bf16, grad, naive_out, naive_dgain, accumulate);
        const Tensor true_d = run(DType::f32, DType::f32, true_out, unused, accumulate);
        b.check("out", out, naive_out, true_out);
        Tensor dgain[2];
        for (int i = 0; norm && i < 2; ++i) dgain[i] = b.output(grad, 1, sizes[i]);
        const Tensor d = b.check_operand("dqkv", M, W, [&](QuantizedTensor& x) {
          for (int i = 0; norm && i < 2; ++i)
            b.device().upload(dgain[i], host.converted(gains[i], grad).data), b.device().synchronize();
          b.device().rope_backward({x, dgain[0], dgain[1], accumulate, dev_dout, dev_qkv, dev_options});
        });
        check_twice("dqkv", d, naive_d, HostMemory::values(true_d));
        for (int i = 0; norm && i < 2; ++i) {
          std::vector<double> truth =
              true_dgains(shape, kind, qkv, dout, options([](const Tensor& t) { return t; }), i);
          for (std::int64_t c = 0; accumulate && c < sizes[i]; ++c) truth[c] += HostMemory::get(gains[i], c);
          check_twice(i ? "dk_norm" : "dq_norm", b.fetch(dgain[i]), naive_dgain[i], truth);
        }
      }
    if (norm) continue;
    b.device().rope({dev_qkv, dev_qkv, dev_options});
    CHECK(same_bits(b.fetch(dev_qkv), b.fetch(out)));
    QuantizedTensor in_place = b.operand({kRow, kRow}, M, W);
    in_place.value = b.put(dout);
    QuantizedTensor apart = b.operand({}, M, W);
    b.device().rope_backward({apart, {}, {}, false, dev_dout, dev_qkv, dev_options});
    b.device().rope_backward({in_place, {}, {}, false, in_place.value, dev_qkv, dev_options});
    CHECK(same_bits(b.fetch(in_place.value), b.fetch(apart.value)));
    b.check_copies("in place", in_place, b.fetch(apart.value));
  }
}

PRECBENCH_OP_TEST(rope_poison_on,
                  "rope and rope_backward: what is not finite reaches its pair, or its norm, alone") {
  const AttentionShape shape{2, 40, 4, 2, 64};
  const std::int64_t M = shape.tokens(), W = shape.qkv_width(), D = shape.head_dim;
  constexpr std::int64_t kRow = 50, kElement = 5;
  for (const Norm kind : kNorms) {
    INFO(name_of(kind));
    b.start();
    HostMemory& host = b.host();
    const Tensor qkv = host.random(DType::bf16, M, W, 1.0f), dout = host.random(DType::bf16, M, W, 1.0f);
    RopeOptions options{.shape = shape, .q_norm = {}, .k_norm = {}};
    Tensor dgains[2];
    if (kind != Norm::none) {
      options.q_norm = b.put(host.random(DType::bf16, 1, normed(shape, kind, 0), 1.0f));
      options.k_norm = b.put(host.random(DType::bf16, 1, normed(shape, kind, 1), 1.0f));
      for (int i = 0; i < 2; ++i) dgains[i] = b.output(DType::f32, 1, normed(shape, kind, i));
    }
    const auto run = [&] {
      const Tensor out = b.output(DType::bf16, M, W), in = b.put(qkv);
      QuantizedTensor d{.value = b.output(DType::bf16, M, W)};
      b.device().rope({out, in, options});
      b.device().rope_backward({d, dgains[0], dgains[1], false, b.put(dout), in, options});
      return std::array{b.fetch(out), b.fetch(d.value)};
    };
    const auto clean = run();
    for (const std::int64_t head : {std::int64_t{1}, shape.heads + 1, shape.heads + shape.kv_heads}) {
      INFO("head " << head);
      const bool value = head >= shape.heads + shape.kv_heads;
      const std::int64_t at = kRow * W + head * D + kElement;
      // The row's elements that are rotated or normed together with it.
      const auto reached = [&](std::int64_t row, std::int64_t column) {
        if (row != kRow) return false;
        if (value || kind == Norm::none)
          return column == head * D + kElement || (!value && column == head * D + kElement + D / 2);
        if (kind == Norm::head) return column / D == head;
        return head < shape.heads ? column / D < shape.heads
                                  : column / D >= shape.heads && column / D < shape.heads + shape.kv_heads;
      };
      const auto never = [](auto, auto) { return false; };
      const float poison = std::numeric_limits<float>::quiet_NaN();
      const float x = HostMemory::get(qkv, at), y = HostMemory::get(dout, at);
      HostMemory::set(qkv, at, poison);
      const auto of_input = run();
      HostMemory::set(qkv, at, x);
      check_reached("out", of_input[0], clean[0], reached);
      if (kind == Norm::none || value) check_reached("gradient", of_input[1], clean[1], never);
      HostMemory::set(dout, at, poison);
      const auto of_gradient = run();
      HostMemory::set(dout, at, y);
      check_reached("out of another gradient", of_gradient[0], clean[0], never);
      check_reached("gradient of a gradient", of_gradient[1], clean[1], reached);
    }
  }
}

PRECBENCH_OP_TEST(scaled_rope_on, "rope with a bias and a stretched context") {
  const RopeScaling scalings[] = {
      {},
      {.kind = RopeScaling::Kind::linear, .factor = 4},
      {.kind = RopeScaling::Kind::llama3, .factor = 8, .original_context = 16},
      {.kind = RopeScaling::Kind::yarn, .factor = 4, .original_context = 16, .attention_factor = 1.14}};
  for (const AttentionShape& shape : {AttentionShape{2, 64, 4, 2, 64}, AttentionShape{1, 40, 3, 1, 16}})
    for (const RopeScaling& scaling : scalings) {
      // With the last scaling only a part of each head rotates.
      const bool partial = scaling.kind == RopeScaling::Kind::yarn;
      const std::int64_t rotated = partial ? shape.head_dim * 3 / 4 : 0;
      const double factor = partial ? 1.1 : 1;
      b.start();
      HostMemory& host = b.host();
      const std::int64_t M = shape.tokens(), W = shape.qkv_width();
      INFO("D " << shape.head_dim << ", scaling " << static_cast<int>(scaling.kind));
      const Tensor qkv = host.random(DType::bf16, M, W, 1.0f), bias = host.random(DType::bf16, 1, W, 4.0f);
      const Tensor dout = host.random(DType::bf16, M, W, 1.0f);
      const auto on_cpu = [&](DType dtype, bool backward) {
        const RopeOptions o{.shape = shape,
                            .bias = host.converted(bias, dtype),
                            .scaling = scaling,
                            .rotated = rotated,
                            .scale = factor};
        QuantizedTensor result;
        result.value = host.tensor(dtype, M, W);
        if (backward)
          b.cpu().rope_backward({result, {}, {}, false, host.converted(dout, dtype), {}, o});
        else
          b.cpu().rope({result.value, host.converted(qkv, dtype), o});
        return result.value;
      };
      const RopeOptions options{
          .shape = shape, .bias = b.put(bias), .scaling = scaling, .rotated = rotated, .scale = factor};
      const Tensor out = b.output(DType::bf16, M, W), in_place = b.put(qkv);
      b.device().rope({out, b.put(qkv), options});
      b.device().rope({in_place, in_place, options});
      b.check("out", out, on_cpu(DType::bf16, false), on_cpu(DType::f32, false));
      CHECK(same_bits(b.fetch(in_place), b.fetch(out)));
      QuantizedTensor gradient;
      gradient.value = b.output(DType::bf16, M, W);
      b.device().rope_backward({gradient, {}, {}, false, b.put(dout), {}, options});
      b.check("dqkv", gradient.value, on_cpu(DType::bf16, true), on_cpu(DType::f32, true));
    }
}

PRECBENCH_OP_TEST(normed_bias_on, "rope with a bias and a QK-norm of a head") {
  for (const AttentionShape& shape : {AttentionShape{2, 64, 4, 2, 64}, AttentionShape{1, 40, 3, 1, 16}}) {
    b.start();
    HostMemory& host = b.host();
    const std::int64_t M = shape.tokens(), W = shape.qkv_width(), D = shape.head_dim;
    INFO("D " << D);
    const Tensor qkv = host.random(DType::bf16, M, W, 1.0f), bias = host.random(DType::bf16, 1, W, 2.0f),
                 dout = host.random(DType::bf16, M, W, 1.0f), q_gain = host.random(DType::bf16, 1, D, 1.0f),
                 k_gain = host.random(DType::bf16, 1, D, 1.0f);
    struct Results {
      Tensor out, dqkv, dq_norm, dk_norm;
    };
    const auto on_cpu = [&](DType dtype) {
      const RopeOptions o{.shape = shape,
                          .q_norm = host.converted(q_gain, dtype),
                          .k_norm = host.converted(k_gain, dtype),
                          .bias = host.converted(bias, dtype)};
      Results r{host.tensor(dtype, M, W), host.tensor(dtype, M, W), host.tensor(dtype, 1, D),
                host.tensor(dtype, 1, D)};
      const Tensor in = host.converted(qkv, dtype);
      b.cpu().rope({r.out, in, o});
      b.cpu().rope_backward(
          {operand(r.dqkv), r.dq_norm, r.dk_norm, false, host.converted(dout, dtype), in, o});
      return r;
    };
    const Results naive = on_cpu(DType::bf16), exact = on_cpu(DType::f32);
    const RopeOptions options{
        .shape = shape, .q_norm = b.put(q_gain), .k_norm = b.put(k_gain), .bias = b.put(bias)};
    const Results got{b.output(DType::bf16, M, W), b.output(DType::bf16, M, W), b.output(DType::bf16, 1, D),
                      b.output(DType::bf16, 1, D)};
    const Tensor in = b.put(qkv);
    b.device().rope({got.out, in, options});
    b.device().rope_backward({operand(got.dqkv), got.dq_norm, got.dk_norm, false, b.put(dout), in, options});
    b.check("out", got.out, naive.out, exact.out);
    b.check("dqkv", got.dqkv, naive.dqkv, exact.dqkv);
    b.check("dq_norm", got.dq_norm, naive.dq_norm, exact.dq_norm);
    b.check("dk_norm", got.dk_norm, naive.dk_norm, exact.dk_norm);
  }
}

PRECBENCH_OP_TEST(rope_positions_on,
                  "rope of rows at positions of their own is rope of rows that are there") {
  const AttentionShape whole{1, 60, 4, 2, 32}, packed{2, 30, 4, 2, 32};
  const std::int64_t M = whole.tokens(), W = whole.qkv_width();
  for (const Norm kind : kNorms) {
    INFO(name_of(kind));
    b.start();
    HostMemory& host = b.host();
    constexpr std::int64_t kTurn = 7;  // row r of the second run is row r * kTurn of the first
    const Tensor values = host.random(DType::bf16, M, W, 1.0f), moved = host.tensor(DType::bf16, M, W),
                 positions = host.tensor(DType::i32, M, 1);
    for (std::int64_t r = 0; r < M; ++r) {
      positions.as<std::int32_t>()[r] = static_cast<std::int32_t>(r * kTurn % M);
      for (std::int64_t c = 0; c < W; ++c)
        HostMemory::set(moved, r * W + c, HostMemory::get(values, r * kTurn % M * W + c));
    }
    RopeOptions plain{.shape = whole}, own{.shape = packed};
    own.positions = b.put(positions);
    own.position_count = M;
    Tensor dgains[2];
    if (kind != Norm::none) {
      plain.q_norm = own.q_norm = b.put(host.random(DType::bf16, 1, normed(whole, kind, 0), 1.0f));
      plain.k_norm = own.k_norm = b.put(host.random(DType::bf16, 1, normed(whole, kind, 1), 1.0f));
      for (int i = 0; i < 2; ++i) dgains[i] = b.output(DType::f32, 1, normed(whole, kind, i));
    }
    const auto rows_agree = [&](const Tensor& got, const Tensor& want) {
      bool same = true;
      for (std::int64_t r = 0; r < M; ++r)
        same = same && same_bits(got.slice_rows(r, 1), want.slice_rows(r * kTurn % M, 1));
      return same;
    };
    const Tensor in = b.put(values), in_moved = b.put(moved);
    const Tensor out = b.output(DType::bf16, M, W), out_moved = b.output(DType::bf16, M, W);
    b.device().rope({out, in, plain});
    b.device().rope({out_moved, in_moved, own});
    CHECK(rows_agree(b.fetch(out_moved), b.fetch(out)));
    const auto backward = [&](const Tensor& x, const RopeOptions& options) {
      return [&b, x, options, dgains](const QuantizedTensor& dqkv) {
        b.device().rope_backward({dqkv, dgains[0], dgains[1], false, x, x, options});
      };
    };
    const Tensor back = b.output(DType::bf16, M, W);
    backward(in, plain)(operand(back));
    CHECK(rows_agree(b.check_operand("rope_backward", M, W, backward(in_moved, own)), b.fetch(back)));
  }
}

PRECBENCH_OP_TEST(rope_offset_on, "rope at an offset is the later rows of rope") {
  b.start();
  constexpr std::int64_t kBefore = 19, kRows = 23;
  const AttentionShape whole{1, kBefore + kRows, 4, 2, 16}, part{1, kRows, 4, 2, 16};
  const std::int64_t W = whole.qkv_width();
  const Tensor qkv = b.put(b.host().random(DType::bf16, whole.T, W, 1.0f));
  const auto turned = [&](const Tensor& in, const RopeOptions& options, bool backward) {
    const Tensor out = b.output(DType::bf16, in.rows, W);
    if (backward)
      b.device().rope_backward({operand(out), {}, {}, false, in, {}, options});
    else
      b.device().rope({out, in, options});
    return b.fetch(out);
  };
  for (const bool backward : {false, true}) {
    const Tensor all = turned(qkv, {.shape = whole}, backward);
    const Tensor later = turned(qkv.slice_rows(kBefore, kRows), {.shape = part, .offset = kBefore}, backward);
    CHECK(same_bits(later, all.slice_rows(kBefore, kRows)));
    CHECK_FALSE(same_bits(turned(qkv.slice_rows(kBefore, kRows), {.shape = part}, backward), later));
  }
}

PRECBENCH_OP_TEST(rope_halves_on, "rope with a late offset is rope of each half at its offset") {
  for (const bool with_norm : {false, true})
    for (const bool backward : {false, true}) {
      INFO((with_norm ? "with QK-norm" : "without") << (backward ? ", backward" : ""));
      b.start();
      constexpr std::int64_t kEarly = 19, kLate = 70;
      const AttentionShape all{6, 5, 4, 2, 16}, half{3, 5, 4, 2, 16};
      const std::int64_t W = all.qkv_width(), rows = half.tokens();
      const Tensor qkv = b.put(b.host().random(DType::bf16, all.tokens(), W, 1.0f)),
                   dout = b.put(b.host().random(DType::bf16, all.tokens(), W, 1.0f));
      const Tensor gain = with_norm ? b.put(b.host().random(DType::bf16, 1, 16, 1.0f)) : Tensor{};
      const auto turned = [&](std::int64_t first, std::int64_t count, RopeOptions options) {
        options.q_norm = options.k_norm = gain;
        const Tensor out = b.output(DType::bf16, count, W), in = qkv.slice_rows(first, count);
        const Tensor dgain = with_norm ? b.output(DType::f32, 1, 16) : Tensor{},
                     dgain_k = with_norm ? b.output(DType::f32, 1, 16) : Tensor{};
        if (backward)
          b.device().rope_backward(
              {operand(out), dgain, dgain_k, false, dout.slice_rows(first, count), in, options});
        else
          b.device().rope({out, in, options});
        return b.fetch(out);
      };
      const Tensor both = turned(0, 2 * rows, {.shape = all, .offset = kEarly, .late_offset = kLate});
      const Tensor early = turned(0, rows, {.shape = half, .offset = kEarly}),
                   late = turned(rows, rows, {.shape = half, .offset = kLate});
      CHECK(same_bits(both.slice_rows(0, rows), early));
      CHECK(same_bits(both.slice_rows(rows, rows), late));
      CHECK_FALSE(same_bits(turned(0, 2 * rows, {.shape = all, .offset = kEarly}), both));
    }
}

PRECBENCH_OP_TEST(rope_halves_copies_on, "rope's gradient with a late offset has one value in all formats") {
  b.start();
  const AttentionShape s{4, 32, 4, 2, 64};
  const std::int64_t W = s.qkv_width();
  const Tensor dout = b.put(b.host().random(DType::bf16, s.tokens(), W, 1.0f));
  b.check_operand("rope_backward", s.tokens(), W, [&](QuantizedTensor& d) {
    b.device().rope_backward({d, {}, {}, false, dout, {}, {.shape = s, .offset = 64, .late_offset = 448}});
  });
}
