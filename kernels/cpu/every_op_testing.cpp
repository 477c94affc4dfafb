// Calls of every op of the CPU device. See every_op_testing.h.
#include "kernels/cpu/every_op_testing.h"

#include <cstring>

#include "kernels/device/moe_testing.h"
#include "kernels/numerics/custom_format.h"
#include "kernels/numerics/format_testing.h"
#include "kernels/numerics/scale_layout.h"

namespace precbench::testing {
namespace {

// More rows than any op's run (64, 128), no multiple of 2 or 3; more elements than a chunk of 16384.
constexpr std::int64_t kM = 265, kC = 99;

/// Returns the scalars of a step as an op reads them.
Tensor step_scalars(OpRun& run) {
  const StepScalars scalars{.lr = 0.01f, .bias_correction1 = 0.3f, .bias_correction2 = 0.2f, .seed = 5};
  const Tensor words = run.input(DType::f32, 1, 4);
  std::memcpy(words.data, &scalars, sizeof scalars);
  return words;
}

/// Returns an output without quantized copies.
QuantizedTensor plain(const Tensor& value) { return {.value = value}; }

/// Returns one FP32 number.
Tensor number(OpRun& run, float value) {
  const Tensor t = run.input(DType::f32, 1, 1);
  *t.as<float>() = value;
  return t;
}

/// Returns values whose magnitudes are those of squares.
Tensor squares(OpRun& run, DType dtype, std::int64_t rows, std::int64_t cols) {
  const Tensor t = run.changed(dtype, rows, cols);
  for (std::int64_t i = 0; i < t.size(); ++i)
    checks::HostMemory::set(t, i, std::fabs(checks::HostMemory::get(t, i)) * 0.1f);
  return t;
}

void elementwise(Device& device, OpRun& run) {
  const Tensor x = run.input(DType::f32, kM, kC), y = run.input(DType::bf16, kM, kC);
  device.add({run.changed(DType::f32, kM, kC), y});
  device.convert({run.output(DType::bf16, kM, kC), x});
  device.sum({run.output(DType::f32, 1, 1), x, false});
  device.sum_of_squares({run.output(DType::f32, 1, 1), x, false});
  device.fingerprint({run.output(DType::i32, 1, 2), x});
  device.correlate({run.output(DType::f32, 1, 4), x, y, false});
  device.fill({run.output(DType::bf16, kM, kC), 0.1f});
  device.init_normal({run.output(DType::f32, kM, kC), 0.7f, 3, 0});
}

void matmul(Device& device, OpRun& run) {
  // More rows and columns than a tile of D has (192 x 512), and a K of several blocks.
  constexpr std::int64_t kN = 2100, kDeep = 701;
  const Tensor a = run.input(DType::bf16, kM, kC), b = run.input(DType::f32, kN, kC);
  const Tensor c = run.input(DType::bf16, kC, kM);
  device.matmul({run.output(DType::f32, kM, kN), {{}, a, {}, false}, {{}, b, {}, false}, {}});
  device.matmul({run.output(DType::bf16, kM, kN), {{}, c, {}, true}, {{}, b, {}, false}, {}});
  const Tensor deep = run.input(DType::bf16, 9, kDeep), wide = run.input(DType::bf16, 33, kDeep);
  device.matmul(
      {run.changed(DType::f32, 9, 33), {{}, deep, {}, false}, {{}, wide, {}, false}, {.accumulate = true}});
}

void quantize_in(Device& device, OpRun& run, const std::vector<QuantFormat>& formats, std::int64_t rows,
                 std::int64_t cols) {
  const Tensor x = run.input(DType::bf16, rows, cols);
  for (const QuantFormat& format : formats) {
    const QuantizedTensor made = run.quantized(x, format, format);
    device.quantize({made});
    device.dequantize({run.output(DType::bf16, rows, cols), made.rowwise});
    device.quantization_error({run.output(DType::f32, 1, 5), x, made.columnwise, true});
  }
}

void quantize(Device& device, OpRun& run) {
  quantize_in(device, run,
              {kTensorE4m3,
               {DType::e5m2, Granularity::row, ScaleType::f32_pow2},
               kRowExact,
               kBlock,
               kSquare,
               kMx,
               kTensorE4m1,
               kTensorE5m3},
              kM, kC);
}

void quantize_fp4(Device& device, OpRun& run) {
  std::vector<QuantFormat> formats = nvfp4_formats();
  const std::vector<QuantFormat> others = other_fp4_formats();
  formats.insert(formats.end(), others.begin(), others.end());
  quantize_in(device, run, formats, 256, 384);
}

void embedding(Device& device, OpRun& run) {
  std::vector<std::int32_t> tokens(kM);
  for (std::int64_t m = 0; m < kM; ++m) tokens[m] = static_cast<std::int32_t>(m * m % 37);
  const Tensor table = run.input(DType::bf16, 40, kC), dx = run.input(DType::bf16, kM, kC);
  const Tensor ids = run.integers(tokens);
  device.embedding({run.output(DType::bf16, kM, kC), ids, table});
  device.embedding_backward({run.changed(DType::bf16, 40, kC), dx, ids});
}

void rmsnorm(Device& device, OpRun& run) {
  const Tensor x = run.input(DType::bf16, kM, kC), branch = run.input(DType::bf16, kM, kC);
  const Tensor weight = run.input(DType::bf16, 1, kC), dh = run.input(DType::bf16, kM, kC);
  const Tensor sum = run.output(DType::bf16, kM, kC), rstd = run.output(DType::f32, kM, 1);
  device.add_rmsnorm({plain(run.output(DType::bf16, kM, kC)), sum, rstd, x, branch, weight, 1e-5f});
  device.rmsnorm_backward({plain(run.output(DType::bf16, kM, kC)), run.changed(DType::f32, 1, kC), true,
                           branch, dh, sum, rstd, weight});
}

void kept_inputs(Device& device, OpRun& run) {
  constexpr std::int64_t kWide = 96;
  const Tensor x = run.input(DType::bf16, kM, kWide), narrow = run.input(DType::bf16, kM, kWide / 2),
               weight = run.input(DType::bf16, 1, kWide), rstd = run.output(DType::f32, kM, 1);
  const QuantizedTensor made = run.quantized(x, kGroupsOf16, {});
  const GemmOperand& kept = made.rowwise;
  device.quantize({made});
  device.swiglu({plain(run.output(DType::bf16, kM, kWide / 2)), x, Activation::silu, kept});
  device.swiglu_backward({plain(run.output(DType::bf16, kM, kWide)), plain(run.output(DType::bf16, kM, kWide / 2)),
                          narrow, {}, Activation::silu, kept});
  device.add_rmsnorm({plain(run.output(DType::bf16, kM, kWide)), run.output(DType::bf16, kM, kWide), rstd, x,
                      run.input(DType::bf16, kM, kWide), weight, 1e-5f, 0, kept});
  device.rmsnorm_backward({plain(run.output(DType::bf16, kM, kWide)), run.output(DType::f32, 1, kWide), false, {}, x,
                           {}, rstd, weight, 0, kept});
}

void layernorm(Device& device, OpRun& run) {
  const Tensor x = run.input(DType::bf16, kM, kC), branch = run.input(DType::bf16, kM, kC);
  const Tensor weight = run.input(DType::bf16, 1, kC), bias = run.input(DType::bf16, 1, kC),
               dh = run.input(DType::bf16, kM, kC);
  const Tensor sum = run.output(DType::bf16, kM, kC), mean = run.output(DType::f32, kM, 1),
               rstd = run.output(DType::f32, kM, 1);
  device.add_layernorm(
      {plain(run.output(DType::bf16, kM, kC)), sum, mean, rstd, x, branch, weight, bias, 1e-5f});
  device.layernorm_backward({plain(run.output(DType::bf16, kM, kC)), run.changed(DType::f32, 1, kC),
                             run.output(DType::f32, 1, kC), false, branch, dh, sum, mean, rstd, weight});
}

void attention_with(Device& device, OpRun& run, float softcap) {
  AttentionShape s{3, 65, 4, 2, 8};
  s.softcap = softcap;
  const std::int64_t M = s.tokens(), W = s.qkv_width(), D = s.head_dim;
  const Tensor raw = run.input(DType::bf16, M, W), dout = run.input(DType::bf16, M, s.q_width());
  const RopeOptions rope{
      .shape = s, .q_norm = run.input(DType::bf16, 1, D), .k_norm = run.input(DType::bf16, 1, D)};
  const Tensor qkv = run.output(DType::bf16, M, W), out = run.output(DType::bf16, M, s.q_width()),
               lse = run.output(DType::f32, s.heads, M), dqkv = run.output(DType::bf16, M, W);
  device.rope({qkv, raw, rope});
  device.attention({plain(out), lse, qkv, s});
  device.attention_backward({dqkv, dout, out, lse, qkv, s});
  device.rope_backward({plain(run.output(DType::bf16, M, W)), run.output(DType::f32, 1, D),
                        run.output(DType::f32, 1, D), false, dqkv, raw, rope});
}

void attention(Device& device, OpRun& run) { attention_with(device, run, 0); }
void capped_attention(Device& device, OpRun& run) { attention_with(device, run, 2.5f); }

void attention_sink(Device& device, OpRun& run) {
  const AttentionShape s{3, 65, 4, 2, 9};
  const std::int64_t M = s.tokens();
  const Tensor out = run.changed(DType::bf16, M, s.q_width()), lse = run.changed(DType::f32, s.heads, M),
               sink = run.input(DType::bf16, 1, s.heads), dout = run.input(DType::bf16, M, s.q_width());
  device.attention_sink({out, lse, sink, s});
  device.attention_sink_backward({run.changed(DType::f32, 1, s.heads), true, dout, out, lse, sink, s});
}

void merge_attention(Device& device, OpRun& run) {
  const AttentionShape s{3, 65, 4, 2, 9};
  const std::int64_t M = s.tokens();
  device.merge_attention({run.changed(DType::f32, M, s.q_width()), run.changed(DType::f32, s.heads, M),
                          run.input(DType::bf16, M, s.q_width()), run.input(DType::f32, s.heads, M), s});
}

void latent_heads(Device& device, OpRun& run) {
  AttentionShape s{3, 41, 3, 3, 22};
  s.value_dim = 13;
  const LatentHeadsOptions options{.shape = s, .rope_dim = 10, .q_scale = 1.3f};
  const std::int64_t M = s.tokens(), up = options.kv_up_width();
  const Tensor dqkv = run.input(DType::bf16, M, s.qkv_width());
  device.latent_heads({run.output(DType::bf16, M, s.qkv_width()), run.input(DType::bf16, M, s.q_width()),
                       run.input(DType::bf16, M, up), run.input(DType::bf16, M, 17), options});
  device.latent_heads_backward({run.output(DType::bf16, M, s.q_width()), run.output(DType::bf16, M, up),
                                run.output(DType::bf16, M, 17), dqkv, options});
}

void bias(Device& device, OpRun& run) {
  const Tensor b = run.input(DType::f32, 1, kC), weights = run.input(DType::f32, kM, 1),
               dy = run.input(DType::bf16, kM, kC);
  device.add_bias({run.changed(DType::f32, kM, kC), b, weights});
  device.bias_backward({run.changed(DType::f32, 1, kC), true, dy, weights});
  device.bias_backward({run.output(DType::f32, 1, kC), false, dy});
  const Tensor gate = run.output(DType::f32, kM, 1), raw = run.input(DType::bf16, kM, kC);
  device.gate_rows({run.output(DType::bf16, kM, kC), gate, raw, run.input(DType::bf16, kM, kC),
                    run.input(DType::bf16, 1, kC, 0.1f)});
  device.gate_rows_backward({run.output(DType::bf16, kM, kC), run.output(DType::f32, kM, 1), dy, raw, gate});
}

void swiglu(Device& device, OpRun& run) {
  const Tensor gate_up = run.input(DType::f32, kM, 2 * kC, 2.0f), ds = run.input(DType::bf16, kM, kC);
  for (const Activation activation : {Activation::silu, Activation::gelu_tanh}) {
    device.swiglu({plain(run.output(DType::f32, kM, kC)), gate_up, activation});
    device.swiglu_backward({plain(run.output(DType::f32, kM, 2 * kC)), plain(run.output(DType::f32, kM, kC)),
                            ds, gate_up, activation});
  }
}

void activate_with(Device& device, OpRun& run, Activation activation) {
  const Tensor z = run.input(DType::f32, kM, kC, 2.0f), b = run.input(DType::bf16, 1, kC),
               ds = run.input(DType::bf16, kM, kC);
  device.activate({plain(run.output(DType::f32, kM, kC)), z, b, activation});
  device.activate_backward(
      {plain(run.output(DType::f32, kM, kC)), plain(run.output(DType::f32, kM, kC)), ds, z, b, activation});
}

void activate(Device& device, OpRun& run) {
  for (const Activation activation : {Activation::gelu_tanh, Activation::relu2, Activation::silu})
    activate_with(device, run, activation);
}
void gelu(Device& device, OpRun& run) { activate_with(device, run, Activation::gelu); }

void loss_with(Device& device, OpRun& run, float softcap) {
  const Tensor targets = run.integers(std::vector<std::int32_t>(kM, 5));
  device.cross_entropy({run.output(DType::f32, kM, 1), run.changed(DType::f32, kM, kC, 2.0f), targets, 0.01f,
                        softcap, run.input(DType::f32, kM, 1)});
  device.compare_logits({run.output(DType::f32, kM, 2), run.input(DType::bf16, kM, kC),
                         run.input(DType::bf16, kM, kC), targets, softcap});
}

void cross_entropy(Device& device, OpRun& run) { loss_with(device, run, 0); }
void capped_cross_entropy(Device& device, OpRun& run) { loss_with(device, run, 3.0f); }

constexpr std::int64_t kExperts = 7, kTop = 2;

void route(Device& device, OpRun& run) {
  const Tensor x = run.input(DType::bf16, kM, kC), router = run.input(DType::f32, kExperts, kC, 0.1f);
  for (const RouterScore score : {RouterScore::softmax, RouterScore::sigmoid})
    for (const bool normalise : {true, false}) {
      const RoutingRule rule{kExperts, kTop, score, normalise, 1.7};
      const Tensor z = run.output(DType::f32, kM, kExperts), index = run.output(DType::i32, kM, kTop),
                   report = run.output(DType::f32, 1, kExperts + 2);
      device.route({z,
                    index,
                    run.output(DType::f32, kM, kTop),
                    report,
                    run.integers({0}),
                    x,
                    router,
                    {},
                    {},
                    rule,
                    run.input(DType::f32, 1, kExperts)});
      device.route_backward({run.output(DType::f32, kM, kC), run.output(DType::f32, kExperts, kC), false,
                             run.input(DType::bf16, kM, kC), run.input(DType::f32, kM, kTop), z, index,
                             report, x, router, rule, 0.01f, 0.003f, 0.7f,
                             run.output(DType::f32, 1, kExperts)});
    }
  device.update_routing_bias(
      {run.changed(DType::f32, 2, kExperts), run.input(DType::f32, 2, kExperts), 0.01f});
}

void experts(Device& device, OpRun& run) {
  const Tensor index = run.integers(uneven_index(kM, kTop, kExperts), kTop);
  const Groups groups = make_groups(
      device, [&](DType t, std::int64_t r, std::int64_t c) { return run.output(t, r, c); }, index, kExperts,
      16, 120, run.output(DType::f32, 1, 3));
  const std::int64_t rows = groups.rows_capacity(), wide = 2 * kC;
  const Tensor weights = run.input(DType::f32, kM, kTop), x = run.input(DType::bf16, kM, kC),
               y = run.input(DType::bf16, rows, kC), gate_up = run.input(DType::bf16, rows, wide),
               ds = run.input(DType::bf16, rows, kC), dy = run.input(DType::bf16, kM, kC);
  device.permute({plain(run.output(DType::bf16, rows, kC)), plain(x), weights, groups});
  device.unpermute(
      {run.output(DType::f32, kM, kC), y, x, weights, run.output(DType::f32, kM, kTop), x, groups});
  for (const float limit : {0.0f, 0.8f}) {
    device.grouped_swiglu({plain(run.output(DType::f32, rows, kC)), gate_up, weights, groups, limit});
    device.grouped_swiglu_backward({plain(run.output(DType::f32, rows, wide)),
                                    plain(run.output(DType::f32, rows, kC)), run.output(DType::f32, kM, kTop),
                                    ds, gate_up, weights, groups, limit});
  }
  const Tensor stack = run.input(DType::f32, 1, kExperts * kC), slots = run.changed(DType::f32, kM, kTop);
  device.add_expert_bias({run.changed(DType::f32, rows, kC), stack, groups});
  device.expert_bias_backward({run.output(DType::f32, 1, kExperts * kC), false, ds, groups});
  device.add_routed_bias({run.changed(DType::f32, kM, kC), stack, index, weights});
  device.routed_bias_backward(
      {run.output(DType::f32, 1, kExperts * kC), false, slots, dy, stack, index, weights});
  device.grouped_matmul({run.output(DType::f32, rows, kC),
                         {{}, y, {}, false},
                         {{}, run.input(DType::bf16, kExperts * kC, kC), {}, false},
                         groups});
}

void adamw(Device& device, OpRun& run) {
  const Tensor gradient = run.input(DType::bf16, kM, kC), norm = number(run, 4.0f), step = step_scalars(run);
  device.adamw({run.changed(DType::bf16, kM, kC),
                {},
                run.changed(DType::f32, kM, kC),
                squares(run, DType::bf16, kM, kC),
                gradient,
                step,
                norm,
                {.stochastic_rounding = true}});
  device.adamw({run.changed(DType::bf16, kM, kC),
                run.changed(DType::f32, kM, kC),
                run.changed(DType::f32, kM, kC),
                squares(run, DType::f32, kM, kC),
                run.input(DType::f32, kM, kC),
                step,
                norm,
                {}});
}

void lion_and_muon(Device& device, OpRun& run) {
  const Tensor gradient = run.input(DType::f32, kM, kC), norm = number(run, 4.0f), step = step_scalars(run);
  device.lion({run.output(DType::bf16, kM, kC),
               run.changed(DType::f32, kM, kC),
               run.changed(DType::f32, kM, kC),
               gradient,
               step,
               norm,
               {}});
  const Tensor update = run.output(DType::bf16, kM, kC);
  device.momentum({update, run.changed(DType::f32, kM, kC), gradient, norm, 0.95f, 1.0f});
  device.to_unit_norm({run.changed(DType::bf16, kM, kC), norm, 1e-7f});
  device.combine({run.output(DType::f32, kM, kC), 3.4445f, gradient, -4.775f, run.input(DType::f32, kM, kC)});
  device.descend({run.output(DType::bf16, kM, kC), run.changed(DType::f32, kM, kC), update, step, 0.3f, {}});
}

void adafactor(Device& device, OpRun& run) {
  const Tensor gradient = run.input(DType::f32, kM, kC), norm = number(run, 4.0f), step = step_scalars(run);
  const Tensor rows = run.output(DType::f32, 1, kM), cols = run.output(DType::f32, 1, kC);
  const FactoredMoment moment{squares(run, DType::f32, 1, kM), squares(run, DType::f32, 1, kC),
                              run.output(DType::f32, 1, 1)};
  device.factored_sums({rows, cols, gradient, 0});
  device.factored_average({moment, rows, cols, step, norm, 1.0f});
  const Tensor update_squares = run.output(DType::f32, 1, 1);
  device.factored_norm({update_squares, moment, gradient, 0, norm, {}});
  device.factored_update({run.output(DType::bf16, kM, kC),
                          run.changed(DType::f32, kM, kC),
                          moment,
                          gradient,
                          0,
                          number(run, 300.0f),
                          update_squares,
                          step,
                          norm,
                          {}});
}

void scaled_values(Device& device, OpRun& run) {
  const Tensor x = run.input(DType::f32, kM, kC);
  for (const DType dtype : {DType::f16, DType::e4m3}) {
    const Tensor codes = run.output(dtype, kM, kC);
    const StateScale scale{number(run, 1.0f), number(run, 0.0f)};
    device.encode({codes, scale, x, false, true});
    device.encode({codes, scale, x});
    device.commit_scale({scale.scale, scale.amax, 448.0f});
    device.decode({run.output(DType::f32, kM, kC), codes, scale.scale});
    device.sum_codes({run.output(DType::f32, 1, kC), codes, 0, scale.scale});
  }
}

}  // namespace

Tensor OpRun::integers(const std::vector<std::int32_t>& values, std::int64_t cols) {
  return host_integers(memory_, values, cols);
}

GemmOperand OpRun::copy(const QuantFormat& format, std::int64_t rows, std::int64_t k) {
  if (!format.quantized()) return {};
  GemmOperand made{format, output(format.dtype, rows, k),
                   output(scale_dtype(format), 1, scale_count(format.granularity, rows, k)), false};
  if (format.scale == ScaleType::e4m3) made.amax = output(DType::f32, 1, 1);
  return made;
}

QuantizedTensor OpRun::quantized(const Tensor& value, const QuantFormat& rowwise,
                                 const QuantFormat& columnwise) {
  return {.value = value,
          .rowwise = copy(rowwise, value.rows, value.cols),
          .columnwise = copy(columnwise, value.cols, value.rows),
          .amax_out = output(DType::f32, 1, 1),
          .random = {.word = integers({12345}), .stream = 2}};
}

const std::vector<OpGroup>& every_op() {
  static const std::vector<OpGroup> groups = {{"elementwise", elementwise},
                                              {"matmul", matmul},
                                              {"quantize", quantize},
                                              {"quantize to FP4", quantize_fp4},
                                              {"embedding", embedding},
                                              {"RMSNorm", rmsnorm},
                                              {"kept inputs", kept_inputs},
                                              {"LayerNorm", layernorm},
                                              {"attention and RoPE", attention},
                                              {"soft-capped attention", capped_attention},
                                              {"attention sink", attention_sink},
                                              {"merge attention", merge_attention},
                                              {"latent heads", latent_heads},
                                              {"bias and gate", bias},
                                              {"SwiGLU", swiglu},
                                              {"activation", activate},
                                              {"GELU", gelu},
                                              {"cross-entropy", cross_entropy},
                                              {"soft-capped cross-entropy", capped_cross_entropy},
                                              {"router", route},
                                              {"experts", experts},
                                              {"AdamW", adamw},
                                              {"Lion and Muon", lion_and_muon},
                                              {"Adafactor", adafactor},
                                              {"scaled values", scaled_values}};
  return groups;
}

}  // namespace precbench::testing
