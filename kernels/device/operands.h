// What the ops of a device take: matrices in a GEMM's format, a value with its quantized forms, shapes and options.
#pragma once

#include <cstdint>

#include "kernels/numerics/recipe.h"
#include "kernels/numerics/rope_table.h"
#include "kernels/numerics/tensor.h"

namespace precbench {

/// A matrix as one GEMM takes it: `rows` vectors of length `k`, contracted over k.
/// Quantized: data is [rows, k] in format.dtype, K-contiguous, and scale holds the dequantization factors in
/// cuBLASLt's layout (scale_layout.h): value = data * scale.
/// FP4: value = data * scale * fp4_tensor_factor (numerics/fp4.h), which with NVFP4's e4m3 scales is amax / 2688.
/// BF16: data is the matrix itself, [rows, k], or [k, rows] where `transposed` is set; no scale.
struct GemmOperand {
  QuantFormat format;
  Tensor data;
  Tensor scale;
  bool transposed = false;
  Tensor amax = {};  ///< f32 [1], of what was quantized; only with e4m3 scales

  bool empty() const { return data.empty(); }
  std::int64_t rows() const { return transposed ? data.cols : data.rows; }
  std::int64_t k() const { return transposed ? data.rows : data.cols; }
};

/// Where stochastic rounding takes its random numbers from: a word in device memory, which a new step renews, and what
/// tells the operands of a step apart. The columnwise form draws others than the rowwise one.
struct RandomStream {
  Tensor word = {};            ///< 32 bits; empty: 0
  std::uint32_t stream = 0;    ///< even; the next number is the columnwise form's
  std::int64_t first_row = 0;  ///< of the value in the matrix of all ranks
  /// Of the random signs of the forms' transforms, the same for the other operand of the product: dgrad's is even, wgrad's
  /// the next.
  std::uint32_t row_signs = 0, column_signs = 0;

  std::uint32_t sign_stream(Signs signs, bool columns) const {
    const std::uint32_t of_product = columns ? column_signs : row_signs;
    return signs == Signs::gemm ? of_product : of_product & ~1u;
  }
};

/// What a producer op writes: the BF16 value [rows, cols] and the quantized forms its consumers asked for.
/// A form that is empty, or BF16 and so an alias of the value, is not written.
struct QuantizedTensor {
  Tensor value;
  GemmOperand rowwise = {};     ///< contracts over cols: fprop's X, dgrad's dY
  GemmOperand columnwise = {};  ///< contracts over rows: wgrad's X and dY; stored transposed
  /// Both f32 [1]. A form with one scale for the tensor needs one of them: its scale comes from amax_in where that
  /// is present, else from amax_out.
  Tensor amax_out = {};      ///< written: max |value|; together with amax_in raised to it instead
  Tensor amax_in = {};       ///< read: an amax known before the op, this tensor's own or another step's
  bool keep_value = true;    ///< false: only the forms are read later; a device may skip writing the value
  RandomStream random = {};  ///< of forms that are rounded stochastically
};

/// Multi-head attention over fused rows [q heads | k heads | v heads], each head_dim wide.
struct AttentionShape {
  std::int64_t B = 0, T = 0;  ///< sequences; queries of each
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t T_k = 0;     ///< keys of each sequence; 0: T
  std::int64_t offset = 0;  ///< query t sees the keys up to t + offset

  std::int64_t keys() const { return T_k ? T_k : T; }
  /// Every query sees the keys up to its own, and there are as many of both.
  bool square() const { return keys() == T && offset == 0; }
  std::int64_t tokens() const { return B * T; }
  std::int64_t q_width() const { return heads * head_dim; }
  std::int64_t kv_width() const { return 2 * kv_heads * head_dim; }
  std::int64_t qkv_width() const { return q_width() + kv_width(); }
};

/// Rotary position embedding, rotate-half, position = offset + row % T; with QK-norm q and k are first RMS-normed, each
/// head (Qwen3) or all heads of a row as one (OLMoE); a bias is added to q, k and v before anything else.
struct RopeOptions {
  AttentionShape shape;
  float theta = 500000.0f;
  float norm_eps = 1e-5f;
  Tensor q_norm = {}, k_norm = {};  ///< BF16 gains: [1, head_dim], or of all heads [1, heads * head_dim] and
                                    ///< [1, kv_heads * head_dim]; empty: no QK-norm
  Tensor bias = {};                 ///< BF16 [1, qkv_width]; empty: none. Not together with QK-norm
  RopeScaling scaling = {};
  std::int64_t offset = 0;  ///< position of each sequence's first row

  RopeAngles angles() const { return {shape.T, shape.head_dim, theta, scaling, offset}; }
  bool norms_all_heads() const { return q_norm.size() > shape.head_dim; }
};

/// Scalars of one optimizer step, in device memory so that a captured graph can replay with new ones.
struct StepScalars {
  float lr = 0;
  float bias_correction1 = 1;  ///< 1 - beta1^t; of Adafactor the relative step, min(lr, 1 / sqrt(t))
  float bias_correction2 = 1;  ///< 1 - beta2^t; of Adafactor the part of an average that is new, t^-0.8
  std::uint32_t seed = 0;      ///< of stochastic rounding
};

/// The constants of an update rule; each reads those that it has.
struct UpdateOptions {
  float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f;
  float weight_decay = 0.1f;         ///< decoupled, times lr
  float max_norm = 1.0f;             ///< clip to this global gradient norm; 0: no clipping, see ops::Adamw
  bool stochastic_rounding = false;  ///< of BF16 weights without a master
  std::int64_t first_index = 0;  ///< position of element 0 in the whole model: the random numbers' counter
};

/// How codes are scaled that are kept, of moments, weights or gradients: f16 or e4m3 (state_formats.h).
struct StateScale {
  Tensor scale;  ///< f32 [1]: of the tensor; f32 [groups, 3]: COAT's; empty: f32 or bf16, which have none
  Tensor amax;   ///< of a tensor's scale, f32 [1]: raised to the largest magnitude of what is to be stored

  bool groups() const { return scale.cols == 3; }
  bool of_tensor() const { return !scale.empty() && !groups(); }
};

/// What Adafactor keeps of a matrix [R, C] instead of a second moment: averages of the squared gradient by row, f32 [R],
/// and by column, f32 [C], and the mean of the first, f32 [1]. Of a vector `rows` is empty and `cols` the second moment
/// itself.
struct FactoredMoment {
  Tensor rows, cols, row_mean;

  std::int64_t size() const { return cols.size() * (rows.empty() ? 1 : rows.size()); }
};

/// Classes of the time breakdown, in the record's order.
enum class OpClass : std::uint8_t {
  gemm,
  quantize,
  attention,
  norm_elementwise,
  head_loss,
  optimizer,
  communication,
  other,
  routing
};
inline constexpr int kOpClasses = 9;
const char* name_of(OpClass op_class);

struct MatmulOptions {
  GemmRole role = GemmRole::fprop;
  bool fast_accum = false;
  bool accumulate = false;  ///< D += A B^T instead of D = A B^T
  OpClass op_class = OpClass::gemm;
};

}  // namespace precbench
