// Inside models/ only: reading the keys of a model's JSON, in our own dialect and in Hugging Face's.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "models/config/config.h"

namespace precbench::config_keys {

/// Above this a dimension is wrong, and 64-bit byte and FLOP counts could overflow.
inline constexpr std::int64_t kMaxDimension = std::int64_t{1} << 24;

/// A dimension: the member it fills, and its key in either dialect.
struct DimensionKey {
  const char* key;
  std::int64_t ModelConfig::*member;
  const char* hugging_face;
};
inline constexpr DimensionKey kDimensions[] = {
    {"layers", &ModelConfig::layers, "num_hidden_layers"},
    {"width", &ModelConfig::width, "hidden_size"},
    {"ffn", &ModelConfig::ffn, "intermediate_size"},
    {"heads", &ModelConfig::heads, "num_attention_heads"},
    {"kv_heads", &ModelConfig::kv_heads, "num_key_value_heads"},
    {"head_dim", &ModelConfig::head_dim, "head_dim"},
    {"vocab", &ModelConfig::vocab, "vocab_size"},
};

/// What errors call our keys: as they are, or as the file has them that is read.
class KeyNames {
 public:
  KeyNames() = default;  ///< as they are
  static KeyNames of_hugging_face(const std::string& model_type);

  std::string operator()(const char* key) const;

 private:
  std::map<std::string, std::string> theirs_;
};

/// A wrong value inside an error, cut so that it does not fill the screen.
std::string shown(const nlohmann::json& value);

/// Whether the key is there and not null.
bool given(const nlohmann::json& object, const char* key);

// Each leaves `to` as it is where the key is absent or null, and throws InvalidInput for another type or range.
void read(const nlohmann::json& object, const char* key, std::int64_t& to);  ///< 1 to kMaxDimension
void read(const nlohmann::json& object, const char* key, double& to);
void read(const nlohmann::json& object, const char* key, bool& to);
void read(const nlohmann::json& object, const char* key, std::string& to);

/// What a `rope_scaling` object asks for: none for a type that is not modelled; and keys that mean nothing there.
struct ReadRopeScaling {
  std::optional<RopeScaling> scaling;
  std::vector<std::string> unknown;
};

/// From Hugging Face's keys: rope_type (or type), factor and what the type needs. `max_positions`: what an absent
/// original_max_position_embeddings is taken for; 0: not known. Throws InvalidInput that names the key.
ReadRopeScaling rope_scaling_from_json(const nlohmann::json& object, std::int64_t max_positions);
nlohmann::json rope_scaling_to_json(const RopeScaling& scaling);

// The keys of a mixture of experts in our own dialect (moe_keys.cpp): "experts" and "top_k", and the rest of MoeConfig.
std::vector<const char*> moe_key_names();
void read_moe(const nlohmann::json& object, ModelConfig& config);  ///< nothing without "experts"
nlohmann::json moe_to_json(const MoeConfig& moe);
/// Of a model without experts: that nothing else of MoeConfig is set.
void validate_moe(const ModelConfig& config, const KeyNames& names);

// The same in a config.json (hugging_face_moe.cpp). Whether the model_type is of such a model, and what else it may ask
// for that changes no number of a training step.
bool hugging_face_has_experts(const std::string& model_type);
const std::vector<const char*>& hugging_face_moe_keys();
/// Our keys that a model_type has under another name.
std::map<std::string, std::string> hugging_face_moe_names(const std::string& model_type);
/// Fills config.moe, and the dense width. Throws InvalidInput for what is not modelled, by its key.
void read_hugging_face_moe(const nlohmann::json& object, const std::string& model_type, ModelConfig& config);

/// A Hugging Face config.json, without validate(). Throws InvalidInput.
ModelConfig from_hugging_face(const nlohmann::json& object);

}  // namespace precbench::config_keys
