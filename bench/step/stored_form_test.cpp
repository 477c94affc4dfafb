// Weights of Llama 4 and Phi-3 in Hugging Face's layout, read and written, against the library's own tensors.
#include "bench/step/stored_form.h"

#include "bench/predict/predict.h"
#include "bench/step/rank_testing.h"
#include "bench/step/weights.h"
#include "kernels/base/errors.h"
#include "kernels/testing/temp_directory.h"
#include "kernels/testing/text_checks.h"
#include "models/transformer/step_golden.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

constexpr const char* kLibrarys = PRECBENCH_SOURCE_DIR "/bench/step/golden/llama4.safetensors";

Golden llama4() { return {PRECBENCH_SOURCE_DIR "/models/transformer/golden", "llama4"}; }

Plan plan_of(const ModelConfig& model, int ranks, int ep) {
  Case c;
  c.model = "tiny-moe";
  c.gpus = ranks, c.ep = ep;
  c.batch = 1, c.seq = 32;
  Plan plan = validate(c);
  plan.model = model;
  plan.converted.assign(static_cast<std::size_t>(model.layers), ConvertedLayers::Roles{});
  return plan;
}

std::vector<float> values_of(const StoredTensor& stored) {
  std::vector<float> values(static_cast<std::size_t>(stored.size()));
  copy_to_f32(values.data(), stored);
  return values;
}

void check_equal(const SafetensorsFile& written, const SafetensorsFile& library) {
  REQUIRE(written.tensors().size() == library.tensors().size());
  for (const StoredTensor& expected : library.tensors()) {
    INFO(expected.name);
    const StoredTensor& ours = written.at(expected.name);
    CHECK(ours.shape == expected.shape);
    CHECK((values_of(ours) == values_of(expected)));
  }
}

/// Returns each rank's weights after loading a file. Writes them to `copy` unless it is empty.
std::vector<Named> weights_from(const std::string& path, const ModelConfig& model, int ranks, int ep,
                                const std::string& copy = "") {
  const Plan plan = plan_of(model, ranks, ep);
  const InitialWeights file(path, model);
  CHECK(file.warnings().empty());
  std::vector<Named> by_rank(static_cast<std::size_t>(ranks));
  const std::int64_t bytes = dry_run(plan, nullptr).extent + watching_bytes(plan);
  run_cpu_ranks(plan, bytes, [&](Rank& rank, const DataSource&) {
    file.load_into(rank.parameters());
    by_rank[static_cast<std::size_t>(rank.comm().rank())] =
        saved(rank.parameters(), Parameters::Kind::weights);
    if (!copy.empty()) save_weights(copy, rank, Parameters::Kind::weights, model);
  });
  return by_rank;
}

}  // namespace

TEST_CASE("InitialWeights: Llama 4's fused experts and its queries and keys load as in Hugging Face",
          "[checkpoint][moe]") {
  for (const std::string name : {"llama4", "llama4-scout"}) {  // the second has a block without experts
    const Golden golden(PRECBENCH_SOURCE_DIR "/models/transformer/golden", name);
    for (const auto& [ranks, ep] : {std::pair{1, 1}, {2, 1}, {2, 2}}) {
      INFO(name << ", " << ranks << " ranks, ep " << ep);
      for (const Named& weights : weights_from(
               PRECBENCH_SOURCE_DIR "/bench/step/golden/" + name + ".safetensors", golden.model, ranks, ep))
        CHECK(first_difference(weights, golden.all("")) == "");
    }
  }
}

TEST_CASE("save_weights: Llama 4's weights are written as in Hugging Face and can be read again",
          "[checkpoint][moe]") {
  const TempDirectory directory;
  const ModelConfig model = llama4().model;
  const std::string path = directory / "written.safetensors";
  weights_from(kLibrarys, model, 2, 2, path);
  const SafetensorsFile written(path), library(kLibrarys);
  check_equal(written, library);
  CHECK(first_difference(weights_from(path, model, 1, 1).front(), llama4().all("")) == "");
}

TEST_CASE("InitialWeights, save_weights: joined tensors and the order of a head are those of Hugging Face",
          "[checkpoint]") {
  const TempDirectory directory;
  for (const std::string name : {"phi3", "phi4-mini", "glm", "gpt2", "gpt-bigcode", "gpt-j", "gpt-neox",
                                 "phi", "starcoder2", "granite-hybrid", "exaone3", "hunyuan"}) {
    INFO(name);
    const Golden golden(PRECBENCH_SOURCE_DIR "/models/transformer/golden", name);
    const std::string library_path = PRECBENCH_SOURCE_DIR "/bench/step/golden/" + name + ".safetensors",
                      path = directory / "written.safetensors";
    for (const Named& weights : weights_from(library_path, golden.model, 2, 1, path))
      CHECK(first_difference(weights, golden.all("")) == "");
    const SafetensorsFile written(path), library(library_path);
    check_equal(written, library);
  }
}

TEST_CASE("InitialWeights, save_weights: experts of gpt-oss in transposed tensors of alternating columns",
          "[checkpoint][moe]") {
  const TempDirectory directory;
  const Golden golden(PRECBENCH_SOURCE_DIR "/models/transformer/golden", "gpt-oss");
  const std::string library_path = PRECBENCH_SOURCE_DIR "/bench/step/golden/gpt-oss.safetensors",
                    path = directory / "written.safetensors";
  for (const auto& [ranks, ep] : {std::pair{1, 1}, {2, 1}, {2, 2}}) {
    INFO(ranks << " ranks, ep " << ep);
    for (const Named& weights : weights_from(library_path, golden.model, ranks, ep, path))
      CHECK(first_difference(weights, golden.all("")) == "");
    const SafetensorsFile written(path), library(library_path);
    check_equal(written, library);
  }
}

/// The model of make_mxfp4_checkpoint_golden.py.
ModelConfig mxfp4_model() {
  return model_from_json({{"model_type", "gpt_oss"},
                          {"num_hidden_layers", 1},
                          {"hidden_size", 64},
                          {"intermediate_size", 32},
                          {"num_attention_heads", 2},
                          {"num_key_value_heads", 1},
                          {"head_dim", 16},
                          {"vocab_size", 16},
                          {"num_local_experts", 2},
                          {"num_experts_per_tok", 1}});
}

TEST_CASE("InitialWeights: MXFP4 experts of gpt-oss have the values that Transformers reads",
          "[checkpoint][moe]") {
  const std::string golden = PRECBENCH_SOURCE_DIR "/bench/step/golden/gpt-oss-",
                    packed = golden + "mxfp4.safetensors", bf16 = golden + "mxfp4-bf16.safetensors";
  const ModelConfig model = mxfp4_model();
  const Named expected = weights_from(bf16, model, 1, 1).front();
  for (const auto& [ranks, ep] : {std::pair{1, 1}, {2, 1}, {2, 2}}) {
    INFO(ranks << " ranks, ep " << ep);
    for (const Named& weights : weights_from(packed, model, ranks, ep))
      CHECK(first_difference(weights, expected) == "");
  }
}

TEST_CASE("InitialWeights: MXFP4 experts that do not fit the model are refused", "[checkpoint][moe]") {
  const TempDirectory directory;
  const std::string path = directory / "mxfp4.safetensors", other = directory / "llama4.safetensors",
                    name = "model.layers.0.mlp.experts.gate_up_proj_blocks";
  const SafetensorsFile packed(PRECBENCH_SOURCE_DIR "/bench/step/golden/gpt-oss-mxfp4.safetensors");
  const auto refusal = [&](const std::string& dtype, const std::vector<std::int64_t>& shape) {
    std::vector<NamedTensor> tensors;
    for (const StoredTensor& t : packed.tensors())
      tensors.push_back({t.name, t.name == name ? dtype : t.dtype, t.name == name ? shape : t.shape, t.data});
    write_safetensors(path, tensors);
    return refusal_of([&] { InitialWeights(path, mxfp4_model()); });
  };
  CHECK(contains(refusal("I8", {2, 64, 2, 16}), name + " is I8, expected U8"));
  CHECK(contains(refusal("U8", {2, 64, 32}), name + " has shape [2, 64, 32], expected [2, 64, 2, 16]"));
  const std::vector<float> value(1);
  write_safetensors(other, {{name, "F32", {1}, value.data()}});
  CHECK(contains(refusal_of([&] { InitialWeights(other, llama4().model); }),
                 "MXFP4, which is read for gpt-oss alone"));
}

TEST_CASE("InitialWeights: the language model of a multimodal file is read", "[checkpoint]") {
  const TempDirectory directory;
  const Golden golden(PRECBENCH_SOURCE_DIR "/models/transformer/golden", "gemma3");
  const Named weights = golden.all("");
  const std::string path = directory / "multimodal.safetensors";
  const std::vector<float> vision(4);
  for (const char* prefix : {"language_model.model.", "model.language_model.", "language.model."}) {
    INFO(prefix);
    std::vector<NamedTensor> tensors = {{"vision_tower.weight", "F32", {4}, vision.data()}};
    const Layout layout(golden.model, 1);
    for (const Unit& unit : layout.units())
      for (const Parameter& p : unit.parameters)
        tensors.push_back({prefix + p.name.substr(std::string("model.").size()), "F32", p.shape(),
                           weights.at(p.name).data()});
    write_safetensors(path, tensors);
    const InitialWeights file(path, golden.model);
    REQUIRE(file.warnings().size() == 1);
    CHECK(file.warnings().front().ends_with("was left out: vision_tower.weight"));
    const Plan plan = plan_of(golden.model, 1, 1);
    run_cpu_ranks(
        plan, dry_run(plan, nullptr).extent + watching_bytes(plan), [&](Rank& rank, const DataSource&) {
          file.load_into(rank.parameters());
          CHECK(first_difference(saved(rank.parameters(), Parameters::Kind::weights), weights) == "");
        });
  }
}

TEST_CASE("InitialWeights: Llama 4 with a tensor per expert loads and missing tensors are named",
          "[checkpoint][moe]") {
  const TempDirectory directory;
  const Golden golden = llama4();
  // The layout of a run's own checkpoint.
  std::vector<NamedTensor> tensors;
  const Named weights = golden.all("");
  const Layout layout(golden.model, 1);
  for (const Unit& unit : layout.units())
    for (const Parameter& p : unit.parameters)
      tensors.push_back({p.name, "F32", p.shape(), weights.at(p.name).data()});
  const std::string apart = directory / "apart.safetensors", part = directory / "part.safetensors";
  write_safetensors(apart, tensors);
  CHECK(first_difference(weights_from(apart, golden.model, 1, 1).front(), weights) == "");

  const SafetensorsFile library(kLibrarys);
  const auto refusal_without = [&](const std::string& name, std::vector<std::int64_t> shape = {}) {
    std::vector<NamedTensor> rest;
    for (const StoredTensor& t : library.tensors())
      if (t.name != name)
        rest.push_back({t.name, t.dtype, t.shape, t.data});
      else if (!shape.empty())
        rest.push_back({t.name, t.dtype, shape, t.data});
    write_safetensors(part, rest);
    return refusal_of([&] { InitialWeights(part, golden.model); });
  };
  const std::string down = "model.layers.1.feed_forward.experts.down_proj";
  CHECK(contains(refusal_without(down), down));
  CHECK(contains(refusal_without(down, {4, 16, 8}), down + " has shape [4, 16, 8], the model"));
}

namespace {

const std::string kFp8 = PRECBENCH_SOURCE_DIR "/bench/step/golden/qwen3-moe-fp8";

/// The model of make_fp8_checkpoint_golden.py.
ModelConfig fp8_model() {
  return model_from_json({{"model_type", "qwen3_moe"},
                          {"num_hidden_layers", 1},
                          {"hidden_size", 136},
                          {"num_attention_heads", 9},
                          {"num_key_value_heads", 3},
                          {"head_dim", 16},
                          {"vocab_size", 16},
                          {"num_experts", 2},
                          {"num_experts_per_tok", 1},
                          {"moe_intermediate_size", 8}});
}

/// Checks that loaded weights are NumPy's products of elements and scales, and the file's where it has no FP8.
void check_fp8(const std::string& path, int ranks, int ep) {
  const SafetensorsFile products = open_golden(kFp8 + "-f32.safetensors"), stored(kFp8 + ".safetensors");
  for (const Named& weights : weights_from(path, fp8_model(), ranks, ep)) {
    std::size_t matrices = 0;
    for (const auto& [name, values] : weights) {
      INFO(name);
      const StoredTensor* product = products.find(name);
      matrices += product != nullptr;
      CHECK((values == values_of(product ? *product : stored.at(name))));
    }
    CHECK(matrices == products.tensors().size());
  }
}

/// Writes the golden file with each tensor as `change` leaves it; a tensor without a name is left out.
template <class Change>
void write_fp8(const std::string& path, const Change& change) {
  const SafetensorsFile golden(kFp8 + ".safetensors");
  std::vector<NamedTensor> tensors;
  for (const StoredTensor& t : golden.tensors()) {
    NamedTensor tensor{t.name, t.dtype, t.shape, t.data};
    change(tensor);
    if (!tensor.name.empty()) tensors.push_back(std::move(tensor));
  }
  write_safetensors(path, tensors);
}

}  // namespace

TEST_CASE("InitialWeights: FP8 weights are the products with their scales", "[checkpoint][moe]") {
  for (const auto& [ranks, ep] : {std::pair{1, 1}, {2, 1}, {2, 2}}) {
    INFO(ranks << " ranks, ep " << ep);
    check_fp8(kFp8 + ".safetensors", ranks, ep);
  }
}

TEST_CASE("InitialWeights: an FP8 weight and its scales may lie in different shards", "[checkpoint][moe]") {
  const TempDirectory directory;
  nlohmann::json map;
  for (const bool scales : {false, true}) {
    const std::string shard = scales ? "scales.safetensors" : "weights.safetensors";
    write_fp8(directory / shard, [&](NamedTensor& tensor) {
      if ((tensor.name.find("_scale") != std::string::npos) != scales)
        tensor.name.clear();
      else
        map[tensor.name] = shard;
    });
  }
  directory.write("model.safetensors.index.json", nlohmann::json{{"weight_map", map}}.dump());
  check_fp8(directory.path().string(), 1, 1);
}

TEST_CASE("InitialWeights: FP8 weights without scales, or with others, are refused", "[checkpoint]") {
  const TempDirectory directory;
  const std::string path = directory / "fp8.safetensors", q = "model.layers.0.self_attn.q_proj.weight";
  const auto refusal = [&](const auto& change) {
    write_fp8(path, change);
    return refusal_of([&] { InitialWeights(path, fp8_model()); });
  };
  const auto scales_of_q = [&](const auto& change) {
    return refusal([&](NamedTensor& tensor) {
      if (tensor.name == q + "_scale_inv") change(tensor);
    });
  };
  CHECK(refusal([](NamedTensor&) {}) == "");
  CHECK(contains(scales_of_q([](NamedTensor& scales) { scales.name.clear(); }),
                 "'" + q + "' is F8_E4M3, and neither '" + q + "_scale_inv' nor '" + q + "_scale' is there"));
  CHECK(contains(
      scales_of_q([](NamedTensor& scales) { scales.shape = {4}; }),
      "_scale_inv has shape [4], expected one scale, [144, 1] for rows, or [2, 2] for blocks of 128x128 of a "
      "weight of shape [144, 136]"));
  CHECK(contains(scales_of_q([](NamedTensor& scales) { scales.dtype = "I32"; }),
                 "_scale_inv is I32; scales must be F32, BF16, F16 or F8_E8M0"));
  const std::vector<float> scale(1);
  write_fp8(path, [](NamedTensor&) {});
  std::vector<NamedTensor> tensors = {{q + "_scale", "F32", {}, scale.data()}};
  const SafetensorsFile golden(kFp8 + ".safetensors");
  for (const StoredTensor& t : golden.tensors()) tensors.push_back({t.name, t.dtype, t.shape, t.data});
  const std::string both = directory / "both.safetensors";
  write_safetensors(both, tensors);
  CHECK(contains(refusal_of([&] { InitialWeights(both, fp8_model()); }), "are both there"));
}
