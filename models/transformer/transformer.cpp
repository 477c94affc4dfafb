// The training step, top to bottom: a block's memory, forward and backward, then the step. See transformer.h.
#include "models/transformer/transformer.h"

#include "kernels/numerics/custom_format.h"
#include "kernels/numerics/formats.h"
#include "models/transformer/layers/lora_layers.h"

namespace precbench {
namespace {

/// While it lives, forward passes record neither amaxes of delayed scaling nor statistics of routing.
class Evaluation {
 public:
  explicit Evaluation(Parameters& parameters) : parameters_(parameters) { set(true); }
  ~Evaluation() { set(false); }
  Evaluation(const Evaluation&) = delete;
  Evaluation& operator=(const Evaluation&) = delete;

 private:
  void set(bool watching) {
    if (DelayedScaling* delayed = parameters_.delayed()) delayed->set_watching(watching);
    if (Routers* routers = parameters_.routers()) routers->set_watching(watching);
  }
  Parameters& parameters_;
};

}  // namespace

Transformer::Transformer(Device& device, Arena& arena, Parameters& parameters, const ModelConfig& config,
                         const TransformerOptions& options)
    : step_(device, arena, parameters, config, options),
      attention_(step_),
      dense_ffn_(step_, LinearRole::gate_up, LinearRole::down, step_.config.ffn),
      branch_output_(step_),
      moe_(step_),
      head_(step_),
      residual_gradient_(step_),
      saved_(config.layers) {}

// ---- memory of a block

void Transformer::push_saved(std::int64_t layer, Saved& saved) {
  saved = {};  // the recipe may have changed since the previous step
  saved.x = layer == 0 || keeps_norm_inputs() ? x0_ : step_.push_stream();
  saved.norm1_input = step_.push_kept(step_.options.kept.norm_input, step_.config.width);
  saved.norm2_input = step_.push_kept(step_.options.kept.norm_input, step_.config.width);
  push_norm_statistics(step_, saved.norm1);
  if (step_.lora) step_.lora->push_saved(layer);
  branch_output_.push_saved(saved.branch1);
  branch_output_.push_saved(saved.branch2);
  if (step_.config.has_experts(layer))
    moe_.push_saved(layer, saved.ffn.emplace<MoeSaved>());
  else
    dense_ffn_.push_saved(layer, saved.ffn.emplace<FfnSaved>());
}

void Transformer::push_selected(std::int64_t layer, Saved& saved) {
  saved.selected = true;
  attention_.push_selected(layer, saved.attention);
  dense_ffn_.push_selected(layer, std::get<FfnSaved>(saved.ffn));
}

void Transformer::push_inner(std::int64_t layer, Saved& saved, const Tensor& mid) {
  if (!saved.selected) attention_.push_saved(layer, saved.attention);
  if (parallel())
    saved.mid = saved.x;
  else
    saved.mid = mid.empty() ? step_.push_stream() : mid;
  if (one_norm())
    saved.norm2 = {{}, {}, saved.norm1.rstd, saved.norm1.mean};
  else
    push_norm_statistics(step_, saved.norm2);
}

void Transformer::push_ffn(std::int64_t layer, Saved& saved) {
  MoeSaved* moe = std::get_if<MoeSaved>(&saved.ffn);
  if (moe)
    moe_.push_inner(layer, *moe);
  else
    dense_ffn_.push_inner(std::get<FfnSaved>(saved.ffn));
}

void Transformer::push_norms(std::int64_t layer, Saved& saved) {
  const bool moe = std::holds_alternative<MoeSaved>(saved.ffn);
  push_norm_saved(step_, step_.linear(layer, LinearRole::qkv), NormConsumer::dense, saved.norm1);
  const Linear gate_up = step_.linear(layer, LinearRole::gate_up);
  if (one_norm() && !saved.norm1.value.empty() && !gate_up.recipe().flow &&
      !gate_up.x_columnwise().quantized())
    saved.norm2.value = saved.norm1.value;
  else
    push_norm_saved(step_, gate_up, moe ? NormConsumer::experts : NormConsumer::dense, saved.norm2);
}

void Transformer::push_whole(std::int64_t layer, Saved& saved) {
  push_inner(layer, saved, mid_);
  attention_.push_qkv(saved.attention);
  push_ffn(layer, saved);
  push_norms(layer, saved);
}

Arena::Mark Transformer::push_forward(std::int64_t layer, Saved& saved, Keep keep) {
  if (keep == Keep::block_input || step_.options.recompute.whole_block(layer)) {
    if (keep == Keep::for_backward && step_.options.recompute.selective) push_selected(layer, saved);
    const Arena::Mark inner = step_.arena.mark();
    push_whole(layer, saved);
    if (MoeSaved* moe = std::get_if<MoeSaved>(&saved.ffn)) leave_weight_columns(*moe);
    return inner;
  }
  const Recompute& again = step_.options.recompute;
  FfnSaved* dense = std::get_if<FfnSaved>(&saved.ffn);
  const bool drops_ffn = again.ffn || (dense && !dense->input.empty());
  push_inner(layer, saved, keeps_norm_inputs() ? mid_ : Tensor{});
  if (!again.attention) attention_.push_qkv(saved.attention);
  if (!drops_ffn) push_ffn(layer, saved);
  if (dense && !again.ffn) dense_ffn_.push_output(layer, *dense);
  if (!again.norm) push_norms(layer, saved);
  const Arena::Mark dropped = step_.arena.mark();
  if (again.attention) attention_.push_qkv(saved.attention);
  if (drops_ffn) {
    push_ffn(layer, saved);
    if (MoeSaved* moe = std::get_if<MoeSaved>(&saved.ffn)) leave_weight_columns(*moe);
  }
  return dropped;
}

// ---- forward

NormOutput Transformer::first_norm(const Saved& saved, const BlockWeights& w) const {
  return {saved.norm1, saved.x, {w.norm1, w.norm1_bias}};
}

NormOutput Transformer::second_norm(const Saved& saved, const BlockWeights& w) const {
  if (one_norm()) return {saved.norm2, saved.x, {w.norm1, w.norm1_bias}};
  return {saved.norm2, saved.mid, {w.norm2, w.norm2_bias}};
}

NormOutput Transformer::keeping(NormOutput norm, const GemmOperand& kept) const {
  if (step_.config.block.norm == NormKind::rms && keeps_directly(kept.format, kept.data.cols))
    norm.kept = kept;
  return norm;
}

void Transformer::keep_and_norm(QuantizedTensor& h, const NormOutput& norm, const GemmOperand& kept,
                                const Tensor& x, const Tensor& branch) {
  const NormOutput direct = keeping(norm, kept);
  if (kept.empty() || !direct.kept.empty()) return add_norm(step_, h, direct, x, branch);
  if (!branch.empty()) step_.device.combine({norm.sum, 1.0f, x, 1.0f, branch, OpClass::norm_elementwise});
  step_.keep(kept, norm.sum);
  const NormOutput kept_norm = read_back(norm, kept);
  add_norm(step_, h, kept_norm, kept_norm.sum, {});
}

NormOutput Transformer::read_back(NormOutput norm, const GemmOperand& kept) {
  norm = keeping(norm, kept);
  if (kept.empty() || !norm.kept.empty()) return norm;
  norm.sum = step_.push(step_.config.width);
  step_.read_back(norm.sum, kept);
  return norm;
}

void Transformer::forward_second_norm(QuantizedTensor& h, const Saved& saved, const BlockWeights& w) {
  const NormOutput norm = second_norm(saved, w);
  if (!one_norm()) return keep_and_norm(h, norm, saved.norm2_input, saved.x, parallel() ? Tensor{} : branch_);
  const bool known = !saved.norm1.value.empty() && h.value.data == saved.norm1.value.data &&
                     !h.rowwise.format.quantized() && h.amax_out.empty();
  if (!known) repeat_norm(step_, h, norm);
}

void Transformer::forward_second_output(std::int64_t layer, const Saved& saved, const BlockWeights& w) {
  const FfnSaved& ffn = std::get<FfnSaved>(saved.ffn);
  if (!parallel())
    return dense_ffn_.forward_down(layer, ffn, w, branch_output_.target(saved.branch2, branch_));
  const Scope scope(step_.arena);
  const Tensor out = step_.push(step_.config.width);
  dense_ffn_.forward_down(layer, ffn, w, out);
  step_.device.add({branch_, out});
}

void Transformer::block_forward(std::int64_t layer, Saved& saved, const BlockWeights& w, const Tensor& x,
                                ForwardKind kind) {
  {
    const Scope scope(step_.arena);
    QuantizedTensor h1 = push_norm_output(step_, step_.linear(layer, LinearRole::qkv), saved.norm1);
    const NormOutput norm = first_norm(saved, w);
    if (kind == ForwardKind::recompute)
      repeat_norm(step_, h1, norm);
    else
      keep_and_norm(h1, norm, saved.norm1_input, x, layer == 0 ? Tensor{} : branch_);
    step_.observe(layer, LinearRole::qkv, LinearOperand::x, h1);
    step_.observe_codes(layer, LinearRole::qkv, LinearOperand::x, h1);
    attention_.forward_qkv(layer, saved.attention, w, h1, kind);
  }
  const Tensor& out = branch_output_.target(saved.branch1, branch_);
  if (kind == ForwardKind::recompute && saved.selected)
    attention_.repeat_output(layer, saved.attention, w, out);
  else
    attention_.forward_output(layer, saved.attention, w, out);
  branch_output_.forward(saved.branch1, w.post_norm1, branch_);
  MoeSaved* moe = std::get_if<MoeSaved>(&saved.ffn);
  {
    const Scope scope(step_.arena);
    const LinearRole role = moe ? moe_.norm_role() : LinearRole::gate_up;
    QuantizedTensor h2 = push_norm_output(step_, step_.linear(layer, role), saved.norm2);
    if (moe) moe_.prepare_input(*moe, h2);
    forward_second_norm(h2, saved, w);
    step_.observe(layer, LinearRole::gate_up, LinearOperand::x, h2);
    if (moe) return moe_.forward(layer, *moe, w, h2, branch_, kind);
    step_.observe_codes(layer, LinearRole::gate_up, LinearOperand::x, h2);
    dense_ffn_.forward_up(layer, std::get<FfnSaved>(saved.ffn), w, h2, kind);
  }
  if (kind != ForwardKind::full) return;
  forward_second_output(layer, saved, w);
  branch_output_.forward(saved.branch2, w.post_norm2, branch_);
}

void Transformer::forward_block(std::int64_t layer, Saved& saved, const Tensor& x, Keep keep) {
  Parameters& parameters = step_.parameters;
  const Layout& layout = parameters.model_layout();
  push_saved(layer, saved);
  const BlockWeights w = parameters.gather_block(layer, Pass::forward);
  parameters.prefetch(layer + 1 < step_.config.layers ? layout.block_unit(layer + 1) : layout.head_unit());
  const Arena::Mark dropped = push_forward(layer, saved, keep);
  block_forward(layer, saved, w, x, ForwardKind::full);
  step_.arena.release(dropped);
}

// ---- backward

QuantizedTensor Transformer::norm_output(const Linear& linear, const NormOutput& norm, const MoeSaved* moe) {
  if (!norm.saved.value.empty() && !linear.x_rowwise().quantized())
    return make_quantized_tensor(norm.saved.value, {}, {});
  return recompute_norm_output(step_, linear, norm, [&](QuantizedTensor& h) {
    if (moe) moe_.prepare_input(*moe, h);
  });
}

void Transformer::recompute_ffn(std::int64_t layer, Saved& saved, const BlockWeights& w) {
  push_ffn(layer, saved);
  const Scope scope(step_.arena);
  MoeSaved* moe = std::get_if<MoeSaved>(&saved.ffn);
  const LinearRole role = moe ? moe_.norm_role() : LinearRole::gate_up;
  const NormOutput norm = read_back(second_norm(saved, w), saved.norm2_input);
  const QuantizedTensor h = norm_output(step_.linear(layer, role), norm, moe);
  if (!moe) return dense_ffn_.forward_up(layer, std::get<FfnSaved>(saved.ffn), w, h);
  moe->down_columns = {};  // the repeated forward ends before the down layer
  moe_.forward(layer, *moe, w, h, {}, ForwardKind::recompute);
}

void Transformer::recompute_qkv(std::int64_t layer, Saved& saved, const BlockWeights& w) {
  attention_.push_qkv(saved.attention);
  const Scope scope(step_.arena);
  const NormOutput norm = read_back(first_norm(saved, w), saved.norm1_input);
  const QuantizedTensor h = norm_output(step_.linear(layer, LinearRole::qkv), norm, nullptr);
  attention_.recompute_qkv(layer, saved.attention, w, h);
}

void Transformer::ffn_backward(std::int64_t layer, Saved& saved, const BlockWeights& w, const BlockTensors& g,
                               QuantizedTensor& dmid) {
  const Scope scope(step_.arena);
  const Recompute& again = step_.options.recompute;
  if (again.ffn && !again.whole_block(layer)) recompute_ffn(layer, saved, w);
  if (FfnSaved* dense = std::get_if<FfnSaved>(&saved.ffn)) dense_ffn_.read_input(*dense);
  const QuantizedTensor dx = residual_gradient_.current(layer);
  const QuantizedTensor dy =
      branch_output_.backward(layer, LinearRole::down, saved.branch2, w.post_norm2, g.post_norm2, dx);
  const NormOutput norm = read_back(second_norm(saved, w), saved.norm2_input);
  const MoeSaved* moe = std::get_if<MoeSaved>(&saved.ffn);
  const Tensor dh = moe ? moe_.backward(layer, *moe, w, g, dy, norm)
                        : dense_ffn_.backward(layer, std::get<FfnSaved>(saved.ffn), w, g, dy, norm);
  if (one_norm()) return step_.device.convert({dmid.value, dh});
  norm_backward(step_, dmid, {g.norm2, g.norm2_bias}, dx.value, dh, norm);
  if (parallel() || !BranchOutput::plain(step_)) return;
  step_.observe(layer, LinearRole::o, LinearOperand::dy, dmid);
  step_.observe_codes(layer, LinearRole::o, LinearOperand::dy, dmid);
}

void Transformer::attention_backward(std::int64_t layer, Saved& saved, const BlockWeights& w,
                                     const BlockTensors& g, const QuantizedTensor& dmid) {
  const Scope scope(step_.arena);
  const Recompute& again = step_.options.recompute;
  if (again.attention && !again.whole_block(layer)) recompute_qkv(layer, saved, w);
  const NormOutput norm = read_back(first_norm(saved, w), saved.norm1_input);
  const QuantizedTensor dout = residual_gradient_.current(layer);
  const QuantizedTensor dy = parallel() ? branch_output_.parallel_backward(layer, LinearRole::o, dout)
                                        : branch_output_.backward(layer, LinearRole::o, saved.branch1,
                                                                  w.post_norm1, g.post_norm1, dmid);
  const Tensor dh = attention_.backward(layer, saved.attention, w, g, dy, norm);
  QuantizedTensor dx = residual_gradient_.next(layer - 1);
  if (one_norm()) step_.device.add({dh, dmid.value});
  norm_backward(step_, dx, {g.norm1, g.norm1_bias}, one_norm() ? dout.value : dmid.value, dh, norm);
  if (layer > 0 && BranchOutput::plain(step_))
    step_.observe(layer - 1, LinearRole::down, LinearOperand::dy, dx);
}

QuantizedTensor Transformer::push_dmid(std::int64_t layer) {
  return BranchOutput::plain(step_) && !parallel()
             ? step_.operands.push_gradient(branch_, step_.linear(layer, LinearRole::o))
             : make_quantized_tensor(branch_, {}, {});
}

void Transformer::block_backward(std::int64_t layer, Saved& saved) {
  Parameters& parameters = step_.parameters;
  const int unit = parameters.layout().block_unit(layer);
  const Scope scope(step_.arena);
  const BlockWeights w = parameters.gather_block(layer, Pass::backward);
  if (layer > 0) parameters.prefetch(parameters.layout().block_unit(layer - 1), Pass::backward);
  if (step_.options.recompute.whole_block(layer)) {
    push_whole(layer, saved);
    // The recomputed forward ends before the down layer.
    if (MoeSaved* moe = std::get_if<MoeSaved>(&saved.ffn)) moe->down_columns = {};
    block_forward(layer, saved, w, saved.x, ForwardKind::recompute);
  }
  const BlockTensors g = parameters.block_gradients(layer);
  QuantizedTensor dmid = push_dmid(layer);
  ffn_backward(layer, saved, w, g, dmid);
  attention_backward(layer, saved, w, g, dmid);
  residual_gradient_.flip();
  parameters.reduce(unit);
}

// ---- the step

double Transformer::embedding_scale() const {
  const double scale = step_.config.embedding_scale;
  const bool rounded = step_.config.embedding_scale_rounded && step_.options.activations == DType::bf16;
  return rounded ? bf16_decode(bf16_encode(static_cast<float>(scale))) : scale;
}

void Transformer::embed(const Tokens& tokens) {
  Parameters& parameters = step_.parameters;
  const Layout& layout = parameters.model_layout();
  const Tensor unit = parameters.gather(layout.embedding_unit());
  parameters.prefetch(layout.block_unit(0));
  step_.sum_over_tensor(x0_, [&](const Tensor& x) {
    step_.device.embedding({x, tokens.ids, layout.embedding(unit), step_.first_token()});
  });
  step_.scale(x0_, embedding_scale());
  const Tensor table = layout.positions(unit);
  if (!table.empty() && !step_.positions.empty()) {
    const Scope scope(step_.arena);
    const Tensor rows = step_.push(step_.config.width);
    step_.device.embedding({rows, step_.positions, table});
    return step_.device.add({x0_, rows});
  }
  each_position(x0_, table, [&](const Tensor& x, const Tensor& positions) {
    step_.device.add_bias({x, positions});
  });
}

void Transformer::set_documents(const Tokens& tokens) {
  step_.first_key = tokens.first_key;
  step_.positions = tokens.positions;
}

void Transformer::each_position(
    const Tensor& x, const Tensor& table,
    const std::function<void(const Tensor& x, const Tensor& positions)>& visit) const {
  if (table.empty()) return;
  const SequencePart& sequence = step_.sequence;
  const std::int64_t rows = step_.M / sequence.halves();
  for (int half = 0; half < sequence.halves(); ++half)
    visit(x.slice_rows(half * rows, rows), table.slice_rows(sequence.start(half), sequence.chunk()));
}

void Transformer::forward_backward(const Tensor& loss_sum, const Tokens& tokens, const Targets& targets,
                                   float loss_scale, int micro_step) {
  Parameters& parameters = step_.parameters;
  Arena& arena = step_.arena;
  const Layout& layout = parameters.model_layout();
  const std::int64_t layers = step_.config.layers;
  step_.micro_step = static_cast<std::uint32_t>(micro_step);
  step_.loss_scale = loss_scale;
  set_documents(tokens);
  // The embedding's gradient is the last and often the largest tensor. By then everything but its own input
  // is freed.
  const Scope scope(arena);
  const Tensor dx0 = step_.push_stream();
  const Arena::Mark shared = arena.mark();
  losses_ = step_.push(DType::f32, step_.M, 1);
  x0_ = step_.push_stream();
  branch_ = step_.push_stream();
  mid_ = step_.options.recompute.whole_block(0) || keeps_norm_inputs() ? step_.push_stream() : Tensor{};
  residual_gradient_.push(dx0);
  if (step_.lora) step_.lora->push_shared();
  embed(tokens);

  std::vector<Arena::Mark> marks;
  Tensor x = x0_;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    marks.push_back(arena.mark());
    forward_block(layer, saved_[layer], x, Keep::for_backward);
    x = saved_[layer].mid;
  }
  // No-op if those weights are still gathered.
  parameters.prefetch(layout.block_unit(layers - 1), Pass::backward);
  head_.forward_backward({x, branch_, targets}, losses_, loss_sum, residual_gradient_.current(layers - 1));

  for (std::int64_t layer = layers - 1; layer >= 0; --layer) {
    block_backward(layer, saved_[layer]);
    arena.release(marks[layer]);
  }

  arena.release(shared);
  if (!parameters.trains_model()) return;
  const int unit = layout.embedding_unit();
  const Tensor gradient = parameters.gradients(unit);
  const Tensor dtable = layout.embedding(gradient), dpositions = layout.positions(gradient);
  parameters.commit(dtable);
  if (!step_.config.tied && !parameters.accumulates()) step_.device.zero({dtable});
  if (!dpositions.empty() && !parameters.accumulates()) step_.device.zero({dpositions});
  if (!dpositions.empty() && !step_.positions.empty())
    step_.device.embedding_backward({dpositions, dx0, step_.positions});
  else
    each_position(dx0, dpositions, [&](const Tensor& dx, const Tensor& positions) {
      step_.device.bias_backward({positions, true, dx});
    });
  step_.scale(dx0, embedding_scale());
  Tensor dx = dx0;
  if (step_.tensor) {
    dx = step_.push(step_.config.width);
    step_.tensor->all_gather(dx, dx0);
  }
  step_.device.embedding_backward({dtable, dx, tokens.ids, step_.first_token()});
  parameters.reduce(unit);
}

void Transformer::forward_to_head(const Tokens& tokens,
                                  const std::function<void(const Tensor& mid, const Tensor& branch)>& head) {
  const Scope scope(step_.arena);
  const Evaluation evaluation(step_.parameters);
  set_documents(tokens);
  x0_ = step_.push_stream();
  branch_ = step_.push_stream();
  mid_ = step_.push_stream();
  embed(tokens);
  Tensor x = x0_;
  for (std::int64_t layer = 0; layer < step_.config.layers; ++layer) {
    const Scope block(step_.arena);
    Saved saved;
    forward_block(layer, saved, x, Keep::block_input);
    x = mid_;
    if (parallel()) step_.device.convert({mid_, saved.x});  // whose memory the next block takes
  }
  head(x, branch_);
}

void Transformer::forward(const Tensor& losses, const Tokens& tokens, const Targets& targets) {
  forward_to_head(tokens, [&](const Tensor& mid, const Tensor& branch) {
    head_.forward({mid, branch, targets}, losses);
  });
}

void Transformer::forward_features(const Tensor& features, const Tokens& tokens) {
  forward_to_head(tokens, [&](const Tensor& mid, const Tensor& branch) {
    head_.write_features({mid, branch, {}}, features);
  });
}

void Transformer::compare_outputs(const Tensor& distances, const Tensor& features, const Tokens& tokens,
                                  const Targets& targets) {
  forward_to_head(tokens, [&](const Tensor& mid, const Tensor& branch) {
    head_.compare({mid, branch, targets}, features, distances);
  });
}

}  // namespace precbench
