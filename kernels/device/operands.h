// Operands of ops: matrices in a GEMM's format, a value with its quantized copies, shapes and options.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>

#include "kernels/numerics/activation.h"
#include "kernels/numerics/element_map.h"
#include "kernels/numerics/recipe.h"
#include "kernels/numerics/rope_table.h"
#include "kernels/numerics/sequence_part.h"
#include "kernels/numerics/tensor.h"

namespace precbench {

/// A matrix as one GEMM reads it: `rows` vectors of length `k`, contracted over k.
/// Quantized: data is [rows, k] in format.dtype, K-contiguous, and scale holds the dequantization factors in
/// cuBLASLt's layout (scale_layout.h): value = data * scale.
/// FP4: value = data * scale * fp4_tensor_factor (numerics/fp4.h), for NVFP4's e4m3 scales amax / 2688.
/// BF16: data is the matrix itself, [rows, k], or [k, rows] if `transposed` is set; no scale.
struct GemmOperand {
  QuantFormat format;
  Tensor data;
  Tensor scale;
  bool transposed = false;
  Tensor amax = {};  ///< f32 [1], amax of the source; only with e4m3 scales

  bool empty() const { return data.empty(); }
  std::int64_t rows() const { return transposed ? data.cols : data.rows; }
  std::int64_t k() const { return transposed ? data.rows : data.cols; }
};

/// Returns a matrix that is not quantized as a GEMM operand; `transposed`: `data` is [k, rows].
inline GemmOperand plain_operand(const Tensor& data, bool transposed = false) {
  return {{}, data, {}, transposed};
}

/// Source of stochastic rounding's random numbers: a word in device memory, renewed every step, and a stream
/// number for each operand of a step. The columnwise copy uses other numbers than the rowwise one.
struct RandomStream {
  Tensor word = {};          ///< 32 bits; empty: 0
  std::uint32_t stream = 0;  ///< even; the columnwise copy uses the next number
  RowMap rows = {};          ///< the value's rows in the matrix of all ranks
  /// Random sign numbers of the copies' transforms, shared with the other operand of the GEMM: dgrad's is
  /// even, wgrad's the next.
  std::uint32_t row_signs = 0, column_signs = 0;

  std::uint32_t sign_stream(Signs signs, bool columns) const {
    const std::uint32_t of_product = columns ? column_signs : row_signs;
    return signs == Signs::gemm ? of_product : of_product & ~1u;
  }
};

/// Output of a producer op: the BF16 value [rows, cols] and the quantized copies that its consumers
/// requested. A copy that is empty, or BF16 and so an alias of the value, is not written.
struct QuantizedTensor {
  Tensor value;
  GemmOperand rowwise = {};     ///< contracts over cols: fprop's X, dgrad's dY
  GemmOperand columnwise = {};  ///< contracts over rows: wgrad's X and dY; stored transposed
  /// Both f32 [1]. A copy with one scale per tensor needs one of them: the scale comes from amax_in if
  /// present, else from amax_out.
  Tensor amax_out = {};      ///< written: max |value|; with amax_in present raised to it instead
  Tensor amax_in = {};       ///< read: an amax known before the op, of this tensor or of another step
  bool keep_value = true;    ///< false: only the copies are read later; a device may skip writing the value
  RandomStream random = {};  ///< for copies that are rounded stochastically
};

/// Multi-head attention over fused rows [q heads | k heads | v heads]. Heads of queries and keys are head_dim wide,
/// those of values and of the output v_dim().
struct AttentionShape {
  std::int64_t B = 0, T = 0;  ///< sequences; queries per sequence
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t T_k = 0;     ///< keys per sequence; 0: T
  std::int64_t offset = 0;  ///< query t sees keys up to t + offset
  std::int64_t window = 0;  ///< a query sees as many keys, its own and those before it; 0: all
  float softcap = 0;        ///< scores become softcap tanh(score / softcap); 0: they stay
  std::int64_t value_dim =
      0;  ///< width of a value head, if it is not head_dim (latent attention); 0: head_dim

  std::int64_t keys() const { return T_k ? T_k : T; }
  /// Returns true if there are as many keys as queries and every query sees the keys up to its own.
  bool square() const { return keys() == T && offset == 0; }
  std::int64_t tokens() const { return B * T; }
  std::int64_t v_dim() const { return value_dim ? value_dim : head_dim; }
  std::int64_t q_width() const { return heads * head_dim; }
  std::int64_t k_width() const { return kv_heads * head_dim; }
  std::int64_t kv_width() const { return kv_heads * (head_dim + v_dim()); }
  std::int64_t out_width() const { return heads * v_dim(); }
  std::int64_t qkv_width() const { return q_width() + kv_width(); }
};

/// Documents that share sequences: a query sees only the keys of its own, in addition to what the shape lets it see.
struct DocumentMask {
  /// i32 [M]: the first key that each query sees, counted in its sequence. Ascends within a sequence and is at most the
  /// query's own position. Empty: all sequences are one document.
  Tensor first_key = {};
  /// Place in its sequence of the first key that attention is given.
  std::int64_t key_start = 0;
  /// Number of pairs of a query and a key within documents, relative to those of the shape alone. For costs only.
  double visible = 1;

  bool empty() const { return first_key.empty(); }
};

/// Rotary position embedding, rotate-half, position = offset + row % T. With a late_offset the second half of
/// the rows is at position late_offset + row % T. With `positions` a row is at its own instead.
/// With QK-norm q and k are first RMS-normed, per head (Qwen3) or over all heads of a row (OLMoE). A bias is
/// added to q, k and v before anything else.
struct RopeOptions {
  AttentionShape shape;
  float theta = 500000.0f;
  float norm_eps = 1e-5f;
  Tensor q_norm = {},
         k_norm = {};     ///< BF16 gains: [1, head_dim], or over all heads [1, heads * head_dim] and
                          ///< [1, kv_heads * head_dim]; empty: no QK-norm
  float gain_offset = 0;  ///< added to the gains
  Tensor bias = {};       ///< BF16 [1, qkv_width]; empty: none. Not together with a norm over all heads
  RopeScaling scaling = {};
  std::int64_t rotated = 0;                      ///< elements of a head that rotate (RopeAngles); 0: all
  double scale = 1;                              ///< factor of queries and keys
  std::int64_t offset = 0;                       ///< position of each sequence's first row
  std::optional<std::int64_t> late_offset = {};  ///< the same in the second half of the rows; null: as offset
  Tensor positions = {};                         ///< i32 [M], each below position_count; may be empty
  std::int64_t position_count = 0;

  RopeAngles angles() const {
    if (!positions.empty()) return {position_count, shape.head_dim, theta, scaling, rotated, scale};
    return {shape.T, shape.head_dim, theta, scaling, rotated, scale, offset, late_offset};
  }
  /// Number of rows before the late ones. Without late rows no row number reaches it, not even one of a tile that ends
  /// beyond the matrix.
  std::int64_t early_rows() const {
    return late_offset ? shape.tokens() / 2 : std::numeric_limits<std::int64_t>::max();
  }
  /// Returns the row of the table of angles for a row of the matrix. The CPU's: reads `positions`.
  std::int64_t table_row(std::int64_t row) const {
    if (!positions.empty()) return positions.as<std::int32_t>()[row];
    return row % shape.T + (row < early_rows() ? 0 : shape.T);
  }
  bool norms_all_heads() const { return q_norm.size() > shape.head_dim; }
};

/// Heads of latent attention (DeepSeek-V2). A head of queries and keys is [nope | rope]: RoPE rotates its last rope_dim
/// elements, and all heads of a row have the same rotated key.
struct LatentHeadsOptions {
  AttentionShape shape;  ///< as many key heads as query heads
  std::int64_t rope_dim = 0;
  float theta = 500000.0f;
  RopeScaling scaling = {};
  bool interleaved = true;  ///< element 2 i rotates with 2 i + 1, else i with i + rope_dim / 2
  float q_scale = 1;        ///< factor of queries
  std::int64_t offset = 0;  ///< position of each sequence's first row
  std::optional<std::int64_t> late_offset = {};  ///< as in RopeOptions
  Tensor positions = {};                         ///< as in RopeOptions
  std::int64_t position_count = 0;

  std::int64_t nope_dim() const { return shape.head_dim - rope_dim; }
  /// Returns the width of keys without RoPE and of values, side by side in each head.
  std::int64_t kv_up_width() const { return shape.heads * (nope_dim() + shape.v_dim()); }
  /// Returns the options of RoPE over heads of rope_dim elements, for its table and rows.
  RopeOptions rope() const {
    RopeOptions rope{.shape = shape,
                     .theta = theta,
                     .scaling = scaling,
                     .offset = offset,
                     .late_offset = late_offset,
                     .positions = positions,
                     .position_count = position_count};
    rope.shape.head_dim = rope_dim;
    return rope;
  }
};

/// Scalars of one optimizer step, in device memory so that a captured graph can replay with new ones.
struct StepScalars {
  float lr = 0;
  float bias_correction1 = 1;  ///< 1 - beta1^t; for Adafactor the relative step, min(lr, 1 / sqrt(t))
  float bias_correction2 = 1;  ///< 1 - beta2^t; for Adafactor the weight of new data in averages, t^-0.8
  std::uint32_t seed = 0;      ///< for stochastic rounding
};

/// Constants of an update rule; each rule reads only its own.
struct UpdateOptions {
  float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f;
  float weight_decay = 0.1f;         ///< decoupled, times lr
  float max_norm = 1.0f;             ///< clip to this global gradient norm; 0: no clipping, see ops::Adamw
  bool stochastic_rounding = false;  ///< for BF16 weights without a master
  ElementMap index = {};             ///< of elements in the whole model: the random numbers' counter
};

/// Scale of a stored moment, weight or gradient in f16 or e4m3 codes (state_formats.h).
struct StateScale {
  Tensor scale;  ///< f32 [1]: per tensor; f32 [groups, 3]: COAT; empty: f32 or bf16, without scale
  Tensor amax;   ///< with a per-tensor scale, f32 [1]: raised to the largest magnitude to be stored

  bool groups() const { return scale.cols == 3; }
  bool of_tensor() const { return !scale.empty() && !groups(); }
};

/// Adafactor's factored second moment of a matrix [R, C]: averages of the squared gradient by row, f32 [R],
/// and by column, f32 [C], and the mean of the row averages, f32 [1]. For a vector `rows` is empty and `cols`
/// is the second moment itself.
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
