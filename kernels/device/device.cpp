// The accounting of the op vocabulary: what each op costs at least, then the call of the device's own function.
// bytes counts every input read once and every output written once; flops counts matrix multiply-adds as 2.
#include "kernels/device/device.h"

namespace precbench {
namespace {

double bytes(const Tensor& t) { return t.empty() ? 0.0 : static_cast<double>(t.bytes()); }

double quantized_bytes(const GemmOperand& form) {
  return form.format.quantized() ? bytes(form.data) + bytes(form.scale) : 0.0;
}

/// What a producer writes: the value, unless nobody reads it, and the quantized forms.
double written_bytes(const QuantizedTensor& x) {
  return (x.keep_value ? bytes(x.value) : 0.0) + quantized_bytes(x.rowwise) + quantized_bytes(x.columnwise);
}

OpCost cost(const char* name, OpClass op_class, double byte_count, double flops = 0,
            DType math = DType::bf16) {
  return {name, op_class, flops, byte_count, math};
}

/// Causal attention does half of the T x T scores: 2 matrix products of T^2/2 x D multiply-adds per head.
double attention_flops(const AttentionShape& s, double products) {
  return products * static_cast<double>(s.B) * s.heads * s.T * s.T * s.head_dim;
}

}  // namespace

const char* name_of(OpClass op_class) {
  static constexpr const char* kNames[kOpClasses] = {
      "gemm",      "quantize",  "attention",     "norm_elementwise",
      "head_loss", "optimizer", "communication", "other"};
  return kNames[static_cast<int>(op_class)];
}

const char* name_of(Execution execution) {
  static constexpr const char* kNames[] = {"native", "emulated", "unsupported"};
  return kNames[static_cast<int>(execution)];
}

void Device::zero(const Tensor& x) {
  run(cost("zero", OpClass::other, bytes(x)), [&] { do_zero(x); });
}

void Device::convert(const Tensor& dst, const Tensor& src) {
  run(cost("convert", OpClass::other, bytes(dst) + bytes(src)), [&] { do_convert(dst, src); });
}

void Device::add(const Tensor& dst, const Tensor& src) {
  run(cost("add", OpClass::other, 2 * bytes(dst) + bytes(src)), [&] { do_add(dst, src); });
}

void Device::init_normal(const Tensor& x, float std, std::uint64_t seed, std::int64_t first_index) {
  run(cost("init_normal", OpClass::other, bytes(x)), [&] { do_init_normal(x, std, seed, first_index); });
}

void Device::fill(const Tensor& x, float value) {
  run(cost("fill", OpClass::other, bytes(x)), [&] { do_fill(x, value); });
}

void Device::quantize(QuantizedTensor& x, bool make_amax) {
  const double written = quantized_bytes(x.rowwise) + quantized_bytes(x.columnwise);
  if (written == 0 && (x.amax.empty() || !make_amax)) return;
  run(cost("quantize", OpClass::quantize, bytes(x.value) + written), [&] { do_quantize(x, make_amax); });
}

void Device::amax(const Tensor& out, const Tensor& x) {
  run(cost("amax", OpClass::quantize, bytes(x)), [&] { do_amax(out, x); });
}

void Device::quantize_with_amax(const GemmOperand& form, const Tensor& value, const Tensor& amax) {
  run(cost("quantize_with_amax", OpClass::quantize, bytes(value) + bytes(form.data)),
      [&] { do_quantize_with_amax(form, value, amax); });
}

void Device::transpose(const GemmOperand& dst, const GemmOperand& src) {
  run(cost("transpose", OpClass::quantize, bytes(src.data) + bytes(dst.data)),
      [&] { do_transpose(dst, src); });
}

void Device::copy_columns(const Tensor& dst, std::int64_t first, const Tensor& src) {
  run(cost("copy_columns", OpClass::quantize, 2 * bytes(src)), [&] { do_copy_columns(dst, first, src); });
}

void Device::matmul(const Tensor& d, const GemmOperand& a, const GemmOperand& b,
                    const MatmulOptions& options) {
  const double byte_count = bytes(a.data) + bytes(a.scale) + bytes(b.data) + bytes(b.scale) +
                            bytes(d) * (options.accumulate ? 2 : 1);
  const double flops =
      2.0 * static_cast<double>(d.rows) * static_cast<double>(d.cols) * static_cast<double>(a.k());
  const DType math = a.format.quantized() && b.format.quantized() ? DType::e4m3 : DType::bf16;
  static constexpr const char* kNames[] = {"matmul fprop", "matmul dgrad", "matmul wgrad"};
  run(cost(kNames[static_cast<int>(options.role)], options.op_class, byte_count, flops, math),
      [&] { do_matmul(d, a, b, options); });
}

void Device::embedding(const Tensor& x, const Tensor& tokens, const Tensor& table) {
  // Tokens that occur again find their row in a cache.
  const double rows = bytes_of(table.dtype, std::min(x.rows, table.rows) * x.cols);
  run(cost("embedding", OpClass::norm_elementwise, rows + bytes(x) + bytes(tokens)),
      [&] { do_embedding(x, tokens, table); });
}

void Device::embedding_backward(const Tensor& dtable, const Tensor& dx, const Tensor& tokens) {
  const double touched = 2.0 * bytes_of(dtable.dtype, std::min(dx.rows, dtable.rows) * dx.cols);
  run(cost("embedding_backward", OpClass::norm_elementwise, touched + bytes(dx) + bytes(tokens)),
      [&] { do_embedding_backward(dtable, dx, tokens); });
}

void Device::add_rmsnorm(QuantizedTensor& h, const Tensor& sum, const Tensor& rstd, const Tensor& x,
                         const Tensor& branch, const Tensor& weight, float eps) {
  const double byte_count = bytes(x) + (branch.empty() ? 0.0 : bytes(branch) + bytes(sum)) + bytes(rstd) +
                            bytes(weight) + written_bytes(h);
  run(cost("add_rmsnorm", OpClass::norm_elementwise, byte_count),
      [&] { do_add_rmsnorm(h, sum, rstd, x, branch, weight, eps); });
}

void Device::recompute_rmsnorm(QuantizedTensor& h, const Tensor& sum, const Tensor& rstd,
                               const Tensor& weight) {
  run(cost("recompute_rmsnorm", OpClass::norm_elementwise,
           bytes(sum) + bytes(rstd) + bytes(weight) + written_bytes(h)),
      [&] { do_recompute_rmsnorm(h, sum, rstd, weight); });
}

void Device::rmsnorm_backward(QuantizedTensor& dx, const Tensor& dweight, bool accumulate,
                              const Tensor& dresidual, const Tensor& dh, const Tensor& x, const Tensor& rstd,
                              const Tensor& weight) {
  const double byte_count = bytes(dresidual) + bytes(dh) + bytes(x) + bytes(rstd) + bytes(weight) +
                            bytes(dweight) * (accumulate ? 2 : 1) + written_bytes(dx);
  run(cost("rmsnorm_backward", OpClass::norm_elementwise, byte_count),
      [&] { do_rmsnorm_backward(dx, dweight, accumulate, dresidual, dh, x, rstd, weight); });
}

void Device::rope(const Tensor& out, const Tensor& qkv, const RopeOptions& options) {
  // In place and without a bias, v is neither read nor written.
  const double share = out.data == qkv.data && options.bias.empty()
                           ? static_cast<double>(options.shape.heads + options.shape.kv_heads) /
                                 (options.shape.heads + 2 * options.shape.kv_heads)
                           : 1.0;
  run(cost("rope", OpClass::norm_elementwise, share * (bytes(out) + bytes(qkv))),
      [&] { do_rope(out, qkv, options); });
}

void Device::rope_backward(QuantizedTensor& dqkv, const Tensor& dq_norm, const Tensor& dk_norm,
                           bool accumulate, const Tensor& dout, const Tensor& qkv,
                           const RopeOptions& options) {
  const double byte_count = bytes(dout) + (options.q_norm.empty() ? 0.0 : bytes(qkv)) + written_bytes(dqkv);
  run(cost("rope_backward", OpClass::norm_elementwise, byte_count),
      [&] { do_rope_backward(dqkv, dq_norm, dk_norm, accumulate, dout, qkv, options); });
}

void Device::bias_backward(const Tensor& dbias, bool accumulate, const Tensor& dy) {
  run(cost("bias_backward", OpClass::norm_elementwise, bytes(dy) + bytes(dbias) * (accumulate ? 2 : 1)),
      [&] { do_bias_backward(dbias, accumulate, dy); });
}

void Device::attention(QuantizedTensor& out, const Tensor& lse, const Tensor& qkv,
                       const AttentionShape& shape) {
  run(cost("attention", OpClass::attention, bytes(qkv) + bytes(lse) + written_bytes(out),
           attention_flops(shape, 2)),
      [&] { do_attention(out, lse, qkv, shape); });
}

void Device::attention_backward(const Tensor& dqkv, const Tensor& dout, const Tensor& out, const Tensor& lse,
                                const Tensor& qkv, const AttentionShape& shape) {
  // dV, dP, dQ, dK: the model's FLOPs. The scores, recomputed by every fused implementation, are not counted.
  run(cost("attention_backward", OpClass::attention,
           bytes(qkv) + bytes(dqkv) + bytes(dout) + bytes(out) + bytes(lse), attention_flops(shape, 4)),
      [&] { do_attention_backward(dqkv, dout, out, lse, qkv, shape); });
}

void Device::swiglu(QuantizedTensor& s, const Tensor& gate_up) {
  run(cost("swiglu", OpClass::norm_elementwise, bytes(gate_up) + written_bytes(s)),
      [&] { do_swiglu(s, gate_up); });
}

void Device::swiglu_backward(QuantizedTensor& dgate_up, QuantizedTensor& s, const Tensor& ds,
                             const Tensor& gate_up) {
  run(cost("swiglu_backward", OpClass::norm_elementwise,
           bytes(ds) + bytes(gate_up) + written_bytes(dgate_up) + written_bytes(s)),
      [&] { do_swiglu_backward(dgate_up, s, ds, gate_up); });
}

void Device::cross_entropy(const Tensor& loss, const Tensor& logits, const Tensor& targets, float scale) {
  run(cost("cross_entropy", OpClass::head_loss, 2 * bytes(logits) + bytes(loss) + bytes(targets)),
      [&] { do_cross_entropy(loss, logits, targets, scale); });
}

void Device::sum(const Tensor& out, const Tensor& x, bool accumulate) {
  run(cost("sum", OpClass::head_loss, bytes(x)), [&] { do_sum(out, x, accumulate); });
}

void Device::sum_of_squares(const Tensor& out, const Tensor& x, bool accumulate) {
  run(cost("sum_of_squares", OpClass::optimizer, bytes(x)), [&] { do_sum_of_squares(out, x, accumulate); });
}

void Device::adamw(const Tensor& weights, const Tensor& master, const Tensor& m, const Tensor& v,
                   const Tensor& gradient, const Tensor& scalars, const Tensor& norm_squared,
                   const AdamwOptions& options) {
  // Weights are read only where they are their own master.
  const double weight_bytes = master.empty() ? 2 * bytes(weights) : bytes(weights) + 2 * bytes(master);
  run(cost("adamw", OpClass::optimizer, weight_bytes + 2 * bytes(m) + 2 * bytes(v) + bytes(gradient)),
      [&] { do_adamw(weights, master, m, v, gradient, scalars, norm_squared, options); });
}

void Device::fingerprint(const Tensor& out, const Tensor& x) {
  run(cost("fingerprint", OpClass::other, bytes(x)), [&] { do_fingerprint(out, x); });
}

void Device::quantization_error(const Tensor& out, const Tensor& value, const GemmOperand& form,
                                bool columns) {
  run(cost("quantization_error", OpClass::other, bytes(value) + bytes(form.data) + bytes(form.scale)),
      [&] { do_quantization_error(out, value, form, columns); });
}

}  // namespace precbench
