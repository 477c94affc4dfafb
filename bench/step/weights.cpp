// Reads and writes weights. See weights.h.
#include "bench/step/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <string_view>

#include "bench/case/trained_text.h"
#include "bench/step/change_weights.h"
#include "bench/step/checkpoint.h"
#include "bench/step/checkpoint_files.h"
#include "bench/step/fp8_weights.h"
#include "bench/step/mxfp4_experts.h"
#include "kernels/base/error_text.h"
#include "kernels/base/errors.h"

namespace precbench {
namespace {

bool has_fused_tensors(const SafetensorsFile& file) {
  return std::any_of(file.tensors().begin(), file.tensors().end(), [](const StoredTensor& stored) {
    return stored.name.ends_with("experts.gate_up_proj") ||
           stored.name.ends_with("experts.gate_up_proj_blocks") ||
           stored.name.ends_with("self_attn.qkv_proj.weight") ||
           stored.name.ends_with("mlp.gate_up_proj.weight") ||
           stored.name.ends_with("shared_mlp.input_linear.weight") || is_named_tensor(stored.name);
  });
}

/// Prefixes of a language model's tensors in the files of multimodal models: for "model." and for lm_head.
struct LanguageModel {
  const char *model, *head;
};
constexpr LanguageModel kLanguageModels[] = {{"language_model.model.", "language_model."},
                                             {"model.language_model.", ""},
                                             {"language.model.", "language."}};

/// Returns the file's name of one of the language model's tensors.
std::string name_in(const SafetensorsFile& file, const std::string& name) {
  constexpr std::string_view kModel = "model.", kTransformer = "transformer.";
  // The published files of GPT-2.
  if (name.starts_with(kTransformer) && file.find("wte.weight")) return name.substr(kTransformer.size());
  for (const LanguageModel& known : kLanguageModels)
    if (file.find(std::string(known.model) + "embed_tokens.weight"))
      return name.starts_with(kModel) ? known.model + name.substr(kModel.size()) : known.head + name;
  return name;
}

/// Returns a view of `size` elements of a tensor from `first` on.
StoredTensor run_of(const StoredTensor& stored, std::int64_t first, std::int64_t size) {
  const std::int64_t element = stored.bytes / stored.size();
  return {stored.name, stored.dtype, {size}, stored.data + first * element, size * element};
}

constexpr std::string_view kEmbedding = "model.embed_tokens.weight";

/// Returns true for buffers that follow from the model's shape and that older versions of transformers saved:
/// frequencies of RoPE, causal masks and the value behind them.
bool is_buffer(const StoredTensor& stored) {
  const std::string_view name = stored.name;
  return name.ends_with(".inv_freq") || name.ends_with(".masked_bias") || name.ends_with(".position_ids") ||
         (stored.shape.size() == 4 && (name.ends_with(".attn.bias") || name.ends_with(".attention.bias")));
}

/// Returns true for the name of lm_head in any family's files.
bool is_head(std::string_view name) {
  for (const std::string_view head : {"lm_head.weight", "embed_out.weight", "output.weight"})
    if (name == head || (name.ends_with(head) && name[name.size() - head.size() - 1] == '.')) return true;
  return false;
}

/// Returns true if two tensors have the same values, which may be in different dtypes.
bool equal_values(const StoredTensor& a, const StoredTensor& b) {
  if (a.shape != b.shape) return false;
  if (a.dtype == b.dtype) return std::memcmp(a.data, b.data, static_cast<std::size_t>(a.bytes)) == 0;
  const auto is_plain = [](const StoredTensor& t) {
    return t.dtype == "F32" || t.dtype == "BF16" || t.dtype == "F16";
  };
  if (!is_plain(a) || !is_plain(b)) return false;
  constexpr std::int64_t kRun = 1 << 16;
  std::vector<float> ours(kRun), theirs(kRun);
  for (std::int64_t first = 0; first < a.size(); first += kRun) {
    const std::int64_t size = std::min(kRun, a.size() - first);
    copy_to_f32(ours.data(), run_of(a, first, size));
    copy_to_f32(theirs.data(), run_of(b, first, size));
    if (!std::equal(ours.begin(), ours.begin() + size, theirs.begin())) return false;
  }
  return true;
}

/// Throws for the files of peft, whose names have a prefix and whose matrices may be adapters.
void refuse_adapters(const std::string& path, const SafetensorsFile& file) {
  constexpr std::string_view kPrefix = "base_model.model.";
  const auto begins = [&](const StoredTensor& stored) { return stored.name.starts_with(kPrefix); };
  const auto is_adapter = [](const StoredTensor& stored) {
    return stored.name.find(".lora_") != std::string::npos;
  };
  const std::vector<StoredTensor>& tensors = file.tensors();
  if (tensors.empty() || !std::all_of(tensors.begin(), tensors.end(), begins)) return;
  throw InvalidInput(fmt::format(
      "{}: {} (its tensors begin with {}): merge it into its base model with peft (merge_and_unload), save that with "
      "save_pretrained, and give its folder",
      path,
      std::any_of(tensors.begin(), tensors.end(), is_adapter) ? "LoRA adapters, not a whole model"
                                                              : "a model inside peft's wrapper",
      kPrefix));
}

/// Throws if the weights have a file of scales beside them, without which they would be misread.
void refuse_scaled(const std::string& path) {
  std::filesystem::path scales(path);
  scales.replace_filename(scales.stem().string() + kScaleSuffix + scales.extension().string());
  if (std::filesystem::exists(scales))
    throw InvalidInput(
        fmt::format("{}: its scales are in {}, which --init-from does not read; use --fork-from with the "
                    "checkpoint's folder",
                    path, scales.filename().string()));
}

/// Returns the content of peft's adapter_config.json.
nlohmann::json adapter_config(const ModelConfig& model, const LoraOptions& lora) {
  std::set<std::string> targets;  // "q_proj" of "self_attn.q_proj.weight"
  for (const std::int64_t layer : model.layer_of_each_kind())
    for (const LinearSpec& linear : block_of(model, layer).linears)
      for (const ParameterPart& part : linear.parts) {
        if (!has_adapter(linear)) continue;
        const std::size_t first = part.name.find('.') + 1;
        targets.insert(part.name.substr(first, part.name.rfind('.') - first));
      }
  return {{"peft_type", "LORA"},
          {"task_type", "CAUSAL_LM"},
          {"r", lora.rank},
          {"lora_alpha", lora.alpha},
          {"lora_dropout", 0.0},
          {"bias", "none"},
          {"target_modules", targets},
          {"base_model_name_or_path", nullptr}};
}

}  // namespace

InitialWeights::InitialWeights(const std::string& path, const ModelConfig& model)
    : file_(path),
      form_(model, has_fused_tensors(file_) ? StoredTensors::by_model : StoredTensors::separate) {
  refuse_scaled(path);
  refuse_adapters(path, file_);
  std::set<std::string> used;
  const StoredTensor* embedding = nullptr;
  const Layout layout(model, 1);
  std::vector<Parameter> wanted = layout.buffers();
  for (const Unit& unit : layout.units())
    wanted.insert(wanted.end(), unit.parameters.begin(), unit.parameters.end());
  for (const StoredTensor& stored : file_.tensors())
    if (model.moe.names != ExpertNames::gpt_oss && stored.name.ends_with("experts.gate_up_proj_blocks"))
      throw InvalidInput(
          fmt::format("{}: {} holds experts in MXFP4, which is read for gpt-oss alone", path, stored.name));
  for (const StoredTensor& stored : file_.tensors())
    if (model.moe && !form_.fused() && stored.name.ends_with("experts.gate_up_proj"))
      throw InvalidInput(fmt::format(
          "{}: {} holds all experts in one tensor; one tensor per expert is expected", path, stored.name));
  for (const Parameter& p : wanted) {
    StoredPart part = form_.part_of(p);
    part.name = name_in(file_, part.name);
    if (!used.insert(part.name).second) continue;
    if (const auto mxfp4 = find_mxfp4_experts(file_, path, part.name, part)) {
      used.insert({mxfp4->blocks->name, mxfp4->scales->name});
      continue;
    }
    const StoredTensor& stored = file_.at(part.name);
    if (p.name == kEmbedding) embedding = &stored;
    if (stored.shape != part.shape)
      throw InvalidInput(fmt::format("{}: {} has shape [{}], the model {} expects [{}]", path, part.name,
                                     fmt::join(stored.shape, ", "), model.name, fmt::join(part.shape, ", ")));
    if (const auto fp8 = find_fp8_weight(file_, path, stored)) {
      used.insert(fp8->scales->name);
      continue;
    }
    try {
      check_dtype(stored);
    } catch (const InvalidInput& error) {
      throw InvalidInput(fmt::format("{}: {}", path, error.what()));
    }
  }
  std::vector<std::string> unused;
  for (const StoredTensor& stored : file_.tensors()) {
    if (used.count(stored.name) || is_buffer(stored) || is_activation_scale(stored.name)) continue;
    if (!model.tied || !embedding || !is_head(stored.name)) {
      unused.push_back(stored.name);
    } else if (!equal_values(stored, *embedding)) {
      warnings_.push_back(fmt::format(
          "--init-from: {}: {} differs from {}, which the model uses as its head too (tied); it was left out",
          path, stored.name, embedding->name));
    }
  }
  if (unused.size() == 1)
    warnings_.push_back(fmt::format(
        "--init-from: 1 tensor of {} is not part of the model and was left out: {}", path, unused.front()));
  if (unused.size() > 1)
    warnings_.push_back(
        fmt::format("--init-from: {} tensors of {} are not part of the model and were left out, {} first",
                    unused.size(), path, unused.front()));
}

void InitialWeights::load_into(Parameters& parameters) const {
  std::vector<float> run;
  const auto read = [&](const Parameter& p, float* values) {
    const StoredPart part = form_.part_of(p);
    const std::string name = name_in(file_, part.name);
    if (const auto mxfp4 = find_mxfp4_experts(file_, name, name, part))
      return read_mxfp4(*mxfp4, part, p, values);
    const StoredTensor& stored = file_.at(name);
    const auto fp8 = find_fp8_weight(file_, name, stored);
    const auto read_run = [&](float* to) {
      if (fp8)
        read_fp8(*fp8, part.first, part.size, to);
      else
        copy_to_f32(to, run_of(stored, part.first, part.size));
    };
    if (part.plain()) return read_run(values);
    run.resize(static_cast<std::size_t>(part.size));
    read_run(run.data());
    part.gather(values, run.data(), p);
  };
  parameters.trains_model() ? parameters.load(read) : parameters.load_frozen(read);
}

void set_first_weights(Rank& rank, const Plan& plan, const Checkpoint* trunk, const InitialWeights* file) {
  if (trunk)
    rank.fork_from(trunk->position(), trunk->reader());
  else if (file) {
    if (!rank.parameters().trains_model()) rank.parameters().initialize_adapters(plan.seed);
    file->load_into(rank.parameters());
  } else
    rank.parameters().initialize(plan.seed, kInitialDeviation);
  change_weights(rank.parameters(), plan.model, plan.init);
}

void save_weights(const std::string& path, Rank& rank, Parameters::Kind kind, const ModelConfig& model,
                  const std::string& tokens) {
  const bool writes = rank.comm().rank() == 0;
  const StoredForm form(model, StoredTensors::by_model);
  std::map<std::string, std::vector<float>> values;  // by name of the tensor
  std::vector<NamedTensor> tensors;
  rank.parameters().save(kind, [&](const Parameter& p, const float* source) {
    if (!writes) return;
    const StoredPart part = form.part_of(p);
    std::vector<float>& whole = values[part.name];
    if (whole.empty()) {
      whole.resize(
          std::accumulate(part.shape.begin(), part.shape.end(), std::size_t{1}, std::multiplies<>()));
      tensors.push_back({part.name, "F32", part.shape, whole.data()});
    }
    part.scatter(whole.data() + part.first, source, p);
  });
  // A model's name may come from a folder's, which need not be UTF-8.
  const std::string text =
      model_to_json(model).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (!writes) return;
  std::map<std::string, std::string> metadata = {{"model", text}};
  if (!tokens.empty()) metadata[kTokensKey] = tokens;
  if (const LoraOptions& lora = rank.parameters().options().lora) {
    const nlohmann::json adapters = adapter_config(model, lora);
    metadata["lora"] = adapters.dump();
    if (const std::filesystem::path file(path); file.filename() == "adapter_model.safetensors") {
      const std::filesystem::path config = file.parent_path() / "adapter_config.json";
      errno = 0;
      std::ofstream out(config);
      out << adapters.dump(2) << "\n";
      if (!out.flush())
        throw InvalidInput(
            fmt::format("{}: cannot be written ({})", config.string(), error_text(errno ? errno : EIO)));
    }
  }
  write_safetensors(path, tensors, metadata);
}

}  // namespace precbench
