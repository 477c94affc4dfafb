// A small config.json of any model_type, for tests.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace precbench::testing {

/// Returns a file with the common dimensions (width 64, four heads of 16 that share two of keys and values) and `more`
/// keys, which replace those.
inline nlohmann::json small_config_json(const std::string& model_type, std::int64_t layers,
                                        const nlohmann::json& more = nlohmann::json::object()) {
  nlohmann::json object = {{"model_type", model_type}, {"num_hidden_layers", layers},
                           {"hidden_size", 64},        {"intermediate_size", 96},
                           {"num_attention_heads", 4}, {"num_key_value_heads", 2},
                           {"head_dim", 16},           {"vocab_size", 96}};
  object.update(more);
  return object;
}

}  // namespace precbench::testing
