// quantization_config of a config.json: the FP8 forms (and gpt-oss's MXFP4) that --init-from reads are accepted, others
// are refused by name. Source: the quantization classes of transformers 5.24, compressed-tensors and ModelOpt.

#include <utility>

#include "models/config/config_keys.h"

namespace precbench::config_keys {
namespace {

using nlohmann::json;

template <class... Args>
[[noreturn]] void refuse_form(fmt::format_string<Args...> what, Args&&... args) {
  refuse(
      "quantization_config: {}; weights that are read are FP8 in blocks of 128x128, per row or per tensor "
      "(fp8, fbgemm_fp8, compressed-tensors, modelopt) and gpt-oss's mxfp4. Leave the key out to measure the "
      "model with other weights",
      fmt::format(what, std::forward<Args>(args)...));
}

void require_blocks(const json& size, const char* key) {
  if (!size.is_null() && size != json::array({128, 128}))
    refuse_form("{} {} is not supported", key, shown(size));
}

/// Refuses groups of compressed-tensors whose weights are not in FP8 with a scale per tensor, row (channel) or block.
void check_groups(const json& quantization) {
  const json sparsity = quantization.value("sparsity_config", json());
  if (sparsity.is_object() && !sparsity.empty() && sparsity.value("format", json("dense")) != "dense")
    refuse_form("sparsity_config: format {} is not supported", shown(sparsity.at("format")));
  const json groups = quantization.value("config_groups", json());
  if (!groups.is_object() || groups.empty()) refuse_form("compressed-tensors without config_groups");
  for (const auto& [name, group] : groups.items()) {
    const json weights = group.is_object() ? group.value("weights", json()) : json();
    if (weights.is_null()) continue;  // activations alone
    if (!weights.is_object()) refuse_form("{}: weights {} are no object", name, shown(weights));
    if (weights.value("type", json()) != "float" || weights.value("num_bits", json()) != 8)
      refuse_form("{}: weights of type {} and {} bits are not supported", name,
                  shown(weights.value("type", json())), shown(weights.value("num_bits", json())));
    const json strategy = weights.value("strategy", json("tensor"));
    if (strategy != "tensor" && strategy != "channel" && strategy != "block")
      refuse_form("{}: strategy {} is not supported", name, shown(strategy));
    if (strategy == "block") require_blocks(weights.value("block_structure", json()), "block_structure");
  }
}

void check_modelopt(const json& quantization) {
  const json inner = quantization.value("quantization", json::object());
  const json& place = quantization.contains("quant_algo") || !inner.is_object() ? quantization : inner;
  const json algorithm = place.value("quant_algo", json());
  if (algorithm != "FP8") refuse_form("quant_algo {} is not supported", shown(algorithm));
}

}  // namespace

void check_quantization(const json& object, const std::string& model_type) {
  for (const char* key : {"quantization_config", "compression_config"}) {
    if (!given(object, key) || asks_nothing(object.at(key))) continue;
    const json& quantization = object.at(key);
    if (!quantization.is_object()) refuse_form("expected an object, got {}", shown(quantization));
    const json method = quantization.value("quant_method", json());
    if (method == "fp8") {
      require_blocks(quantization.value("weight_block_size", json()), "weight_block_size");
      const json format = quantization.value("fmt", json("e4m3"));
      if (format != "e4m3" && format != "float8_e4m3fn")
        refuse_form("fmt {} is not supported", shown(format));
    } else if (method == "compressed-tensors") {
      check_groups(quantization);
    } else if (method == "modelopt") {
      check_modelopt(quantization);
    } else if (method != "fbgemm_fp8" && !(method == "mxfp4" && model_type == "gpt_oss")) {
      refuse_form("quant_method {} is not supported{}", shown(method),
                  method == "mxfp4" ? " for " + model_type : "");
    }
  }
}

}  // namespace precbench::config_keys
