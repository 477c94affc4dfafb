// The other memory-bound CUDA ops against the CPU device: values at most twice as far from the truth as the
// CPU's, where the truth of a BF16 result is the CPU device's own FP32 result, whose error is 2^-16 of a BF16
// rounding; forms bit for bit what the CPU device makes of the very value that the GPU wrote.
#include "kernels/cuda/op_testing.h"

namespace precbench {
namespace {

using namespace op_testing;

/// Row and column formats of the recipes, and none.
std::vector<OperandFormats> all_operands() {
  return {{},
          {kTensorE4m3, kTensorE4m3},
          {kTensorE5m2, {}},
          {kRow, kRow},
          {{}, kRow},
          {kBlock, kBlockPow2},
          {kMx, kMx},
          {kRow, kTensorE4m3},
          {kTensorE4m3, kRow},
          {kSquare, {}}};
}

struct Size {
  std::int64_t M, C;
};

/// Runs `op(operand)` for every set of forms, once with the value kept and once without. The kept value must
/// be the same bits whatever the forms are, and the forms those of that value. Returns the value.
template <class Op>
Tensor check_operand(Bench& b, const std::string& what, std::int64_t rows, std::int64_t cols, Op&& op) {
  Tensor first;
  for (const OperandFormats& formats : all_operands())
    for (const bool keep : {true, false}) {
      if (!keep && !formats.rowwise.quantized() && !formats.columnwise.quantized()) continue;
      QuantizedTensor x = gpu_operand(*b.buffers, b.gpu(), formats, rows, cols);
      x.keep_value = keep;
      op(x);
      if (keep) {
        const Tensor value = b.fetch(x.value);
        if (first.empty()) first = value;
        CHECK(same_bits(value, first));
      }
      check_forms(what + ", row " + describe(formats.rowwise) + ", col " + describe(formats.columnwise),
                  *b.host, b.gpu(), *b.cpu, x, first);
    }
  return first;
}

/// The gradient of q's (which 0) or k's (1) gain in FP64: dout turned back, times the normed input, over all
/// heads.
std::vector<double> true_dgains(const AttentionShape& s, const Tensor& qkv, const Tensor& dout,
                                const RopeOptions& o, int which) {
  const std::int64_t D = s.head_dim, W = s.qkv_width();
  std::vector<double> dgain(D);
  for (std::int64_t row = 0; row < s.tokens(); ++row)
    for (std::int64_t h = which ? s.heads : 0; h < s.heads + (which ? s.kv_heads : 0); ++h) {
      const auto x = [&](std::int64_t i) -> double { return HostMemory::get(qkv, row * W + h * D + i); };
      const auto dy = [&](std::int64_t i) -> double { return HostMemory::get(dout, row * W + h * D + i); };
      double squares = 0;
      for (std::int64_t i = 0; i < D; ++i) squares += x(i) * x(i);
      const double rstd = 1.0 / std::sqrt(squares / D + o.norm_eps);
      for (std::int64_t i = 0; i < D / 2; ++i) {
        const double angle = row % s.T * std::pow(static_cast<double>(o.theta), -2.0 * i / D);
        const double cos = static_cast<float>(std::cos(angle)), sin = static_cast<float>(std::sin(angle));
        dgain[i] += (dy(i) * cos + dy(i + D / 2) * sin) * x(i) * rstd;
        dgain[i + D / 2] += (dy(i + D / 2) * cos - dy(i) * sin) * x(i + D / 2) * rstd;
      }
    }
  return dgain;
}

}  // namespace

TEST_CASE("add_rmsnorm, recompute_rmsnorm and rmsnorm_backward", "[gpu]") {
  Bench b;
  if (!b) return;
  // Whole tiles; one vector per thread missing; several vectors; a width that needs four vectors per thread; one
  // for which rmsnorm_backward needs exactly the shared memory that a block may have unasked.
  for (const Size& size : {Size{256, 256}, Size{37, 264}, Size{130, 2560}, Size{5, 8200}, Size{5, 12288}})
    for (const bool branched : {true, false}) {
      b.start();
      HostMemory& host = *b.host;
      const auto [M, C] = size;
      INFO(M << " x " << C << (branched ? " with" : " without") << " a branch");
      constexpr float kEps = 1e-5f;
      const Tensor x = host.random(DType::bf16, M, C, 2.0f), weight = host.random(DType::bf16, 1, C, 1.0f);
      const Tensor branch = branched ? host.random(DType::bf16, M, C, 1.0f) : Tensor{};
      for (std::int64_t c = 0; c < C; ++c) HostMemory::set(x, 3 % M * C + c, 0.0f);  // a row that eps decides

      const auto forward = [&](DType dtype, Tensor& sum, Tensor& rstd) {
        QuantizedTensor h;
        h.value = host.tensor(dtype, M, C);
        sum = branched ? host.tensor(dtype, M, C) : host.converted(x, dtype);
        rstd = host.tensor(DType::f32, M, 1);
        b.cpu->add_rmsnorm(h, sum, rstd, host.converted(x, dtype), host.converted(branch, dtype),
                           host.converted(weight, dtype), kEps);
        return h.value;
      };
      Tensor cpu_sum, cpu_rstd, true_sum, true_rstd;
      const Tensor naive = forward(DType::bf16, cpu_sum, cpu_rstd);
      const Tensor truth = forward(DType::f32, true_sum, true_rstd);

      const Tensor gpu_x = b.on_gpu(x), gpu_branch = b.on_gpu(branch), gpu_weight = b.on_gpu(weight);
      const Tensor sum = branched ? b.gpu_output(DType::bf16, M, C) : gpu_x;
      const Tensor rstd = b.gpu_output(DType::f32, M, 1);
      const Tensor h = check_operand(b, "h", M, C, [&](QuantizedTensor& out) {
        b.gpu().add_rmsnorm(out, sum, rstd, gpu_x, gpu_branch, gpu_weight, kEps);
      });
      CHECK(same_bits(b.fetch(sum), cpu_sum));
      check_twice("h", h, naive, HostMemory::values(truth));
      // rstd of the kept BF16 sum, in FP64.
      std::vector<double> exact(M);
      for (std::int64_t r = 0; r < M; ++r) {
        double squares = 0;
        for (std::int64_t c = 0; c < C; ++c) squares += std::pow(HostMemory::get(cpu_sum, r * C + c), 2.0);
        exact[r] = 1.0 / std::sqrt(squares / C + kEps);
      }
      check_twice("rstd", b.fetch(rstd), cpu_rstd, exact);

      const Tensor again = check_operand(b, "h again", M, C, [&](QuantizedTensor& out) {
        b.gpu().recompute_rmsnorm(out, sum, rstd, gpu_weight);
      });
      CHECK(same_bits(again, h));

      const Tensor dh = host.random(DType::bf16, M, C, 1.0f);
      const Tensor dresidual = branched ? host.random(DType::bf16, M, C, 1.0f) : Tensor{};
      for (const DType grad : {DType::f32, DType::bf16})
        for (const bool accumulate : {true, false}) {
          INFO("dweight " << name_of(grad) << (accumulate ? " +=" : " ="));
          const Tensor before = host.random(grad, 1, C, 1.0f);
          const auto backward = [&](DType dtype, DType gradient, Tensor& dweight) {
            QuantizedTensor dx;
            dx.value = host.tensor(dtype, M, C);
            dweight = host.converted(before, gradient);
            b.cpu->rmsnorm_backward(dx, dweight, accumulate, host.converted(dresidual, dtype),
                                    host.converted(dh, dtype), host.converted(cpu_sum, dtype), cpu_rstd,
                                    host.converted(weight, dtype));
            return dx.value;
          };
          Tensor cpu_dweight, unused;
          const Tensor naive_dx = backward(DType::bf16, grad, cpu_dweight);
          const Tensor true_dx = backward(DType::f32, DType::f32, unused);
          std::vector<double> true_dweight(C);
          for (std::int64_t c = 0; c < C; ++c) {
            true_dweight[c] = accumulate ? HostMemory::get(before, c) : 0.0;
            for (std::int64_t r = 0; r < M; ++r)
              true_dweight[c] += static_cast<double>(HostMemory::get(dh, r * C + c)) *
                                 HostMemory::get(cpu_sum, r * C + c) * cpu_rstd.as<float>()[r];
          }
          const Tensor gpu_dh = b.on_gpu(dh), gpu_sum = b.on_gpu(cpu_sum), gpu_rstd = b.on_gpu(cpu_rstd);
          const Tensor gpu_residual = b.on_gpu(dresidual), gpu_before = b.on_gpu(before);
          const Tensor dweight = b.gpu_output(grad, 1, C);
          const Tensor dx = check_operand(b, "dx", M, C, [&](QuantizedTensor& out) {
            b.gpu().convert(dweight, gpu_before);
            b.gpu().rmsnorm_backward(out, dweight, accumulate, gpu_residual, gpu_dh, gpu_sum, gpu_rstd,
                                     gpu_weight);
          });
          check_twice("dx", dx, naive_dx, HostMemory::values(true_dx));
          check_twice("dweight", b.fetch(dweight), cpu_dweight, true_dweight);
        }
    }
}

TEST_CASE("swiglu and swiglu_backward", "[gpu]") {
  Bench b;
  if (!b) return;
  // Tiles of gate and up that line up with blocks, and a width where they do not.
  for (const Size& size : {Size{128, 256}, Size{100, 128}, Size{133, 208}}) {
    b.start();
    HostMemory& host = *b.host;
    const auto [M, F] = size;
    INFO(M << " x " << F);
    const Tensor gate_up = host.random(DType::bf16, M, 2 * F, 4.0f),
                 ds = host.random(DType::bf16, M, F, 1.0f);
    HostMemory::set(gate_up, 0, -1000.0f);  // e^1000 overflows
    HostMemory::set(gate_up, 1, 1000.0f);
    const auto cpu_run = [&](DType dtype, Tensor& dgate_up) {
      QuantizedTensor s, d;
      s.value = host.tensor(dtype, M, F);
      dgate_up = d.value = host.tensor(dtype, M, 2 * F);
      b.cpu->swiglu_backward(d, s, host.converted(ds, dtype), host.converted(gate_up, dtype));
      return s.value;
    };
    Tensor naive_d, true_d;
    const Tensor naive = cpu_run(DType::bf16, naive_d), truth = cpu_run(DType::f32, true_d);
    const Tensor gpu_in = b.on_gpu(gate_up), gpu_ds = b.on_gpu(ds);
    const Tensor s = check_operand(b, "s", M, F, [&](QuantizedTensor& out) { b.gpu().swiglu(out, gpu_in); });
    check_twice("s", s, naive, HostMemory::values(truth));
    // Forward keeps the amax for backward also where its own forms have no use for it.
    float amax = 0;
    for (double v : HostMemory::values(s)) amax = std::max(amax, static_cast<float>(std::fabs(v)));
    for (const QuantFormat& row : {QuantFormat{}, kRow, kBlock}) {
      QuantizedTensor out = gpu_operand(*b.buffers, b.gpu(), {row, {}}, M, F);
      out.amax = b.gpu_output(DType::f32, 1, 1);
      out.keep_value = !row.quantized();
      b.gpu().swiglu(out, gpu_in);
      CHECK(b.fetch(out.amax).as<float>()[0] == amax);
    }

    for (const OperandFormats& again : {OperandFormats{}, {{}, kTensorE4m3}, {kBlock, kRow}, {{}, kMx}}) {
      QuantizedTensor gpu_s;
      const Tensor d = check_operand(b, "dgate_up", M, 2 * F, [&](QuantizedTensor& out) {
        gpu_s = gpu_operand(*b.buffers, b.gpu(), again, M, F);
        gpu_s.keep_value = out.keep_value;
        b.gpu().swiglu(gpu_s, gpu_in);  // makes the amax, as forward does
        for (const Tensor& t : {gpu_s.rowwise.data, gpu_s.columnwise.data, gpu_s.value})
          if (!t.empty()) b.gpu().upload(t, host.tensor(t.dtype, t.rows, t.cols).data);
        b.gpu().synchronize();
        b.gpu().swiglu_backward(out, gpu_s, gpu_ds, gpu_in);
        check_forms("s again", host, b.gpu(), *b.cpu, gpu_s, s);
        if (gpu_s.keep_value) CHECK(same_bits(b.fetch(gpu_s.value), s));
      });
      check_twice("dgate_up", d, naive_d, HostMemory::values(true_d));
    }
  }
}

TEST_CASE("rope and rope_backward, with and without QK-norm", "[gpu]") {
  Bench b;
  if (!b) return;
  for (const AttentionShape& shape : {AttentionShape{2, 64, 4, 2, 64}, AttentionShape{1, 40, 3, 1, 32},
                                      AttentionShape{3, 7, 2, 2, 128}, AttentionShape{1, 33, 5, 5, 16}})
    for (const bool norm : {false, true}) {
      b.start();
      HostMemory& host = *b.host;
      const std::int64_t M = shape.tokens(), W = shape.qkv_width(), D = shape.head_dim;
      INFO("T " << shape.T << ", D " << D << (norm ? ", QK-norm" : ""));
      const Tensor qkv = host.random(DType::bf16, M, W, 1.0f), dout = host.random(DType::bf16, M, W, 1.0f);
      const Tensor gains[2] = {host.random(DType::bf16, 1, D, 1.0f), host.random(DType::bf16, 1, D, 1.0f)};
      const auto options = [&](auto&& place) {
        RopeOptions o{.shape = shape, .q_norm = {}, .k_norm = {}};
        if (norm) o.q_norm = place(gains[0]), o.k_norm = place(gains[1]);
        return o;
      };
      const auto run = [&](DType dtype, DType grad, Tensor& out, Tensor(&dgain)[2], bool accumulate) {
        const RopeOptions o = options([&](const Tensor& t) { return host.converted(t, dtype); });
        const Tensor in = host.converted(qkv, dtype);
        out = host.tensor(dtype, M, W);
        b.cpu->rope(out, in, o);
        QuantizedTensor d;
        d.value = host.tensor(dtype, M, W);
        for (int i = 0; i < 2; ++i) dgain[i] = norm ? host.converted(gains[i], grad) : Tensor{};
        b.cpu->rope_backward(d, dgain[0], dgain[1], accumulate, host.converted(dout, dtype), in, o);
        return d.value;
      };
      const RopeOptions gpu_options = options([&](const Tensor& t) { return b.on_gpu(t); });
      const Tensor gpu_qkv = b.on_gpu(qkv), gpu_dout = b.on_gpu(dout);
      const Tensor out = b.gpu_output(DType::bf16, M, W);
      b.gpu().rope(out, gpu_qkv, gpu_options);
      for (const DType grad : {DType::f32, DType::bf16})
        for (const bool accumulate : {false, true}) {
          Tensor naive_out, true_out, naive_dgain[2], unused[2];
          const Tensor naive_d = run(DType::bf16, grad, naive_out, naive_dgain, accumulate);
          const Tensor true_d = run(DType::f32, DType::f32, true_out, unused, accumulate);
          b.check("out", out, naive_out, true_out);
          Tensor dgain[2];
          for (Tensor& t : dgain)
            if (norm) t = b.gpu_output(grad, 1, D);
          const Tensor d = check_operand(b, "dqkv", M, W, [&](QuantizedTensor& x) {
            for (int i = 0; norm && i < 2; ++i)
              b.gpu().upload(dgain[i], host.converted(gains[i], grad).data), b.gpu().synchronize();
            b.gpu().rope_backward(x, dgain[0], dgain[1], accumulate, gpu_dout, gpu_qkv, gpu_options);
          });
          check_twice("dqkv", d, naive_d, HostMemory::values(true_d));
          for (int i = 0; norm && i < 2; ++i) {
            std::vector<double> truth =
                true_dgains(shape, qkv, dout, options([](const Tensor& t) { return t; }), i);
            for (std::int64_t c = 0; accumulate && c < D; ++c) truth[c] += HostMemory::get(gains[i], c);
            check_twice(i ? "dk_norm" : "dq_norm", b.fetch(dgain[i]), naive_dgain[i], truth);
          }
        }
      if (norm) continue;
      b.gpu().rope(gpu_qkv, gpu_qkv, gpu_options);
      CHECK(same_bits(b.fetch(gpu_qkv), b.fetch(out)));
      QuantizedTensor in_place = gpu_operand(*b.buffers, b.gpu(), {kRow, kRow}, M, W);
      in_place.value = b.on_gpu(dout);
      QuantizedTensor apart = gpu_operand(*b.buffers, b.gpu(), {}, M, W);
      b.gpu().rope_backward(apart, {}, {}, false, gpu_dout, gpu_qkv, gpu_options);
      b.gpu().rope_backward(in_place, {}, {}, false, in_place.value, gpu_qkv, gpu_options);
      CHECK(same_bits(b.fetch(in_place.value), b.fetch(apart.value)));
      check_forms("in place", host, b.gpu(), *b.cpu, in_place, b.fetch(apart.value));
    }
}

TEST_CASE("embedding copies rows, its backward adds them in token order", "[gpu]") {
  Bench b;
  if (!b) return;
  for (const std::int64_t V : {3, 1000})
    for (const DType grad : {DType::f32, DType::bf16}) {
      b.start();
      HostMemory& host = *b.host;
      const std::int64_t M = 300, C = 264;
      INFO("V " << V << ", dtable " << name_of(grad));
      const Tensor table = host.random(DType::bf16, V, C, 1.0f), tokens = host.tokens(M, V);
      const Tensor dx = host.random(DType::bf16, M, C, 1.0f), dtable = host.random(grad, V, C, 1.0f);
      const Tensor x = host.tensor(DType::bf16, M, C), gpu_x = b.gpu_output(DType::bf16, M, C);
      const Tensor gpu_tokens = b.on_gpu(tokens), gpu_dtable = b.on_gpu(dtable);
      b.cpu->embedding(x, tokens, table);
      b.gpu().embedding(gpu_x, gpu_tokens, b.on_gpu(table));
      CHECK(same_bits(b.fetch(gpu_x), x));
      b.cpu->embedding_backward(dtable, dx, tokens);
      b.gpu().embedding_backward(gpu_dtable, b.on_gpu(dx), gpu_tokens);
      CHECK(same_bits(b.fetch(gpu_dtable), dtable));
    }
}

TEST_CASE("cross_entropy, loss and gradient", "[gpu]") {
  Bench b;
  if (!b) return;
  // The last two are longer than the shared memory of a block; odd widths have no aligned rows.
  for (const Size& size : {Size{300, 256}, Size{17, 1001}, Size{3, 128256}, Size{2, 121001}}) {
    b.start();
    HostMemory& host = *b.host;
    const auto [M, V] = size;
    INFO(M << " x " << V);
    const Tensor logits = host.random(DType::bf16, M, V, 3.0f), targets = host.tokens(M, V);
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
      true_loss[r] = std::log(sum) + largest - HostMemory::get(logits, r * V + target);
      for (std::int64_t v = 0; v < V; ++v)
        true_gradient[r * V + v] =
            (std::exp(HostMemory::get(logits, r * V + v) - largest) / sum - (v == target)) * kScale;
    }
    const Tensor loss = host.tensor(DType::f32, M, 1), gpu_loss = b.gpu_output(DType::f32, M, 1);
    const Tensor gpu_logits = b.on_gpu(logits);
    b.gpu().cross_entropy(gpu_loss, gpu_logits, b.on_gpu(targets), kScale);
    b.cpu->cross_entropy(loss, logits, targets, kScale);
    check_twice("loss", b.fetch(gpu_loss), loss, true_loss);
    check_twice("dlogits", b.fetch(gpu_logits), logits, true_gradient);
  }
}

}  // namespace precbench
