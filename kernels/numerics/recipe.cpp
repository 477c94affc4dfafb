// The built-in recipe table, names of its values, and a recipe's requirements on a linear layer's shape.
// recipe_json.cpp reads rows from files; those of ablations are in the table, too.
#include "kernels/numerics/recipe.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <initializer_list>

#include "kernels/base/enum_names.h"
#include "kernels/base/errors.h"
#include "kernels/numerics/ablations.h"
#include "kernels/numerics/custom_format.h"
#include "kernels/numerics/grid.h"
#include "kernels/numerics/scale_layout.h"
#include "kernels/numerics/state_formats.h"

namespace precbench {
namespace {

constexpr EnumNames<Granularity, 10> kGranularityNames{
    {"none", "tensor", "row", "1x128", "128x128", "1x32", "1x16", "32x32", "16x16", "1x64"}};
constexpr EnumNames<ScaleType, 6> kScaleNames{{"none", "f32", "f32_pow2", "ue8m0", "e4m3", "ue5m3"}};
constexpr EnumNames<ScaleRounding, 6> kScaleRoundingNames{
    {"none", "rceil", "floor", "ceil", "even", "quest"}};
constexpr EnumNames<ElementRounding, 2> kElementRoundingNames{{"rne", "stochastic"}};
constexpr EnumNames<Signs, 4> kSignNames{{"none", "te", "backward", "gemm"}};
constexpr EnumNames<HistoryAlgorithm, 2> kAlgorithmNames{{"max", "most_recent"}};
constexpr EnumNames<FirstScale, 3> kFirstNames{{"current", "one", "window"}};
constexpr EnumNames<HistoryUpdate, 2> kUpdateNames{{"step", "micro"}};
constexpr EnumNames<GemmRole, 3> kRoleNames{{"fprop", "dgrad", "wgrad"}};

constexpr EnumNames<KeptAs, 3> kKeptNames{{"value", "quantized", "recompute"}};

constexpr QuantFormat kBf16{};

constexpr QuantFormat fp8(DType dtype, Granularity granularity, ScaleType scale) {
  return {dtype, granularity, scale, ScaleRounding::none};
}

constexpr QuantFormat mx(ScaleRounding rounding, DType dtype = DType::e4m3) {
  return {dtype, Granularity::block_1x32, ScaleType::ue8m0, rounding};
}

Recipe tensorwise() {
  const QuantFormat e4m3 = fp8(DType::e4m3, Granularity::tensor, ScaleType::f32);
  const QuantFormat e5m2 = fp8(DType::e5m2, Granularity::tensor, ScaleType::f32);
  return {"tensorwise",
          {e4m3, e4m3, true},
          {e5m2, e4m3, false},
          {e5m2, e4m3, false},
          "torchao tensorwise; TransformerEngine Float8CurrentScaling (HYBRID)"};
}

/// tensorwise with the delayed scaling of TransformerEngine.
Recipe tensorwise_delayed() {
  QuantFormat p = fp8(DType::e4m3, Granularity::tensor, ScaleType::f32);
  p.history = {.length = 1024};
  QuantFormat g = p;
  g.dtype = DType::e5m2;
  return {"tensorwise_delayed", {p, p, true}, {g, p, false}, {g, p, false},
          "TransformerEngine DelayedScaling (HYBRID)"};
}

Recipe rowwise() {
  const QuantFormat row = fp8(DType::e4m3, Granularity::row, ScaleType::f32_pow2);
  return {"rowwise", {row, row, true}, {row, row, false}, {row, row, false}, "torchao rowwise"};
}

Recipe rowwise_gw_hp() {
  const QuantFormat row = fp8(DType::e4m3, Granularity::row, ScaleType::f32_pow2);
  const QuantFormat tensor = fp8(DType::e4m3, Granularity::tensor, ScaleType::f32_pow2);
  return {"rowwise_gw_hp",
          {row, row, true},
          {row, tensor, false},
          {kBf16, kBf16, false},
          "torchao rowwise_with_gw_hp"};
}

Recipe blockwise(const char* name, ScaleType scale, const char* reference) {
  const QuantFormat vector = fp8(DType::e4m3, Granularity::block_1x128, scale);
  const QuantFormat square = fp8(DType::e4m3, Granularity::block_128x128, scale);
  return {name, {vector, square, false}, {vector, square, false}, {vector, vector, false}, reference};
}

Recipe mxfp8(const char* name, ScaleRounding rounding, const char* reference) {
  const GemmRecipe gemm{mx(rounding), mx(rounding), false};
  return {name, gemm, gemm, gemm, reference};
}

/// MXFP8 with E5M2 for dY, as in tensorwise.
Recipe mxfp8_e5m2() {
  const QuantFormat p = mx(ScaleRounding::rceil), g = mx(ScaleRounding::rceil, DType::e5m2);
  return {"mxfp8_e5m2",
          {p, p, false},
          {g, p, false},
          {g, p, false},
          "TransformerEngine MXFP8BlockScaling (HYBRID)"};
}

Recipe mxfp8_wgrad_hp() {
  const QuantFormat p = mx(ScaleRounding::rceil);
  return {"mxfp8_wgrad_hp",
          {p, p, false},
          {p, p, false},
          {kBf16, kBf16, false},
          "torchao mxfp8_rceil_wgrad_with_hp"};
}

/// MXFP8 with 32 x 32 blocks for weights, so that their codes are the same in both directions.
Recipe mxfp8_w2d() {
  const QuantFormat p = mx(ScaleRounding::rceil);
  QuantFormat w = p;
  w.granularity = Granularity::block_32x32;
  return {
      "mxfp8_w2d", {p, w, false}, {p, w, false}, {p, p, false}, "TransformerEngine enable_2d_quantization"};
}

/// Returns the format of an NVFP4 operand.
constexpr QuantFormat nvfp4(Granularity granularity = Granularity::block_1x16,
                            ElementRounding rounding = ElementRounding::rne, Transform transform = {}) {
  QuantFormat format{DType::e2m1, granularity, ScaleType::e4m3};
  format.element_rounding = rounding;
  format.transform = transform;
  return format;
}

/// NVFP4 with stochastic rounding of gradients and a Hadamard transform of wgrad. `all`: in all blocks and all steps; else the
/// last blocks stay in BF16, and late in a run all of them.
Recipe nvfp4_recipe(const char* name, bool all, const char* reference) {
  const ElementRounding stochastic = ElementRounding::stochastic;
  const QuantFormat x = nvfp4(), w = nvfp4(Granularity::block_16x16), g = nvfp4(Granularity::block_1x16, stochastic);
  const Transform transform = {16, Signs::te};
  const QuantFormat xt = nvfp4(Granularity::block_1x16, ElementRounding::rne, transform);
  const QuantFormat gt = nvfp4(Granularity::block_1x16, stochastic, transform);
  Recipe recipe{name, {x, w, false}, {g, w, false}, {gt, xt, false}, reference};
  if (all) return recipe;
  recipe.keep_bf16.last.part = 0.15;
  recipe.schedule = {{"bf16", {.count = 0, .part = 0.82}}};
  return recipe;
}

/// Returns the format of an MXFP4 operand: the scale is rounded down as in OCP MX. With `element_scale` 3/4
/// no element clips.
constexpr QuantFormat mxfp4(ElementRounding rounding, Transform transform, float element_scale) {
  QuantFormat format{DType::e2m1, Granularity::block_1x32, ScaleType::ue8m0, ScaleRounding::floor};
  format.element_rounding = rounding;
  format.transform = transform;
  format.element_scale = element_scale;
  return format;
}
constexpr float kNeverClips = 0.75f;

/// MXFP4 in dgrad and wgrad, the forward pass in BF16.
Recipe mxfp4_bwd() {
  const QuantFormat g = mxfp4(ElementRounding::stochastic, {64, Signs::gemm}, kNeverClips);
  return {"mxfp4_bwd", {}, {g, g, false}, {g, g, false}, "arXiv 2502.20586; mxfp4-llm"};
}

/// Backward uses fprop's codes, and gradients get the inverse Hadamard transform.
Recipe quartet(const char* name, ElementRounding gradients, const char* reference) {
  QuantFormat x{DType::e2m1, Granularity::block_1x32, ScaleType::ue8m0, ScaleRounding::quest};
  x.transform = {32, Signs::none};
  const QuantFormat g = mxfp4(gradients, {32, Signs::gemm}, kNeverClips);
  QuantFormat q = g;
  q.from_fprop = true;
  Recipe recipe{name, {x, x, false}, {g, q, false}, {g, q, false}, reference};
  recipe.mask_clipped = true;
  return recipe;
}

Recipe quartet2() {
  QuantFormat x = nvfp4();
  x.global_scale = 256;
  x.four_over_six = true;
  QuantFormat g = nvfp4();
  g.global_scale = 255.99f;
  g.element_scale = 1.0120177f;  // 16 / (17 * 0.93): slight clipping pays off with the correction
  g.eden = 16;
  g.transform = {128, Signs::backward};
  QuantFormat q = g;
  q.from_fprop = true;
  return {"quartet2", {x, x, false}, {g, q, false}, {g, q, false}, "Quartet II (arXiv 2601.22813), MS-EDEN"};
}

/// `rowwise` with two fewer mantissa bits in every operand.
Recipe rowwise_e4m1() {
  QuantFormat row = fp8(DType::e4m3, Granularity::row, ScaleType::f32_pow2);
  row.dropped_bits = 2;
  return {"rowwise_e4m1", {row, row, true}, {row, row, false}, {row, row, false}, "must break every margin"};
}

/// `rowwise` with E5M2 as in TransformerEngine's HYBRID and for X. wgrad's E5M2 x E5M2 is emulated
/// everywhere.
Recipe rowwise_e5m2() {
  const QuantFormat e4m3 = fp8(DType::e4m3, Granularity::row, ScaleType::f32_pow2);
  const QuantFormat e5m2 = fp8(DType::e5m2, Granularity::row, ScaleType::f32_pow2);
  return {"rowwise_e5m2",
          {e5m2, e4m3, true},
          {e5m2, e4m3, false},
          {e5m2, e5m2, false},
          "must be told apart from rowwise"};
}

/// The 16 values of NF4, quantiles of a normal distribution (QLoRA, arXiv 2305.14314, appendix E).
constexpr float kNf4Values[] = {-1.0f,
                                -0.6961928009986877f,
                                -0.5250730514526367f,
                                -0.39491748809814453f,
                                -0.28444138169288635f,
                                -0.18477343022823334f,
                                -0.09105003625154495f,
                                0.0f,
                                0.07958029955625534f,
                                0.16093020141124725f,
                                0.24611230194568634f,
                                0.33791524171829224f,
                                0.44070982933044434f,
                                0.5626170039176941f,
                                0.7229568362236023f,
                                1.0f};

QuantFormat nf4() {
  const Grid* grid = make_grid({std::begin(kNf4Values), std::end(kNf4Values)});
  QuantFormat format{code_type(*grid), Granularity::block_1x64, ScaleType::f32};
  format.grid = grid;
  return format;
}

/// BF16 GEMMs on dequantized weights.
Recipe weight_only(const char* name, const QuantFormat& format, const char* reference) {
  Recipe recipe{name, {}, {}, {}, reference};
  recipe.weight_only = format;
  return recipe;
}

/// BF16 except for the optimizer state.
Recipe bf16_with_state(const char* name, StateFormat m, StateFormat v, const char* reference) {
  Recipe recipe{name, {}, {}, {}, reference};
  recipe.optimizer = {name_of(m), name_of(v)};
  return recipe;
}

/// An optimization level of MS-AMP: its GEMMs, the formats of its state, and X in FP8 for wgrad, as in TransformerEngine.
Recipe msamp(const char* name, const RecipeState& state, const char* reference) {
  QuantFormat p = fp8(DType::e4m3, Granularity::tensor, ScaleType::f32_pow2);
  p.history = {.length = 16, .first = FirstScale::window};
  QuantFormat g = p;
  g.dtype = DType::e5m2;
  Recipe recipe{name, {p, p, true}, {g, p, false}, {g, p, false}, reference};
  recipe.optimizer = state;
  recipe.kept = kept_by("transformer_engine");
  return recipe;
}

/// Returns the first dimension that does not fit this GEMM. `contracted` must hold whole blocks, unless the last may be
/// partial. FP8 matrices have M, N and K of multiples of 16: rows of data and of BF16 results then start at multiples of 16
/// bytes, as cuBLASLt and TMA require. For FP4 that is 32 elements.
std::optional<std::string> gemm_unsupported_reason(const GemmRecipe& gemm, GemmRole role, char contracted,
                                                   std::int64_t M, std::int64_t N, std::int64_t K) {
  if (!gemm.a.quantized() && !gemm.b.quantized()) return std::nullopt;
  const std::pair<char, std::int64_t> dimensions[] = {{'M', M}, {'N', N}, {'K', K}};
  for (const auto& [letter, size] : dimensions) {
    if (letter != contracted) continue;
    for (const auto& [side, operand] : {std::pair{'a', gemm.a}, std::pair{'b', gemm.b}}) {
      const std::int64_t block = block_length(operand.granularity);
      if (block > 0 && size % block != 0 && !may_end_in_partial_block(operand.granularity))
        return fmt::format("{}={} is not a multiple of {} ({}.{} {})", letter, size, block, name_of(role),
                           side, name_of(operand.granularity));
      if (operand.transform && size % operand.transform.length != 0)
        return fmt::format("{}={} is not a multiple of {} ({}.{} transform)", letter, size,
                           operand.transform.length, name_of(role), side);
    }
  }
  const bool fp4 = gemm.a.dtype == DType::e2m1 || gemm.b.dtype == DType::e2m1;
  for (const auto& [letter, size] : dimensions) {
    const std::int64_t multiple = fp4 && letter == contracted ? 32 : 16;
    if (size % multiple != 0)
      return fmt::format("{}={} is not a multiple of {} ({} in {})", letter, size, multiple, name_of(role),
                         element_name(gemm.a));
  }
  return std::nullopt;
}

/// Returns the first dimension of a weight [N, K] that cannot be stored in a format. Quantizers of FP8 and FP4 read rows in
/// groups of 16 and 32 elements; those of emulated formats, one by one.
std::optional<std::string> stored_shape_unsupported_reason(const QuantFormat& format, std::int64_t N,
                                                           std::int64_t K) {
  if (!format.quantized()) return std::nullopt;
  const std::int64_t block = block_length(format.granularity);
  if (block > 0 && K % block != 0 && !may_end_in_partial_block(format.granularity))
    return fmt::format("K={} is not a multiple of {} (weight_only {})", K, block,
                       name_of(format.granularity));
  if (format.dtype == DType::grid4 && K % 2 != 0)
    return fmt::format("K={} is odd (weight_only {}: two codes a byte)", K, element_name(format));
  if (always_emulated(format)) return std::nullopt;
  for (const auto& [letter, size] : {std::pair{'N', N}, std::pair{'K', K}})
    if (const std::int64_t multiple = letter == 'K' && format.dtype == DType::e2m1 ? 32 : 16;
        size % multiple != 0)
      return fmt::format("{}={} is not a multiple of {} (weight_only {})", letter, size, multiple,
                         element_name(format));
  return std::nullopt;
}

/// Returns the first dimension that does not consist of whole blocks, if the recipe transposes FP8 data: a
/// transposition rescales whole squares of 128 x 128.
std::optional<std::string> flow_shape_unsupported_reason(const Recipe& recipe, std::int64_t M, std::int64_t N,
                                                         std::int64_t K) {
  if (!recipe.flow) return std::nullopt;
  constexpr std::int64_t kSide = 128;
  for (const auto& [letter, size] : {std::pair{'M', M}, {'N', N}, {'K', K}})
    if (size % kSide != 0)
      return fmt::format("{}={} is not a multiple of {} (flow: FP8 data is transposed in squares)", letter,
                         size, kSide);
  return std::nullopt;
}

std::vector<Recipe> all_of(const std::vector<RecipeGroup>& groups) {
  std::vector<Recipe> all;
  for (const RecipeGroup& group : groups) all.insert(all.end(), group.recipes.begin(), group.recipes.end());
  return all;
}

std::vector<Recipe> joined(std::initializer_list<const std::vector<Recipe>*> tables) {
  std::vector<Recipe> all;
  for (const std::vector<Recipe>* table : tables) all.insert(all.end(), table->begin(), table->end());
  return all;
}

}  // namespace

const std::vector<RecipeGroup>& recipe_groups() {
  static const std::vector<RecipeGroup> groups = {
      {"BF16", {{"bf16", {}, {}, {}, "the baseline"}}},
      {"FP8, scales of tensors and rows", {tensorwise(), rowwise(), rowwise_gw_hp()}},
      {"FP8, scales of tensors from the steps before (delayed scaling)",
       {tensorwise_delayed(), ablation("tensorwise_delayed_recent"), ablation("tensorwise_delayed_e4m3")}},
      {"FP8, scales of blocks of 128",
       {blockwise("blockwise", ScaleType::f32, "DeepSeek-V3 (arXiv 2412.19437)"),
        blockwise("blockwise_pow2", ScaleType::f32_pow2,
                  "TransformerEngine Float8BlockScaling, but with a floor of 1e-12 under amax")}},
      {"MXFP8, exponents of blocks of 32",
       {mxfp8("mxfp8", ScaleRounding::rceil,
              "MXFP8 pre-training recipe (arXiv 2506.08027); torchao mxfp8_rceil"),
        mxfp8("mxfp8_floor", ScaleRounding::floor, "OCP MX v1.0 rounding, for comparison"),
        ablation("mxfp8_ceil"), ablation("mxfp8_even"), mxfp8_e5m2(),
        mxfp8_wgrad_hp(), mxfp8_w2d()}},
      {"BF16, moments of AdamW in fewer bits",
       {bf16_with_state("bf16_moments", StateFormat::bf16, StateFormat::bf16,
                        "DeepSeek-V3 (arXiv 2412.19437)"),
        bf16_with_state("coat", StateFormat::coat, StateFormat::coat, "COAT (arXiv 2410.19313)")}},
      {"FP8 throughout: MS-AMP's optimization levels",
       {msamp("msamp_o1", {.master = "fp16", .gradients = "e4m3"}, "MS-AMP O1: FP16 weights, FP8 gradients"),
        msamp("msamp_o2", {.m = "e4m3", .v = "fp16", .master = "fp16", .gradients = "e4m3"},
              "MS-AMP O2 (FP8-LM, arXiv 2310.18313): O1 with FP8 and FP16 moments"),
        msamp("msamp_o3",
              {.m = "e4m3", .v = "fp16", .master = "fp16", .weights = "e4m3", .gradients = "e4m3"},
              "MS-AMP O3: O2 with FP8 weights")}},
  };
  return groups;
}

const std::vector<Recipe>& builtin_recipes() {
  static const std::vector<Recipe> recipes = all_of(recipe_groups());
  return recipes;
}

const std::vector<Recipe>& control_recipes() {
  static const std::vector<Recipe> recipes = {rowwise_e5m2(), rowwise_e4m1()};
  return recipes;
}

const std::vector<RecipeGroup>& fp4_groups() {
  static const std::vector<RecipeGroup> groups = {
      {"NVFP4, e4m3 scales of blocks of 16",
       {nvfp4_recipe("nvfp4", false, "NVFP4 pre-training recipe (arXiv 2509.25149)"), ablation("nvfp4_rne"),
        ablation("nvfp4_norht"), ablation("nvfp4_w1d"),
        nvfp4_recipe("nvfp4_all", true, "nvfp4 in all blocks and all steps"), ablation("nvfp4_sr_fwd"),
        ablation("nvfp4_fprop_bf16")}},
      {"MXFP4 in backward, exponents of blocks of 32",
       {mxfp4_bwd(), ablation("mxfp4_bwd_rne"), ablation("mxfp4_bwd_norht"), ablation("mxfp4_bwd_plain")}},
      {"FP4 in all GEMMs: Quartet, Quartet II",
       {quartet("quartet", ElementRounding::rne, "Quartet (arXiv 2505.14669)"),
        quartet("quartet_sr", ElementRounding::stochastic, "Quartet's code: backward rounds stochastically"),
        quartet2()}},
  };
  return groups;
}

const std::vector<Recipe>& fp4_recipes() {
  static const std::vector<Recipe> recipes = all_of(fp4_groups());
  return recipes;
}

const RecipeGroup& weight_only_group() {
  static const RecipeGroup group = {
      "Weight-only: BF16 GEMMs on dequantized weights",
      {weight_only("fp8_weights", fp8(DType::e4m3, Granularity::row, ScaleType::f32),
                   "FP8 weights with an FP32 scale per row (torchao Float8WeightOnlyConfig)"),
       weight_only("nvfp4_weights", nvfp4(), "NVFP4 weights in blocks of 1x16"),
       weight_only(
           "nf4_weights", nf4(),
           "QLoRA (arXiv 2305.14314): NF4 weights, FP32 absmax of blocks of 64, not quantized again")}};
  return group;
}

const std::vector<Recipe>& listed_recipes() {
  static const std::vector<Recipe> recipes =
      joined({&builtin_recipes(), &fp4_recipes(), &weight_only_group().recipes});
  return recipes;
}

const std::vector<Recipe>& named_recipes() {
  static const std::vector<Recipe> recipes =
      joined({&builtin_recipes(), &control_recipes(), &fp4_recipes(), &weight_only_group().recipes});
  return recipes;
}

const std::vector<KeptStack>& kept_stacks() {
  constexpr KeptActivations kQuantized{KeptAs::quantized, KeptAs::quantized, KeptAs::quantized};
  static const std::vector<KeptStack> stacks = {
      {"precbench", "the least memory without an error", {}},
      {"transformer_engine", "TransformerEngine: inputs of linear layers as wgrad reads them", kQuantized},
      {"torchao",
       "torchao's float8 and MX linear layers without recomputation: their inputs in BF16",
       {KeptAs::value, KeptAs::value, KeptAs::value, KeptAs::value}},
      {"torchao_nvfp4", "torchao's NVFP4 linear layer, which torchtitan uses: as transformer_engine",
       kQuantized},
      {"coat",
       "COAT (arXiv 2410.19313): as transformer_engine, and inputs of norms and SwiGLU in groups of 16",
       {KeptAs::quantized, KeptAs::quantized, KeptAs::quantized, KeptAs::recompute, kGroupsOf16,
        kGroupsOf16}}};
  return stacks;
}

const KeptActivations& kept_by(const std::string& stack) {
  std::vector<std::string> names;
  for (const KeptStack& known : kept_stacks()) {
    if (stack == known.name) return known.kept;
    names.emplace_back(known.name);
  }
  throw InvalidInput(fmt::format("\"{}\" is no stack; one of {}", stack, fmt::join(names, ", ")));
}

std::pair<QuantFormat, QuantFormat> stored_formats(const Recipe& recipe) {
  if (recipe.weight_only.quantized()) return {recipe.weight_only, {}};
  return {recipe.fprop.b, recipe.dgrad.b};
}

const char* name_of(Granularity g) { return kGranularityNames.of(g); }
const char* name_of(ScaleType t) { return kScaleNames.of(t); }
const char* name_of(ScaleRounding r) { return kScaleRoundingNames.of(r); }
const char* name_of(ElementRounding r) { return kElementRoundingNames.of(r); }
const char* name_of(Signs s) { return kSignNames.of(s); }
const char* name_of(HistoryAlgorithm a) { return kAlgorithmNames.of(a); }
const char* name_of(FirstScale f) { return kFirstNames.of(f); }
const char* name_of(HistoryUpdate u) { return kUpdateNames.of(u); }
const char* name_of(GemmRole role) { return kRoleNames.of(role); }
const char* name_of(KeptAs k) { return kKeptNames.of(k); }

const char* element_name(const QuantFormat& format) {
  if (format.dropped_bits == 0) return name_of(format.dtype);
  return format.dtype == DType::e5m2 ? "e5m1" : format.dropped_bits == 1 ? "e4m2" : "e4m1";
}

std::string describe(const KeptActivations& kept) {
  std::string text = fmt::format("norm {}, activation {}, attention {}", name_of(kept.norm),
                                 name_of(kept.activation), name_of(kept.attention));
  if (kept.gemm_output == KeptAs::value) text += ", outputs of GEMMs";
  if (kept.norm_input.quantized()) text += ", norm input " + describe(kept.norm_input);
  if (kept.activation_input.quantized()) text += ", activation input " + describe(kept.activation_input);
  return text;
}

std::string describe(const QuantFormat& format) {
  if (!format.quantized()) return name_of(format.dtype);
  std::string text =
      fmt::format("{}{} {} {}", element_name(format), format.grid ? std::to_string(format.grid->count) : "",
                  name_of(format.granularity), name_of(format.scale));
  if (format.scale_rounding != ScaleRounding::none)
    text += fmt::format("/{}", name_of(format.scale_rounding));
  if (format.delayed())
    text += fmt::format(" {} of {}{}{}", name_of(format.history.algorithm), format.history.length,
                        format.history.update == HistoryUpdate::micro ? " micro" : "",
                        format.history.reduce ? "" : " by rank");
  if (format.element_scale != 1) text += fmt::format(" x{:.4g}", format.element_scale);
  if (format.four_over_six) text += " 4/6";
  if (const Transform& t = format.transform)
    text += t.signs == Signs::te     ? " rht"
            : t.signs == Signs::none ? fmt::format(" h{}", t.length)
                                     : fmt::format(" rh{}", t.length);
  if (format.element_rounding == ElementRounding::stochastic) text += " sr";
  if (format.eden) text += format.eden == 16 ? " eden" : fmt::format(" eden{}", format.eden);
  if (format.from_fprop) text += " of fprop";
  return text;
}

std::optional<std::string> flow_unsupported_reason(const Recipe& recipe) {
  const QuantFormat codes = fp8(DType::e4m3, Granularity::block_1x128, ScaleType::f32_pow2);
  for (const GemmRole role : kGemmRoles)
    for (const auto& [side, operand] :
         {std::pair{'a', recipe.gemm(role).a}, std::pair{'b', recipe.gemm(role).b}}) {
      const bool weight = side == 'b' && role != GemmRole::wgrad;
      if (!weight && !(operand == codes))
        return fmt::format("{} has no quantized data to transpose: {}.{} is {}, not {}", recipe.name,
                           name_of(role), side, describe(operand), describe(codes));
    }
  return std::nullopt;
}

std::optional<std::string> weight_slice_unsupported_reason(const Recipe& recipe, std::int64_t first,
                                                           std::int64_t count) {
  const QuantFormat& w = stored_formats(recipe).first;
  const std::int64_t rows = block_rows(w.granularity);
  const char* why = !w.quantized()                                      ? nullptr
                    : w.delayed()                                       ? "scales from earlier steps"
                    : w.scale == ScaleType::e4m3                        ? "a scale of the whole matrix"
                    : w.element_rounding == ElementRounding::stochastic ? "random numbers of the whole matrix"
                    : first % rows != 0 || count % rows != 0            ? "blocks that end elsewhere"
                                                                        : nullptr;
  if (!why) return std::nullopt;
  return fmt::format("rows {} to {} of a weight in {} have {}", first, first + count, describe(w), why);
}

std::optional<std::string> shape_unsupported_reason(const Recipe& recipe, std::int64_t M, std::int64_t N,
                                                    std::int64_t K) {
  for (GemmRole role : kGemmRoles) {
    const char contracted = role == GemmRole::fprop ? 'K' : role == GemmRole::dgrad ? 'N' : 'M';
    if (auto why = gemm_unsupported_reason(recipe.gemm(role), role, contracted, M, N, K)) return why;
  }
  if (auto why = stored_shape_unsupported_reason(recipe.weight_only, N, K)) return why;
  return flow_shape_unsupported_reason(recipe, M, N, K);
}

}  // namespace precbench
