// Counts parameters from a record's definition. See model_age.h.
#include "tools/analysis/model_age.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tools/analysis/columns.h"

namespace precbench {
namespace {

/// Returns a non-negative number of the definition; null if it has none.
std::optional<double> number_in(const nlohmann::ordered_json& model, const char* key) {
  const auto found = model.find(key);
  if (found == model.end() || !found->is_number()) return std::nullopt;
  const double value = found->get<double>();
  return std::isfinite(value) && value >= 0 ? std::optional(value) : std::nullopt;
}

bool says(const nlohmann::ordered_json& model, const char* key) {
  const auto found = model.find(key);
  return found != model.end() && found->is_boolean() && found->get<bool>();
}

/// Counts a dense model: embedding, output layer unless tied, and the linear layers and norms of each block.
std::optional<double> dense_parameters(const nlohmann::ordered_json& model) {
  const auto layers = number_in(model, "layers"), width = number_in(model, "width"),
             ffn = number_in(model, "ffn"), heads = number_in(model, "heads"),
             kv_heads = number_in(model, "kv_heads"), head_dim = number_in(model, "head_dim"),
             vocab = number_in(model, "vocab");
  if (!layers || !width || !ffn || !heads || !kv_heads || !head_dim || !vocab) return std::nullopt;
  const double qkv = (*heads + 2 * *kv_heads) * *head_dim;
  const bool gated = !model.contains("gated") || says(model, "gated");
  const double norm = (says(model, "norm_bias") ? 2 : 1) * *width;
  const auto residual = model.find("residual");
  const bool one_norm = residual != model.end() && *residual == "parallel_one_norm";
  const auto norms = model.find("norms");
  const bool four_norms = norms != model.end() && *norms == "both";
  double block = *width * qkv + *heads * *head_dim * *width + (gated ? 3 : 2) * *width * *ffn +
                 (four_norms ? 4
                  : one_norm ? 1
                             : 2) *
                     norm;
  if (says(model, "qkv_bias")) block += qkv;
  if (says(model, "o_bias")) block += *width;
  if (says(model, "ffn_bias")) block += *ffn + *width;
  const auto over = model.find("qk_norm_over");
  const bool over_heads = over != model.end() && *over == "heads";  // one gain per channel of q and k
  if (says(model, "qk_norm")) block += (over_heads ? *heads + *kv_heads : 2) * *head_dim;
  const double edges = *vocab * *width * (says(model, "tied") ? 1 : 2) + norm +
                       number_in(model, "learned_positions").value_or(0) * *width +
                       (says(model, "head_bias") ? *vocab : 0);
  return edges + *layers * block;
}

}  // namespace

std::optional<double> parameters_of(const Record& record) {
  if (record.params) return static_cast<double>(record.params->total);
  if (!record.definition || !record.definition->model || !record.definition->model->is_object())
    return std::nullopt;
  const nlohmann::ordered_json& model = *record.definition->model;
  // Records of models with experts or latent attention have record.params.
  if (model.contains("experts") || model.contains("kv_lora_rank")) return std::nullopt;
  const auto parameters = dense_parameters(model);
  return parameters && *parameters > 0 ? parameters : std::nullopt;
}

std::optional<double> active_parameters_of(const Record& record) {
  return record.params ? std::optional(static_cast<double>(record.params->active)) : parameters_of(record);
}

std::optional<double> tokens_per_parameter(const Record& run, double steps, double before) {
  const std::optional<double> parameters = parameters_of(run);
  if (!parameters || !run.training || !run.training->tokens_per_step) return std::nullopt;
  return (before + steps * static_cast<double>(*run.training->tokens_per_step)) / *parameters;
}

std::string ratio_words(double ratio) {
  if (ratio < 99.5) return fmt::format("{:.2g}", ratio);  // "{:.2g}" of 99.7 is 1e+02
  if (ratio < 1000) return fmt::format("{:.0f}", ratio);
  const double unit = std::pow(10, std::floor(std::log10(ratio)) - 2);  // unit of the third digit
  return rate_text(std::round(ratio / unit) * unit);
}

std::string age_words(const std::vector<std::optional<double>>& ratios) {
  const bool known = !ratios.empty() && std::all_of(ratios.begin(), ratios.end(), [](const auto& ratio) {
    return ratio && std::isfinite(*ratio);
  });
  if (!known) return "at an unknown number of tokens per parameter";
  const auto [least, most] = std::minmax_element(ratios.begin(), ratios.end());
  const std::string low = ratio_words(**least), high = ratio_words(**most);
  return fmt::format("at {}{} tokens per parameter", low, low == high ? "" : " to " + high);
}

}  // namespace precbench
