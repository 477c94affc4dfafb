// A small config.json of any model_type, and how a model is refused, for tests.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "kernels/testing/text_checks.h"
#include "models/config/config.h"

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

/// Returns the message with which a model is refused; "" if it is not.
inline std::string config_refusal(const nlohmann::json& object) {
  return refusal_of([&] { model_from_json(object); });
}

}  // namespace precbench::testing
