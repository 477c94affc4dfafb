// Tensors of a weights file that the model does not use: which are reported, and how.
#include "bench/step/weights.h"

#include <fmt/format.h>

#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"
#include "kernels/testing/text_checks.h"
#include "models/transformer/state/layout.h"

using namespace precbench;

namespace {

/// A weights file of `tiny`, whose head is its embedding, with more tensors.
struct TinyFile {
  TempDirectory directory;
  ModelConfig model = find_model("tiny");
  std::vector<NamedTensor> tensors = {};
  std::vector<float> zeros = {}, ones = {};

  TinyFile() {
    const Layout layout(model, 1);
    std::int64_t most = 0;
    for (const Unit& unit : layout.units())
      for (const Parameter& p : unit.parameters) {
        tensors.push_back({p.name, "F32", p.shape(), nullptr});
        most = std::max(most, p.size());
      }
    zeros.resize(static_cast<std::size_t>(most));
    ones.assign(zeros.size(), 1.0f);
    for (NamedTensor& tensor : tensors) tensor.data = zeros.data();
  }
  std::vector<std::string> warnings(const std::vector<NamedTensor>& more) const {
    std::vector<NamedTensor> all = tensors;
    all.insert(all.end(), more.begin(), more.end());
    const std::string path = directory.path() / "w.safetensors";
    write_safetensors(path, all);
    return InitialWeights(path, model).warnings();
  }
  std::string path() const { return directory.path() / "w.safetensors"; }
};

}  // namespace

TEST_CASE("InitialWeights: trained tensors that the model lacks are reported", "[checkpoint]") {
  const TinyFile file;
  REQUIRE(file.model.tied);
  using Lines = std::vector<std::string>;
  const NamedTensor bias{"model.layers.0.self_attn.q_proj.bias", "F32", {2}, file.ones.data()},
      layer{"model.layers.9.mlp.up_proj.weight", "F32", {2, 2}, file.ones.data()};
  CHECK(file.warnings({}).empty());
  CHECK(file.warnings({bias}) == Lines{"--init-from: 1 tensor of " + file.path() +
                                       " is not part of the model and was left out: " + bias.name});
  CHECK(file.warnings({bias, layer}) ==
        Lines{"--init-from: 2 tensors of " + file.path() + " are not part of the model and were left out, " +
              bias.name + " first"});
}

TEST_CASE("InitialWeights: buffers that follow from the model's shape are not reported", "[checkpoint]") {
  const TinyFile file;
  CHECK(file.warnings({{"model.layers.0.self_attn.rotary_emb.inv_freq", "F32", {16}, file.ones.data()},
                       {"h.0.attn.bias", "F32", {1, 1, 8, 8}, file.ones.data()},
                       {"h.0.attn.masked_bias", "F32", {}, file.ones.data()}})
            .empty());
  CHECK(file.warnings({{"h.0.attn.bias", "F32", {8}, file.ones.data()}}).size() == 1);  // not a mask
}

TEST_CASE("InitialWeights: the head of a tied model is reported if it differs from the embedding",
          "[checkpoint]") {
  const TinyFile file;
  const std::vector<std::int64_t> shape = {file.model.vocab, file.model.width};
  const std::vector<std::uint16_t> zeros16(file.zeros.size());
  std::vector<float> last = file.zeros;
  last[static_cast<std::size_t>(file.model.vocab * file.model.width) - 1] = 1e-30f;
  using Lines = std::vector<std::string>;
  CHECK(file.warnings({{"lm_head.weight", "F32", shape, file.zeros.data()}}).empty());
  CHECK(file.warnings({{"lm_head.weight", "BF16", shape, zeros16.data()}})
            .empty());  // the same in another dtype
  const Lines differs = {
      "--init-from: " + file.path() +
      ": lm_head.weight differs from model.embed_tokens.weight, which the model uses as its head too "
      "(tied); it was left out"};
  CHECK(file.warnings({{"lm_head.weight", "F32", shape, last.data()}}) == differs);
  CHECK(file.warnings({{"lm_head.weight", "F32", {2, 2}, file.zeros.data()}}) == differs);
}

TEST_CASE("InitialWeights: peft's files are refused with the remedy", "[checkpoint]") {
  const TinyFile file;
  const auto refusal = [&](const std::string& ending) {
    std::vector<NamedTensor> renamed = file.tensors;
    for (NamedTensor& tensor : renamed) tensor.name = "base_model.model." + tensor.name + ending;
    write_safetensors(file.path(), renamed);
    return refusal_of([&] { InitialWeights(file.path(), file.model); });
  };
  CHECK(
      refusal("") ==
      file.path() +
          ": a model inside peft's wrapper (its tensors begin with base_model.model.): merge it into its base "
          "model with peft (merge_and_unload), save that with save_pretrained, and give its folder");
  CHECK(contains(refusal(".lora_A.weight"), "LoRA adapters, not a whole model"));
}
