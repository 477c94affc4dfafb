// The training step, top to bottom: construction, a block's forward and backward, the step. Its memory is in
// transformer_memory.cpp, the feed-forward half of a block in ffn.cpp and mixture*.cpp, the head in head.cpp,
// RoPE in qkv_turn.cpp, separate q, k and v GEMMs in qkv_apart.cpp.
#include "models/transformer/transformer.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace precbench {

Transformer::Transformer(Device& device, Arena& arena, Parameters& parameters, const ModelConfig& config,
                         const TransformerOptions& options)
    : device_(device),
      arena_(arena),
      parameters_(parameters),
      config_(config),
      options_(options),
      attention_shape_{options.B, options.T, config.heads, config.kv_heads, config.head_dim},
      M_(options.B * options.T),
      saved_(config.layers) {
  const Recipe* first = nullptr;
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    const Recipe& recipe = options_.recipe_of(layer, Role::down);
    if (!recipe.quantized()) continue;
    if (first && !(recipe == *first))
      throw std::invalid_argument(fmt::format("transformer: the down layers are in two recipes, {} and {}",
                                              first->name, recipe.name));
    first = &recipe;
  }
}

void Transformer::observe(std::int64_t layer, Role role, LinearOperand operand,
                          const QuantizedTensor& values) {
  if (quantization_observer_) quantization_observer_->observe(layer, role, operand, values);
}

void Transformer::observe_codes(std::int64_t layer, Role role, LinearOperand operand,
                                const QuantizedTensor& values, const Groups& groups) {
  if (quantization_observer_ && options_.recipe_of(layer, recipe_role(role)).flow)
    quantization_observer_->observe_codes(role, operand, values, groups);
}

void Transformer::observe_weight(std::int64_t layer, Role role, const Weight& weight, bool columns) {
  const Recipe& recipe = options_.recipe_of(layer, recipe_role(role));
  // Dequantized fprop data differs from the weight and may be in another basis, so it is not compared with
  // it.
  if (!quantization_observer_ || weight.value.empty() || (columns && recipe.dgrad.b.from_fprop)) return;
  const Scope scope(arena_);
  observe(layer, role, LinearOperand::w, linear(layer, role).quantized_weight(weight, columns));
}

Linear Transformer::linear(std::int64_t layer, Role role) const {
  const Recipe& recipe = options_.recipe_of(layer, recipe_role(role));
  const OpClass op_class = role == Role::head ? OpClass::head_loss : OpClass::gemm;
  const DelayedScaling* delayed = recipe.delayed() ? parameters_.delayed() : nullptr;
  LinearSlots slots = delayed ? delayed->slots(layer, role) : LinearSlots{};
  if (WeightAmaxes* amaxes = parameters_.weight_amaxes(); amaxes && has_weight_amaxes(recipe))
    slots.w_amax = amaxes->slot(layer, role);
  slots.x.random = random_of(layer, role, LinearOperand::x);
  slots.w.random = random_of(layer, role, LinearOperand::w);
  slots.dy.random = random_of(layer, role, LinearOperand::dy);
  return {device_, arena_, recipe, op_class, slots};
}

RandomStream Transformer::random_of(std::int64_t layer, Role role, LinearOperand operand) const {
  constexpr std::uint32_t kStreams = 4, kSigns = 3,
                          kForms = 2;               // x, dy, w, and the random signs of both backward GEMMs
  const bool weight = operand == LinearOperand::w;  // the same for all tokens and micro-steps
  const auto stream_of = [&](std::uint32_t micro_step, std::uint32_t which) {
    std::uint32_t stream = micro_step * static_cast<std::uint32_t>(config_.layers + 1);
    const Role whole = is_qkv_part(role) ? Role::qkv : role;
    stream = (stream + static_cast<std::uint32_t>(layer)) * kLinearRoles + static_cast<std::uint32_t>(whole);
    stream = (stream * kStreams + which) * kForms;
    // In the top bits, which no realistic number of micro-steps reaches.
    return stream | static_cast<std::uint32_t>(is_qkv_part(role) ? place_in_qkv(role) + 1 : 0) << 30;
  };
  // Operands of one GEMM must share random signs: dY's rows and W's columns in dgrad, the columns of dY and X
  // in wgrad.
  const std::uint32_t dgrad = stream_of(micro_step_, kSigns), wgrad = dgrad + 1;
  return {.word = options_.random_word,
          .stream = stream_of(weight ? 0 : micro_step_, static_cast<std::uint32_t>(operand)),
          .first_row = weight ? 0 : options_.first_token,
          .row_signs = dgrad,
          .column_signs = weight ? dgrad : wgrad};
}

void Transformer::share_amax(const Tensor& amax, bool delayed) const {
  if (delayed)
    parameters_.delayed()->share(amax);
  else if (parameters_.comm().size() > 1)
    parameters_.comm().all_reduce_max(amax);
}

void Transformer::produce(QuantizedTensor& x, const std::function<void(QuantizedTensor&)>& op) {
  const bool delayed = !x.amax_in.empty() && !x.amax_out.empty();
  const bool first = delayed && parameters_.delayed()->current();
  if (!first && (delayed || !options_.reduce_amax || x.amax_out.empty())) return op(x);
  QuantizedTensor plain = x;
  if (delayed) plain.amax_out = std::exchange(plain.amax_in, {});
  if (plain.rowwise.format.quantized()) plain.rowwise = {};
  if (plain.columnwise.format.quantized()) plain.columnwise = {};
  plain.keep_value = true;
  op(plain);
  share_amax(plain.amax_out, delayed);
  QuantizedTensor scaled = x;
  if (!delayed) scaled.amax_in = std::exchange(scaled.amax_out, {});
  device_.quantize({scaled});
}

// ---- forward

void Transformer::fprop(std::int64_t layer, Role role, const Tensor& y, const QuantizedTensor& x,
                        const BlockWeights& w) {
  linear(layer, role).fprop(y, x, w[role]);
  observe_weight(layer, role, w[role], false);
}

void Transformer::block_forward(std::int64_t layer, Saved& saved, const BlockWeights& w, const Tensor& x,
                                bool again) {
  const float eps = static_cast<float>(config_.norm_eps);

  {
    const Scope scope(arena_);
    QuantizedTensor h1 = normed(linear(layer, Role::qkv), saved.h1, saved.h1_form);
    produce(h1, [&](QuantizedTensor& h) {
      if (again)
        device_.recompute_rmsnorm({h, saved.x, saved.rstd1, w.norm1});
      else
        device_.add_rmsnorm({.h = h,
                             .sum = saved.x,
                             .rstd = saved.rstd1,
                             .x = x,
                             .branch = layer == 0 ? Tensor{} : branch_,
                             .weight = w.norm1,
                             .eps = eps});
    });
    observe(layer, Role::qkv, LinearOperand::x, h1);
    observe_codes(layer, Role::qkv, LinearOperand::x, h1);
    if (qkv_apart(layer))
      fprop_apart(layer, saved.raw_qkv, h1, w);
    else
      fprop(layer, Role::qkv, saved.raw_qkv, h1, w);
  }
  {
    const Scope scope(arena_);
    // Without QK-norm, RoPE is undone by its inverse, so it runs in place.
    const Tensor qkv = config_.qk_norm ? push(attention_shape_.qkv_width()) : saved.raw_qkv;
    turn(qkv, saved, w);
    const Linear lin = linear(layer, Role::o);
    QuantizedTensor out = make_quantized_tensor(saved.attention, lin.x_rowwise(), {});
    out.amax_out = saved.attention_amax;
    use_slot(out, lin.slots().x);
    if (saved.attention_codes.empty())
      push_row(out, lin.x_rowwise());
    else
      out.rowwise = saved.attention_codes;
    produce(out, [&](QuantizedTensor& o) { device_.attention({o, saved.lse, qkv, attention_shape_}); });
    observe(layer, Role::o, LinearOperand::x, out);
    observe_codes(layer, Role::o, LinearOperand::x, out);
    fprop(layer, Role::o, branch_, out, w);
  }
  {
    const Scope scope(arena_);
    QuantizedTensor h2 = normed(linear(layer, normed_role(layer)), saved.h2, saved.h2_form);
    if (config_.has_experts(layer)) {
      h2.keep_value = true;  // the router reads it
      const Tensor& x_amax = saved.routing.x_amax;
      if (!x_amax.empty() && config_.moe.weight_at != WeightAt::input) h2.amax_out = x_amax;
    }
    produce(h2, [&](QuantizedTensor& h) {
      device_.add_rmsnorm({h, saved.mid, saved.rstd2, saved.x, branch_, w.norm2, eps});
    });
    observe(layer, Role::gate_up, LinearOperand::x, h2);
    if (config_.has_experts(layer)) return mixture_forward(layer, saved, w, h2, again);
    observe_codes(layer, Role::gate_up, LinearOperand::x, h2);
    fprop(layer, Role::gate_up, saved.gate_up, h2, w);
  }
  if (!again) swiglu_forward(layer, dense_layers(saved), w, branch_);
}

// ---- backward

void Transformer::dgrad(std::int64_t layer, Role role, const Tensor& dx, const QuantizedTensor& dy,
                        const BlockWeights& w, const Tensor& x) {
  linear(layer, role).dgrad(dx, dy, w[role], x);
  observe_weight(layer, role, w[role], true);
}

void Transformer::wgrad(std::int64_t layer, Role role, const BlockTensors& g, const QuantizedTensor& dy,
                        const QuantizedTensor& x, const BlockWeights& w) {
  parameters_.commit(g[role]);
  linear(layer, role).wgrad(g[role], dy, x, w[role], parameters_.accumulates());
}

void Transformer::norm_wgrad(std::int64_t layer, Role role, const BlockTensors& g, const QuantizedTensor& dy,
                             const BlockWeights& w, const NormOutput& norm) {
  const Scope scope(arena_);
  const bool remake = norm.value.empty() && norm.form.empty();
  QuantizedTensor h = make_quantized_tensor(remake ? normed_again(norm) : norm.value, {}, {});
  const bool codes = linear(layer, role).recipe().flow;
  if (!norm.form.empty()) h.columnwise = codes ? GemmOperand{} : norm.form;
  if (codes) h.rowwise = norm.form;
  wgrad(layer, role, g, dy, h, w);
}

Tensor Transformer::normed_again(const NormOutput& norm) {
  const QuantizedTensor h = make_quantized_tensor(push(config_.width), {}, {});
  device_.recompute_rmsnorm({h, norm.sum, norm.rstd, norm.gain});
  return h.value;
}

void Transformer::norm_dgrad(std::int64_t layer, Role role, const Tensor& dx, const QuantizedTensor& dy,
                             const BlockWeights& w, const NormOutput& norm) {
  const Scope scope(arena_);
  Tensor x;
  if (linear(layer, role).recipe().mask_clipped) x = norm.value.empty() ? normed_again(norm) : norm.value;
  dgrad(layer, role, dx, dy, w, x);
}

void Transformer::attention_backward(std::int64_t layer, const Saved& saved, const BlockWeights& w,
                                     const BlockTensors& g, const QuantizedTensor& dmid) {
  const Linear lin = linear(layer, Role::qkv);
  const bool accumulate = parameters_.accumulates();
  const Scope scope(arena_);
  QuantizedTensor dqkv = push_gradient(push(attention_shape_.qkv_width()), lin);
  dqkv.keep_value = !lin.dy_rowwise().quantized() || !lin.dy_columnwise().quantized() || config_.qkv_bias ||
                    quantization_observer_;
  {
    const Scope inner(arena_);
    {
      const Scope innermost(arena_);
      const Linear o_lin = linear(layer, Role::o);
      const QuantFormat& format = o_lin.x_columnwise();
      QuantizedTensor out = make_quantized_tensor(saved.attention, {}, format);
      if (saved.attention_codes.empty()) {
        out.amax_in = saved.attention_amax;
        use_slot(out, o_lin.slots().x);
        push_col(out, format);
        produce(out, [&](QuantizedTensor& o) { device_.quantize({o}); });
        observe(layer, Role::o, LinearOperand::x, out);
      } else {
        out.rowwise = saved.attention_codes;
      }
      wgrad(layer, Role::o, g, dmid, out, w);
    }
    const Tensor dout = push(attention_shape_.q_width());
    dgrad(layer, Role::o, dout, dmid, w, saved.attention);
    Tensor qkv = saved.raw_qkv;
    if (config_.qk_norm) {
      qkv = push(attention_shape_.qkv_width());
      turn(qkv, saved, w);
    }
    const Tensor dturned = push(attention_shape_.qkv_width());
    device_.attention_backward({dturned, dout, saved.attention, saved.lse, qkv, attention_shape_});
    turn_backward(dqkv, dturned, saved, w, g);
    if (config_.qkv_bias) device_.bias_backward({g.qkv_bias, accumulate, dqkv.value});
    observe(layer, Role::qkv, LinearOperand::dy, dqkv);
    observe_codes(layer, Role::qkv, LinearOperand::dy, dqkv);
  }
  const Tensor dh = push(config_.width);
  const NormOutput norm{saved.h1, saved.h1_form, saved.x, saved.rstd1, w.norm1};
  if (qkv_apart(layer)) {
    const Scope parts(arena_);
    backward_apart(layer, dh, dqkv.value, w, g, norm.value.empty() ? normed_again(norm) : norm.value);
  } else {
    norm_dgrad(layer, Role::qkv, dh, dqkv, w, norm);
    norm_wgrad(layer, Role::qkv, g, dqkv, w, norm);
  }
  QuantizedTensor below = gradient_in(1 - slot_, layer - 1);
  produce(below, [&](QuantizedTensor& d) {
    device_.rmsnorm_backward({.dx = d,
                              .dweight = g.norm1,
                              .accumulate = accumulate,
                              .dresidual = dmid.value,
                              .dh = dh,
                              .x = saved.x,
                              .rstd = saved.rstd1,
                              .weight = w.norm1});
  });
  if (layer > 0) observe(layer - 1, Role::down, LinearOperand::dy, below);
}

void Transformer::block_backward(std::int64_t layer, Saved& saved) {
  const int unit = parameters_.layout().block_unit(layer);
  const Scope scope(arena_);
  const BlockWeights w = parameters_.gather_block(layer, Pass::backward);
  if (layer > 0) parameters_.prefetch(parameters_.layout().block_unit(layer - 1), Pass::backward);
  if (options_.recompute) {
    push_inner(layer, saved);
    saved.down_columns = {};  // the recomputed forward ends before the down layer
    block_forward(layer, saved, w, saved.x, true);
  }
  const BlockTensors g = parameters_.block_gradients(layer);
  QuantizedTensor dmid = push_gradient(branch_, linear(layer, Role::o));
  ffn_backward(layer, saved, w, g, gradient_in(slot_, layer), dmid);
  attention_backward(layer, saved, w, g, dmid);
  slot_ = 1 - slot_;
  parameters_.reduce(unit);
}

// ---- the step

void Transformer::embed(const Tensor& tokens) {
  const Layout& layout = parameters_.layout();
  const Tensor table = layout.embedding(parameters_.gather(layout.embedding_unit()));
  parameters_.prefetch(layout.block_unit(0));
  device_.embedding({x0_, tokens, table});
}

void Transformer::forward_backward(const Tensor& loss_sum, const Tensor& tokens, const Tensor& targets,
                                   float loss_scale, bool first_micro_step) {
  const Layout& layout = parameters_.layout();
  micro_step_ = first_micro_step ? 0 : micro_step_ + 1;
  loss_scale_ = loss_scale;
  // The embedding's gradient is the last and often the largest tensor. By then everything but its own input
  // is freed.
  const Scope scope(arena_);
  const Tensor dx0 = push(config_.width);
  const Arena::Mark shared = arena_.mark();
  push_shared(dx0);
  embed(tokens);

  std::vector<Arena::Mark> marks;
  Tensor x = x0_;
  for (std::int64_t layer = 0; layer < config_.layers; ++layer) {
    Saved& saved = saved_[layer];
    marks.push_back(arena_.mark());
    push_saved(layer, saved);
    const BlockWeights w = parameters_.gather_block(layer, Pass::forward);
    parameters_.prefetch(layer + 1 < config_.layers ? layout.block_unit(layer + 1) : layout.head_unit());
    if (options_.recompute) {
      const Scope forward(arena_);
      push_inner(layer, saved);
      leave_weight_columns(saved);
      block_forward(layer, saved, w, x, false);
    } else {
      push_inner(layer, saved);
      block_forward(layer, saved, w, x, false);
    }
    x = saved.mid;
  }
  // No-op if those weights are still gathered.
  parameters_.prefetch(layout.block_unit(config_.layers - 1), Pass::backward);
  head(loss_sum, targets, loss_scale, first_micro_step);

  for (std::int64_t layer = config_.layers - 1; layer >= 0; --layer) {
    block_backward(layer, saved_[layer]);
    arena_.release(marks[layer]);
  }

  arena_.release(shared);
  const int unit = layout.embedding_unit();
  const Tensor dtable = layout.embedding(parameters_.gradients(unit));
  parameters_.commit(dtable);
  if (!config_.tied && !parameters_.accumulates()) device_.zero({dtable});
  device_.embedding_backward({dtable, dx0, tokens});
  parameters_.reduce(unit);
}

void Transformer::forward(const Tensor& losses, const Tensor& tokens, const Tensor& targets) {
  const Layout& layout = parameters_.layout();
  const Scope scope(arena_);
  if (DelayedScaling* delayed = parameters_.delayed()) delayed->set_watching(true);
  if (Routers* routers = parameters_.routers()) routers->set_watching(true);
  losses_ = losses;
  x0_ = push(config_.width);
  branch_ = push(config_.width);
  mid_ = push(config_.width);
  embed(tokens);
  for (std::int64_t layer = 0; layer < config_.layers; ++layer) {
    const Scope block(arena_);
    Saved passing;
    push_saved(layer, passing);
    const BlockWeights w = parameters_.gather_block(layer, Pass::forward);
    parameters_.prefetch(layer + 1 < config_.layers ? layout.block_unit(layer + 1) : layout.head_unit());
    push_inner(layer, passing);
    leave_weight_columns(passing);
    block_forward(layer, passing, w, layer == 0 ? x0_ : mid_, false);
  }
  const Head head = begin_head(mid_);
  for (std::int64_t first = 0; first < M_; first += head_run(head)) {
    const Scope run(arena_);
    QuantizedTensor x;
    head_forward(head, first, targets, 1.0f, x);
  }
  if (DelayedScaling* delayed = parameters_.delayed()) delayed->set_watching(false);
  if (Routers* routers = parameters_.routers()) routers->set_watching(false);
}

}  // namespace precbench
