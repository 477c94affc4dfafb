// Computes errors, cosines and biases. See fidelity_summary.h.
#include "bench/step/fidelity_summary.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "results/record/statistics.h"

namespace precbench {
namespace {

double error_of(const GradientSums& s) { return std::sqrt(s.difference / s.gg); }
/// Clamped because the sums are rounded to FP32, which can give slightly more than 1.
double cosine_of(const GradientSums& s) { return std::clamp(s.rg / std::sqrt(s.rr * s.gg), -1.0, 1.0); }
double bias_of(const GradientSums& s) { return (s.rg - s.gg) / s.gg; }

template <class Value>
std::vector<double> values_of(const std::vector<GradientSums>& batches, Value&& value) {
  std::vector<double> values(batches.size());
  std::transform(batches.begin(), batches.end(), values.begin(), value);
  return values;
}

/// A part of the model with its sums in every batch.
struct Part {
  std::string name;
  std::vector<GradientSums> batches;
};

/// Adds to the named part. Parts are listed in the order of their first use.
void add(std::vector<Part>& parts, const std::string& name, std::size_t batches, std::size_t batch,
         const GradientSums& sums) {
  auto part = std::find_if(parts.begin(), parts.end(), [&](const Part& p) { return p.name == name; });
  if (part == parts.end()) part = parts.insert(parts.end(), {name, std::vector<GradientSums>(batches)});
  part->batches[batch] += sums;
}

std::vector<GradientFidelity> summaries(const std::vector<Part>& parts) {
  std::vector<GradientFidelity> result;
  for (const Part& part : parts) {
    const auto mean = [&](auto value) {
      return finite(mean_and_spread(values_of(part.batches, value)).mean);
    };
    result.push_back({part.name, mean(error_of), mean(cosine_of), mean(bias_of)});
  }
  return result;
}

/// Returns the means over batches, all of which have the same number of slots.
std::optional<RouteFlips> route_flips_of(const std::vector<BatchFidelity>& batches) {
  const std::size_t layers = batches.front().route_flips.size();
  if (layers == 0) return std::nullopt;
  RouteFlips flips{0, std::vector<double>(layers)};
  for (const BatchFidelity& batch : batches)
    for (std::size_t i = 0; i < layers; ++i)
      flips.layers[i] += batch.route_flips[i] / static_cast<double>(batches.size());
  for (double& share : flips.layers) share = std::min(1.0, share);  // a sum of n times 1/n may round to more
  flips.all = mean_and_spread(flips.layers).mean;
  return flips;
}

std::string role_of_bias(const std::string& name) {
  for (const auto& [end, role] :
       {std::pair{"norm.bias", "norm"}, std::pair{"o_proj.bias", name_of(LinearRole::o)},
        std::pair{"up_proj.bias", name_of(LinearRole::gate_up)},
        std::pair{"down_proj.bias", name_of(LinearRole::down)},
        std::pair{"lm_head.bias", name_of(LinearRole::head)}})
    if (name.ends_with(end)) return role;
  return name_of(LinearRole::qkv);
}

/// Returns "qkv", "o", "gate_up", "down" (each also for its biases and adapters), "q_up" or "kv_up" (latent attention),
/// "norm", "embedding" (also for a tied head and for positions) or "lm_head".
std::string role_of(const Layout& layout, int unit, const Parameter& p) {
  if (p.kind == ParameterKind::gain || p.kind == ParameterKind::gain_minus_one) return "norm";
  if (p.kind == ParameterKind::bias) return role_of_bias(p.name);
  if (unit == layout.embedding_unit() && p.name.starts_with("model.embed_")) return "embedding";
  if (!layout.is_block(unit)) return name_of(LinearRole::head);
  for (const LinearMatrix& matrix : layout.block_linears(layout.layer_of(unit)))
    if (p.offset >= matrix.offset && p.offset < matrix.offset + matrix.size()) return name_of(matrix.role);
  for (const LoraMatrices& m : layout.lora(layout.layer_of(unit))) {
    const LoraMatrices::Output& last = m.outputs.back();
    if (p.offset >= m.a_offset && p.offset < last.offset + last.out * m.rank) return name_of(m.role);
  }
  return name_of(LinearRole::head);
}

}  // namespace

MeanInterval interval_of(const std::vector<double>& values) {
  MeanInterval result{finite(mean_and_spread(values).mean), std::nullopt, std::nullopt};
  if (!result.mean) return result;
  if (const auto interval = mean_with_interval(values))
    result.low = finite(interval->low), result.high = finite(interval->high);
  return result;
}

GradientSums& GradientSums::operator+=(const GradientSums& other) {
  rg += other.rg;
  rr += other.rr;
  gg += other.gg;
  difference += other.difference;
  return *this;
}

namespace {

/// Returns the larger number, or NaN if one is NaN.
double larger(double a, double b) { return std::isnan(a) || a > b ? a : b; }

}  // namespace

void BatchOutputs::add(double difference, double token_divergence) {
  const bool finite = std::isfinite(difference) && std::isfinite(token_divergence);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double size = finite ? std::fabs(difference) : nan, kl = finite ? token_divergence : nan;
  *this += {1, size, size, kl, kl};
}

BatchOutputs& BatchOutputs::operator+=(const BatchOutputs& other) {
  tokens += other.tokens;
  log_probability += other.log_probability;
  largest_log_probability = larger(largest_log_probability, other.largest_log_probability);
  divergence += other.divergence;
  largest_divergence = larger(largest_divergence, other.largest_divergence);
  return *this;
}

OutputDistance summarize(const std::vector<BatchOutputs>& batches, bool held_out) {
  BatchOutputs all;
  std::vector<double> log_probabilities, divergences;
  for (const BatchOutputs& batch : batches) {
    all += batch;
    log_probabilities.push_back(batch.log_probability / batch.tokens);
    divergences.push_back(batch.divergence / batch.tokens);
  }
  return {static_cast<std::int64_t>(all.tokens),
          held_out,
          interval_of(log_probabilities),
          finite(all.largest_log_probability),
          interval_of(divergences),
          finite(all.largest_divergence)};
}

Fidelity summarize(const std::string& stress, const Layout& layout,
                   const std::vector<BatchFidelity>& batches) {
  const std::size_t count = batches.size();
  std::vector<GradientSums> whole(count);
  std::vector<Part> roles, layers;
  std::vector<double> bf16_losses, differences;
  for (std::size_t batch = 0; batch < count; ++batch) {
    bf16_losses.push_back(batches[batch].bf16_loss);
    differences.push_back(batches[batch].loss - batches[batch].bf16_loss);
    auto sums = batches[batch].parameters.begin();
    for (int unit = 0; unit < layout.unit_count(); ++unit)
      for (const Parameter& p : layout.units()[unit].parameters) {
        whole[batch] += *sums;
        add(roles, role_of(layout, unit, p), count, batch, *sums);
        if (layout.is_block(unit))
          add(layers, std::to_string(unit - layout.block_unit(0)), count, batch, *sums);
        ++sums;
      }
  }
  Fidelity result;
  result.stress = stress;
  result.batches = static_cast<std::int64_t>(count);
  result.loss_bf16 = finite(mean_and_spread(bf16_losses).mean);
  result.loss_difference = interval_of(differences);
  result.whole = {interval_of(values_of(whole, error_of)), interval_of(values_of(whole, cosine_of)),
                  interval_of(values_of(whole, bias_of))};
  result.roles = summaries(roles);
  result.layers = summaries(layers);
  result.route_flips = route_flips_of(batches);
  return result;
}

}  // namespace precbench
