// Names of presets on the Hugging Face hub, and suggestions for unknown names.
#include "models/config/hub_names.h"

#include <map>

#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"
#include "models/config/config.h"

namespace precbench {
namespace {

std::string refusal(const std::string& name) {
  return refusal_of([&] { find_model(name); });
}

TEST_CASE("find_model: hub names and letter case do not matter", "[models]") {
  const std::map<std::string, std::string> names = {
      {"Qwen/Qwen3-8B", "qwen3-8b"},
      {"qwen/qwen3-8b-BASE", "qwen3-8b"},
      {"Qwen3-8B", "qwen3-8b"},
      {"QWEN3-0.6B", "qwen3-0.6b"},
      {"meta-llama/Llama-3.1-8B-Instruct", "llama3.1-8b"},
      {"llama-3.1-8b", "llama3.1-8b"},
      {"meta-llama/Llama-3.3-70B-Instruct", "llama3.3-70b"},
      {"mistralai/Mistral-7B-v0.3", "mistral-7b-v0.3"},
      {"HuggingFaceTB/SmolLM2-135M", "smollm2-135m"},
      {"mistralai/Mixtral-8x22B-v0.1", "mixtral-8x22b"},
      {"mistralai/Mixtral-8x22B-Instruct-v0.1", "mixtral-8x22b-v0.3"},
      {"Tiny", "tiny"},
      {"Qwen/Qwen3-4B-Instruct-2507", "qwen3-4b-2507"},
      {"Qwen3-Coder-30B-A3B", "qwen3-30b-a3b-2507"},
      {"deepseek-ai/DeepSeek-V3.1", "deepseek-v3"},
      {"DeepSeek-R1-Distill-Llama-8B", "llama3.1-8b"},
      {"deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "deepseek-r1-distill-qwen-7b"},
      {"zai-org/GLM-4.6", "glm-4.6"},
      {"moonshotai/Kimi-K2-Thinking", "kimi-k2-0905"},
      {"mistralai/Mistral-Small-3.2-24B-Instruct-2506", "mistral-small-3.1-24b"},
      {"microsoft/Phi-4-reasoning", "phi-4-reasoning"},
      {"NousResearch/Hermes-4-70B", "llama3.1-70b"},
      {"EleutherAI/pythia-1b-deduped", "pythia-1b"},
      {"CohereLabs/c4ai-command-r7b-12-2024", "command-r7b"},
      {"Qwen/Qwen2.5-72B", "qwen2.5-72b"},
      {"meta-llama/Llama-2-7b-hf", "llama2-7b"},
      {"mistralai/Mistral-7B-v0.1", "mistral-7b-v0.1"},
      {"allenai/OLMo-2-0325-32B", "olmo2-32b"},
      {"Qwen/Qwen2.5-Coder-7B", "qwen2.5-7b"},
      {"Qwen/Qwen3-8B-FP8", "qwen3-8b"},
  };
  for (const auto& [given, preset] : names) {
    INFO(given);
    CHECK(find_model(given) == find_model(preset));
    CHECK(preset_name(given) == preset);
  }
  CHECK(preset_name("my/model.json") == "my/model.json");
}

TEST_CASE("hub_names: every repository leads to one preset that exists", "[models]") {
  std::map<std::string, int> seen;
  for (const HubName& hub : hub_names()) {
    INFO(hub.repository);
    CHECK(++seen[hub.repository] == 1);
    CHECK(find_model(hub.preset).cuts.empty());
    CHECK(find_model(hub.repository).name == hub.preset);
  }
}

TEST_CASE("find_model: a suggestion never has another size or family", "[models]") {
  CHECK(refusal("lama3.1-8b") == "unknown model \"lama3.1-8b\"; did you mean llama3.1-8b?");
  CHECK(refusal("Qwen/Qwen3-8b-Bas") ==
        "unknown model \"Qwen/Qwen3-8b-Bas\"; did you mean Qwen/Qwen3-8B-Base?");
  CHECK(contains(refusal("tinny"), "did you mean tiny?"));
  const std::string of_family = refusal("qwen3-9b");
  CHECK(of_family.starts_with("unknown model \"qwen3-9b\"; the nearest of qwen are qwen3-"));
  CHECK(contains(of_family, "qwen3-8b"));
  CHECK(!contains(of_family, "llama"));
  CHECK(of_family.ends_with("; precbench list models has all, or give the path of its config.json"));
  for (const char* other : {"yi-6b", "falcon3-7b", "acme/Model-8B"}) {
    INFO(other);
    CHECK(!contains(refusal(other), "did you mean"));
    CHECK(contains(refusal(other), "; precbench list models has all, or "));
    CHECK(refusal(other).size() < 300);
  }
}

TEST_CASE(
    "find_model: a word that tells models apart is no typo, and a family that is missing is named with the reason",
    "[models]") {
  for (const char* other :
       {"Qwen/Qwen2.5-Math-7B", "Qwen/Qwen2.5-VL-7B-Instruct", "google/gemma-3n-E4B-it"}) {
    INFO(other);
    CHECK(!contains(refusal(other), "did you mean"));
  }
  CHECK(
      refusal("google/gemma-3n-E4B-it") ==
      "unknown model \"google/gemma-3n-E4B-it\"; its family needs AltUp, LAuReL and per-layer embeddings, which is not "
      "supported; the nearest preset is gemma-3-4b");
  CHECK(contains(refusal("Qwen/Qwen3-Next-80B-A3B-Instruct"), "gated DeltaNet layers (linear attention)"));
  CHECK(contains(refusal("nvidia/Nemotron-H-8B-Base-8K"), "needs Mamba-2 layers"));
  CHECK(contains(refusal("bloom-7b1"), "needs ALiBi"));
  CHECK(contains(refusal("google/recurrentgemma-9b"), "the nearest preset is gemma-2-9b"));
}

}  // namespace
}  // namespace precbench
