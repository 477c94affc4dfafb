// Operands and GEMMs of the training step's linear layers. See step_context.h.
#include "models/transformer/layers/step_context.h"

#include <utility>

#include "models/transformer/layers/lora_layers.h"

namespace precbench {

bool has_amax_of_x(const Linear& linear) {
  return linear.slots().x.known.empty() &&
         (has_tensor_scale(linear.x_rowwise()) || has_tensor_scale(linear.x_columnwise()));
}

void use_slot(QuantizedTensor& operand, const OperandSlot& slot) {
  operand.random = slot.random;
  if (slot.known.empty()) return;
  operand.amax_in = slot.known;
  operand.amax_out = slot.staged;
}

void OperandBuilder::push_rowwise(QuantizedTensor& operand, const QuantFormat& format) const {
  if (!format.quantized()) return;
  operand.rowwise = push(format, operand.value.rows, operand.value.cols);
  push_amax(operand, format);
}

void OperandBuilder::push_columnwise(QuantizedTensor& operand, const QuantFormat& format) const {
  if (!format.quantized()) return;
  operand.columnwise = push(format, operand.value.cols, operand.value.rows);
  push_amax(operand, format);
}

void OperandBuilder::push_amax(QuantizedTensor& operand, const QuantFormat& format) const {
  if (has_tensor_scale(format) && operand.amax_out.empty() && operand.amax_in.empty())
    operand.amax_out = arena_.push(Segment::activations, DType::f32, 1, 1);
}

QuantizedTensor OperandBuilder::push_gradient(const Tensor& value, const Linear& consumer,
                                              GradientCopies copies) const {
  QuantizedTensor operand = make_quantized_tensor(value, consumer.dy_rowwise(), consumer.dy_columnwise());
  use_slot(operand, consumer.slots().dy);
  push_rowwise(operand, consumer.dy_rowwise());
  if (copies == GradientCopies::all && !consumer.recipe().flow)
    push_columnwise(operand, consumer.dy_columnwise());
  return operand;
}

StepContext::StepContext(Device& device_, Arena& arena_, Parameters& parameters_, const ModelConfig& config_,
                         const TransformerOptions& options_)
    : device(device_),
      arena(arena_),
      parameters(parameters_),
      config(tensor_share(config_, parameters_.options().parallel.tensor)),
      options(options_),
      sequence(options_.sequence()),
      attention_shape{options_.B,
                      sequence.chunk(),
                      config.heads,
                      config.kv_heads,
                      config.head_dim,
                      sequence.whole() ? 0 : options_.T,
                      0,
                      0,
                      0,
                      config.latent.v_dim},
      M(options_.B * sequence.tokens()),
      tensor(parameters_.groups().tensor.comm),
      stream_rows(M / parameters_.options().parallel.tensor),
      operands(arena_),
      lora(parameters_.options().lora ? std::make_unique<LoraLayers>(*this) : nullptr) {}

StepContext::~StepContext() = default;

AttentionShape StepContext::attention_shape_of(std::int64_t layer) const {
  AttentionShape shape = attention_shape;
  if (const std::int64_t window = config.window(layer); window < options.T) shape.window = window;
  shape.softcap = static_cast<float>(config.block.attention_softcap);
  return shape;
}

DocumentMask StepContext::documents_of(const AttentionShape& shape, std::int64_t first,
                                       std::int64_t rows) const {
  if (first_key.empty()) return {};
  return {.first_key = first_key.slice_rows(first, rows),
          .visible = options.packed ? options.packed->visible(options.T, shape.window) : 1};
}

void StepContext::scale(const Tensor& x, double factor) const {
  if (factor != 1) device.combine({x, static_cast<float>(factor), x, 0.0f, x, OpClass::norm_elementwise});
}

namespace {

/// Returns the format of an operand whose quantized copies are one cast; null if it has no or other copies.
const QuantFormat* one_cast_of(const QuantizedTensor& x) {
  const bool rows = x.rowwise.format.quantized(), columns = x.columnwise.format.quantized();
  const QuantFormat &rowwise = (rows ? x.rowwise : x.columnwise).format,
                    &columnwise = (columns ? x.columnwise : x.rowwise).format;
  return is_one_cast(rowwise, columnwise) ? &rowwise : nullptr;
}

}  // namespace

void StepContext::gather_codes(const QuantizedTensor& x, const Tensor& own, const QuantFormat& format) const {
  const Scope scope(arena);
  const GemmOperand all =
      x.rowwise.format.quantized() ? x.rowwise : operands.push(format, x.value.rows, x.value.cols);
  GemmOperand mine = all;
  mine.data = own_rows(all.data);
  device.quantize({{.value = own, .amax_out = x.amax_out}});
  if (options.reduce_amax == AmaxGroup::own)
    tensor->all_reduce_max(x.amax_out);
  else
    share_amax(x.amax_out, ScaleSource::current);
  device.quantize({{.value = own, .rowwise = mine, .amax_in = x.amax_out}});
  tensor->all_gather(all.data, mine.data);
  if (x.columnwise.format.quantized()) device.transpose({x.columnwise, all});
}

void StepContext::gather_over_tensor(QuantizedTensor& x, const Tensor& own) const {
  const QuantFormat* format = options.tensor_fp8 && !x.keep_value ? one_cast_of(x) : nullptr;
  if (format) return gather_codes(x, own, *format);
  tensor->all_gather(x.value, own);
  produce_quantized(x, [&](QuantizedTensor& all) { device.quantize({all}); });
}

void StepContext::sum_over_tensor(const Tensor& rows,
                                  const std::function<void(const Tensor& partial)>& op) const {
  if (!tensor) return op(rows);
  const Scope scope(arena);
  const Tensor partial = push(rows.dtype, M, rows.cols);
  op(partial);
  tensor->reduce_scatter(rows, partial);
}

Linear StepContext::linear(std::int64_t layer, LinearRole role) const {
  const Recipe& of_role = recipe(layer, recipe_role(role));
  const OpClass op_class = role == LinearRole::head ? OpClass::head_loss : OpClass::gemm;
  const DelayedScaling* delayed = of_role.delayed() ? parameters.delayed() : nullptr;
  LinearSlots slots = delayed ? delayed->slots(layer, role) : LinearSlots{};
  if (WeightAmaxes* amaxes = parameters.weight_amaxes(); amaxes && has_weight_amaxes(of_role))
    slots.w_amax = amaxes->slot(layer, role);
  if (options.reduce_amax != AmaxGroup::own) slots.w_ranks = tensor;
  slots.x.random = random_of(layer, role, LinearOperand::x);
  slots.w.random = random_of(layer, role, LinearOperand::w);
  slots.dy.random = random_of(layer, role, LinearOperand::dy);
  return {device, arena, of_role, op_class, slots};
}

RandomStream StepContext::random_of(std::int64_t layer, LinearRole role, LinearOperand operand) const {
  // Four streams: x, dy, w, and the random signs of both backward GEMMs.
  constexpr std::uint32_t kStreams = 4, kSigns = 3, kForms = 2;
  const bool weight = operand == LinearOperand::w;  // the same for all tokens and micro-steps
  const auto stream_of = [&](std::uint32_t at_micro_step, std::uint32_t which) {
    std::uint32_t stream = at_micro_step * static_cast<std::uint32_t>(config.layers + 1);
    const bool latent = is_latent_up(role);  // of models that have no parts of qkv
    const LinearRole whole = is_qkv_part(role) || latent ? LinearRole::qkv : role;
    stream = (stream + static_cast<std::uint32_t>(layer)) * kLinearRoles + static_cast<std::uint32_t>(whole);
    stream = (stream * kStreams + which) * kForms;
    // In the top bits, which no realistic number of micro-steps reaches.
    const int place = latent              ? (role == LinearRole::q_up ? 1 : 2)
                      : is_qkv_part(role) ? place_in_qkv(role) + 1
                                          : 0;
    return stream | static_cast<std::uint32_t>(place) << 30;
  };
  // Operands of one GEMM must share random signs: dY's rows and W's columns in dgrad, the columns of dY and X
  // in wgrad.
  const std::uint32_t dgrad_signs = stream_of(micro_step, kSigns), wgrad_signs = dgrad_signs + 1;
  return {.word = options.random_word,
          .stream = stream_of(weight ? 0 : micro_step, static_cast<std::uint32_t>(operand)),
          .rows = weight ? RowMap{} : sequence.rows(options.B, options.first_sequence),
          .row_signs = dgrad_signs,
          .column_signs = weight ? dgrad_signs : wgrad_signs};
}

void StepContext::share_amax(const Tensor& amax, ScaleSource source) const {
  if (source == ScaleSource::delayed) return parameters.delayed()->share(amax);
  const ParallelGroups& groups = parameters.groups();
  if (options.reduce_amax == AmaxGroup::all) return groups.tokens.all_reduce_max(amax);
  for (Comm* ranks : {groups.context.comm, groups.tensor.comm})
    if (ranks) ranks->all_reduce_max(amax);
}

void StepContext::produce_quantized(QuantizedTensor& x,
                                    const std::function<void(QuantizedTensor&)>& op) const {
  const bool delayed = !x.amax_in.empty() && !x.amax_out.empty();
  const bool first = delayed && parameters.delayed()->current();
  if (!first && (delayed || options.reduce_amax == AmaxGroup::own || x.amax_out.empty())) return op(x);
  QuantizedTensor plain = x;
  if (delayed) plain.amax_out = std::exchange(plain.amax_in, {});
  if (plain.rowwise.format.quantized()) plain.rowwise = {};
  if (plain.columnwise.format.quantized()) plain.columnwise = {};
  plain.keep_value = true;
  op(plain);
  share_amax(plain.amax_out, delayed ? ScaleSource::delayed : ScaleSource::current);
  QuantizedTensor scaled = x;
  if (!delayed) scaled.amax_in = std::exchange(scaled.amax_out, {});
  device.quantize({scaled});
}

void StepContext::fprop(std::int64_t layer, LinearRole role, const Tensor& y, const QuantizedTensor& x,
                        const BlockWeights& w) const {
  linear(layer, role).fprop(y, x, w[role]);
  if (lora) lora->fprop(layer, role, y, x.value);
  observe_weight(layer, role, w[role], GemmRole::fprop);
}

void StepContext::fprop_columns(std::int64_t layer, LinearRole role, const Tensor& y, std::int64_t first,
                                std::int64_t count, const QuantizedTensor& x, const BlockWeights& w) const {
  const Scope scope(arena);
  const Tensor columns = push(count);
  linear(layer, role).fprop(columns, x, {w[role].value.slice_rows(first, count)});
  device.copy_columns({y, first, columns});
}

void StepContext::dgrad(std::int64_t layer, LinearRole role, const Tensor& dx, const QuantizedTensor& dy,
                        const BlockWeights& w, const Tensor& x) const {
  linear(layer, role).dgrad(dx, dy, w[role], x);
  if (lora) lora->dgrad(layer, role, dx, dy.value);
  observe_weight(layer, role, w[role], GemmRole::dgrad);
}

void StepContext::wgrad(std::int64_t layer, LinearRole role, const BlockTensors& g, const QuantizedTensor& dy,
                        const QuantizedTensor& x, const BlockWeights& w) const {
  if (lora) return lora->wgrad(layer, role, dy.value, x.value);
  parameters.commit(g[role]);
  linear(layer, role).wgrad(g[role], dy, x, w[role], parameters.accumulates());
}

void StepContext::keep(const GemmOperand& kept, const Tensor& value) const {
  const Scope scope(arena);
  QuantizedTensor x{.value = value, .rowwise = kept};
  operands.push_amax(x, kept.format);
  produce_quantized(x, [&](QuantizedTensor& made) { device.quantize({made}); });
}

QuantizedTensor StepContext::quantized_for(GemmRole gemm, std::int64_t layer, LinearRole role,
                                           const Tensor& value, const Tensor& amax) const {
  const Linear of_role = linear(layer, role);
  const QuantFormat plain, &rows = gemm == GemmRole::fprop ? of_role.x_rowwise() : plain,
                           &columns = gemm == GemmRole::wgrad ? of_role.x_columnwise() : plain;
  QuantizedTensor x = make_quantized_tensor(value, rows, columns);
  x.amax_in = amax;
  use_slot(x, of_role.slots().x);
  operands.push_rowwise(x, rows);
  operands.push_columnwise(x, columns);
  produce_quantized(x, [&](QuantizedTensor& made) { device.quantize({made}); });
  observe(layer, role, LinearOperand::x, x);
  return x;
}

void StepContext::observe(std::int64_t layer, LinearRole role, LinearOperand operand,
                          const QuantizedTensor& values) const {
  if (observer) observer->observe(layer, role, operand, values);
}

void StepContext::observe_codes(std::int64_t layer, LinearRole role, LinearOperand operand,
                                const QuantizedTensor& values, const Groups& groups) const {
  if (observer && recipe(layer, recipe_role(role)).flow)
    observer->observe_codes(role, operand, values, groups);
}

void StepContext::observe_weight(std::int64_t layer, LinearRole role, const Weight& weight,
                                 GemmRole gemm) const {
  const bool dgrad_copy = gemm == GemmRole::dgrad;
  // Dequantized fprop data differs from the weight and may be in another basis, so it is not compared with
  // it.
  if (!observer || weight.value.empty() ||
      (dgrad_copy && recipe(layer, recipe_role(role)).dgrad.b.from_fprop))
    return;
  const Scope scope(arena);
  observe(layer, role, LinearOperand::w, linear(layer, role).quantized_weight(weight, dgrad_copy));
}

}  // namespace precbench
