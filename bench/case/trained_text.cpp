// Finds out which tokens weights were trained on, and builds the command that makes such tokens. See trained_text.h.
#include "bench/case/trained_text.h"

#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <system_error>

#include "bench/case/definition.h"
#include "kernels/base/errors.h"
#include "kernels/base/untrusted_input.h"
#include "models/checkpoint/safetensors.h"
#include "models/data/data_doubts.h"
#include "models/data/documents.h"
#include "results/record/record_line.h"
#include "results/record/shell.h"

namespace precbench {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTokenizerFile = "tokenizer.json";
constexpr std::int64_t kUint16Values = 1 << 16;

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

/// Returns the folder that a path lies in, or the path itself if it is a folder.
fs::path folder_of(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) return path;
  const fs::path folder = fs::path(path).parent_path();
  return folder.empty() ? fs::path(".") : folder;
}

/// Returns the kind of data in the state of a run's checkpoint (state.json, see bench/step/checkpoint.h); null if the
/// folder has none.
std::optional<std::string> data_kind_in_state(const fs::path& folder) {
  const fs::path state = folder / "state.json";
  if (!is_there(state)) return std::nullopt;
  const auto json =
      parse_untrusted<nlohmann::json>(read_regular_file(state.string(), kRecordLimits.bytes), kRecordLimits);
  const auto kind = json.value(nlohmann::json::json_pointer("/definition/data/kind"), nlohmann::json());
  return kind.is_string() ? std::optional(kind.get<std::string>()) : std::nullopt;
}

/// Returns true for token files. Documents (jsonl) may hold ids or text.
bool is_ids(const std::string& data_kind) {
  return data_kind == "bin" || data_kind == "u16" || data_kind == "u32";
}

const std::string& weights_of(const Case& c) { return c.fork_from.empty() ? c.init_from : c.fork_from; }

/// Returns true if the weights know ids of a tokenizer, as all do that precbench has not trained on text.
bool find_trained_on_ids(const std::string& weights) {
  try {
    if (const auto kind = data_kind_in_state(folder_of(weights))) return is_ids(*kind);
    const SafetensorsFile file(weights);
    const auto tokens = file.metadata().find(kTokensKey);
    if (tokens != file.metadata().end()) return tokens->second == kTokensAreIds;
    return file.metadata().count("model") == 0;  // earlier versions wrote the model alone
  } catch (const std::exception&) {
    return false;  // opening the weights says what is wrong with them
  }
}

/// Reads each file once: a grid has many cases of one file.
bool trained_on_ids(const std::string& weights) {
  static std::mutex mutex;
  static std::map<std::string, bool> known;
  const std::lock_guard lock(mutex);
  const auto [entry, added] = known.try_emplace(weights);
  if (added) entry->second = find_trained_on_ids(weights);
  return entry->second;
}

bool is_model_path(const std::string& model) {
  std::error_code error;
  return model.ends_with(".json") || fs::is_directory(model, error);
}

/// Returns "--tokenizer FOLDER" for the command that a message proposes: the folder of the weights or of the model, if
/// it has a tokenizer.json; otherwise FOLDER_OF_TOKENIZER_JSON, which the reader of the message replaces.
std::string tokenizer_flags(const Case& c, const std::string& weights) {
  std::vector<fs::path> folders = {folder_of(weights)};
  if (is_model_path(c.model)) folders.push_back(folder_of(c.model));
  for (const fs::path& folder : folders)
    if (is_there(folder / kTokenizerFile)) return "--tokenizer " + shell_path(folder.string());
  return "--tokenizer FOLDER_OF_TOKENIZER_JSON";
}

std::unique_ptr<DataSource> open_checked(const DataOptions& options, const Case& c, const ModelConfig& model,
                                         const char* flag) {
  std::unique_ptr<DataSource> data = open_data(options);
  if (reads_bytes(*data))
    if (const std::string why = text_refusal(c, model, flag, options.path); !why.empty())
      throw InvalidInput(fmt::format("{}: {}", options.path, why));
  return data;
}

}  // namespace

std::unique_ptr<DataSource> open_training_data(const Case& c, const ModelConfig& model) {
  return open_checked(data_options(c, model), c, model, "--data");
}

std::unique_ptr<DataSource> open_held_out(const Case& c, const ModelConfig& model) {
  return open_checked(held_out_options(c, model), c, model, "--eval-data");
}

std::string text_refusal(const Case& c, const ModelConfig& model, const std::string& flag,
                         const std::string& path) {
  const std::string& weights = weights_of(c);
  if (weights.empty() || model.vocab == kByteValues || path.empty() || !trained_on_ids(weights)) return "";
  const fs::path input = fs::path(path).lexically_normal();
  const std::string name = (input.has_filename() ? input : input.parent_path()).filename().stem().string();
  const std::string out = name.empty() || name == "." ? "tokens" : name + "-tokens";
  const bool documents = is_documents(path);
  const std::string file = out + (documents ? ".jsonl" : model.vocab <= kUint16Values ? ".u16" : ".u32");
  return fmt::format(
      "text is read as bytes, but the weights of {} know the ids of a vocabulary of {}; make tokens of it with "
      "tools/data/{} {}{} --out {} {}, then {} {}",
      c.fork_from.empty() ? "--init-from" : "--fork-from", model.vocab,
      documents ? "tokenize_chats.py" : "tokenize_text.py", tokenizer_flags(c, weights),
      flag == "--eval-data" ? " --held-out 0" : "", shell_path(out), shell_path(path), flag,
      shell_path(file));
}

const char* tokens_of_saved(const Case& c, const std::string& data_kind) {
  const std::string& weights = weights_of(c);
  return is_ids(data_kind) || (!weights.empty() && trained_on_ids(weights)) ? kTokensAreIds : kTokensAreBytes;
}

}  // namespace precbench
