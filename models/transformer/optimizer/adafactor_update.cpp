// Adafactor (Shazeer & Stern 2018) as in torch.optim.Adafactor, parameter by parameter. Every rank computes
// partial sums over rows, columns and two norms of its part; ranks that share a unit all-reduce them.
#include <algorithm>
#include <cmath>

#include "models/transformer/optimizer/update_rules.h"

namespace precbench {
namespace {

constexpr double kBeta2Decay = -0.8;

/// Sums over a unit, reduced in two collectives: rows, columns and squared weights per parameter; then
/// squared updates.
struct UnitSums {
  struct Sums {
    Tensor rows, cols, weights, updates, row_mean;
  };

  UnitSums(Arena& arena, const Unit& unit) {
    const auto count = static_cast<std::int64_t>(unit.parameters.size());
    std::int64_t size = count;
    for (const Parameter& p : unit.parameters) size += rows_of(p) + p.cols;
    const auto f32 = [&](std::int64_t n) { return arena.push(Segment::workspace, DType::f32, 1, n); };
    first = f32(size);
    second = f32(count);
    const Tensor means = f32(count);
    std::int64_t next = 0;
    for (const Parameter& p : unit.parameters) {
      const auto take = [&](std::int64_t n) {
        next += n;
        return n == 0 ? Tensor{} : first.elements(next - n, n);
      };
      const auto index = static_cast<std::int64_t>(of.size());
      Sums sums;
      sums.rows = take(rows_of(p));
      sums.cols = take(p.cols);
      sums.weights = take(1);
      sums.updates = second.elements(index, 1);
      sums.row_mean = means.elements(index, 1);
      of.push_back(sums);
    }
  }
  static std::int64_t rows_of(const Parameter& p) { return p.kind == ParameterKind::matrix ? p.rows : 0; }

  std::vector<Sums> of;
  Tensor first, second;
};

}  // namespace

void adafactor_scalars(const OptimizerOptions&, double step, StepScalars& scalars) {
  scalars.bias_correction1 = static_cast<float>(std::min<double>(scalars.lr, 1 / std::sqrt(step)));
  scalars.bias_correction2 = static_cast<float>(std::pow(step, kBeta2Decay));
}

void adafactor_update(const UpdateContext& context, int unit) {
  Device& device = context.device;
  Parameters& parameters = context.parameters;
  const OptimizerOptions& o = context.options;
  const Parameters::Shard shard = parameters.shard(unit);
  const std::vector<Piece> pieces = parameters.layout().pieces(unit, parameters.shard_rank());
  const Scope scope(parameters.arena());
  const UnitSums sums(parameters.arena(), parameters.layout().units()[unit]);
  const auto gradient = [&](const Piece& piece) {
    return shard.gradient.elements(piece.offset, piece.count);
  };
  const auto moment = [&](std::size_t i) {
    FactoredMoment factors = parameters.moments().factors(unit, i);
    factors.row_mean = sums.of[i].row_mean;
    return factors;
  };

  const Tensor& leading = shard.master.empty() ? shard.weights : shard.master;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Piece& piece = pieces[i];
    device.factored_sums({sums.of[i].rows, sums.of[i].cols, gradient(piece), piece.first});
    device.sum_of_squares({sums.of[i].weights, leading.elements(piece.offset, piece.count), false});
    context.add_to_norm(gradient(piece));
  }
  if (parameters.sharded()) parameters.shard_comm().all_reduce(sums.first);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    device.factored_average(
        {moment(i), sums.of[i].rows, sums.of[i].cols, context.scalars, context.norm_squared, o.max_norm});
    device.factored_norm({sums.of[i].updates, moment(i), gradient(pieces[i]), pieces[i].first,
                          context.norm_squared, context.constants(false, 0)});
  }
  if (parameters.sharded()) parameters.shard_comm().all_reduce(sums.second);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Piece& piece = pieces[i];
    if (piece.count == 0) continue;
    device.factored_update(
        {part(shard.weights, piece.offset, piece.count), part(shard.master, piece.offset, piece.count),
         moment(i), gradient(piece), piece.first, sums.of[i].weights, sums.of[i].updates, context.scalars,
         context.norm_squared,
         context.constants(piece.parameter->kind == ParameterKind::matrix, piece.in_model())});
  }
}

}  // namespace precbench
