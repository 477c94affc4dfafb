// Minimum costs of the MoE ops, as in ops.cpp, and scale counts of their quantized copies. Padding is not
// counted. Row counts are expected values, because the host does not know the real ones when an op runs.
#include <algorithm>

#include "kernels/device/op_cost.h"
#include "kernels/numerics/scale_layout.h"

namespace precbench {

std::int64_t grouped_scale_count(Granularity g, std::int64_t experts, std::int64_t cols, std::int64_t rows) {
  return g == Granularity::row ? experts * cols : scale_count(g, cols, rows);
}

std::int64_t stacked_scale_count(Granularity g, std::int64_t experts, std::int64_t rows, std::int64_t k) {
  return scales_by_expert(g) ? experts * scale_count(g, rows, k) : scale_count(g, experts * rows, k);
}

GemmOperand part_of_expert(GemmOperand stack, std::int64_t expert, std::int64_t experts) {
  const std::int64_t rows = stack.data.rows / experts, scales = stack.scale.size() / experts;
  stack.data = stack.data.slice_rows(expert * rows, rows);
  stack.scale = stack.scale.elements(expert * scales, scales);
  return stack;
}

namespace ops {
namespace {

/// Returns the expected bytes read or written, given the `total` bytes at full row capacity.
double of_rows(double total, const Groups& groups) {
  return total * static_cast<double>(groups.rows_expected) / static_cast<double>(groups.rows_capacity());
}

double slot_bytes(const Groups& groups) { return bytes(groups.row_of) + bytes(groups.source); }

double product_flops(std::int64_t m, std::int64_t n, std::int64_t k) {
  return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
}

}  // namespace

OpCost Route::cost() const {
  return shaped(of("route", OpClass::routing,
                   bytes(x) + bytes(router) + bytes(logit_bias) + bytes(bias) + bytes(z) + bytes(index) +
                       bytes(weights),
                   product_flops(z.rows, z.cols, x.cols)),
                {z.rows, z.cols, x.cols});
}

OpCost RouteBackward::cost() const {
  return shaped(
      of("route_backward", OpClass::routing,
         bytes(x) + 2 * bytes(router) + bytes(addend) + bytes(dw) + bytes(z) + bytes(index) + bytes(dx) +
             updated_bytes(drouter, accumulate) + updated_bytes(dlogit_bias, accumulate),
         2 * product_flops(z.rows, z.cols, x.cols)),
      {z.rows, z.cols, x.cols});
}

OpCost Group::cost() const {
  return of("group", OpClass::routing, bytes(index) + slot_bytes(groups) + bytes(kept));
}

OpCost GroupPeers::cost() const {
  return of("group_peers", OpClass::routing,
            bytes(index) + bytes(weights) + slot_bytes(peers) + bytes(row_index) + bytes(row_weights));
}

OpCost Permute::cost() const {
  const bool codes = !src.rowwise.empty() && weights.empty() && quantized_bytes(x.rowwise) > 0;
  const bool values = x.keep_value || !codes || quantized_bytes(x.columnwise) > 0;
  const OpCost cost = of("permute", OpClass::routing,
                         (codes ? quantized_bytes(src.rowwise) : 0.0) + (values ? bytes(src.value) : 0.0) +
                             bytes(weights) + slot_bytes(groups) + of_rows(written_bytes(x), groups));
  QuantizedTensor made = x;
  if (codes) made.rowwise = {};
  return casting(shaped(cost, {groups.rows_expected, std::max(x.value.cols, src.value.cols), groups.top_k()}),
                 made);
}

OpCost TransposeCodes::cost() const {
  const double moved = quantized_bytes(src) + quantized_bytes(dst);
  return shaped(
      of("transpose_codes", OpClass::quantize, groups.counts.empty() ? moved : of_rows(moved, groups)),
      {groups.counts.empty() ? src.rows() : groups.rows_expected, src.k()});
}

OpCost Unpermute::cost() const {
  return shaped(of("unpermute", OpClass::routing,
                   of_rows(bytes(rows), groups) + bytes(addend) + bytes(weights) + bytes(dw) + bytes(x) +
                       bytes(out) + bytes(groups.row_of)),
                {out.rows, out.cols, groups.top_k()});
}

OpCost QuantizeExperts::cost() const {
  OpCost cost = casting(of("quantize_experts", OpClass::quantize, bytes(w.value) + copy_bytes(w)), w);
  cost.casts = 0;  // a weight's casts are not counted
  return shaped(cost, {w.value.rows / experts, w.value.cols, experts});
}

OpCost GroupedMatmul::cost() const {
  static constexpr const char* kNames[] = {"grouped_matmul fprop", "grouped_matmul dgrad",
                                           "grouped_matmul wgrad"};
  const bool wgrad = options.role == GemmRole::wgrad;
  const auto operand_bytes = [](const GemmOperand& x) { return bytes(x.data) + bytes(x.scale); };
  const double used = static_cast<double>(std::min(groups.experts(), groups.rows_expected)) /
                      static_cast<double>(groups.experts());  // experts that can have a row
  const double moved =
      wgrad ? of_rows(operand_bytes(a) + operand_bytes(b), groups) + updated_bytes(d, options.accumulate)
            : of_rows(operand_bytes(a) + bytes(d), groups) + used * operand_bytes(b);
  const double flops = wgrad ? product_flops(groups.rows_expected, d.rows / groups.experts(), d.cols)
                             : product_flops(groups.rows_expected, d.cols, a.k());
  const std::int64_t rows = groups.rows_expected, count = groups.experts();
  return shaped(multiplying(of(kNames[static_cast<int>(options.role)], options.op_class, moved, flops), a, b),
                wgrad ? std::array<std::int64_t, 7>{d.rows / count, d.cols, rows, count}
                      : std::array<std::int64_t, 7>{rows, d.cols, a.k(), count});
}

OpCost GroupedSwiglu::cost() const {
  return casting(
      shaped(of("grouped_swiglu", OpClass::norm_elementwise,
                of_rows(bytes(gate_up) + written_bytes(s), groups) + bytes(weights) + bytes(groups.source)),
             {groups.rows_expected, gate_up.cols / 2}),
      s);
}

OpCost GroupedSwigluBackward::cost() const {
  return casting(
      casting(
          shaped(of("grouped_swiglu_backward", OpClass::norm_elementwise,
                    of_rows(bytes(ds) + bytes(gate_up) + written_bytes(dgate_up) + written_bytes(s), groups) +
                        bytes(weights) + bytes(dw) + bytes(groups.source)),
                 {groups.rows_expected, ds.cols}),
          dgate_up),
      s);
}

OpCost AddExpertBias::cost() const {
  return shaped(of("add_expert_bias", OpClass::norm_elementwise,
                   of_rows(2 * bytes(x), groups) + bytes(bias) + bytes(groups.offsets)),
                {groups.rows_expected, x.cols});
}

OpCost ExpertBiasBackward::cost() const {
  return shaped(of("expert_bias_backward", OpClass::norm_elementwise,
                   of_rows(bytes(dy), groups) + updated_bytes(dbias, accumulate) + bytes(groups.offsets)),
                {groups.rows_expected, dy.cols});
}

OpCost AddRoutedBias::cost() const {
  return shaped(
      of("add_routed_bias", OpClass::routing, 2 * bytes(out) + bytes(bias) + bytes(index) + bytes(weights)),
      {out.rows, out.cols, index.cols});
}

OpCost RoutedBiasBackward::cost() const {
  return shaped(of("routed_bias_backward", OpClass::routing,
                   bytes(dy) + bytes(bias) + bytes(index) + bytes(weights) + 2 * bytes(dw) +
                       updated_bytes(dbias, accumulate)),
                {dy.rows, dy.cols, index.cols});
}

OpCost UpdateRoutingBias::cost() const {
  return of("update_routing_bias", OpClass::routing, 2 * bytes(bias) + bytes(counts));
}

}  // namespace ops
}  // namespace precbench
