// The op vocabulary: everything a training step asks of hardware. Three devices implement it.
//   cpu   the specification: readable and exact, the default where no GPU is visible, the oracle of every
//         GPU test
//   cuda  the fast one; its files have the names of the cpu files so that the two can be read side by side
//   dry   touches no data; with the cost of every op known here, it predicts FLOPs, bytes, memory and time
//
// The public functions report the op with its cost (FLOPs, bytes, class) and then call the device's do_
// function, so the accounts are the same on every device. Destinations come first, then sources, then shapes and
// constants. Matrices are row-major; M counts tokens (B sequences of T); activations are BF16; "quantized"
// data is in the formats of recipe.h. Unless said otherwise an op reads BF16, computes in FP32 and rounds
// once to BF16.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "kernels/numerics/recipe.h"
#include "kernels/numerics/rope_table.h"
#include "kernels/numerics/tensor.h"

namespace precbench {

/// A matrix as one GEMM takes it: `rows` vectors of length `k`, contracted over k.
/// Quantized: data is [rows, k] in format.dtype, K-contiguous, and scale holds the dequantization factors in
/// cuBLASLt's layout (scale_layout.h): value = data * scale.
/// BF16: data is the matrix itself, [rows, k], or [k, rows] where `transposed` is set; no scale.
struct GemmOperand {
  QuantFormat format;
  Tensor data;
  Tensor scale;
  bool transposed = false;

  bool empty() const { return data.empty(); }
  std::int64_t rows() const { return transposed ? data.cols : data.rows; }
  std::int64_t k() const { return transposed ? data.rows : data.cols; }
};

/// What a producer op writes: the BF16 value [rows, cols] and the quantized forms its consumers asked for.
/// `row` contracts over cols (fprop's X, dgrad's dY), `col` over rows (wgrad's X and dY) and is stored
/// transposed. Forms whose data is empty are not wanted. BF16 forms alias the value, so there is nothing to
/// write for them.
struct QuantizedTensor {
  Tensor value;
  GemmOperand rowwise, columnwise;
  Tensor amax;  ///< f32 [1], present when a form has one scale for the tensor: max |value|
  bool keep_value =
      true;  ///< false: nobody reads the value after the forms are made; a device may skip writing it
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
  other
};
inline constexpr int kOpClasses = 8;
const char* name_of(OpClass op_class);

/// What one op call must do at least: the speed of light of a step is the sum over its ops.
struct OpCost {
  const char* name = "";
  OpClass op_class = OpClass::other;
  double flops = 0;          ///< matrix multiply-adds, counted as 2
  double bytes = 0;          ///< each input read once, each output written once
  DType math = DType::bf16;  ///< whose peak applies: e4m3 for FP8 GEMMs
};

/// Sees every op of a device: the counter behind --dry-run, the profiler behind the breakdown.
class OpObserver {
 public:
  virtual ~OpObserver() = default;
  virtual void begin(const OpCost& cost) = 0;
  virtual void end(const OpCost& cost) = 0;
};

struct MatmulOptions {
  GemmRole role = GemmRole::fprop;
  bool fast_accum = false;
  bool accumulate = false;  ///< D += A B^T instead of D = A B^T
  OpClass op_class = OpClass::gemm;
};

/// Multi-head attention over fused rows [q heads | k heads | v heads], each head_dim wide.
struct AttentionShape {
  std::int64_t B = 0, T = 0;
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;

  std::int64_t tokens() const { return B * T; }
  std::int64_t q_width() const { return heads * head_dim; }
  std::int64_t qkv_width() const { return (heads + 2 * kv_heads) * head_dim; }
};

/// Rotary position embedding, rotate-half, position = row % T; with QK-norm each q and k head is first
/// RMS-normed; a bias is added to q, k and v before anything else.
struct RopeOptions {
  AttentionShape shape;
  float theta = 500000.0f;
  float norm_eps = 1e-5f;
  Tensor q_norm = {}, k_norm = {};  ///< BF16 [1, head_dim] gains; empty: no QK-norm
  Tensor bias = {};                 ///< BF16 [1, qkv_width]; empty: none. Not together with QK-norm
  RopeScaling scaling = {};

  RopeAngles angles() const { return {shape.T, shape.head_dim, theta, scaling}; }
};

/// Scalars of one optimizer step, in device memory so that a captured graph can replay with new ones.
struct StepScalars {
  float lr = 0;
  float bias_correction1 = 1;  ///< 1 - beta1^t
  float bias_correction2 = 1;  ///< 1 - beta2^t
  std::uint32_t seed = 0;      ///< of stochastic rounding
};

struct AdamwOptions {
  float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f;
  float weight_decay = 0.1f;         ///< decoupled, times lr
  float max_norm = 1.0f;             ///< clip to this global gradient norm; 0: no clipping, see adamw
  bool stochastic_rounding = false;  ///< of BF16 weights without a master
  std::int64_t first_index = 0;  ///< position of element 0 in the whole model: the random numbers' counter
};

enum class Execution : std::uint8_t { native, emulated, unsupported };
const char* name_of(Execution execution);

/// Whether and how a device runs one GEMM of a recipe; the reason where it is not native.
struct GemmSupport {
  Execution execution = Execution::native;
  std::string reason;
};

class Device {
 public:
  virtual ~Device() = default;

  // ---- what it is
  virtual std::string name() const = 0;  ///< "cpu", "cuda", "dry"
  virtual GemmSupport support(const GemmRecipe& gemm, GemmRole role) const = 0;
  /// The one that runs attention, for the record: "cpu", "cudnn 9.14", "own".
  virtual std::string attention_name() const { return name(); }

  // ---- memory and order. Ops run asynchronously in call order; synchronize() waits and throws what went
  // wrong.
  virtual void* allocate(std::int64_t bytes) = 0;  ///< throws OutOfMemory
  virtual void deallocate(void* block) = 0;        ///< never throws
  virtual void upload(const Tensor& dst, const void* src) = 0;
  virtual void download(void* dst, const Tensor& src) = 0;  ///< waits for all ops before it
  virtual void synchronize() = 0;
  /// Bytes of library and kernel scratch the device itself holds (segment workspace).
  virtual std::int64_t workspace_bytes() const { return 0; }

  void set_observer(OpObserver* observer) { observer_ = observer; }
  OpObserver* observer() const { return observer_; }

  // ---- movement
  void zero(const Tensor& x);
  /// dst = src, converted between f32 and bf16 (RNE) or copied bit for bit; equal sizes.
  void convert(const Tensor& dst, const Tensor& src);
  /// dst += src (f32 or bf16 each); equal sizes.
  void add(const Tensor& dst, const Tensor& src);
  /// x[i] = std * z(seed, first_index + i), z nearly normal (Irwin-Hall of 8), bit-identical on every device.
  void init_normal(const Tensor& x, float std, std::uint64_t seed, std::int64_t first_index);
  void fill(const Tensor& x, float value);

  // ---- linear layers
  /// Writes the wanted forms of `x` from x.value, and x.amax where present; `make_amax` false: x.amax is
  /// read.
  void quantize(QuantizedTensor& x, bool make_amax = true);
  /// D[M,N] = A[M,k] B[N,k]^T into BF16 or FP32 (added to D with options.accumulate).
  void matmul(const Tensor& d, const GemmOperand& a, const GemmOperand& b, const MatmulOptions& options);

  // ---- weights that ranks exchange in FP8
  /// out[0] = max |x|, NaN where x has one, 0 without elements; out f32, x f32 or bf16.
  void amax(const Tensor& out, const Tensor& x);
  /// One rank's part of a matrix that has one scale: form.data = value * scale, and form.scale; the scale is
  /// derived from `amax`, f32 [1], alone. value f32 or bf16, as many elements as form.data, possibly none.
  void quantize_with_amax(const GemmOperand& form, const Tensor& value, const Tensor& amax);
  /// dst[k, rows] = src[rows, k] with its scales, which belong to the tensor or to 128x128 blocks, so that
  /// weights in fprop's form serve dgrad. rows and k are multiples of 16.
  void transpose(const GemmOperand& dst, const GemmOperand& src);
  /// dst[r, first + c] = src[r, c]: a matrix of codes or scales, a byte each, put together from its parts.
  void copy_columns(const Tensor& dst, std::int64_t first, const Tensor& src);

  // ---- model ops
  /// x[M,C] = table[tokens[M]]; tokens i32.
  void embedding(const Tensor& x, const Tensor& tokens, const Tensor& table);
  /// dtable[V,C] += dx[M,C] scattered by token, in token order (deterministic); dtable f32 or bf16.
  void embedding_backward(const Tensor& dtable, const Tensor& dx, const Tensor& tokens);
  /// sum = x + branch (branch empty: sum is x and is not written); rstd[M] f32; h = sum * rstd * weight.
  void add_rmsnorm(QuantizedTensor& h, const Tensor& sum, const Tensor& rstd, const Tensor& x,
                   const Tensor& branch, const Tensor& weight, float eps);
  /// h again from a saved sum and rstd, bit for bit what add_rmsnorm wrote.
  void recompute_rmsnorm(QuantizedTensor& h, const Tensor& sum, const Tensor& rstd, const Tensor& weight);
  /// dx = dresidual + gradient through the norm (dresidual empty: without it); dweight[C] = or += (f32 or
  /// bf16).
  void rmsnorm_backward(QuantizedTensor& dx, const Tensor& dweight, bool accumulate, const Tensor& dresidual,
                        const Tensor& dh, const Tensor& x, const Tensor& rstd, const Tensor& weight);
  /// out = rope(norm(qkv + bias)) on the q and k heads, v + bias; out may be qkv itself without QK-norm.
  void rope(const Tensor& out, const Tensor& qkv, const RopeOptions& options);
  /// dqkv from dout (both [M, qkv_width]); with QK-norm, dq_norm and dk_norm [1, head_dim] = or += and qkv is
  /// the unrotated input, else they are empty.
  void rope_backward(QuantizedTensor& dqkv, const Tensor& dq_norm, const Tensor& dk_norm, bool accumulate,
                     const Tensor& dout, const Tensor& qkv, const RopeOptions& options);
  /// dbias[N] = or += the sum over the rows of dy[M,N], in a fixed order; dbias f32 or bf16.
  void bias_backward(const Tensor& dbias, bool accumulate, const Tensor& dy);
  /// Causal softmax(q k^T / sqrt(head_dim)) v; out[M, q_width]; lse[heads, M] f32: log sum exp of the scaled
  /// scores, index (b * heads + h) * T + t.
  void attention(QuantizedTensor& out, const Tensor& lse, const Tensor& qkv, const AttentionShape& shape);
  void attention_backward(const Tensor& dqkv, const Tensor& dout, const Tensor& out, const Tensor& lse,
                          const Tensor& qkv, const AttentionShape& shape);
  /// s[M,F] = silu(gate) * up, gate_up[M, 2F] = [gate | up].
  void swiglu(QuantizedTensor& s, const Tensor& gate_up);
  /// dgate_up from ds; also writes s again (value and wanted forms; s.amax is read, not made) for wgrad.
  void swiglu_backward(QuantizedTensor& dgate_up, QuantizedTensor& s, const Tensor& ds,
                       const Tensor& gate_up);
  /// loss[M] f32 = -log softmax(logits)[target] in nats; logits become dlogits = (softmax - onehot) * scale.
  void cross_entropy(const Tensor& loss, const Tensor& logits, const Tensor& targets, float scale);
  /// out[0] = or += sum of x (f32), in a fixed order.
  void sum(const Tensor& out, const Tensor& x, bool accumulate);

  // ---- optimizer
  /// out[0] = or += sum of x^2; x f32 or bf16.
  void sum_of_squares(const Tensor& out, const Tensor& x, bool accumulate);
  /// AdamW on a run of elements. weights bf16; master f32 or empty (then the weights are the master); m, v
  /// f32 or bf16; gradient f32 or bf16; scalars: StepScalars as 4 words; norm_squared f32 [1]:
  /// read where max_norm clips; with max_norm 0 the gradient's sum of squares is added to it. `weights` may
  /// be empty where there is a master: nobody reads them then.
  void adamw(const Tensor& weights, const Tensor& master, const Tensor& m, const Tensor& v,
             const Tensor& gradient, const Tensor& scalars, const Tensor& norm_squared,
             const AdamwOptions& options);

  // ---- watching
  /// out i32 [2]: an order-independent hash of the bits of x; equal tensors give equal words.
  void fingerprint(const Tensor& out, const Tensor& x);
  /// out f32 [5] = {sum v^2, sum (v-q)^2, nonzero elements, of them quantized to 0, saturated} of a form of
  /// `value`; `columns`: the form is the col form.
  void quantization_error(const Tensor& out, const Tensor& value, const GemmOperand& form, bool columns);

 protected:
  virtual void do_zero(const Tensor& x) = 0;
  virtual void do_convert(const Tensor& dst, const Tensor& src) = 0;
  virtual void do_add(const Tensor& dst, const Tensor& src) = 0;
  virtual void do_init_normal(const Tensor& x, float std, std::uint64_t seed, std::int64_t first_index) = 0;
  virtual void do_fill(const Tensor& x, float value) = 0;
  virtual void do_quantize(QuantizedTensor& x, bool make_amax) = 0;
  virtual void do_amax(const Tensor& out, const Tensor& x) = 0;
  virtual void do_quantize_with_amax(const GemmOperand& form, const Tensor& value, const Tensor& amax) = 0;
  virtual void do_transpose(const GemmOperand& dst, const GemmOperand& src) = 0;
  virtual void do_copy_columns(const Tensor& dst, std::int64_t first, const Tensor& src) = 0;
  virtual void do_matmul(const Tensor& d, const GemmOperand& a, const GemmOperand& b,
                         const MatmulOptions& options) = 0;
  virtual void do_embedding(const Tensor& x, const Tensor& tokens, const Tensor& table) = 0;
  virtual void do_embedding_backward(const Tensor& dtable, const Tensor& dx, const Tensor& tokens) = 0;
  virtual void do_add_rmsnorm(QuantizedTensor& h, const Tensor& sum, const Tensor& rstd, const Tensor& x,
                              const Tensor& branch, const Tensor& weight, float eps) = 0;
  virtual void do_recompute_rmsnorm(QuantizedTensor& h, const Tensor& sum, const Tensor& rstd,
                                    const Tensor& weight) = 0;
  virtual void do_rmsnorm_backward(QuantizedTensor& dx, const Tensor& dweight, bool accumulate,
                                   const Tensor& dresidual, const Tensor& dh, const Tensor& x,
                                   const Tensor& rstd, const Tensor& weight) = 0;
  virtual void do_rope(const Tensor& out, const Tensor& qkv, const RopeOptions& options) = 0;
  virtual void do_rope_backward(QuantizedTensor& dqkv, const Tensor& dq_norm, const Tensor& dk_norm,
                                bool accumulate, const Tensor& dout, const Tensor& qkv,
                                const RopeOptions& options) = 0;
  virtual void do_bias_backward(const Tensor& dbias, bool accumulate, const Tensor& dy) = 0;
  virtual void do_attention(QuantizedTensor& out, const Tensor& lse, const Tensor& qkv,
                            const AttentionShape& shape) = 0;
  virtual void do_attention_backward(const Tensor& dqkv, const Tensor& dout, const Tensor& out,
                                     const Tensor& lse, const Tensor& qkv, const AttentionShape& shape) = 0;
  virtual void do_swiglu(QuantizedTensor& s, const Tensor& gate_up) = 0;
  virtual void do_swiglu_backward(QuantizedTensor& dgate_up, QuantizedTensor& s, const Tensor& ds,
                                  const Tensor& gate_up) = 0;
  virtual void do_cross_entropy(const Tensor& loss, const Tensor& logits, const Tensor& targets,
                                float scale) = 0;
  virtual void do_sum(const Tensor& out, const Tensor& x, bool accumulate) = 0;
  virtual void do_sum_of_squares(const Tensor& out, const Tensor& x, bool accumulate) = 0;
  virtual void do_adamw(const Tensor& weights, const Tensor& master, const Tensor& m, const Tensor& v,
                        const Tensor& gradient, const Tensor& scalars, const Tensor& norm_squared,
                        const AdamwOptions& options) = 0;
  virtual void do_fingerprint(const Tensor& out, const Tensor& x) = 0;
  virtual void do_quantization_error(const Tensor& out, const Tensor& value, const GemmOperand& form,
                                     bool columns) = 0;

 private:
  template <class Body>
  void run(const OpCost& cost, Body&& body) {
    if (observer_) observer_->begin(cost);
    body();
    if (observer_) observer_->end(cost);
  }

  OpObserver* observer_ = nullptr;
};

/// Memory of a device for as long as this lives, contents undefined. The constructor throws OutOfMemory.
class DeviceBlock {
 public:
  DeviceBlock(Device& device, std::int64_t bytes) : device_(device), data_(device.allocate(bytes)) {}
  ~DeviceBlock() { device_.deallocate(data_); }
  DeviceBlock(const DeviceBlock&) = delete;
  DeviceBlock& operator=(const DeviceBlock&) = delete;
  void* data() const { return data_; }

 private:
  Device& device_;
  void* data_;
};

}  // namespace precbench
