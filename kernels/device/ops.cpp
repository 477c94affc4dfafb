// Minimum cost of each op, and the name that observers see. bytes counts every input read once and every
// output written once; flops counts a multiply-add as 2.
#include <algorithm>
#include <cstring>

#include "kernels/device/op_cost.h"

namespace precbench {

const char* name_of(OpClass op_class) {
  static constexpr const char* kNames[kOpClasses] = {
      "gemm",      "quantize",      "attention", "norm_elementwise", "head_loss",
      "optimizer", "communication", "other",     "routing"};
  return kNames[static_cast<int>(op_class)];
}

const char* name_of(OpKind kind) {
  static constexpr const char* kNames[] = {
#define PRECBENCH_NAME(Op, name) #name,
      PRECBENCH_OPS(PRECBENCH_NAME)
#undef PRECBENCH_NAME
  };
  return kNames[static_cast<int>(kind)];
}

bool same_call(const OpCost& a, const OpCost& b) {
  return a.op_class == b.op_class && a.flops == b.flops && a.bytes == b.bytes && a.math == b.math &&
         a.casts == b.casts && a.shape == b.shape && a.formats == b.formats && !std::strcmp(a.name, b.name);
}

std::vector<std::int64_t> used_entries(const std::array<std::int64_t, 7>& shape) {
  const auto last = std::find_if(shape.rbegin(), shape.rend(), [](std::int64_t n) { return n != 0; });
  return {shape.begin(), last.base()};
}

std::string formats_text(const OpCost& cost) {
  if (cost.formats == std::array<OpFormat, 2>{}) return {};
  std::string text;
  for (const OpFormat& format : cost.formats) {
    if (!text.empty()) text += ", ";
    text += name_of(format.dtype);
    if (format.dtype == DType::bf16) continue;
    text += std::string(" ") + name_of(format.granularity) + " " + name_of(format.scale);
  }
  return text;
}

namespace ops {
namespace {

/// Returns the bytes of weights that an update rule moves; with a master the weights are only written.
double changed_bytes(const Tensor& weights, const Tensor& master) {
  return master.empty() ? 2 * bytes(weights) : bytes(weights) + 2 * bytes(master);
}

/// Returns twice the visible area of T x keys scores: T^2 for square causal attention.
double doubled_area(const AttentionShape& s) {
  const double keys = static_cast<double>(s.keys());
  const auto below = [keys](double t) {  // twice the area of the rows before t
    return t <= 0 ? 0.0 : t <= keys ? t * t : keys * (2 * t - keys);
  };
  const auto area = [&](std::int64_t offset) {  // of query t and the keys up to t + offset
    return below(static_cast<double>(s.T + offset)) - below(static_cast<double>(offset));
  };
  return area(s.offset) - (s.window > 0 ? area(s.offset - s.window) : 0.0);
}

/// FLOPs of `pairs` pairs of GEMMs over the visible scores: one with head_dim multiply-adds each, one with v_dim().
double attention_flops(const AttentionShape& s, double pairs) {
  return pairs * static_cast<double>(s.B) * s.heads * doubled_area(s) *
         static_cast<double>(s.head_dim + s.v_dim());
}

/// Bytes of q, k and v as attention reads them, or of their gradients as it writes them.
double qkv_bytes(const Tensor& qkv, const Tensor& kv, const AttentionShape& s) {
  return kv.empty() ? bytes(qkv)
                    : static_cast<double>(bytes_of(qkv.dtype, s.tokens() * s.q_width())) + bytes(kv);
}

}  // namespace

OpCost Zero::cost() const { return of("zero", OpClass::other, bytes(x)); }

OpCost Convert::cost() const { return of("convert", OpClass::other, bytes(dst) + bytes(src)); }

OpCost Add::cost() const { return of("add", OpClass::other, 2 * bytes(dst) + bytes(src)); }

OpCost InitNormal::cost() const { return of("init_normal", OpClass::other, bytes(x)); }

OpCost Fill::cost() const { return of("fill", OpClass::other, bytes(x)); }

OpCost Quantize::cost() const {
  OpCost cost =
      casting(shaped_as(of("quantize", OpClass::quantize, bytes(x.value) + copy_bytes(x)), x.value), x);
  if (weight) cost.casts = 0;
  return cost;
}

bool Quantize::idle() const { return copy_bytes(x) == 0 && x.amax_out.empty(); }

OpCost Dequantize::cost() const {
  return shaped_as(of("dequantize", OpClass::quantize, quantized_bytes(operand) + bytes(dst)), dst);
}

OpCost InverseHadamard::cost() const {
  // Records keep this op's former name.
  return of("turn_back", OpClass::quantize, updated_bytes(dst, accumulate) + bytes(src) + bytes(value));
}

OpCost Matmul::cost() const {
  static constexpr const char* kNames[] = {"matmul fprop", "matmul dgrad", "matmul wgrad"};
  const double byte_count =
      bytes(a.data) + bytes(a.scale) + bytes(b.data) + bytes(b.scale) + updated_bytes(d, options.accumulate);
  const double flops =
      2.0 * static_cast<double>(d.rows) * static_cast<double>(d.cols) * static_cast<double>(a.k());
  return shaped(
      multiplying(of(kNames[static_cast<int>(options.role)], options.op_class, byte_count, flops), a, b),
      {d.rows, d.cols, a.k()});
}

OpCost Amax::cost() const { return of("amax", OpClass::quantize, bytes(x)); }

OpCost QuantizeWithAmax::cost() const {
  return of("quantize_with_amax", OpClass::quantize, bytes(value) + bytes(operand.data));
}

OpCost UpdateHistory::cost() const {
  return of("update_history", OpClass::quantize, bytes(known) + 2 * bytes(history) + 2 * bytes(staged));
}

OpCost Transpose::cost() const {
  return shaped_as(of("transpose", OpClass::quantize, bytes(src.data) + bytes(dst.data)), dst.data);
}

OpCost CopyColumns::cost() const {
  return shaped_as(of("copy_columns", OpClass::quantize, 2 * std::min(bytes(dst), bytes(src))), dst);
}

OpCost PlaceRows::cost() const { return of("place_rows", OpClass::attention, bytes(dst) + bytes(src)); }

OpCost Embedding::cost() const {
  // Repeated tokens find their row in a cache.
  const double rows = bytes_of(table.dtype, std::min(x.rows, table.rows) * x.cols);
  return shaped_as(of("embedding", OpClass::norm_elementwise, rows + bytes(x) + bytes(tokens)), x);
}

OpCost EmbeddingBackward::cost() const {
  const double touched = 2.0 * bytes_of(dtable.dtype, std::min(dx.rows, dtable.rows) * dx.cols);
  return shaped_as(of("embedding_backward", OpClass::norm_elementwise, touched + bytes(dx) + bytes(tokens)),
                   dx);
}

OpCost AddRmsnorm::cost() const {
  return casting(shaped_as(of("add_rmsnorm", OpClass::norm_elementwise,
                              bytes(x) + (branch.empty() ? 0.0 : bytes(branch) + bytes(sum)) + bytes(rstd) +
                                  bytes(weight) + quantized_bytes(kept) + written_bytes(h)),
                           x),
                 h, kept);
}

OpCost RecomputeRmsnorm::cost() const {
  return casting(shaped_as(of("recompute_rmsnorm", OpClass::norm_elementwise,
                              bytes(sum) + bytes(rstd) + bytes(weight) + written_bytes(h)),
                           sum),
                 h);
}

OpCost RmsnormBackward::cost() const {
  return casting(shaped_as(of("rmsnorm_backward", OpClass::norm_elementwise,
                              bytes(dresidual) + bytes(dh) + bytes(x) + quantized_bytes(kept) + bytes(rstd) +
                                  bytes(weight) + updated_bytes(dweight, accumulate) + written_bytes(dx)),
                           dh),
                 dx);
}

OpCost AddLayernorm::cost() const {
  return casting(shaped_as(of("add_layernorm", OpClass::norm_elementwise,
                              bytes(x) + (branch.empty() ? 0.0 : bytes(branch) + bytes(sum)) + bytes(mean) +
                                  bytes(rstd) + bytes(weight) + bytes(bias) + written_bytes(h)),
                           x),
                 h);
}

OpCost RecomputeLayernorm::cost() const {
  return casting(
      shaped_as(of("recompute_layernorm", OpClass::norm_elementwise,
                   bytes(sum) + bytes(mean) + bytes(rstd) + bytes(weight) + bytes(bias) + written_bytes(h)),
                sum),
      h);
}

OpCost LayernormBackward::cost() const {
  return casting(shaped_as(of("layernorm_backward", OpClass::norm_elementwise,
                              bytes(dresidual) + bytes(dh) + bytes(x) + bytes(mean) + bytes(rstd) +
                                  bytes(weight) + updated_bytes(dweight, accumulate) +
                                  updated_bytes(dbias, accumulate) + written_bytes(dx)),
                           dh),
                 dx);
}

OpCost Rope::cost() const {
  // In place and without a bias, v is neither read nor written.
  const AttentionShape& s = options.shape;
  const double share = out.data == qkv.data && options.bias.empty()
                           ? static_cast<double>(s.heads + s.kv_heads) / (s.heads + 2 * s.kv_heads)
                           : 1.0;
  return shaped_as(of("rope", OpClass::norm_elementwise, share * (bytes(out) + bytes(qkv))), out);
}

OpCost RopeBackward::cost() const {
  return casting(
      shaped_as(of("rope_backward", OpClass::norm_elementwise,
                   bytes(dout) + (options.q_norm.empty() ? 0.0 : bytes(qkv)) + written_bytes(dqkv)),
                dout),
      dqkv);
}

OpCost LatentHeads::cost() const {
  const double shared = bytes_of(latent.dtype, latent.rows * options.rope_dim);
  return shaped_as(of("latent_heads", OpClass::norm_elementwise,
                      bytes(qkv) + static_cast<double>(bytes_of(q.dtype, q.rows * options.shape.q_width())) +
                          bytes(kv_up) + shared),
                   qkv);
}

OpCost LatentHeadsBackward::cost() const {
  const double shared = bytes_of(dlatent.dtype, dlatent.rows * options.rope_dim);
  return shaped_as(
      of("latent_heads_backward", OpClass::norm_elementwise,
         bytes(dqkv) + static_cast<double>(bytes_of(dq.dtype, dq.rows * options.shape.q_width())) +
             bytes(dkv_up) + shared),
      dqkv);
}

OpCost AddBias::cost() const {
  return shaped_as(of("add_bias", OpClass::norm_elementwise, 2 * bytes(x) + bytes(bias) + bytes(weights)), x);
}

OpCost GateRows::cost() const {
  return shaped_as(
      of("gate_rows", OpClass::norm_elementwise, bytes(y) + bytes(gate) + bytes(raw) + bytes(x) + bytes(w)),
      y);
}

OpCost GateRowsBackward::cost() const {
  return shaped_as(of("gate_rows_backward", OpClass::norm_elementwise,
                      bytes(draw) + bytes(dz) + bytes(dy) + bytes(raw) + bytes(gate)),
                   draw);
}

OpCost BiasBackward::cost() const {
  return shaped_as(
      of("bias_backward", OpClass::norm_elementwise, bytes(dy) + updated_bytes(dbias, accumulate)), dy);
}

OpCost Attention::cost() const {
  return casting(
      shaped_as(of("attention", OpClass::attention,
                   qkv_bytes(qkv, kv, shape) + bytes(lse) + bytes(documents.first_key) + written_bytes(out),
                   documents.visible * attention_flops(shape, 1)),
                shape),
      out);
}

OpCost AttentionBackward::cost() const {
  // dV, dP, dQ, dK: the model's FLOPs. The recomputed scores, which every fused implementation needs, are not
  // counted.
  return shaped_as(of("attention_backward", OpClass::attention,
                      qkv_bytes(qkv, kv, shape) + qkv_bytes(dqkv, dkv, shape) + bytes(dout) + bytes(out) +
                          bytes(lse) + bytes(documents.first_key),
                      documents.visible * attention_flops(shape, 2)),
                   shape);
}

OpCost AttentionSink::cost() const {
  return shaped_as(
      of("attention_sink", OpClass::norm_elementwise, 2 * (bytes(out) + bytes(lse)) + bytes(sink)), out);
}

OpCost MergeAttention::cost() const {
  return shaped_as(of("merge_attention", OpClass::norm_elementwise,
                      2 * (bytes(out) + bytes(lse)) + bytes(part) + bytes(part_lse)),
                   out);
}

OpCost AttentionSinkBackward::cost() const {
  return shaped_as(of("attention_sink_backward", OpClass::norm_elementwise,
                      bytes(dout) + bytes(out) + bytes(lse) + bytes(sink) + updated_bytes(dsink, accumulate)),
                   out);
}

OpCost Swiglu::cost() const {
  return casting(shaped_as(of("swiglu", OpClass::norm_elementwise,
                              bytes(gate_up) + quantized_bytes(kept) + written_bytes(s)),
                           s.value),
                 s, kept);
}

OpCost SwigluBackward::cost() const {
  return casting(casting(shaped_as(of("swiglu_backward", OpClass::norm_elementwise,
                                      bytes(ds) + bytes(gate_up) + quantized_bytes(kept) +
                                          written_bytes(dgate_up) + written_bytes(s)),
                                   ds),
                         dgate_up),
                 s);
}

OpCost Activate::cost() const {
  return casting(
      shaped_as(of("activate", OpClass::norm_elementwise, bytes(z) + bytes(bias) + written_bytes(s)),
                s.value),
      s);
}

OpCost ActivateBackward::cost() const {
  return casting(
      casting(shaped_as(of("activate_backward", OpClass::norm_elementwise,
                           bytes(ds) + bytes(z) + bytes(bias) + written_bytes(dz) + written_bytes(s)),
                        ds),
              dz),
      s);
}

OpCost CrossEntropy::cost() const {
  return shaped_as(of("cross_entropy", OpClass::head_loss,
                      2 * bytes(logits) + bytes(loss) + bytes(targets) + bytes(weights)),
                   logits);
}

OpCost LogitStats::cost() const {
  return shaped_as(of("logit_stats", OpClass::head_loss, bytes(logits) + bytes(stats) + bytes(targets)),
                   logits);
}

OpCost LogitGradient::cost() const {
  return shaped_as(of("logit_gradient", OpClass::head_loss,
                      2 * bytes(logits) + bytes(stats) + bytes(loss) + bytes(targets) + bytes(weights)),
                   logits);
}

OpCost CompareLogits::cost() const {
  return of("compare_logits", OpClass::head_loss,
            bytes(reference) + bytes(logits) + bytes(targets) + bytes(out));
}

OpCost Sum::cost() const { return of("sum", OpClass::head_loss, bytes(x)); }

OpCost SumOfSquares::cost() const { return of("sum_of_squares", OpClass::optimizer, bytes(x)); }

OpCost Adamw::cost() const {
  const double scales = 2 * (bytes(m_scale.scale) + bytes(v_scale.scale) + bytes(master_scale.scale));
  if (measure)
    return of("adamw_measure", OpClass::optimizer,
              bytes(m) + bytes(v) + bytes(gradient) + (master_scale.scale.empty() ? 0 : bytes(master)));
  return of("adamw", OpClass::optimizer,
            changed_bytes(weights, master) + 2 * bytes(m) + 2 * bytes(v) + bytes(gradient) + scales);
}

OpCost CommitScale::cost() const {
  return of("commit_scale", OpClass::optimizer, 2 * (bytes(scale) + bytes(amax)));
}

OpCost Encode::cost() const {
  const double read = bytes(src) + (accumulate ? bytes(codes) : 0);
  return measure ? of("encode_measure", OpClass::quantize, read)
                 : of("encode", OpClass::quantize, read + bytes(codes));
}

OpCost Decode::cost() const { return of("decode", OpClass::quantize, bytes(codes) + bytes(dst)); }

OpCost SumCodes::cost() const {
  return of("sum_codes", OpClass::quantize,
            static_cast<double>(bytes_of(codes.dtype, codes.rows * dst.size())) + bytes(dst));
}

OpCost Lion::cost() const {
  return of("lion", OpClass::optimizer, changed_bytes(weights, master) + 2 * bytes(m) + bytes(gradient));
}

OpCost Descend::cost() const {
  return of("descend", OpClass::optimizer, changed_bytes(weights, master) + bytes(update));
}

OpCost Momentum::cost() const {
  return of("momentum", OpClass::optimizer, bytes(update) + 2 * bytes(m) + bytes(gradient));
}

OpCost ToUnitNorm::cost() const { return of("to_unit_norm", OpClass::optimizer, 2 * bytes(x)); }

OpCost Combine::cost() const { return of("combine", op_class, bytes(dst) + bytes(x) + bytes(y)); }

OpCost FactoredSums::cost() const {
  return of("factored_sums", OpClass::optimizer, bytes(rows) + bytes(cols) + bytes(gradient));
}

OpCost FactoredAverage::cost() const {
  return of("factored_average", OpClass::optimizer, 3 * (bytes(moment.rows) + bytes(moment.cols)));
}

OpCost FactoredNorm::cost() const {
  return of("factored_norm", OpClass::optimizer, bytes(moment.rows) + bytes(moment.cols) + bytes(gradient));
}

OpCost FactoredUpdate::cost() const {
  return of("factored_update", OpClass::optimizer,
            changed_bytes(weights, master) + bytes(moment.rows) + bytes(moment.cols) + bytes(gradient));
}

OpCost Fingerprint::cost() const { return of("fingerprint", OpClass::other, bytes(x)); }

OpCost Correlate::cost() const { return of("correlate", OpClass::other, bytes(x) + bytes(y)); }

OpCost QuantizationError::cost() const {
  return of("quantization_error", OpClass::other, bytes(value) + bytes(operand.data) + bytes(operand.scale));
}

}  // namespace ops
}  // namespace precbench
