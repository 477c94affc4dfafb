// Internal to models/: reading the keys of a model's JSON, in our own dialect and in Hugging Face's.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/enum_names.h"
#include "kernels/base/errors.h"
#include "models/config/config.h"

namespace precbench::config_keys {

/// Larger dimensions are errors, and 64-bit byte and FLOP counts could overflow.
inline constexpr std::int64_t kMaxDimension = std::int64_t{1} << 24;

/// Throws InvalidInput with a formatted message.
template <class... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> message, Args&&... args) {
  throw InvalidInput(fmt::format(message, std::forward<Args>(args)...));
}

/// Maps our keys to the names used in errors: unchanged, or as in the file that is read.
struct KeyNames {
  std::map<std::string, std::string> theirs = {};

  std::string operator()(const std::string& key) const {
    const auto found = theirs.find(key);
    return found == theirs.end() ? key : found->second;
  }
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

/// Throws InvalidInput for an absent dimension.
void require_dimensions(const ModelConfig& config, const KeyNames& names);
/// Throws InvalidInput for an impossible router, or for other MoE keys without experts (validate.cpp).
void validate_moe(const ModelConfig& config, const KeyNames& names);
/// Throws InvalidInput for what no model can be, under the names of a file's keys.
void validate(const ModelConfig& config, const KeyNames& names);

/// The language model of a config.json.
struct TextConfig {
  /// With a model_type that is known here, if the file's is.
  nlohmann::json object;
  /// Parts of the file that are left out, and where the model_type comes from.
  std::vector<std::string> warnings;
  nlohmann::json model = nlohmann::json::object();  ///< our own keys in which it differs from the model_type
};
/// Returns a multimodal file's text_config, under this or another name, or the file. The keys of a model_type that is another's
/// model are translated into that one's (hugging_face_text.cpp). Throws InvalidInput.
TextConfig text_config_of(const nlohmann::json& file);
/// Keys of a multimodal file that can hold its language model.
inline constexpr const char* kTextConfigs[] = {"text_config", "llm_config", "language_config"};

/// Returns true for values that switch a feature off: null, false, 0, and what is empty.
bool asks_nothing(const nlohmann::json& value);
/// Throws InvalidInput for a quantization_config whose weights --init-from cannot read (hugging_face_quantization.cpp).
void check_quantization(const nlohmann::json& object, const std::string& model_type);
/// Reads the language model of a config.json, without validate(). Throws InvalidInput.
ModelConfig from_hugging_face(const nlohmann::json& object);
/// Returns the names of our keys in a file whose model_type is known.
KeyNames hugging_face_names(const nlohmann::json& object);

}  // namespace precbench::config_keys
