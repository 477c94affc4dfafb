// Rewrites traces. See parallel_trace.h.
#include "bench/predict/parallel_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bench/case/choose_layers.h"
#include "bench/case/plan.h"
#include "bench/predict/expert_parts.h"
#include "kernels/base/errors.h"
#include "kernels/numerics/scale_layout.h"
#include "models/transformer/layers/step_context.h"
#include "models/transformer/routing/expected_load.h"

namespace precbench {
namespace {

using Kind = TraceEvent::Kind;

/// Returns the bytes of a quantized copy [rows, cols] with its scales.
double copy_bytes(const OpFormat& format, std::int64_t rows, std::int64_t cols) {
  if (format.dtype == DType::bf16) return 0;
  const DType scale = format.scale == ScaleType::ue8m0  ? DType::ue8m0
                      : format.scale == ScaleType::e4m3 ? DType::e4m3
                                                        : DType::f32;
  return static_cast<double>(bytes_of(format.dtype, rows * cols) +
                             bytes_of(scale, scale_count(format.granularity, rows, cols)));
}

/// Writes the new trace event by event.
class Rewriter {
 public:
  Rewriter(const Trace& local, const Plan& plan, const ParallelLayout& layout,
           const RecomputeShare& recompute, const Trace* experts)
      : local_(local),
        plan_(plan),
        layout_(lacking(layout, plan)),
        recompute_(recompute),
        experts_(experts),
        inputs_in_fp8_(layout.tensor_fp8 && is_one_cast(plan.recipe.fprop.a, plan.recipe.wgrad.b)),
        gradients_in_fp8_(layout.tensor_fp8 && is_one_cast(plan.recipe.dgrad.a, plan.recipe.wgrad.a)),
        optimizer_shards_(optimizer_shards(plan, layout)) {
    if (experts) {
      own_parts_.emplace(local);
      parts_.emplace(*experts);
      if (own_parts_->all().size() != parts_->all().size())
        throw std::logic_error("two traces of one model have other parts of experts");
    }
    out_.comms = local.comms;
    // Traced ranks are those of data and context; tensor ranks lie between them.
    for (std::vector<int>& ranks : out_.comms)
      for (int& rank : ranks) rank *= layout_.tensor;
    if (layout_.tensor > 1) tensor_comm_ = add_comm(layout_.tensor, 1);
    if (experts) expert_comm_ = add_comm(layout.experts, 1);
    out_.repeats = local.repeats;
    for (const TraceCollective& one : local.collectives) {
      tensor_lane_ = std::max(tensor_lane_, one.lane + 1);
      // Only context and tensor ranks have a lane of their own; the latter are consecutive.
      const std::vector<int>& ranks = local.comms[static_cast<std::size_t>(one.comm)];
      if (one.lane != kSharedLane && ranks[1] - ranks[0] == plan.fields.tensor) context_comm_ = one.comm;
    }
  }

  Trace run() {
    out_.attention = local_.attention;
    // Weights that the last step's optimizer has updated arrive while the first micro-step runs.
    if (layout_.sharded_optimizer) gather_weights();
    std::size_t micro_step = 0;
    for (std::size_t i = 0; i <= local_.events.size(); ++i) {
      if (micro_step < local_.micro_steps.size() && i == local_.micro_steps[micro_step]) {
        out_.micro_steps.push_back(micro_step == 0 ? 0 : out_.events.size());
        backward_ = last_gemm_was_head_ = false;
        ++micro_step;
      }
      if (i == local_.repeat_begin) out_.repeat_begin = out_.events.size();
      if (i == local_.repeat_end) out_.repeat_end = out_.events.size();
      if (i == local_.update_begin) out_.update_begin = out_.events.size();
      if (i < local_.events.size()) rewrite(i);
    }
    if (local_.repeats == 1 && local_.repeat_end == 0) out_.repeat_begin = out_.repeat_end = 0;
    return std::move(out_);
  }

 private:
  int add_comm(int ranks, int stride) {
    std::vector<int> members;
    for (int i = 0; i < ranks; ++i) members.push_back(i * stride);
    out_.comms.push_back(std::move(members));
    return static_cast<int>(out_.comms.size()) - 1;
  }

  // ---- events

  std::int32_t op_index(const OpCost& op) {
    for (std::size_t i = 0; i < out_.ops.size(); ++i)
      if (same_call(out_.ops[i], op)) return static_cast<std::int32_t>(i);
    out_.ops.push_back(op);
    return static_cast<std::int32_t>(out_.ops.size() - 1);
  }
  void emit(const OpCost& op) { out_.events.push_back({Kind::op, op_index(op), 0}); }

  void start(const char* name, int comm, double bytes) {
    const auto n = static_cast<double>(out_.comms[static_cast<std::size_t>(comm)].size());
    out_.start({name, bytes, (n - 1) / n * bytes, comm, comm == tensor_comm_ ? tensor_lane_ : kSharedLane});
  }
  void wait(int comm) { out_.events.push_back({Kind::wait, comm, 0}); }

  /// Starts a collective; its wait comes at once, or after the next GEMM where they overlap.
  void tensor_collective(const char* name, double bytes) {
    start(name, *tensor_comm_, bytes);
    if (layout_.tensor_overlap)
      pending_wait_ = true;
    else
      wait(*tensor_comm_);
  }
  void finish_pending() {
    if (!pending_wait_) return;
    wait(*tensor_comm_);
    pending_wait_ = false;
  }

  // ---- ops

  double activation_bytes() const {
    return static_cast<double>(plan_.tokens_per_micro_step() * plan_.model.width) * 2;
  }

  void rewrite(std::size_t at) {
    const TraceEvent& event = local_.events[at];
    if (const auto part = own_parts_ ? own_parts_->part_of(at) : std::nullopt) {
      if (own_parts_->all()[*part].begin == at) copy_experts(parts_->all()[*part]);
      if (event.kind == Kind::op || own_parts_->is_exchange(at)) return;
    }
    if (event.kind == Kind::wait) {
      const TraceEvent wait{Kind::wait, event.index, own_parts_ ? own_parts_->later(at) : event.later};
      if (layout_.context_overlap && event.index == context_comm_)
        keys_wait_ = wait;
      else
        out_.events.push_back(wait);
      return;
    }
    if (event.kind == Kind::start) {
      rewrite_start(local_.collectives[static_cast<std::size_t>(event.index)]);
      return;
    }
    const OpCost& op = local_.ops[static_cast<std::size_t>(event.index)];
    if (op.op_class != OpClass::attention) finish_keys();
    if (op.op_class == OpClass::head_loss) backward_ = true;
    if (is_between_linears(op)) inner_ = true;
    if (layout_.tensor > 1 && is_row_op(op)) return rewrite_row_op(op, own_parts_ && own_parts_->follows(at));
    if (layout_.tensor > 1 && is_gemm(op)) return rewrite_gemm(op);
    emit(layout_.sharded_optimizer && op.op_class == OpClass::optimizer ? shared(op) : rerun(op));
    if (layout_.tensor > 1 && is_called(op, "embedding"))
      tensor_collective("reduce_scatter", activation_bytes());
  }

  void rewrite_start(const TraceCollective& collective) {
    TraceCollective one = collective;
    if (one.comm == context_comm_) finish_keys();
    if (layout_.sharded_optimizer && is_of_gradients(collective)) {
      one.name = "reduce_scatter" + collective.name.substr(std::strlen("all_reduce"));
      one.wire_bytes /= 2;
    }
    out_.start(std::move(one));
  }

  static bool is_of_gradients(const TraceCollective& one) {
    constexpr double kScalars = 1024;  // bytes of the largest buffer of scalars
    return one.name.starts_with("all_reduce") && one.name != "all_reduce_max" && one.lane == kSharedLane &&
           one.buffer_bytes > kScalars;
  }

  void gather_weights() {
    // In BF16, whatever the gradients' format.
    const double of_gradients = plan_.parameters.gradients == DType::f32 ? 0.5 : 1;
    for (auto event = local_.events.rbegin(); event != local_.events.rend(); ++event) {
      if (event->kind != Kind::start) continue;
      const TraceCollective& one = local_.collectives[static_cast<std::size_t>(event->index)];
      if (is_of_gradients(one)) start("all_gather", one.comm, one.buffer_bytes * of_gradients);
    }
  }

  /// Copies a part of the experts' trace. Its collectives of weights and gradients are those of another layout.
  void copy_experts(const ExpertParts::Part& part) {
    finish_pending();
    for (std::size_t i = part.begin; i < part.end; ++i) {
      const TraceEvent& event = experts_->events[i];
      if (event.kind != Kind::op && !parts_->is_exchange(i)) continue;
      if (event.kind == Kind::op) {
        emit(experts_->ops[static_cast<std::size_t>(event.index)]);
      } else if (event.kind == Kind::start) {
        TraceCollective one = experts_->collectives[static_cast<std::size_t>(event.index)];
        one.comm = *expert_comm_;
        out_.start(std::move(one));
      } else {
        out_.events.push_back({Kind::wait, *expert_comm_, parts_->later(i)});
      }
    }
  }

  /// Returns an optimizer op on this rank's share.
  OpCost shared(OpCost op) const {
    op.flops /= optimizer_shards_;
    op.bytes /= optimizer_shards_;
    return op;
  }

  /// Returns an op of the forward pass that runs again in backward, as far as it does.
  OpCost rerun(OpCost op) const {
    const double share = !backward_                                                      ? 1
                         : is_called(op, "matmul fprop") && op.op_class == OpClass::gemm ? recompute_.gemms
                         : is_called(op, "attention") ? recompute_.attention
                                                      : 1;
    op.flops *= share;
    op.bytes *= share;
    return op;
  }

  /// Returns true for ops between a column-parallel GEMM and a row-parallel one, forward and backward.
  static bool is_between_linears(const OpCost& op) {
    return is_called(op, "attention") || is_called(op, "swiglu") || is_called(op, "rope_backward") ||
           is_called(op, "swiglu_backward") || is_called(op, "activate") ||
           is_called(op, "activate_backward");
  }

  /// A norm works on M/t rows; what follows needs all of them, unless it is a router.
  void rewrite_row_op(const OpCost& op, bool experts_follow) {
    if (last_gemm_was_head_ && is_norm_backward(op)) {
      finish_pending();
      tensor_collective("reduce_scatter", activation_bytes());
      finish_pending();
    }
    last_gemm_was_head_ = inner_ = false;
    finish_pending();
    const std::int64_t rows = plan_.tokens_per_micro_step(), cols = plan_.model.width;
    OpCost norm = op;
    norm.shape[0] = rows / layout_.tensor;
    if (experts_follow) {
      norm.bytes /= layout_.tensor;
      return emit(norm);
    }
    const double copies = copy_bytes(op.formats[0], rows, cols) + copy_bytes(op.formats[1], cols, rows);
    norm.formats = {};
    norm.casts = 0;
    norm.bytes = (op.bytes - copies + (copies > 0 ? activation_bytes() : 0)) / layout_.tensor;
    emit(norm);
    if (is_repeated_norm(op) && regather_ == Regather::begun) return;
    std::array<OpFormat, 2> formats = op.formats;
    // Columns of a norm's output are made in backward, of rows that are gathered again, unless traffic overlaps.
    const bool for_wgrad = is_repeated_norm(op) && regather_ == Regather::owed;
    if (for_wgrad)
      regather_ = Regather::none;
    else if (!is_norm_backward(op) && !layout_.tensor_overlap)
      formats[1] = {};
    gather_rows(formats, is_norm_backward(op) ? gradients_in_fp8_ : inputs_in_fp8_);
  }

  /// Gathers the rows of an operand and makes its quantized copies: of all rows, or, in FP8, before the gather.
  void gather_rows(const std::array<OpFormat, 2>& formats, bool in_fp8) {
    const std::int64_t rows = plan_.tokens_per_micro_step(), cols = plan_.model.width;
    const auto is_quantized = [](const OpFormat& format) { return format.dtype != DType::bf16; };
    OpCost cast{
        .name = "quantize",
        .op_class = OpClass::quantize,
        .bytes = activation_bytes() + copy_bytes(formats[0], rows, cols) + copy_bytes(formats[1], cols, rows),
        .casts = int{is_quantized(formats[0])} + int{is_quantized(formats[1])},
        .shape = {rows, cols},
        .formats = formats};
    if (cast.casts == 0) return tensor_collective("all_gather", activation_bytes());
    if (!in_fp8) {
      // Made of all rows: the GEMM cannot start before.
      tensor_collective("all_gather", activation_bytes());
      finish_pending();
      return emit(cast);
    }
    const OpFormat& format = is_quantized(formats[0]) ? formats[0] : formats[1];
    cast.bytes = (activation_bytes() + copy_bytes(format, rows, cols)) / layout_.tensor;
    cast.shape[0] = rows / layout_.tensor;
    cast.formats = {format, {}};
    cast.casts = 1;
    OpCost amax = cast;
    amax.bytes = activation_bytes() / layout_.tensor;
    amax.casts = 0;
    amax.formats = {};
    emit(amax);
    start("all_reduce_max", *tensor_comm_, bytes_of(DType::f32, 1));
    wait(*tensor_comm_);
    emit(cast);
    tensor_collective("all_gather", activation_bytes() / 2);
    if (!is_quantized(formats[1])) return;
    finish_pending();
    emit({.name = "transpose",
          .op_class = OpClass::quantize,
          .bytes = activation_bytes(),
          .shape = {cols, rows}});
  }

  /// GEMMs after attention and SwiGLU, forward and backward, leave partial sums of whole rows.
  void rewrite_gemm(const OpCost& op) {
    if (op.op_class == OpClass::head_loss) {
      emit(op);
      finish_pending();
      last_gemm_was_head_ = true;
      return;
    }
    const bool fprop = is_called(op, "matmul fprop"), dgrad = is_called(op, "matmul dgrad");
    const bool scattered = (fprop || dgrad) && inner_;
    if (dgrad && scattered) regather_ = layout_.tensor_overlap ? Regather::begun : Regather::owed;
    if (dgrad && scattered && layout_.tensor_overlap) {
      // The norm's output is gathered again for the weight's gradient, beside this GEMM.
      finish_pending();
      start("all_gather", *tensor_comm_,
            activation_bytes() * (op.math != DType::bf16 && inputs_in_fp8_ ? 0.5 : 1));
      pending_wait_ = true;
    }
    if (!fprop && !dgrad) repeat_norm_for(op);
    if (fprop && scattered && layout_.tensor_overlap) {
      start("reduce_scatter", *tensor_comm_, activation_bytes());
      pending_wait_ = true;
    }
    emit(rerun(op));
    finish_pending();
    // Beside the weight gradient's GEMM where they overlap.
    if (dgrad && scattered) tensor_collective("reduce_scatter", activation_bytes());
    if (fprop && scattered && !layout_.tensor_overlap)
      tensor_collective("reduce_scatter", activation_bytes());
  }

  /// Repeats the norm whose output wgrad reads and gathers it, unless that has been done.
  void repeat_norm_for(const OpCost& wgrad) {
    if (regather_ == Regather::owed) {
      const std::int64_t rows = plan_.tokens_per_micro_step() / layout_.tensor;
      emit({.name = "recompute_rmsnorm",
            .op_class = OpClass::norm_elementwise,
            .bytes = 2 * activation_bytes() / layout_.tensor,
            .shape = {rows, plan_.model.width}});
      gather_rows({OpFormat{}, wgrad.formats[1]}, inputs_in_fp8_);
    }
    regather_ = Regather::none;
  }

  /// Makes later ops wait for the keys of context ranks, if they may arrive beside the attention (context_overlap).
  void finish_keys() {
    if (!keys_wait_) return;
    out_.events.push_back(*keys_wait_);
    keys_wait_.reset();
  }

  const Trace& local_;
  const Plan& plan_;
  const ParallelLayout layout_;  // what local_ lacks of it
  const RecomputeShare& recompute_;
  const Trace* experts_;
  std::optional<ExpertParts> own_parts_, parts_;  // of local_ and experts_, where those are others
  bool inputs_in_fp8_, gradients_in_fp8_;         // gathered as FP8 data (StepContext::gather_over_tensor)
  double optimizer_shards_;
  Trace out_;
  std::optional<int> tensor_comm_, context_comm_, expert_comm_;
  int tensor_lane_ = 0;                  // which no collective of local_ has
  std::optional<TraceEvent> keys_wait_;  // of the context ranks' keys, put off
  bool backward_ = false, last_gemm_was_head_ = false, pending_wait_ = false, inner_ = false;
  /// Gather of a norm's output for the weight's gradient, after dgrad or beside it.
  enum class Regather : std::uint8_t { none, owed, begun };
  Regather regather_ = Regather::none;
};

/// Makes `ranks` share the experts, and exchange as many rows by all-to-all as go to each on average.
void share_experts(Case& c, const RoutingRule& rule, std::int64_t ranks) {
  c.ep = ranks;
  if (ranks == 1) return;
  c.exchange = "slots";
  c.slots = tokens_to_rank(rule, rule.experts / ranks, c.batch * c.seq / c.context, 0);
}

/// Makes the ranks of `layout` share the experts of a traced rank's model. A rank of t tensor ranks accounts for a t-th
/// of the experts and of a token's slots, which are its weights and its rows.
void divide_experts(Case& c, MoeConfig& moe, const ParallelLayout& layout) {
  const int t = layout.tensor;
  const std::int64_t ranks = std::int64_t{t} * layout.traced_ranks();
  if (layout.experts % t != 0 || ranks % layout.experts != 0 || moe.rule.experts % layout.experts != 0)
    throw InvalidInput(fmt::format(
        "{} expert ranks do not divide {} experts, or {} ranks of a stage in groups of whole tensor groups",
        layout.experts, moe.rule.experts, ranks));
  if (t > 1 && moe.shared_ffn > 0) throw InvalidInput("shared experts with tensor ranks are not predicted");
  moe.rule.experts /= t;
  moe.rule.top_k = std::max<std::int64_t>(1, moe.rule.top_k / t);
  share_experts(c, moe.rule, layout.experts / t);
}

/// Throws InvalidInput if the layout's ranks do not divide the model or the sequence.
void refuse_undivided(const Case& c, const ModelConfig& model, const ParallelLayout& layout) {
  const int t = layout.tensor, n = layout.context;
  if (model.heads % t != 0 || model.ffn % t != 0)
    throw InvalidInput(fmt::format("{} tensor ranks do not divide {} heads and {} columns of the FFN", t,
                                   model.heads, model.ffn));
  if (t > 1 && model.block.residual != Residual::sequential)
    throw InvalidInput(
        "tensor ranks of models with parallel residuals (GPT-NeoX, Phi, Command R) are not predicted");
  if (t > 1 && model.latent)
    throw InvalidInput("tensor ranks of models with latent attention (MLA) are not predicted");
  if (c.seq % (2 * n) != 0 && n > 1)
    throw InvalidInput(
        fmt::format("{} context ranks do not divide a sequence of {} tokens in two chunks each", n, c.seq));
}

}  // namespace

Case without_recompute(Case c) {
  c.recompute = "none";
  return c;
}

Plan traced_plan(const Case& c, const ModelConfig& model, const ParallelLayout& layout) {
  if (layout.tensor > 1 && !layout.tensor_overlap) {
    refuse_undivided(c, model, layout);
    Case own = c;
    own.gpus = std::int64_t{layout.tensor} * layout.traced_ranks();
    own.context = layout.context;
    own.tensor = layout.tensor;
    own.tensor_gather = layout.tensor_fp8 ? "auto" : "bf16";
    own.model = Case{}.model;  // only its shape matters, which `model` gives
    if (Plan plan = validate(own, Refusals::thrown, &model); !unsupported_reason(plan)) return plan;
  }
  return local_plan(c, model, layout);
}

ParallelLayout lacking(ParallelLayout layout, const Plan& plan) {
  if (plan.fields.tensor > 1) layout.tensor = 1;
  return layout;
}

Plan local_plan(Case c, const ModelConfig& model, const ParallelLayout& layout) {
  refuse_undivided(c, model, layout);
  const int t = layout.tensor;
  c.gpus = layout.traced_ranks();
  c.context = layout.context;
  c.model = Case{}.model;  // only its shape matters, which `model` gives
  ModelConfig local = model;
  local.heads = model.heads / t;
  local.kv_heads = std::max<std::int64_t>(1, model.kv_heads / t);
  local.ffn = model.ffn / t;
  local.vocab = (model.vocab + t - 1) / t;
  if (layout.experts > 1) divide_experts(c, local.moe, layout);
  Plan plan = validate(c, Refusals::thrown, &local);
  if (!plan.any() && convert(c, model, plan.recipe).any())
    throw InvalidInput(
        fmt::format("{}: a tensor rank's slices of all linear layers are too small", c.recipe));
  return plan;
}

Plan expert_plan(Case c, const ModelConfig& model, const ParallelLayout& layout) {
  const int t = layout.tensor;
  if (c.seq % (layout.context * t) != 0)
    throw InvalidInput(fmt::format("{} context and {} tensor ranks do not divide a sequence of {} tokens",
                                   layout.context, t, c.seq));
  c.seq /= layout.context * t;
  c.gpus = std::int64_t{t} * layout.traced_ranks();
  c.context = 1;
  c.model = Case{}.model;
  share_experts(c, model.moe.rule, layout.experts);
  return validate(c, Refusals::thrown, &model);
}

double optimizer_shards(const Plan& plan, const ParallelLayout& layout) {
  const double ranks = layout.traced_ranks();
  const Case& c = plan.fields;
  const double shards = c.parallel == "fsdp"   ? ranks
                        : c.parallel == "hsdp" ? static_cast<double>(c.shard_group)
                                               : 1;
  const double replicas = ranks / shards, expert_ranks = plan.parameters.expert_ranks;
  const ModelConfig& model = plan.model;
  if (!model.moe || expert_ranks == 1) return replicas;
  const auto blocks = static_cast<std::int64_t>(model.layers_with_experts().size());
  const auto of_all_experts =
      static_cast<double>(blocks * model.moe.rule.experts * 3 * model.width * model.moe.expert_ffn);
  const double others = (static_cast<double>(parameter_count(model)) - of_all_experts) / shards;
  const double own = of_all_experts / expert_ranks;
  return (others + own) / (others / replicas + own / (ranks / expert_ranks));
}

Trace parallel_trace(const Trace& local, const Plan& plan, const ParallelLayout& layout,
                     const RecomputeShare& recompute, const Trace* experts) {
  if (layout.divides_expert_rows() && !experts)
    throw std::invalid_argument("the experts' rows are another dry run's");
  return Rewriter(local, plan, layout, recompute, layout.divides_expert_rows() ? experts : nullptr).run();
}

}  // namespace precbench
