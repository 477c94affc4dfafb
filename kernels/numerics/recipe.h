// A recipe is a row of a table. For each of the three GEMMs of a linear layer and each operand it has the
// number format, the scaling granularity, the scale's type and its rounding; plus the accumulation mode. Two
// functions of a Device interpret it, quantize and matmul. Users add rows as JSON files (recipe_from_json).
//
//   fprop  Y[M,N]  = X[M,K]  W[N,K]^T   contracts K   (A = X,    B = W)
//   dgrad  dX[M,K] = dY[M,N] W[N,K]     contracts N   (A = dY,   B = W^T)
//   wgrad  dW[N,K] = dY[M,N]^T X[M,K]   contracts M   (A = dY^T, B = X^T)
//
// Blocks and rows always lie along the GEMM's own contraction dimension.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/numerics/selection.h"
#include "kernels/numerics/tensor.h"

namespace precbench {

enum class Granularity : std::uint8_t {
  none,
  tensor,
  row,
  block_1x128,
  block_128x128,
  block_1x32,
  block_1x16,
  block_32x32,
  block_16x16,
  block_1x64
};

/// f32: exact MAX / amax. f32_pow2: that scale rounded down to a power of two. ue8m0: an exponent byte. e4m3:
/// a byte, with an additional FP32 scale per tensor (nvfp4.h). ue5m3: a byte without a sign, whose range needs
/// no scale per tensor (custom_format.h).
enum class ScaleType : std::uint8_t { none, f32, f32_pow2, ue8m0, e4m3, ue5m3 };

/// Rounding of a ue8m0 scale from amax (kernels/numerics/formats.h gives the bits). quest: computed from the
/// block's standard deviation instead, for e2m1 only (fp4.h).
enum class ScaleRounding : std::uint8_t { none, rceil, floor, ceil, even, quest };

/// Rounding of elements; stochastic: away from zero with a probability equal to the discarded fraction.
enum class ElementRounding : std::uint8_t { rne, stochastic };

/// Signs applied before a Hadamard transform: none, TransformerEngine's, or random ones. Random signs are
/// drawn anew for every micro-step and linear layer (backward), or for each of its two GEMMs in backward
/// (gemm).
enum class Signs : std::uint8_t { none, te, backward, gemm };

/// Hadamard transform of every `length` elements along the contraction before quantization. Both operands of
/// a GEMM have the same one, which leaves the GEMM result unchanged.
struct Transform {
  std::uint8_t length = 0;  ///< 0: none; 16, 32, 64 or 128
  Signs signs = Signs::none;

  constexpr explicit operator bool() const { return length > 0; }
  bool operator==(const Transform&) const = default;
};

/// Choice of the scale from the amaxes of earlier steps.
enum class HistoryAlgorithm : std::uint8_t { max, most_recent };
/// Scale before there is any history: from the tensor's own amax, or 1. window: from its own amax for as many
/// steps as the history is long.
enum class FirstScale : std::uint8_t { current, one, window };

/// When a step's amaxes enter the history: all at its end, or at the end of each micro-step.
enum class HistoryUpdate : std::uint8_t { step, micro };

/// Delayed scaling: the scale of a step is known before it, from the amaxes of the `length` steps before
/// (micro-steps if `update` is micro).
struct History {
  std::uint16_t length = 0;  ///< 0: no history, the scale comes from the tensor's own amax
  HistoryAlgorithm algorithm = HistoryAlgorithm::max;
  FirstScale first = FirstScale::current;
  std::uint8_t margin = 0;  ///< powers of two of headroom below the format's max
  HistoryUpdate update = HistoryUpdate::step;
  bool reduce = true;  ///< amaxes are maxima over ranks; false: every rank has its own scales

  /// Returns the number of first updates (steps or micro-steps) whose scales come from the tensors' own
  /// amaxes.
  constexpr int current_updates() const {
    return first == FirstScale::window ? length : first == FirstScale::current ? 1 : 0;
  }
  bool operator==(const History&) const = default;
};

struct Grid;  // grid.h

/// Number format of one operand of one GEMM. The default is plain BF16.
struct QuantFormat {
  DType dtype = DType::bf16;  ///< of the stored codes; e5m3, e4m4, e3m4 and e3m3 are held in BF16
  Granularity granularity = Granularity::none;
  ScaleType scale = ScaleType::none;
  ScaleRounding scale_rounding = ScaleRounding::none;
  /// Mantissa bits dropped from e4m3 (at most 2) or e5m2 (1), giving e4m2 and e4m1, e5m1. Their values are a
  /// subset of dtype's: only the cast and the scale's MAX differ, and every GEMM of dtype accepts them.
  std::uint8_t dropped_bits = 0;
  History history = {};  ///< of a per-tensor scale
  ElementRounding element_rounding = ElementRounding::rne;
  Transform transform = {};

  // For e2m1 only (fp4.h).
  float element_scale = 1;   ///< multiplies elements before the cast; a GEMM's alpha undoes it
  float global_scale = 448;  ///< for e4m3 scales: scale of the block with the tensor's amax
  bool four_over_six =
      false;  ///< of two scales, for the block's amax at 6 or at 4, the one with the smaller error
  std::uint8_t eden = 0;  ///< elements per corrected scale (unbiased, rounded stochastically); 0: none
  /// Quantizes the values of fprop's codes of this operand. If fprop has a transform, the GEMM's output gets
  /// its inverse.
  bool from_fprop = false;

  /// For grid only: its values, on the host. Equal values have one address (make_grid).
  const Grid* grid = nullptr;

  bool quantized() const { return dtype != DType::bf16; }
  bool delayed() const { return history.length > 0; }
  bool operator==(const QuantFormat&) const = default;
};

/// Returns the length of one scaling block along the contraction dimension; 0 if one scale spans all of it.
constexpr std::int64_t block_length(Granularity g) {
  switch (g) {
    case Granularity::block_1x128:
    case Granularity::block_128x128:
      return 128;
    case Granularity::block_1x64:
      return 64;
    case Granularity::block_1x32:
    case Granularity::block_32x32:
      return 32;
    case Granularity::block_1x16:
    case Granularity::block_16x16:
      return 16;
    default:
      return 0;
  }
}

/// Returns the number of rows per scaling block; 1 also if one scale spans the tensor.
constexpr std::int64_t block_rows(Granularity g) {
  switch (g) {
    case Granularity::block_128x128:
      return 128;
    case Granularity::block_32x32:
      return 32;
    case Granularity::block_16x16:
      return 16;
    default:
      return 1;
  }
}

/// Returns the dtype of a format's stored scales.
constexpr DType scale_dtype(const QuantFormat& format) {
  return format.scale == ScaleType::ue8m0   ? DType::ue8m0
         : format.scale == ScaleType::e4m3  ? DType::e4m3
         : format.scale == ScaleType::ue5m3 ? DType::ue5m3
                                            : DType::f32;
}

/// Returns true for the formats of custom_format.h: a grid's values, and FP8 elements (or similar ones) whose
/// scales are bytes with a mantissa.
constexpr bool is_custom(const QuantFormat& format) {
  return is_grid(format.dtype) || (format.dtype != DType::e2m1 &&
                                   (format.scale == ScaleType::e4m3 || format.scale == ScaleType::ue5m3));
}

/// Returns true if no device multiplies the format natively.
constexpr bool always_emulated(const QuantFormat& format) {
  return held_in_bf16(format.dtype) || is_custom(format);
}

/// One GEMM of a linear layer. fast_accum: FP8 partial sums stay in the tensor core's reduced accumulator.
struct GemmRecipe {
  QuantFormat a, b;
  bool fast_accum = false;
  bool operator==(const GemmRecipe&) const = default;
};

enum class GemmRole : std::uint8_t { fprop, dgrad, wgrad };
inline constexpr GemmRole kGemmRoles[] = {GemmRole::fprop, GemmRole::dgrad, GemmRole::wgrad};

/// Formats of the state beside activations, as spelled on the command line, if a case leaves them at their
/// defaults; empty: the case's.
struct RecipeState {
  std::string m{}, v{};
  std::string master{}, weights{}, gradients{};
  std::string gradient_sum{};  ///< "e4m3": rounding of sums over ranks of e4m3 gradients; empty: FP32

  bool empty() const { return *this == RecipeState{}; }
  bool operator==(const RecipeState&) const = default;
};

/// How the output of a norm, an activation function or attention, which a linear layer reads, stays in memory from
/// forward to the layer's wgrad. value: in BF16. quantized: the copy that wgrad reads, made in forward; BF16 if wgrad
/// is BF16. recompute: nothing, backward computes it again.
enum class KeptAs : std::uint8_t { value, quantized, recompute };

/// Activations that stay in memory for the backward pass. The defaults need the least memory without an error:
/// backward of an activation function computes its output anyway, and backward of attention needs its output in BF16.
struct KeptActivations {
  KeptAs norm = KeptAs::quantized;  ///< value or quantized
  KeptAs activation = KeptAs::recompute;
  KeptAs attention = KeptAs::value;  ///< value, or quantized beside the value
  /// value or recompute: if selective recomputation keeps outputs of quantized GEMMs, as it does of BF16 ones.
  KeptAs gemm_output = KeptAs::recompute;
  /// Formats of the inputs of norms and of activation functions. Backward computes from the dequantized ones.
  QuantFormat norm_input{}, activation_input{};

  bool operator==(const KeptActivations&) const = default;
};

struct Recipe {
  std::string name;
  GemmRecipe fprop, dgrad, wgrad;
  std::string reference;                 ///< source of the recipe, one line
  KeepBf16 keep_bf16{};                  ///< layers left in BF16, unless a case says otherwise
  std::vector<RecipeSwitch> schedule{};  ///< later recipes of a run, unless a case says otherwise
  RecipeState optimizer{};
  /// Gradients are 0 where fprop's cast clipped: dX where X did, dW where W did. With quest scales only.
  bool mask_clipped = false;
  /// wgrad's X and dY are made from the codes of fprop and dgrad, not from the values (FP8-Flow). Exception:
  /// producers that write both copies in backward, for SwiGLU's output and gradient.
  bool flow = false;
  /// Weight-only quantization, as in QLoRA: the format that weights are stored in, quantized along the input features.
  /// All GEMMs are BF16; fprop and dgrad read the same dequantized weight. The default, BF16: none.
  QuantFormat weight_only{};
  KeptActivations kept{};  ///< of all layers of a run, also those left in BF16

  const GemmRecipe& gemm(GemmRole role) const {
    return role == GemmRole::fprop ? fprop : role == GemmRole::dgrad ? dgrad : wgrad;
  }
  bool quantized() const {
    for (GemmRole role : kGemmRoles)
      if (gemm(role).a.quantized() || gemm(role).b.quantized()) return true;
    return weight_only.quantized();
  }
  /// Returns true if scales come from earlier steps; then all of them do.
  bool delayed() const { return fprop.a.delayed(); }
  bool operator==(const Recipe&) const = default;
};

/// Related rows of the built-in table.
struct RecipeGroup {
  const char* name;
  std::vector<Recipe> recipes;
};
const std::vector<RecipeGroup>& recipe_groups();
/// Returns the built-in table, in the order of the groups; bf16 is first.
const std::vector<Recipe>& builtin_recipes();
/// Returns rows known to be worse: positive controls for studies, which must detect them.
const std::vector<Recipe>& control_recipes();

/// FP4 recipes in groups and as a list: emulated except on GPUs with FP4 matmul support.
const std::vector<RecipeGroup>& fp4_groups();
const std::vector<Recipe>& fp4_recipes();

/// Recipes of weight-only quantization (Recipe::weight_only).
const RecipeGroup& weight_only_group();

/// Return all recipes of these tables without controls, BF16 first, and with them.
const std::vector<Recipe>& listed_recipes();
const std::vector<Recipe>& named_recipes();

/// Finds a recipe by a name of one of these tables, or by the path of a JSON file (anything that ends in
/// ".json", or "-" for standard input). Throws InvalidInput with the nearest valid name, or with the file's
/// bad field.
Recipe find_recipe(const std::string& name_or_path);

/// Activations that a training stack keeps, by the name that a recipe's "kept" and --kept take.
struct KeptStack {
  const char *name, *reference;
  KeptActivations kept;
};
const std::vector<KeptStack>& kept_stacks();
/// Throws InvalidInput with the known names.
const KeptActivations& kept_by(const std::string& stack);

/// Returns the format in which the weights of a linear layer can be stored, one copy for each of fprop and dgrad; with
/// weight_only one for both, that of fprop.
std::pair<QuantFormat, QuantFormat> stored_formats(const Recipe& recipe);

/// Reads and checks a user's row. Every error names the field: `wgrad.b.granularity: unknown value "1x3"
/// ...`.
Recipe recipe_from_json(const nlohmann::json& json);
nlohmann::json recipe_to_json(const Recipe& recipe);

const char* name_of(Granularity g);
const char* name_of(ScaleType t);
const char* name_of(ScaleRounding r);
const char* name_of(ElementRounding r);
const char* name_of(Signs s);
const char* name_of(HistoryAlgorithm a);
const char* name_of(FirstScale f);
const char* name_of(HistoryUpdate u);
const char* name_of(GemmRole role);
const char* name_of(KeptAs k);
/// Returns "bf16", "e4m3", "e4m2", "grid": the dtype's name, or that of the narrower format.
const char* element_name(const QuantFormat& format);
/// Returns a short form for tables: "bf16", "e4m3 1x128 f32", "e4m3 1x32 ue8m0/rceil", "e4m3 tensor f32 max
/// of 1024" (micro: of micro-steps; by rank: scales per rank), "e2m1 1x16 e4m3 rht sr": Hadamard transform
/// with TransformerEngine's signs (hn: length n without signs, rhn: with random ones), stochastic rounding.
/// x0.75: element_scale; 4/6: four_over_six; eden: correction per 16 (eden128: per 128) elements; of fprop:
/// from_fprop; "grid16 1x32 e4m3": a grid of 16 values.
std::string describe(const QuantFormat& format);
/// Returns "norm quantized, activation recompute, attention value".
std::string describe(const KeptActivations& kept);

/// Returns why a recipe cannot have `flow`; null if it can. wgrad must use the formats of fprop and dgrad,
/// and their codes must support transposition.
std::optional<std::string> flow_unsupported_reason(const Recipe& recipe);

/// Returns why rows [first, first + count) of a weight cannot be quantized for fprop alone, to the bits that they have in
/// the whole matrix; null if they can. A scale of the tensor must come from the amax of the whole.
std::optional<std::string> weight_slice_unsupported_reason(const Recipe& recipe, std::int64_t first,
                                                           std::int64_t count);

/// Returns why a linear layer of this shape does not support the recipe, with the dimension named: "K=48 is
/// not a multiple of 32 (fprop.a 1x32)"; null if it does. M: tokens, N: out features, K: in features.
std::optional<std::string> shape_unsupported_reason(const Recipe& recipe, std::int64_t M, std::int64_t N,
                                                    std::int64_t K);

}  // namespace precbench
