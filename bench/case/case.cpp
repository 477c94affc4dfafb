// The field table and its conversions from and to text and JSON.
#include "bench/case/case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>

#include "bench/case/case_words.h"
#include "bench/case/recompute.h"
#include "bench/case/sensitivity_groups.h"
#include "bench/case/stress.h"
#include "kernels/base/errors.h"
#include "kernels/base/near_words.h"
#include "kernels/base/parse_count.h"
#include "kernels/base/parse_number.h"
#include "kernels/gpu/device_info.h"
#include "kernels/numerics/recipe.h"
#include "kernels/numerics/selection.h"
#include "kernels/numerics/state_formats.h"
#include "models/transformer/optimizer/optimizers.h"

namespace precbench {
namespace {

using Text = std::string Case::*;
using Integer = std::int64_t Case::*;
using Real = double Case::*;
using OptionalReal = std::optional<double> Case::*;

constexpr const char* kWork = "Work";
constexpr const char* kPrecision = "Precision and memory";
constexpr const char* kOptimizer = "Optimizer";
constexpr const char* kData = "Data and weights";
constexpr const char* kMeasurement = "Measurement";

/// Word for an OptionalReal that is not set.
constexpr const char* kAuto = "auto";

constexpr const char* kTensorHint = "add --tensor N, the ranks that divide every matrix";
constexpr const char* kPipelineHint = "add --pipeline N, which sweep --dry-run --on MACHINE predicts";

constexpr bool kAxis = true;
constexpr bool kSingle = false;

std::vector<std::string> device_choices() {
  std::vector<std::string> names = {"auto", "cpu"};
  for (const std::string& gpu : gpu_device_names()) names.push_back(gpu);
  return names;
}

std::vector<std::string> state_format_names() {
  std::vector<std::string> names;
  for (int i = 0; i < kStateFormats; ++i) names.emplace_back(name_of(static_cast<StateFormat>(i)));
  return names;
}

std::vector<std::string> second_moment_names() {
  std::vector<std::string> names = state_format_names();
  names.insert(names.begin(), Case{}.second_moment);
  return names;
}

std::vector<std::string> optimizer_names() {
  std::vector<std::string> names;
  for (const OptimizerSpec& spec : optimizers()) names.emplace_back(spec.name);
  return names;
}

template <class Enum, std::size_t kCount>
std::vector<std::string> words_in(const EnumNames<Enum, kCount>& table) {
  return {std::begin(table.names), std::end(table.names)};
}

/// Returns "recipe" and the stacks of recipe.h.
std::vector<std::string> words_of_kept() {
  std::vector<std::string> words = {Case{}.kept};
  for (const KeptStack& stack : kept_stacks()) words.emplace_back(stack.name);
  return words;
}

/// Row of the table under construction.
struct Row : Field {
  /// A number must exceed its minimum.
  Row above_minimum() { return above = true, *this; }
  /// Second name in snake_case, the field's usual one in other programs.
  Row also(const char* second) { return alias = second, *this; }
  /// A text that may combine its choices.
  Row combined(std::string (*parse)(const std::string&)) { return stored = parse, *this; }
  Row checked(void (*parse)(const std::string&)) { return check = parse, *this; }
};

Row text(const char* name, const char* group, const char* help, Text member, bool axis, Identity identity,
         std::vector<std::string> choices = {}) {
  return {{name, group, "", help, member, std::move(choices), axis, identity, 0, ""}};
}

template <class Member>
Row number(const char* name, const char* group, const char* unit, const char* help, Member member, bool axis,
           double minimum, const char* zero_word = "", Identity identity = Identity::always,
           std::int64_t maximum = 0) {
  return {{name, group, unit, help, member, {}, axis, identity, minimum, zero_word, maximum}};
}

std::vector<Field> make_fields() {
  const auto always = Identity::always, defined = Identity::defined;
  const auto when_set = Identity::when_set, when_used = Identity::when_used;
  const auto defined_when_used = Identity::defined_when_used, predicted = Identity::predicted;
  return {
      text("model", kWork, "model: preset, its Hugging Face name, JSON file, or folder with a config.json",
           &Case::model, kAxis, defined),
      number("layers", kWork, "", "transformer blocks kept, counted from the first", &Case::layers, kAxis, 0,
             "all", defined_when_used),
      text("recipe", kWork,
           "low-precision recipe: built-in name, JSON file, or a set: all, fp8, mx, fp4, native",
           &Case::recipe, kAxis, defined),
      number("seq", kWork, "tokens", "sequence length", &Case::seq, kAxis, 1),
      number("batch", kWork, "sequences", "micro-batch size per GPU", &Case::batch, kAxis, 1),
      number("accumulation", kWork, "", "gradient accumulation: micro-batches per optimizer step",
             &Case::accumulation, kAxis, 1, "", always, kMaxAccumulation),
      number("gpus", kWork, "", "number of ranks; on the CPU device each rank is a thread", &Case::gpus,
             kAxis, 1, "", always, kMaxRanks),
      text("parallel", kWork, "data parallelism: replicated, sharded, or sharded within groups",
           &Case::parallel, kAxis, always, words_in(kParallelWords)),
      number("shard_group", kWork, "ranks", "shard group size with --parallel hsdp", &Case::shard_group,
             kAxis, 1, "", when_set, kMaxRanks),
      number("context", kWork, "ranks", "context parallelism: ranks that share each sequence", &Case::context,
             kAxis, 1, "", when_set, kMaxRanks),
      text(
          "context_exchange", kWork,
          "keys and values of context ranks: gathered, or passed around a ring for long sequences; auto: gather",
          &Case::context_exchange, kAxis, when_used, {"auto", "gather", "ring"}),
      number("tensor", kWork, "ranks", "tensor parallelism with sequence parallelism", &Case::tensor, kAxis,
             1, "", predicted, kMaxRanks)
          .also("tp"),
      text(
          "tensor_gather", kWork,
          "dtype in which tensor ranks gather activations and gradients; auto: fp8 for recipes with one current "
          "scale per tensor",
          &Case::tensor_gather, kAxis, when_used, {"auto", "bf16", "fp8"}),
      number("pipeline", kWork, "stages", "pipeline parallelism; predicted only (sweep --dry-run --on)",
             &Case::pipeline, kAxis, 1, "", predicted, kMaxRanks)
          .also("pp"),
      number("virtual_stages", kWork, "",
             "groups of layers per pipeline stage, run in an interleaved schedule; 1: 1F1B",
             &Case::virtual_stages, kAxis, 1, "", predicted, kMaxRanks),
      number("micro_batches", kWork, "",
             "micro-batches per optimizer step of a pipeline; auto: those of --accumulation",
             &Case::micro_batches, kAxis, 0, "auto", predicted, kMaxAccumulation),
      text(
          "shard_optimizer", kWork,
          "optimizer state sharded over data ranks (ZeRO-1), that of experts over their replicas; predicted only",
          &Case::shard_optimizer, kAxis, predicted, words_in(kSwitchWords)),
      text(
          "overlap", kWork,
          "traffic that runs beside the GEMMs (tensor) or the attention (context) that need it; predicted only",
          &Case::overlap, kAxis, predicted, {"none", "tensor", "context", "all"}),
      text("gather", kWork, "dtype of the blocks' weights in the all-gather (fsdp, hsdp)", &Case::gather,
           kAxis, when_set, words_in(kSentInFp8Words)),
      text("reshard", kWork, "resharding of gathered weights after each use; auto: off where memory allows",
           &Case::reshard, kAxis, when_set, words_in(kReshardWords)),
      text("grad_sync", kWork,
           "micro-steps that reduce-scatter gradients (fsdp, hsdp); auto: the last where memory allows",
           &Case::grad_sync, kAxis, when_set, words_in(kGradSyncWords)),
      text("reduce_amax", kWork,
           "all-reduce of the amax behind per-tensor scales; group: over the ranks that share a sequence",
           &Case::reduce_amax, kSingle, when_set, words_in(kReduceAmaxWords)),
      text("device", kWork, "compute device; auto: a GPU if one is visible, else the CPU", &Case::device,
           kAxis, always, device_choices()),
      number("steps", kWork, "", "optimizer steps; auto: until the step time has settled", &Case::steps,
             kAxis, 0, "auto"),
      number("seed", kWork, "", "random seed of weights, data and data order", &Case::seed, kAxis, 0),

      text("master", kPrecision, "master weight dtype; sr: stochastic rounding; fp16: per-tensor scale",
           &Case::master, kAxis, always, words_in(kMasterWords))
          .also("master_dtype"),
      text("weights", kPrecision,
           "compute copy of the master weights in linear layers; e4m3: quantized by the recipe",
           &Case::weights, kAxis, when_set, {"bf16", "e4m3"}),
      text("moments", kPrecision,
           "optimizer state dtype; e4m3, fp16: per-tensor scale; coat: E4M3 in scaled groups", &Case::moments,
           kAxis, always, state_format_names())
          .also("optim_dtype"),
      text("second_moment", kPrecision, "dtype of the second moment; same: that of --moments",
           &Case::second_moment, kAxis, when_set, second_moment_names()),
      text("grads", kPrecision, "gradient dtype; e4m3: stored and reduced with a per-tensor scale",
           &Case::grads, kAxis, always, {"fp32", "bf16", "e4m3"})
          .also("grad_dtype"),
      text("head", kPrecision, "lm_head GEMM format", &Case::head, kAxis, always,
           words_in(kHeadInRecipeWords))
          .also("lm_head"),
      text("keep_bf16", kPrecision,
           "linear layers kept in BF16: first:N,last:N (blocks), block:N, block:N.ROLE, qkv, o, "
           "gate_up, down, head, q, k, v, split_qkv, first_linear, last_linear, min_in:N, min_out:N, "
           "torchao_auto; none: not even the recipe's own",
           &Case::keep_bf16, kSingle, defined)
          .checked([](const std::string& text) { parse_keep_bf16(text); }),
      text("switch_recipe", kPrecision,
           "recipe change during the run: NAME@STEP, or NAME@0.8 for a fraction of --steps; none: not "
           "even the recipe's own",
           &Case::switch_recipe, kSingle, defined)
          .checked([](const std::string& text) { parse_switches(text); }),
      text(
          "recompute", kPrecision,
          "activations recomputed in the backward pass: of all blocks, of the first K (block:K), parts of every "
          "block joined by +, or selective: as torchtitan, all but the outputs of attention and of every second GEMM",
          &Case::recompute, kAxis, always, {"none", "selective", "block", "norm", "ffn", "attention"})
          .combined([](const std::string& text) { return recompute_text(parse_recompute(text)); }),
      text("flow", kPrecision, "FP8-Flow: transposed FP8 data of X and dY as wgrad operands (blockwise_pow2)",
           &Case::flow, kAxis, defined_when_used, words_in(kSwitchWords)),
      text(
          "kept", kPrecision,
          "activations in memory for the backward pass: as the recipe says, or as a training stack keeps them",
          &Case::kept, kAxis, defined_when_used, words_of_kept()),

      text("routing", kExperts, "MoE routing: learned, or forced for timing: balanced, zipf:A or one",
           &Case::routing, kAxis, when_used)
          .checked([](const std::string& text) { parse_routing(text); }),
      number("capacity", kExperts, "",
             "MoE capacity factor F; tokens beyond F times the even share are dropped; auto: no dropping",
             &Case::capacity, kAxis, 0, "", when_used)
          .above_minimum(),
      number("aux", kExperts, "", "coefficient of the MoE load-balancing loss", &Case::aux, kAxis, 0, "",
             when_used)
          .also("moe_aux_coef"),
      number("z_loss", kExperts, "", "coefficient of the router z-loss", &Case::z_loss, kAxis, 0, "",
             when_used),
      number("ep", kExperts, "ranks", "expert-parallel group size", &Case::ep, kAxis, 1, "", when_used),
      text("exchange", kExperts,
           "token exchange between expert-parallel ranks: all-gather, all-to-all in fixed slots, or "
           "all-to-all with exact counts",
           &Case::exchange, kAxis, when_used, words_in(kExchangeWords)),
      number("slots", kExperts, "tokens",
             "token slots per pair of ranks with --exchange slots; later tokens are dropped", &Case::slots,
             kAxis, 0, "all", when_used),
      text("dispatch", kExperts, "dtype of tokens sent to experts; fp8: quantized by the recipe",
           &Case::dispatch, kAxis, when_used, words_in(kSentInFp8Words)),

      number("lora_rank", kOptimizer, "",
             "rank of LoRA adapters on the blocks' linear layers, trained instead of the model; off: none",
             &Case::lora_rank, kAxis, 0, "off", when_used, kMaxLoraRank)
          .also("lora"),
      number("lora_alpha", kOptimizer, "",
             "LoRA alpha, the adapters' output times alpha / rank; auto: twice the rank", &Case::lora_alpha,
             kAxis, 0, "", when_used)
          .above_minimum(),
      text("optimizer", kOptimizer, "optimizer; muon: AdamW for all but the blocks' matrices",
           &Case::optimizer, kAxis, when_set, optimizer_names()),
      number("lr", kOptimizer, "", "peak learning rate", &Case::lr, kAxis, 0).above_minimum(),
      number("beta1", kOptimizer, "", "decay rate of the first moment; auto: the optimizer's default",
             &Case::beta1, kAxis, 0, "", when_set),
      number("beta2", kOptimizer, "",
             "decay rate of the second moment (lion: of the momentum); auto: the optimizer's default",
             &Case::beta2, kAxis, 0, "", when_set),
      number("eps", kOptimizer, "", "optimizer epsilon; auto: the optimizer's default", &Case::eps, kAxis, 0,
             "", when_set),
      number("momentum", kOptimizer, "", "muon momentum; auto: the optimizer's default", &Case::momentum,
             kAxis, 0, "", when_set),
      number("warmup", kOptimizer, "steps", "linear learning-rate warmup", &Case::warmup, kSingle, 0),
      text("schedule", kOptimizer,
           "learning-rate schedule after warmup: cosine decays to a tenth, linear to zero", &Case::schedule,
           kSingle, always, words_in(kScheduleWords)),
      number("weight_decay", kOptimizer, "", "decoupled weight decay of matrices", &Case::weight_decay,
             kSingle, 0),
      number("clip", kOptimizer, "", "gradient clipping: largest global norm; 0: off", &Case::clip, kSingle,
             0)
          .also("grad_clip"),

      text(
          "data", kData,
          "training data: synthetic, a text file, a folder, a token file (.bin, .u16, .u32), or documents of "
          "prompt and answer (.jsonl)",
          &Case::data, kSingle, defined),
      text("glob", kData, "file name pattern in a folder of --data or --eval-data", &Case::glob, kSingle,
           defined),
      text("packing", kData,
           "packing of whole documents (.jsonl) into sequences, with attention and positions of their own",
           &Case::packing, kAxis, when_used, words_in(kSwitchWords))
          .also("sample_packing"),
      text("eval_data", kData, "held-out text or tokens for evaluation, in the forms of --data",
           &Case::eval_data, kSingle, defined),
      number("eval_every", kData, "steps", "interval between evaluations; 0: only after the last step",
             &Case::eval_every, kSingle, 0),
      number("eval_tokens", kData, "tokens", "held-out tokens per evaluation", &Case::eval_tokens, kSingle,
             1),
      text("eval_recipes", kData,
           "recipes in whose formats the final weights are evaluated too, besides BF16: \"rowwise,mxfp8\"",
           &Case::eval_recipes, kSingle, defined_when_used),
      text("init_from", kData, "initial weights: a .safetensors file, its index, or a Hugging Face folder",
           &Case::init_from, kSingle, defined),
      text("perturb", kData,
           "perturbation of the initial weights; ulp: one unit in the last place of one weight",
           &Case::perturb, kAxis, defined, words_in(kPerturbWords)),
      text("stress", kData,
           "function-preserving outliers in the initial weights, of size 2^S: ffn:S, norm:S, "
           "vo:S[:CHANNELS]",
           &Case::stress, kAxis, defined)
          .checked([](const std::string& text) { parse_stress(text); }),
      text("fork_from", kData,
           "checkpoint to fork from: weights, optimizer state and step count of another run",
           &Case::fork_from, kAxis, defined),
      text("save_init", kData, "output file for the initial weights (.safetensors)", &Case::save_init,
           kSingle, always),
      text("save_final", kData, "output file for the final weights (.safetensors)", &Case::save_final,
           kSingle, always),
      text("save_grads", kData, "output file for the first step's gradients (.safetensors)",
           &Case::save_grads, kSingle, always),
      number("checkpoint_every", kData, "steps",
             "checkpoint interval; a restart resumes from the last checkpoint; 0: no checkpoints",
             &Case::checkpoint_every, kSingle, 0),
      text("checkpoint_at", kData, "additional checkpoints after single steps: N,N,...", &Case::checkpoint_at,
           kSingle, when_used),
      text("checkpoint_dir", kData, "checkpoint folder; with --out DIR: DIR/checkpoints",
           &Case::checkpoint_dir, kSingle, always),
      text("checkpoint_keep", kData, "checkpoints kept on disk", &Case::checkpoint_keep, kSingle, always,
           words_in(kCheckpointKeepWords)),

      number("time_limit", kMeasurement, "s", "limit on sampling time with --steps auto", &Case::time_limit,
             kSingle, 0),
      text("graph", kMeasurement,
           "CUDA graph of the step; early: programmatic dependent launch of our kernels", &Case::graph, kAxis,
           when_set, words_in(kGraphWords))
          .also("cuda_graph"),
      text("deterministic", kMeasurement, "bitwise reproducible runs, at some cost in speed",
           &Case::deterministic, kSingle, when_set, words_in(kSwitchWords)),
      text("attention", kMeasurement, "attention kernels; auto: the faster for the shape", &Case::attention,
           kAxis, when_set, {"auto", "cudnn", "own"}),
      text("gemm", kMeasurement, "GEMM kernels; auto: the fastest; own: ours wherever there is one",
           &Case::gemm, kAxis, when_set, {"auto", "cublaslt", "own"}),
      number("fidelity_batches", kMeasurement, "batches",
             "batches for comparing the recipe's gradient and outputs with BF16's before the first step",
             &Case::fidelity_batches, kSingle, 0, "", when_set),
      text("fidelity_stress", kMeasurement,
           "--stress values for further gradient comparisons: \"ffn:8 ffn:16 norm:8\"",
           &Case::fidelity_stress, kSingle, defined)
          .checked([](const std::string& text) { parse_fidelity_stress(text); }),
      text("sensitivity", kMeasurement,
           "recipe variants measured on the fidelity batches (loss, gradient): standard, all, or a list "
           "of gemms, operands, roles, blocks, linears, elements, scales, best",
           &Case::sensitivity, kSingle, when_used)
          .checked([](const std::string& text) { parse_sensitivity(text); }),
  };
}

/// A field of older versions, whose records have it.
struct RemovedField {
  const char* name;
  const char* replacement;
};
constexpr RemovedField kRemovedFields[] = {
    {"grouped", "removed: experts run in the fastest grouped GEMM that the GPU supports"},
};

std::string kebab(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

bool is_duration(const Field& field) { return std::string_view(field.unit) == "s"; }

template <class T>
std::optional<T> number_in(const Field& field, const std::string& word) {
  if constexpr (std::is_integral_v<T>)
    return parse_whole(word);
  else
    return is_duration(field) ? parse_seconds(word) : parse_number<T>(word);
}

template <class T>
T checked_number(const Field& field, const std::string& word) {
  if (*field.zero_word && word == field.zero_word) return 0;
  const auto value = number_in<T>(field, word);
  if (value && std::isfinite(static_cast<double>(*value))) return *value;
  const auto plain = plain_forms(word);
  throw InvalidInput(fmt::format("{}: \"{}\" is not {}{}{}", flag_of(field), word,
                                 field.is_integer()   ? "a whole number"
                                 : is_duration(field) ? "a number of seconds, such as 90, 10s or 2m"
                                                      : "a number",
                                 *field.zero_word ? fmt::format(" or {}", field.zero_word) : "",
                                 plain ? fmt::format("; write {}", *plain) : ""));
}

/// Other words for a choice, as other programs have them.
struct ForeignWord {
  const char* field;
  const char* word;
  const char* answer;
};
constexpr ForeignWord kForeignWords[] = {
    {"parallel", "tp", kTensorHint},
    {"parallel", "tensor", kTensorHint},
    {"parallel", "pp", kPipelineHint},
    {"parallel", "pipeline", kPipelineHint},
    {"parallel", "ep", "add --ep N"},
    {"parallel", "cp", "add --context N"},
    {"parallel", "zero", "did you mean fsdp?"},
    {"parallel", "zero3", "did you mean fsdp?"},
    {"parallel", "fsdp2", "did you mean fsdp?"},
    {"parallel", "dp", "did you mean ddp?"},
};

/// Returns what to write in place of a word that is no choice of the field: " did you mean X?" or another hint;
/// empty if there is none.
std::string choice_hint(const Field& field, const std::string& word) {
  for (const std::string& choice : field.choices)
    if (equal_but_for_case(word, choice)) return fmt::format("did you mean {}? ", choice);
  if (std::string_view(field.name) == "device" && equal_but_for_case(word, "gpu"))
    return fmt::format("did you mean {}? ", gpu_device_names().front());
  for (const ForeignWord& foreign : kForeignWords)
    if (std::string_view(field.name) == foreign.field && equal_but_for_case(word, foreign.word))
      return std::string(foreign.answer) + (std::string_view(foreign.answer).ends_with('?') ? " " : "; ");
  const std::string near = nearest(word, field.choices);
  return near.empty() ? "" : fmt::format("did you mean {}? ", near);
}

void check_choice(const Field& field, const std::string& word) {
  if (field.choices.empty() || std::count(field.choices.begin(), field.choices.end(), word)) return;
  throw InvalidInput(fmt::format("{}: unknown value \"{}\"; {}it is one of {}", flag_of(field), word,
                                 choice_hint(field, word), fmt::join(field.choices, ", ")));
}

/// Rejects text that is not UTF-8, because a record is JSON and contains every field.
void check_text(const Field& field, const std::string& word) {
  try {
    nlohmann::json(word).dump();
  } catch (const nlohmann::json::exception&) {
    throw InvalidInput(fmt::format("{}: {} is not valid UTF-8; choose another name", flag_of(field), word));
  }
  if (word.empty() && std::string_view(field.name) == "data")
    throw InvalidInput(fmt::format("{}: empty name", flag_of(field)));
}

}  // namespace

const std::vector<Field>& case_fields() {
  static const std::vector<Field> fields = make_fields();
  return fields;
}

const char* removed_field(const std::string& name) {
  for (const RemovedField& field : kRemovedFields)
    if (name == field.name || name == kebab(field.name)) return field.replacement;
  return nullptr;
}

const Field* find_field(const std::string& name) {
  if (name.empty()) return nullptr;
  for (const Field& field : case_fields())
    for (const char* known : {field.name, field.alias})
      if (name == known || name == kebab(known)) return &field;
  return nullptr;
}

std::vector<std::int64_t> parse_checkpoint_at(const std::string& text) {
  std::vector<std::int64_t> steps;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    const auto step = parse_whole(word);
    if (!step || *step < 1) {
      const auto plain = plain_forms(word);
      throw InvalidInput(
          fmt::format("--checkpoint-at: \"{}\" is not a step: whole numbers above 0, N,N,...{}", word,
                      plain ? fmt::format("; write {}", *plain) : ""));
    }
    steps.push_back(*step);
    begin = end + 1;
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

bool writes_checkpoints(const Case& c) { return c.checkpoint_every > 0 || !c.checkpoint_at.empty(); }

std::vector<std::int64_t> checkpoint_steps(const Case& c) {
  std::vector<std::int64_t> steps = parse_checkpoint_at(c.checkpoint_at);
  if (c.checkpoint_every > 0)
    for (std::int64_t step = c.checkpoint_every; step <= c.steps; step += c.checkpoint_every)
      steps.push_back(step);
  std::sort(steps.begin(), steps.end());
  steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
  steps.erase(std::upper_bound(steps.begin(), steps.end(), c.steps), steps.end());
  return steps;
}

std::string flag_of(const Field& field) { return "--" + kebab(field.name); }

std::string alias_flag_of(const Field& field) { return *field.alias ? "--" + kebab(field.alias) : ""; }

std::string get_text(const Case& c, const Field& field) {
  if (const auto* member = std::get_if<Text>(&field.member)) return c.**member;
  if (const auto* member = std::get_if<Real>(&field.member)) return fmt::format("{}", c.**member);
  if (const auto* member = std::get_if<OptionalReal>(&field.member))
    return c.**member ? fmt::format("{}", *(c.**member)) : kAuto;
  const std::int64_t value = c.*std::get<Integer>(field.member);
  return value == 0 && *field.zero_word ? field.zero_word : fmt::format("{}", value);
}

bool is_set(const Case& c, const CaseMember& field) {
  static const Case defaults;
  return std::visit([&](auto member) { return c.*member != defaults.*member; }, field);
}

void check_word(const Field& field, const std::string& text) {
  Case scratch;
  set_text(scratch, field, text);
  if (!field.check) return;
  try {
    field.check(text);
  } catch (const InvalidInput& error) {
    if (std::string_view(error.what()).starts_with("--")) throw;
    throw InvalidInput(fmt::format("{}: {}", flag_of(field), error.what()));
  }
}

void set_text(Case& c, const Field& field, const std::string& text) {
  if (const auto* member = std::get_if<Text>(&field.member)) {
    check_text(field, text);
    if (!field.stored) check_choice(field, text);
    c.** member = field.stored ? field.stored(text) : text;
    return;
  }
  const auto* optional = std::get_if<OptionalReal>(&field.member);
  if (optional && text == kAuto) {
    (c.**optional).reset();
    return;
  }
  double value = 0;
  if (const auto* member = std::get_if<Integer>(&field.member))
    value = static_cast<double>(c.** member = checked_number<std::int64_t>(field, text));
  else if (optional)
    value = *(c.** optional = checked_number<double>(field, text));
  else
    value = c.*std::get<Real>(field.member) = checked_number<double>(field, text);
  const bool auto_word = *field.zero_word && text == field.zero_word;
  const std::string word = optional ? kAuto : field.zero_word;  // allowed besides numbers
  if (value < field.minimum || (field.above && value == field.minimum) ||
      (*field.zero_word && value == 0 && !auto_word))
    throw InvalidInput(fmt::format("{}: must be {} {}{}, not {}", flag_of(field),
                                   field.above ? "above" : "at least", *field.zero_word ? 1 : field.minimum,
                                   word.empty() ? "" : fmt::format(", or {}", word), text));
}

nlohmann::ordered_json field_to_json(const Case& c, const Field& field) {
  if (const auto* member = std::get_if<Real>(&field.member)) return c.**member;
  if (const auto* optional = std::get_if<OptionalReal>(&field.member); optional && c.**optional)
    return *(c.**optional);
  if (const auto* integer = std::get_if<Integer>(&field.member);
      integer && !(c.**integer == 0 && *field.zero_word))
    return c.**integer;
  return get_text(c, field);
}

nlohmann::ordered_json case_to_json(const Case& c) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const Field& field : case_fields())
    if (!field.only_where_used() || is_set(c, field.member)) json[field.name] = field_to_json(c, field);
  return json;
}

Case case_from_json(const nlohmann::ordered_json& json) {
  if (!json.is_object()) throw InvalidInput("case: not a JSON object");
  Case c;
  for (const auto& [key, value] : json.items()) {
    const Field* field = find_field(key);
    if (!field && removed_field(key)) continue;
    if (!field || key == field->alias) throw InvalidInput(fmt::format("case: unknown key {}", key));
    if (value.is_string())
      set_text(c, *field, value.get<std::string>());
    else if (const auto* real = std::get_if<Real>(&field->member); real && value.is_number())
      c.** real = value.get<double>();
    else if (const auto* optional = std::get_if<OptionalReal>(&field->member); optional && value.is_number())
      c.** optional = value.get<double>();
    else if (field->is_integer() && value.is_number_integer())
      c.*std::get<Integer>(field->member) = value.get<std::int64_t>();
    else
      throw InvalidInput(fmt::format("case: {} has the wrong type: {}", key, value.dump()));
  }
  return c;
}

}  // namespace precbench
