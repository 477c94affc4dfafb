// Muon (Jordan et al. 2024): orthogonalizes the momentum of a block's matrix by five Newton-Schulz iterations
// in BF16 and scales it to AdamW's root mean square (Liu et al. 2025: 0.2 sqrt(max(rows, cols))), so that one
// learning rate serves the whole model. Constants are those of torch.optim.Muon. AdamW updates everything
// else.
#include <algorithm>
#include <cmath>

#include "models/transformer/optimizer/update_rules.h"

namespace precbench {
namespace {

constexpr int kIterations = 5;
constexpr float kA = 3.4445f, kB = -4.7750f, kC = 2.0315f;
constexpr float kLeastNorm = 1e-7f;

/// Workspace of the iterations, sized for the unit's largest matrix, so that every rank needs the same
/// memory.
struct NewtonSchulzBuffers {
  NewtonSchulzBuffers(Arena& arena, const Unit& unit) {
    std::int64_t largest = 0, side = 0;
    for (const Parameter& p : unit.parameters) {
      if (p.kind != ParameterKind::matrix) continue;
      largest = std::max(largest, p.size());
      side = std::max(side, std::min(p.rows, p.cols));
    }
    const auto buffer = [&](DType dtype, std::int64_t size) {
      return arena.push(Segment::workspace, dtype, 1, size);
    };
    gram = buffer(DType::bf16, side * side);
    square = buffer(DType::f32, side * side);
    product = buffer(DType::f32, largest);
    norm_squared = buffer(DType::f32, 1);
  }
  Tensor gram, square, product, norm_squared;
};

/// Replaces x, bf16 [rows, cols], by approximately U V^T of its singular value decomposition.
void orthogonalize(Device& device, const Tensor& x, const NewtonSchulzBuffers& buffers) {
  const bool wide = x.rows <= x.cols;
  const std::int64_t side = std::min(x.rows, x.cols);
  const Tensor gram = buffers.gram.elements(0, side * side).reshape(side, side);
  const Tensor square = buffers.square.elements(0, side * side).reshape(side, side);
  const Tensor product = buffers.product.elements(0, x.size()).reshape(x.rows, x.cols);
  const auto multiply = [&](const Tensor& d, const GemmOperand& a, const GemmOperand& b, GemmRole role) {
    device.matmul({d, a, b, {.role = role, .op_class = OpClass::optimizer}});
  };
  device.sum_of_squares({buffers.norm_squared, x, false});
  device.to_unit_norm({x, buffers.norm_squared, kLeastNorm});
  for (int i = 0; i < kIterations; ++i) {
    // A = X X^T over the shorter side; X = a X + (b A + c A A) X.
    if (wide)
      multiply(gram, plain_operand(x), plain_operand(x), GemmRole::fprop);
    else
      multiply(gram, plain_operand(x, true), plain_operand(x, true), GemmRole::wgrad);
    multiply(square, plain_operand(gram), plain_operand(gram, true), GemmRole::dgrad);
    device.combine({gram, kB, gram, kC, square});
    if (wide)
      multiply(product, plain_operand(gram), plain_operand(x, true), GemmRole::dgrad);
    else
      multiply(product, plain_operand(x), plain_operand(gram, true), GemmRole::dgrad);
    device.combine({x, kA, x, 1.0f, product});
  }
}

}  // namespace

void muon_update(const UpdateContext& context, int unit) {
  Parameters& parameters = context.parameters;
  const Layout& layout = parameters.layout();
  if (!layout.is_block(unit)) return adamw_update(context, unit);
  const Parameters::Shard shard = parameters.shard(unit);
  for (const Run& run : shard.runs)
    if (run.kind != ParameterKind::matrix) adamw_update_run(context, unit, run);

  const OptimizerOptions& o = context.options;
  const Scope scope(parameters.arena());
  const auto buffer = [&](std::int64_t size) {
    return parameters.arena().push(Segment::workspace, DType::bf16, 1, size);
  };
  const Tensor mine = buffer(layout.shard_size(unit));
  const Tensor whole = parameters.sharded() ? buffer(layout.shard_size(unit) * layout.shards()) : mine;
  const NewtonSchulzBuffers iterations(parameters.arena(), layout.units()[unit]);
  const std::vector<Piece> pieces = layout.pieces(unit, parameters.shard_rank());
  for (const Piece& piece : pieces) {
    if (piece.count == 0 || piece.parameter->kind != ParameterKind::matrix) continue;
    const Tensor gradient = shard.gradient.elements(piece.offset, piece.count);
    context.add_to_norm(gradient);
    context.device.momentum({mine.elements(piece.offset, piece.count),
                             parameters.moments().m(unit, piece.offset, piece.count), gradient,
                             context.norm_squared, o.momentum, o.max_norm});
  }
  if (parameters.sharded()) parameters.shard_comm().all_gather(whole, mine);
  // A rank orthogonalizes the matrices of which it has a part.
  for (const Piece& piece : pieces) {
    const Parameter& p = *piece.parameter;
    if (piece.count == 0 || p.kind != ParameterKind::matrix) continue;
    orthogonalize(context.device, whole.elements(p.offset, p.size()).reshape(p.rows, p.cols), iterations);
    context.device.descend({part(shard.weights, piece.offset, piece.count),
                            part(shard.master, piece.offset, piece.count),
                            whole.elements(p.offset + piece.first, piece.count), context.scalars,
                            0.2f * std::sqrt(static_cast<float>(std::max(p.rows, p.cols))),
                            context.constants(true, piece.in_model())});
  }
}

}  // namespace precbench
