// Inside models/ only: reading the keys of a model's JSON, in our own dialect and in Hugging Face's.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
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
  static KeyNames of_hugging_face(const nlohmann::json& object);  ///< of a known model_type

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

// The same in a config.json (hugging_face_moe.cpp).
bool hugging_face_has_experts(const std::string& model_type);
/// Our keys that a file has under another name.
std::map<std::string, std::string> hugging_face_moe_names(const nlohmann::json& object,
                                                          const std::string& model_type);
/// Fills config.moe, and the dense width. Throws InvalidInput that names the key.
void read_hugging_face_moe(const nlohmann::json& object, const std::string& model_type, ModelConfig& config);

// The keys of a config.json, by its model_type (hugging_face_keys.cpp).

/// Collects the keys that ask for another model, so that one error names all of them.
class Refusals {
 public:
  /// `what`: in the singular; `remedy`: the value that asks for a model without it.
  void add(const std::string& key, const std::string& what, const std::string& remedy);
  /// Ends the error.
  void advise(const std::string& advice) { advice_ = advice; }
  /// Throws InvalidInput unless there is none.
  void throw_if_any() const;

 private:
  struct Entry {
    std::string key, what, remedy;
  };
  std::vector<Entry> all_;
  std::string advice_;
};

/// Width of a head's values in DeepSeek's models where v_head_dim is absent.
inline constexpr std::int64_t kDeepSeekValueWidth = 128;

/// Returns the name under which the file gives a key: its own, or another that transformers takes for it.
std::string key_in_file(const nlohmann::json& object, std::string_view model_type, const std::string& key);
/// Throws InvalidInput where a file gives one number under two names and two values.
void check_aliases(const nlohmann::json& object, std::string_view model_type);
/// Collects what asks for a model that is not modelled. `config` has the dimensions.
void refuse_other_models(const nlohmann::json& object, const std::string& model_type,
                         const ModelConfig& config, Refusals& refused);
/// Adds to config.not_modelled the keys that ask for something and are not read: those of other model_types, unknown ones
/// and those that an option replaces.
void note_unread_keys(const nlohmann::json& object, const std::string& model_type, ModelConfig& config);

/// A Hugging Face config.json, without validate(). Throws InvalidInput.
ModelConfig from_hugging_face(const nlohmann::json& object);

}  // namespace precbench::config_keys
