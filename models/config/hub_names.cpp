// The table of repositories, and suggestions for unknown names. See hub_names.h.
#include "models/config/hub_names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <string_view>

#include "kernels/base/errors.h"
#include "kernels/base/near_words.h"
#include "models/config/config.h"
#include "models/config/missing_families.h"

namespace precbench {
namespace {

std::string lower_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

std::string without_owner(const std::string& repository) {
  return repository.substr(repository.find('/') + 1);
}

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

/// Returns the numbers in a name, joined: "3 8" for qwen3-8b, "3.1 70" for llama3.1-70b.
std::string numbers_in(const std::string& name) {
  std::string numbers;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const bool point =
        name[i] == '.' && i > 0 && is_digit(name[i - 1]) && i + 1 < name.size() && is_digit(name[i + 1]);
    if (is_digit(name[i]) || point)
      numbers += name[i];
    else if (!numbers.empty() && numbers.back() != ' ')
      numbers += ' ';
  }
  if (!numbers.empty() && numbers.back() == ' ') numbers.pop_back();
  return numbers;
}

/// Returns the letters that a name begins with, in lower case: "qwen" for Qwen/Qwen3-8B.
std::string family_of(const std::string& name) {
  const std::string bare = lower_case(without_owner(name));
  const auto end =
      std::find_if_not(bare.begin(), bare.end(), [](unsigned char c) { return std::isalpha(c) != 0; });
  return {bare.begin(), end};
}

/// Returns the runs of letters in a name without its owner, in lower case.
std::vector<std::string> words_in(const std::string& name) {
  std::vector<std::string> words;
  bool inside = false;
  for (const char c : lower_case(without_owner(name))) {
    const bool letter = std::isalpha(static_cast<unsigned char>(c)) != 0;
    if (letter && !inside) words.emplace_back();
    if (letter) words.back() += c;
    inside = letter;
  }
  return words;
}

/// Returns true if every word of `name` that tells models apart is, perhaps with a typo, one of the candidate's. So
/// Qwen2.5-Math-7B does not lead to Qwen2.5-7B.
bool has_all_words(const std::string& name, const std::string& candidate) {
  constexpr std::string_view kEditions[] = {"instruct", "chat", "base", "thinking", "it", "pt", "hf", "fp"};
  const std::vector<std::string> known = words_in(candidate), words = words_in(name);
  return std::all_of(words.begin(), words.end(), [&](const std::string& word) {
    if (std::find(known.begin(), known.end(), word) != known.end()) return true;
    if (std::find(std::begin(kEditions), std::end(kEditions), word) != std::end(kEditions)) return true;
    return word.size() > 2 && !nearest(word, known).empty();
  });
}

const ModelConfig* find_preset(const std::string& name) {
  const auto found = std::find_if(model_presets().begin(), model_presets().end(),
                                  [&](const ModelConfig& preset) { return preset.name == name; });
  return found == model_presets().end() ? nullptr : &*found;
}

std::vector<std::string> names_of_presets() {
  std::vector<std::string> names;
  for (const ModelConfig& preset : model_presets()) names.push_back(preset.name);
  return names;
}

/// Returns the known name nearest to `name` among those with the same numbers and nearly the same family;
/// empty if there is none. So gemma3-4b does not lead to qwen3-4b, nor qwen3-9b to qwen3-8b.
std::string near_model(const std::string& name) {
  std::vector<std::string> known = names_of_presets();
  for (const HubName& hub : hub_names())
    known.push_back(name.find('/') == name.npos ? without_owner(hub.repository) : hub.repository);
  const std::string numbers = numbers_in(name), family = family_of(name);
  std::erase_if(known, [&](const std::string& candidate) {
    return numbers_in(candidate) != numbers || nearest(family, {family_of(candidate)}).empty() ||
           !has_all_words(name, candidate);
  });
  return nearest(name, known);
}

}  // namespace

const std::vector<HubName>& hub_names() {
  static const std::vector<HubName> names = {
      // clang-format off
      {"meta-llama/Llama-3.2-1B", "llama3.2-1b"},
      {"meta-llama/Llama-3.2-1B-Instruct", "llama3.2-1b"},
      {"meta-llama/Llama-3.2-3B", "llama3.2-3b"},
      {"meta-llama/Llama-3.2-3B-Instruct", "llama3.2-3b"},
      {"meta-llama/Llama-3.1-8B", "llama3.1-8b"},
      {"meta-llama/Llama-3.1-8B-Instruct", "llama3.1-8b"},
      {"meta-llama/Meta-Llama-3.1-8B", "llama3.1-8b"},
      {"meta-llama/Meta-Llama-3.1-8B-Instruct", "llama3.1-8b"},
      {"meta-llama/Meta-Llama-3-70B", "llama3-70b"},
      {"meta-llama/Meta-Llama-3-70B-Instruct", "llama3-70b"},
      {"meta-llama/Llama-3.1-70B", "llama3.1-70b"},
      {"meta-llama/Llama-3.1-70B-Instruct", "llama3.1-70b"},
      {"meta-llama/Meta-Llama-3.1-70B", "llama3.1-70b"},
      {"meta-llama/Meta-Llama-3.1-70B-Instruct", "llama3.1-70b"},
      {"meta-llama/Llama-3.3-70B-Instruct", "llama3.3-70b"},
      {"meta-llama/Llama-2-7b-hf", "llama2-7b"},
      {"meta-llama/Llama-2-7b-chat-hf", "llama2-7b"},
      {"meta-llama/Llama-2-13b-hf", "llama2-13b"},
      {"meta-llama/Llama-2-13b-chat-hf", "llama2-13b"},
      {"meta-llama/Llama-2-70b-hf", "llama2-70b"},
      {"meta-llama/Llama-2-70b-chat-hf", "llama2-70b"},
      {"deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "llama3.1-8b"},
      {"deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "llama3.3-70b"},
      {"NousResearch/Hermes-4-70B", "llama3.1-70b"},
      {"meta-llama/Llama-3.1-405B", "llama3.1-405b"},
      {"meta-llama/Llama-3.1-405B-Instruct", "llama3.1-405b"},
      {"TinyLlama/TinyLlama-1.1B-intermediate-step-1431k-3T", "tinyllama-1.1b"},
      {"TinyLlama/TinyLlama-1.1B-Chat-v1.0", "tinyllama-1.1b"},
      {"HuggingFaceTB/SmolLM2-135M", "smollm2-135m"},
      {"HuggingFaceTB/SmolLM2-135M-Instruct", "smollm2-135m"},
      {"HuggingFaceTB/SmolLM2-360M", "smollm2-360m"},
      {"HuggingFaceTB/SmolLM2-360M-Instruct", "smollm2-360m"},
      {"HuggingFaceTB/SmolLM2-1.7B", "smollm2-1.7b"},
      {"HuggingFaceTB/SmolLM2-1.7B-Instruct", "smollm2-1.7b"},
      {"mistralai/Mistral-7B-v0.1", "mistral-7b-v0.1"},
      {"mistralai/Mistral-7B-Instruct-v0.1", "mistral-7b-v0.1"},
      {"mistralai/Mistral-7B-v0.3", "mistral-7b-v0.3"},
      {"mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b-v0.3"},
      {"mistralai/Mistral-Nemo-Base-2407", "mistral-nemo-12b"},
      {"mistralai/Mistral-Nemo-Instruct-2407", "mistral-nemo-12b"},
      {"mistralai/Mistral-Small-24B-Base-2501", "mistral-small-24b"},
      {"mistralai/Mistral-Small-24B-Instruct-2501", "mistral-small-24b"},
      {"mistralai/Mistral-Small-3.1-24B-Base-2503", "mistral-small-3.1-24b"},
      {"mistralai/Mistral-Small-3.1-24B-Instruct-2503", "mistral-small-3.1-24b"},
      {"mistralai/Mistral-Small-3.2-24B-Instruct-2506", "mistral-small-3.1-24b"},
      {"mistralai/Ministral-3-3B-Base-2512", "ministral3-3b"},
      {"mistralai/Ministral-3-3B-Instruct-2512", "ministral3-3b"},
      {"HuggingFaceTB/SmolLM3-3B", "smollm3-3b"},
      {"HuggingFaceTB/SmolLM3-3B-Base", "smollm3-3b"},
      {"ibm-granite/granite-3.1-2b-base", "granite-3.1-2b"},
      {"ibm-granite/granite-3.1-2b-instruct", "granite-3.1-2b"},
      {"ibm-granite/granite-3.1-8b-base", "granite-3.1-8b"},
      {"ibm-granite/granite-3.1-8b-instruct", "granite-3.1-8b"},
      {"allenai/OLMo-2-0425-1B", "olmo2-1b"},
      {"allenai/OLMo-2-0425-1B-Instruct", "olmo2-1b"},
      {"allenai/OLMo-2-1124-7B", "olmo2-7b"},
      {"allenai/OLMo-2-1124-7B-Instruct", "olmo2-7b"},
      {"allenai/OLMo-2-0325-32B", "olmo2-32b"},
      {"allenai/OLMo-2-0325-32B-Instruct", "olmo2-32b"},
      {"microsoft/Phi-3-mini-4k-instruct", "phi-3-mini"},
      {"microsoft/phi-4", "phi-4"},
      {"microsoft/Phi-4-reasoning", "phi-4-reasoning"},
      {"microsoft/Phi-4-reasoning-plus", "phi-4-reasoning"},
      {"microsoft/Phi-4-mini-instruct", "phi-4-mini"},
      {"zai-org/glm-4-9b-hf", "glm-4-9b"},
      {"zai-org/glm-4-9b-chat-hf", "glm-4-9b"},
      {"zai-org/GLM-4-9B-0414", "glm-4-9b-0414"},
      {"ByteDance-Seed/Seed-OSS-36B-Base", "seed-oss-36b"},
      {"ByteDance-Seed/Seed-OSS-36B-Instruct", "seed-oss-36b"},
      {"baidu/ERNIE-4.5-0.3B-PT", "ernie-4.5-0.3b"},
      {"LGAI-EXAONE/EXAONE-4.0-1.2B", "exaone-4.0-1.2b"},
      {"LGAI-EXAONE/EXAONE-4.0-32B", "exaone-4.0-32b"},
      {"deepseek-ai/deepseek-llm-7b-base", "deepseek-llm-7b"},
      {"deepseek-ai/deepseek-llm-7b-chat", "deepseek-llm-7b"},
      {"Qwen/Qwen2.5-0.5B", "qwen2.5-0.5b"},
      {"Qwen/Qwen2.5-0.5B-Instruct", "qwen2.5-0.5b"},
      {"Qwen/Qwen2.5-1.5B", "qwen2.5-1.5b"},
      {"Qwen/Qwen2.5-1.5B-Instruct", "qwen2.5-1.5b"},
      {"Qwen/Qwen2.5-3B", "qwen2.5-3b"},
      {"Qwen/Qwen2.5-3B-Instruct", "qwen2.5-3b"},
      {"Qwen/Qwen2.5-7B", "qwen2.5-7b"},
      {"Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"},
      {"Qwen/Qwen2.5-14B", "qwen2.5-14b"},
      {"Qwen/Qwen2.5-32B", "qwen2.5-32b"},
      {"Qwen/Qwen2.5-72B", "qwen2.5-72b"},
      {"Qwen/Qwen2.5-Coder-7B", "qwen2.5-7b"},
      {"Qwen/Qwen2.5-Coder-7B-Instruct", "qwen2.5-7b"},
      {"deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "deepseek-r1-distill-qwen-7b"},
      {"deepseek-ai/DeepSeek-R1-Distill-Qwen-14B", "qwen2.5-14b"},
      {"deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", "qwen2.5-32b"},
      {"Qwen/Qwen3-0.6B", "qwen3-0.6b"},
      {"Qwen/Qwen3-0.6B-Base", "qwen3-0.6b"},
      {"Qwen/Qwen3-1.7B", "qwen3-1.7b"},
      {"Qwen/Qwen3-1.7B-Base", "qwen3-1.7b"},
      {"Qwen/Qwen3-4B", "qwen3-4b"},
      {"Qwen/Qwen3-4B-Base", "qwen3-4b"},
      {"Qwen/Qwen3-4B-Instruct-2507", "qwen3-4b-2507"},
      {"Qwen/Qwen3-4B-Thinking-2507", "qwen3-4b-2507"},
      {"Qwen/Qwen3-8B", "qwen3-8b"},
      {"Qwen/Qwen3-8B-Base", "qwen3-8b"},
      {"Qwen/Qwen3-14B", "qwen3-14b"},
      {"Qwen/Qwen3-14B-Base", "qwen3-14b"},
      {"Qwen/Qwen3-32B", "qwen3-32b"},
      {"allenai/Olmo-3-1025-7B", "olmo3-7b"},
      {"allenai/Olmo-3-1125-32B", "olmo3-32b"},
      {"google/gemma-2b", "gemma-2b"},
      {"google/gemma-2b-it", "gemma-2b"},
      {"google/gemma-7b", "gemma-7b"},
      {"google/gemma-7b-it", "gemma-7b"},
      {"google/gemma-2-2b", "gemma-2-2b"},
      {"google/gemma-2-2b-it", "gemma-2-2b"},
      {"google/gemma-2-9b", "gemma-2-9b"},
      {"google/gemma-2-9b-it", "gemma-2-9b"},
      {"google/gemma-2-27b", "gemma-2-27b"},
      {"google/gemma-2-27b-it", "gemma-2-27b"},
      {"google/gemma-3-270m", "gemma-3-270m"},
      {"google/gemma-3-270m-it", "gemma-3-270m"},
      {"google/gemma-3-1b-pt", "gemma-3-1b"},
      {"google/gemma-3-1b-it", "gemma-3-1b"},
      {"google/gemma-3-4b-pt", "gemma-3-4b"},
      {"google/gemma-3-4b-it", "gemma-3-4b"},
      {"google/gemma-3-12b-pt", "gemma-3-12b"},
      {"google/gemma-3-12b-it", "gemma-3-12b"},
      {"google/gemma-3-27b-pt", "gemma-3-27b"},
      {"google/gemma-3-27b-it", "gemma-3-27b"},
      {"allenai/OLMoE-1B-7B-0924", "olmoe-1b-7b"},
      {"allenai/OLMoE-1B-7B-0924-Instruct", "olmoe-1b-7b"},
      {"mistralai/Mixtral-8x7B-v0.1", "mixtral-8x7b"},
      {"mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"},
      {"mistralai/Mixtral-8x22B-v0.1", "mixtral-8x22b"},
      {"mistral-community/Mixtral-8x22B-v0.1", "mixtral-8x22b"},
      {"mistral-community/mixtral-8x22B-v0.3", "mixtral-8x22b-v0.3"},
      {"mistralai/Mixtral-8x22B-Instruct-v0.1", "mixtral-8x22b-v0.3"},
      {"Qwen/Qwen3-30B-A3B", "qwen3-30b-a3b"},
      {"Qwen/Qwen3-30B-A3B-Base", "qwen3-30b-a3b"},
      {"Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b-2507"},
      {"Qwen/Qwen3-30B-A3B-Thinking-2507", "qwen3-30b-a3b-2507"},
      {"Qwen/Qwen3-Coder-30B-A3B-Instruct", "qwen3-30b-a3b-2507"},
      {"Qwen/Qwen3-Coder-30B-A3B", "qwen3-30b-a3b-2507"},
      {"Qwen/Qwen3-235B-A22B", "qwen3-235b-a22b"},
      {"Qwen/Qwen1.5-MoE-A2.7B", "qwen1.5-moe-a2.7b"},
      {"Qwen/Qwen2-57B-A14B", "qwen2-57b-a14b"},
      {"baidu/ERNIE-4.5-21B-A3B-PT", "ernie-4.5-21b-a3b"},
      {"zai-org/GLM-4.5-Air", "glm-4.5-air"},
      {"zai-org/GLM-4.5", "glm-4.5"},
      {"zai-org/GLM-4.6", "glm-4.6"},
      {"MiniMaxAI/MiniMax-M2", "minimax-m2"},
      {"openai/gpt-oss-20b", "gpt-oss-20b"},
      {"openai/gpt-oss-120b", "gpt-oss-120b"},
      {"deepseek-ai/deepseek-moe-16b-base", "deepseek-moe-16b"},
      {"deepseek-ai/DeepSeek-V2-Lite", "deepseek-v2-lite"},
      {"deepseek-ai/DeepSeek-V2-Lite-Chat", "deepseek-v2-lite"},
      {"deepseek-ai/DeepSeek-V2", "deepseek-v2"},
      {"deepseek-ai/DeepSeek-V2-Chat", "deepseek-v2"},
      {"deepseek-ai/DeepSeek-V3", "deepseek-v3"},
      {"deepseek-ai/DeepSeek-V3-Base", "deepseek-v3"},
      {"deepseek-ai/DeepSeek-V3-0324", "deepseek-v3"},
      {"deepseek-ai/DeepSeek-V3.1", "deepseek-v3"},
      {"deepseek-ai/DeepSeek-V3.1-Base", "deepseek-v3"},
      {"deepseek-ai/DeepSeek-R1", "deepseek-v3"},
      {"deepseek-ai/DeepSeek-R1-0528", "deepseek-v3"},
      {"moonshotai/Kimi-K2-Base", "kimi-k2"},
      {"moonshotai/Kimi-K2-Instruct", "kimi-k2"},
      {"moonshotai/Kimi-K2-Instruct-0905", "kimi-k2-0905"},
      {"moonshotai/Kimi-K2-Thinking", "kimi-k2-0905"},
      {"meta-llama/Llama-4-Scout-17B-16E", "llama4-scout"},
      {"meta-llama/Llama-4-Scout-17B-16E-Instruct", "llama4-scout"},
      {"meta-llama/Llama-4-Maverick-17B-128E", "llama4-maverick"},
      {"meta-llama/Llama-4-Maverick-17B-128E-Instruct", "llama4-maverick"},
      {"openai-community/gpt2", "gpt2"},
      {"openai-community/gpt2-medium", "gpt2-medium"},
      {"openai-community/gpt2-large", "gpt2-large"},
      {"openai-community/gpt2-xl", "gpt2-xl"},
      {"bigcode/starcoder", "starcoder"},
      {"bigcode/starcoderbase", "starcoder"},
      {"EleutherAI/gpt-j-6b", "gpt-j-6b"},
      {"EleutherAI/pythia-70m", "pythia-70m"},
      {"EleutherAI/pythia-70m-deduped", "pythia-70m"},
      {"EleutherAI/pythia-160m", "pythia-160m"},
      {"EleutherAI/pythia-160m-deduped", "pythia-160m"},
      {"EleutherAI/pythia-410m", "pythia-410m"},
      {"EleutherAI/pythia-410m-deduped", "pythia-410m"},
      {"EleutherAI/pythia-1b", "pythia-1b"},
      {"EleutherAI/pythia-1b-deduped", "pythia-1b"},
      {"EleutherAI/pythia-1.4b", "pythia-1.4b"},
      {"EleutherAI/pythia-1.4b-deduped", "pythia-1.4b"},
      {"EleutherAI/pythia-2.8b", "pythia-2.8b"},
      {"EleutherAI/pythia-2.8b-deduped", "pythia-2.8b"},
      {"EleutherAI/pythia-6.9b", "pythia-6.9b"},
      {"EleutherAI/pythia-6.9b-deduped", "pythia-6.9b"},
      {"EleutherAI/pythia-12b", "pythia-12b"},
      {"EleutherAI/pythia-12b-deduped", "pythia-12b"},
      {"microsoft/phi-1_5", "phi-1.5"},
      {"microsoft/phi-2", "phi-2"},
      {"bigcode/starcoder2-3b", "starcoder2-3b"},
      {"bigcode/starcoder2-7b", "starcoder2-7b"},
      {"bigcode/starcoder2-15b", "starcoder2-15b"},
      {"stabilityai/stablelm-2-1_6b", "stablelm-2-1.6b"},
      {"stabilityai/stablelm-3b-4e1t", "stablelm-3b-4e1t"},
      {"nvidia/Nemotron-Mini-4B-Instruct", "nemotron-mini-4b"},
      {"nvidia/Minitron-4B-Base", "nemotron-mini-4b"},
      {"nvidia/Minitron-8B-Base", "minitron-8b"},
      {"CohereForAI/aya-23-8B", "aya-23-8b"},
      {"CohereLabs/aya-23-8B", "aya-23-8b"},
      {"CohereForAI/c4ai-command-r7b-12-2024", "command-r7b"},
      {"CohereLabs/c4ai-command-r7b-12-2024", "command-r7b"},
      {"CohereForAI/c4ai-command-r-v01", "command-r-35b"},
      {"CohereLabs/c4ai-command-r-v01", "command-r-35b"},
      // clang-format on
  };
  return names;
}

std::string preset_name(const std::string& name) {
  std::string word = lower_case(name);
  if (find_preset(word)) return word;
  // An edition whose weights are stored in FP8 is the same model.
  if (constexpr std::string_view kFp8 = "-fp8"; word.ends_with(kFp8)) word.resize(word.size() - kFp8.size());
  for (const HubName& hub : hub_names())
    if (word == lower_case(hub.repository) || word == lower_case(without_owner(hub.repository)))
      return hub.preset;
  return name;
}

std::string unknown_model(const std::string& name) {
  constexpr std::size_t kShown = 3;
  const std::string what = fmt::format("unknown model \"{}\"", name);
  if (const std::string near = near_model(name); !near.empty())
    return fmt::format("{}; did you mean {}?", what, near);
  if (const MissingFamily* missing = missing_family_of_name(lower_case(without_owner(name)))) {
    const std::string preset = missing->preset;
    return fmt::format("{}; its family needs {}, which is not supported{}", what, missing->missing,
                       preset.empty() ? "" : fmt::format("; the nearest preset is {}", preset));
  }
  std::vector<std::string> presets = names_of_presets();
  const std::string family = family_of(name);
  std::erase_if(presets, [&](const std::string& preset) { return family_of(preset) != family; });
  const bool known_family = family.size() > 2 && !presets.empty();
  return fmt::format("{}; {}precbench list models has all, or give the path of its config.json", what,
                     known_family ? fmt::format("the nearest of {} are {}; ", family,
                                                fmt::join(nearest_few(name, presets, kShown), ", "))
                                  : "");
}

}  // namespace precbench
