// Internal to models/config: the parts of reading a Hugging Face config.json.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/config/config_keys.h"
#include "models/config/families.h"

namespace precbench::config_keys {

/// Types of layers, in layer_types and in rope_parameters.
inline constexpr const char* kFullAttention = "full_attention";
inline constexpr const char* kSlidingAttention = "sliding_attention";

/// RoPE settings of a file: in rope_scaling or, since transformers 5, in rope_parameters together with theta. If both exist,
/// rope_scaling takes precedence. Throws InvalidInput.
struct RopeKeys {
  const char* key = nullptr;  ///< null: neither
  nlohmann::json values = nlohmann::json::object();

  RopeKeys(const nlohmann::json& object, const Family& family);
  const char* type_key() const { return given(values, "rope_type") ? "rope_type" : "type"; }
  /// Returns true if the angles change only beyond max_position_embeddings.
  bool dynamic() const { return values.value(type_key(), nlohmann::json()) == "dynamic"; }
  /// Returns the share of a head that rotates.
  double share(const nlohmann::json& object, double otherwise) const;
};

/// Returns the type of each layer that a file lists under layer_types, one of `types`; empty without the list. Throws
/// InvalidInput.
std::vector<std::string> layer_types(const nlohmann::json& object, std::int64_t layers,
                                     const std::vector<std::string>& types);
/// Sets config.block.local_layers from layer_types or, without the list, by `is_local`. Without local layers there
/// is no window; if all are local, the list stays empty. `config` must have the layers and the window.
void read_local_layers(const nlohmann::json& object, const std::function<bool(std::int64_t layer)>& is_local,
                       ModelConfig& config);
/// Reads a number of at least 1.
std::int64_t length(const nlohmann::json& object, const std::string& key, std::int64_t otherwise);

/// Calls the reader of a row's "forms" (hugging_face_forms.cpp).
void read_form(const std::string& form, const nlohmann::json& object, const Family& family,
               ModelConfig& config);
/// Calls the function of a row's "change" on a file (hugging_face_forms.cpp). Throws InvalidInput.
void change_file(const std::string& change, nlohmann::json& object);

/// Throws InvalidInput for a key whose value is not the one that a step computes.
void require_value(const nlohmann::json& object, const std::string& key, const nlohmann::json& value,
                   const std::string& what);
/// Throws InvalidInput, in one error, for all keys that ask for another model (hugging_face_keys.cpp). `config` must have the
/// dimensions.
void refuse_other_models(const nlohmann::json& object, const Family& family, const RopeKeys& rope,
                         const ModelConfig& config);
/// Throws InvalidInput if a file gives one number under two names with different values.
void check_aliases(const nlohmann::json& object, const Family& family);
/// Adds settings that a step omits and keys that are not read to config.not_modelled.
void note_what_is_left_out(const nlohmann::json& object, const Family& family, ModelConfig& config);
/// Returns why a model_type is refused.
std::string unsupported_type(const nlohmann::json& object, const std::string& model_type);

}  // namespace precbench::config_keys
