// Presets with the published shapes, and reading, checking and writing a model as JSON.
#include "models/config/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "kernels/base/errors.h"
#include "kernels/base/untrusted_input.h"
#include "models/config/block.h"
#include "models/config/config_keys.h"

namespace precbench {
namespace {

using namespace config_keys;
using nlohmann::json;

constexpr double kMaxParameters = 1e14;  // above it a file is wrong

struct FlagKey {
  const char* key;
  bool ModelConfig::*member;
};
constexpr FlagKey kFlags[] = {
    {"tied", &ModelConfig::tied}, {"qk_norm", &ModelConfig::qk_norm}, {"qkv_bias", &ModelConfig::qkv_bias}};

struct RealKey {
  const char* key;
  double ModelConfig::*member;
};
/// Lengths in tokens that may be absent; 0 in the config, then.
struct LengthKey {
  const char* key;
  std::int64_t ModelConfig::*member;
};
constexpr LengthKey kLengths[] = {{"sliding_window", &ModelConfig::sliding_window},
                                  {"max_positions", &ModelConfig::max_positions}};

constexpr RealKey kReals[] = {{"rope_theta", &ModelConfig::rope_theta}, {"norm_eps", &ModelConfig::norm_eps}};

void require(const ModelConfig& config, bool hugging_face) {
  for (const DimensionKey& dimension : kDimensions)
    if (config.*dimension.member == 0)
      throw InvalidInput(fmt::format("{}: missing; a model needs it",
                                     hugging_face ? dimension.hugging_face : dimension.key));
}

/// kv_heads and head_dim are optional in both dialects.
void fill_defaults(ModelConfig& config) {
  if (config.kv_heads == 0) config.kv_heads = config.heads;
  if (config.head_dim == 0 && config.heads > 0 && config.width > 0) {
    if (config.width % config.heads != 0)
      throw InvalidInput(fmt::format("head_dim: missing, and width {} is not a multiple of heads {}",
                                     config.width, config.heads));
    config.head_dim = config.width / config.heads;
  }
}

ModelConfig from_own_keys(const json& object) {
  std::vector<std::string> known = {"name", "rope_scaling"};
  for (const auto& entry : kDimensions) known.push_back(entry.key);
  for (const auto& entry : kFlags) known.push_back(entry.key);
  for (const auto& entry : kReals) known.push_back(entry.key);
  for (const auto& entry : kLengths) known.push_back(entry.key);
  for (const auto& [key, value] : object.items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    const std::string near = nearest(key, known);
    throw InvalidInput(
        fmt::format("{}: unknown key{}", key, near.empty() ? "" : "; did you mean " + near + "?"));
  }
  ModelConfig config;
  read(object, "name", config.name);
  for (const auto& entry : kDimensions) read(object, entry.key, config.*entry.member);
  for (const auto& entry : kFlags) read(object, entry.key, config.*entry.member);
  for (const auto& entry : kReals) read(object, entry.key, config.*entry.member);
  for (const auto& entry : kLengths) read(object, entry.key, config.*entry.member);
  if (given(object, "rope_scaling")) {
    const ReadRopeScaling found = rope_scaling_from_json(object.at("rope_scaling"), config.max_positions);
    if (!found.scaling) throw InvalidInput("rope_scaling: rope_type is default, linear, llama3 or yarn");
    if (!found.unknown.empty())
      throw InvalidInput(fmt::format("rope_scaling: {}: unknown key", found.unknown.front()));
    config.rope_scaling = *found.scaling;
  }
  return config;
}

json parse_file(const std::string& path) {
  const std::string text = read_regular_file(path, kDescriptionLimits.bytes);
  try {
    return parse_untrusted<json>(text, kDescriptionLimits);
  } catch (const InvalidInput& error) {
    throw InvalidInput(fmt::format("{}: {}", path, error.what()));
  }
}

ModelConfig llama(std::string name, std::int64_t layers, std::int64_t width, std::int64_t ffn,
                  std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim, std::int64_t vocab,
                  bool tied) {
  return {.name = std::move(name),
          .layers = layers,
          .width = width,
          .ffn = ffn,
          .heads = heads,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .vocab = vocab,
          .tied = tied};
}

/// Llama 3.1 and 3.2: trained to 8192 positions, then stretched to 131072.
ModelConfig stretched(ModelConfig config, double factor) {
  config.rope_scaling.kind = RopeScaling::Kind::llama3;
  config.rope_scaling.factor = factor;
  config.rope_scaling.original_context = 8192;
  config.max_positions = 131072;
  return config;
}

ModelConfig qwen(std::string name, std::int64_t layers, std::int64_t width, std::int64_t ffn,
                 std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim, std::int64_t vocab,
                 bool tied, bool qk_norm) {
  ModelConfig config = llama(std::move(name), layers, width, ffn, heads, kv_heads, head_dim, vocab, tied);
  config.qk_norm = qk_norm;
  config.qkv_bias = !qk_norm;  // the third generation has the one for the other
  config.rope_theta = 1e6;
  config.norm_eps = 1e-6;
  return config;
}

}  // namespace

const std::vector<ModelConfig>& model_presets() {
  // `tiny` is the peer script's model. 15m, 36m and 125m are ours: every dimension is a multiple of 128, so
  // that every recipe takes them. 15m reads bytes, and 36m the tokens that tools/data makes. 125m has GPT-2
  // small's shape with SwiGLU at 8/3 of the width and GPT-2's vocabulary padded to a multiple of 128, so that
  // llm.c's token files fit it.
  static const std::vector<ModelConfig> presets = {
      // clang-format off
      //                    layers  width    ffn  heads kv   D   vocab  tied
      llama("tiny",              4,   128,   384,   4,  2,  32,    256, true),
      llama("15m",               6,   512,  1280,   8,  2,  64,    256, true),
      llama("36m",               8,   512,  1536,   8,  8,  64,  16384, true),
      llama("125m",             12,   768,  2048,  12, 12,  64,  50304, true),
      stretched(llama("llama3.2-1b",    16,  2048,  8192,  32,  8,  64, 128256, true), 32),
      stretched(llama("llama3.2-3b",    28,  3072,  8192,  24,  8, 128, 128256, true), 32),
      stretched(llama("llama3.1-8b",    32,  4096, 14336,  32,  8, 128, 128256, false), 8),
      llama("llama3-70b",               80,  8192, 28672,  64,  8, 128, 128256, false),
      stretched(llama("llama3.1-405b", 126, 16384, 53248, 128,  8, 128, 128256, false), 8),
      //                                                                        QK-norm
      qwen("qwen2.5-0.5b",      24,   896,  4864,  14,  2,  64, 151936, true,   false),
      qwen("qwen2.5-1.5b",      28,  1536,  8960,  12,  2, 128, 151936, true,   false),
      qwen("qwen2.5-7b",        28,  3584, 18944,  28,  4, 128, 152064, false,  false),
      qwen("qwen3-4b",          36,  2560,  9728,  32,  8, 128, 151936, true,   true),
      qwen("qwen3-14b",         40,  5120, 17408,  40,  8, 128, 151936, false,  true),
      // clang-format on
  };
  return presets;
}

std::int64_t block_matrix_parameters(const ModelConfig& c) { return dense_block(c).linear_parameters(); }

std::int64_t parameter_count(const ModelConfig& c) {
  const BlockSpec block = dense_block(c);
  return c.layers * (block.linear_parameters() + block.vector_parameters()) + c.width +
         (c.tied ? 1 : 2) * head_linear(c).size();
}

void validate(const ModelConfig& config) {
  for (const auto& entry : kDimensions) {
    const std::int64_t value = config.*entry.member;
    if (value < 1 || value > kMaxDimension)
      throw InvalidInput(fmt::format("{}: must be from 1 to {}, got {}", entry.key, kMaxDimension, value));
  }
  if (config.heads % config.kv_heads != 0)
    throw InvalidInput(
        fmt::format("heads: {} is not a multiple of kv_heads {}", config.heads, config.kv_heads));
  if (config.qkv_bias && config.qk_norm)
    throw InvalidInput("qkv_bias: no model has it beside qk_norm, and neither has this program");
  if (config.head_dim % 2 != 0)
    throw InvalidInput(fmt::format("head_dim: {} is odd; RoPE rotates pairs", config.head_dim));
  for (const auto& entry : kReals) {
    const double value = config.*entry.member;
    if (!std::isfinite(value) || value <= 0)
      throw InvalidInput(fmt::format("{}: must be a positive number, got {}", entry.key, value));
  }
  // In floating point, since the very product that is being checked may overflow.
  const double width = static_cast<double>(config.width);
  const double linears =
      2.0 * static_cast<double>(config.q_width() + config.kv_width()) + 3.0 * static_cast<double>(config.ffn);
  const double parameters =
      width * (static_cast<double>(config.layers) * linears + 2.0 * static_cast<double>(config.vocab));
  if (parameters > kMaxParameters)
    throw InvalidInput(
        fmt::format("layers, width, ffn: {:.1e} parameters are more than any model has", parameters));
}

ModelConfig model_from_json(const json& object) {
  if (!object.is_object()) throw InvalidInput(fmt::format("a model is a JSON object, got {}", shown(object)));
  const bool hugging_face = object.contains("model_type") || object.contains("hidden_size");
  ModelConfig config = hugging_face ? from_hugging_face(object) : from_own_keys(object);
  fill_defaults(config);
  require(config, hugging_face);
  validate(config);
  return config;
}

json model_to_json(const ModelConfig& config) {
  json object = {{"name", config.name}};
  for (const auto& entry : kDimensions) object[entry.key] = config.*entry.member;
  for (const auto& entry : kFlags) object[entry.key] = config.*entry.member;
  for (const auto& entry : kReals) object[entry.key] = config.*entry.member;
  for (const auto& entry : kLengths)
    if (config.*entry.member != 0) object[entry.key] = config.*entry.member;
  if (config.rope_scaling.kind != RopeScaling::Kind::none)
    object["rope_scaling"] = rope_scaling_to_json(config.rope_scaling);
  return object;
}

ModelConfig find_model(const std::string& name_or_path) {
  if (name_or_path.ends_with(".json")) {
    const json object = parse_file(name_or_path);
    try {
      ModelConfig config = model_from_json(object);
      if (config.name.empty()) {
        // Every checkpoint calls its file config.json; the folder says which model it is.
        const std::filesystem::path path = std::filesystem::absolute(name_or_path);
        config.name = path.stem() == "config" ? path.parent_path().filename().string() : path.stem().string();
      }
      return config;
    } catch (const InvalidInput& error) {
      throw InvalidInput(fmt::format("{}: {}", name_or_path, error.what()));
    }
  }
  std::vector<std::string> names;
  for (const ModelConfig& preset : model_presets()) {
    if (preset.name == name_or_path) return preset;
    names.push_back(preset.name);
  }
  const std::string near = nearest(name_or_path, names);
  throw InvalidInput(fmt::format("unknown model \"{}\"{}", name_or_path,
                                 near.empty()
                                     ? fmt::format("; known: {}, or a .json file", fmt::join(names, ", "))
                                     : fmt::format("; did you mean {}?", near)));
}

}  // namespace precbench
