// Internal to models/: reading the keys of a model's JSON, in our own dialect and in Hugging Face's.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/enum_names.h"
#include "kernels/base/errors.h"
#include "models/config/config.h"

namespace precbench::config_keys {

/// Larger dimensions are errors, and 64-bit byte and FLOP counts could overflow.
inline constexpr std::int64_t kMaxDimension = std::int64_t{1} << 24;

/// A dimension: the member it sets and its key in either dialect.
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

/// Maps our keys to the names used in errors: unchanged, or as in the file that is read.
class KeyNames {
 public:
  KeyNames() = default;                                           ///< unchanged
  static KeyNames of_hugging_face(const nlohmann::json& object);  ///< `object`: of a known model_type

  std::string operator()(const char* key) const;

 private:
  std::map<std::string, std::string> theirs_;
};

/// Returns a wrong value for an error message, shortened if long.
std::string shown(const nlohmann::json& value);

/// Returns true if the key is present and not null.
bool given(const nlohmann::json& object, const char* key);

// Each leaves `to` unchanged if the key is absent or null, and throws InvalidInput for another type or range.
void read(const nlohmann::json& object, const char* key, std::int64_t& to);  ///< 1 to kMaxDimension
void read(const nlohmann::json& object, const char* key, double& to);
void read(const nlohmann::json& object, const char* key, bool& to);
void read(const nlohmann::json& object, const char* key, std::string& to);

/// Reads a value of an enum by its name.
template <class Enum, std::size_t kCount>
void read(const nlohmann::json& object, const char* key, Enum& to, const EnumNames<Enum, kCount>& names) {
  std::string word = names.of(to);
  read(object, key, word);
  const auto found = names.find(word);
  if (!found)
    throw InvalidInput(fmt::format("{}: \"{}\" is {} {}", key, word, kCount == 2 ? "neither" : "none of",
                                   fmt::join(names.names, kCount == 2 ? " nor " : ", ")));
  to = *found;
}

/// Contents of a `rope_scaling` object: nullopt for a type that is not modelled; keys that the type does not
/// know.
struct ReadRopeScaling {
  std::optional<RopeScaling> scaling;
  std::vector<std::string> unknown;
};

/// Reads Hugging Face's keys: rope_type (or type), factor and those of the type. `max_positions`: default of
/// original_max_position_embeddings; 0: unknown. Throws InvalidInput that names the key.
/// Returns the growth of attention's temperature with the context, as in DeepSeek and YaRN.
double yarn_temperature(double factor, double mscale);
ReadRopeScaling rope_scaling_from_json(const nlohmann::json& object, std::int64_t max_positions);
nlohmann::json rope_scaling_to_json(const RopeScaling& scaling);

// MoE keys of our own dialect (moe_keys.cpp): "experts", "top_k" and the rest of MoeConfig.
std::vector<const char*> moe_key_names();
void read_moe(const nlohmann::json& object, ModelConfig& config);  ///< reads nothing without "experts"
nlohmann::json moe_to_json(const MoeConfig& moe);
/// Throws InvalidInput for an impossible router, or for other MoE keys without experts.
void validate_moe(const ModelConfig& config, const KeyNames& names);

// Keys of our own dialect for the form of a block (block_keys.cpp): "norms", "residual_scale" and the rest of
// BlockForm, and the factors of embedding and logits.
std::vector<const char*> block_key_names();
void read_block(const nlohmann::json& object, ModelConfig& config);
nlohmann::json block_to_json(const ModelConfig& config);  ///< without defaults
/// Throws InvalidInput for an impossible form.
void validate_block(const ModelConfig& config, const KeyNames& names);
/// Sets the form of a model_type's block from a config.json (hugging_face_block.cpp). `config` must have the
/// dimensions. Throws InvalidInput that names the key.
void read_hugging_face_block(const nlohmann::json& object, const std::string& model_type,
                             ModelConfig& config);
/// Sets config.block.local_layers from layer_types or, without the list, by `is_local`. Without local layers there
/// is no window; if all are local, the list stays empty. `config` must have the layers and the window.
void read_local_layers(const nlohmann::json& object, const std::function<bool(std::int64_t layer)>& is_local,
                       ModelConfig& config);
/// Sets the form of a block with LayerNorm, or leaves another family's alone (hugging_face_classic.cpp).
void read_classic_block(const nlohmann::json& object, const std::string& model_type, ModelConfig& config);
void set_classic_dimensions(const std::string& model_type, ModelConfig& config);
/// Sets the dimensions that a model_type's file may leave out.
void set_default_dimensions(const std::string& model_type, ModelConfig& config);
/// Types of layers, in layer_types and in rope_parameters.
inline constexpr const char* kFullAttention = "full_attention";
inline constexpr const char* kSlidingAttention = "sliding_attention";
inline constexpr const char* kChunkedAttention = "chunked_attention";

/// The language model of a config.json.
struct TextConfig {
  /// With a model_type that is known here, if the file's is.
  nlohmann::json object;
  /// Parts of the file that are left out, and where the model_type comes from.
  std::vector<std::string> warnings;
  TensorFusion tensors = TensorFusion::none;  ///< of its checkpoints; none: those of the model_type
  bool qk_norm_after_rope = false;            ///< BlockForm's
};
/// Returns a multimodal file's text_config, under this or another name, or the file (hugging_face_text.cpp). Throws
/// InvalidInput.
TextConfig text_config_of(const nlohmann::json& file);
/// Keys of a multimodal file that can hold its language model.
inline constexpr const char* kTextConfigs[] = {"text_config", "llm_config", "language_config"};
/// Changes keys and model_type of a file into those of a model_type with the same model, if there is one
/// (hugging_face_translation.cpp). Throws InvalidInput.
void translate(TextConfig& text, std::string& model_type);

// MoE keys of a config.json (hugging_face_moe.cpp).
bool hugging_face_has_experts(const std::string& model_type);
/// Returns our keys that the file has under another name, with that name.
std::map<std::string, std::string> hugging_face_moe_names(const nlohmann::json& object,
                                                          const std::string& model_type);
/// Sets config.moe and the dense width. Throws InvalidInput that names the key.
void read_hugging_face_moe(const nlohmann::json& object, const std::string& model_type, ModelConfig& config);

// Keys of a config.json by model_type (hugging_face_keys.cpp, hugging_face_refusals.cpp).

/// Collects the keys that ask for another model, so that one error names all of them.
class Refusals {
 public:
  /// `what`: the unsupported feature, singular; `remedy`: the value that disables it.
  void add(const std::string& key, const std::string& what, const std::string& remedy);
  /// Throws InvalidInput if any key was added.
  void throw_if_any() const;

 private:
  struct Entry {
    std::string key, what, remedy;
  };
  std::vector<Entry> all_;
};

/// Returns true for model_types with latent attention.
bool hugging_face_has_latents(const std::string& model_type);
/// Sets config.latent and head_dim, which transformers does not read (hugging_face_block.cpp). Throws InvalidInput.
void read_latent_dimensions(const nlohmann::json& object, const std::string& model_type, ModelConfig& config);

/// Returns the name under which the file gives a key: its own, or an alias that transformers accepts.
std::string key_in_file(const nlohmann::json& object, std::string_view model_type, const std::string& key);
/// Returns true for keys that this model_type, unlike others, reads or may ignore.
bool family_reads_key(std::string_view model_type, std::string_view key);
/// Returns true for keys that ask for another model in a file of any model_type that does not read them.
bool asks_for_another_model(std::string_view key);
/// Returns true for values that switch a feature off: null, false, 0, and what is empty.
bool asks_nothing(const nlohmann::json& value);
/// Returns true for keys of every model_type and those that this one reads or may ignore.
bool reads_key(std::string_view model_type, std::string_view key);
/// Throws InvalidInput if a file gives one number under two names with different values.
void check_aliases(const nlohmann::json& object, std::string_view model_type);
/// Collects settings of models that are not supported. `config` must have the dimensions.
void refuse_other_models(const nlohmann::json& object, const std::string& model_type,
                         const ModelConfig& config, Refusals& refused);
/// Adds keys that are not read to config.not_modelled: those of other model_types, unknown ones and those
/// replaced by an option.
void note_unread_keys(const nlohmann::json& object, const std::string& model_type, ModelConfig& config);

/// Throws InvalidInput for a quantization_config whose weights --init-from cannot read (hugging_face_quantization.cpp).
void check_quantization(const nlohmann::json& object, const std::string& model_type);

/// Reads a Hugging Face config.json, without validate(). Throws InvalidInput.
ModelConfig from_hugging_face(const nlohmann::json& object);

}  // namespace precbench::config_keys
