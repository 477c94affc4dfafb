// quantization_config of a config.json: accepted where --init-from reads such weights, else refused by name.
#include <nlohmann/json.hpp>

#include "kernels/testing/catch.h"
#include "models/config/config.h"
#include "models/config/hugging_face_testing.h"

namespace precbench {
namespace {

using nlohmann::json;

std::string refusal_with(const json& quantization, const char* model_type = "llama") {
  return testing::config_refusal(
      testing::small_config_json(model_type, 2, {{"quantization_config", quantization}}));
}

json compressed(const json& weights) {
  return {{"quant_method", "compressed-tensors"},
          {"format", "float-quantized"},
          {"config_groups", {{"group_0", {{"weights", weights}, {"targets", {"Linear"}}}}}}};
}

TEST_CASE("config.json: FP8 in a form that is read is accepted", "[models]") {
  for (const json& quantization :
       {json{{"quant_method", "fp8"}, {"fmt", "e4m3"}, {"weight_block_size", {128, 128}}},
        json{{"quant_method", "fp8"}, {"weight_block_size", nullptr}, {"activation_scheme", "static"}},
        json{{"quant_method", "fbgemm_fp8"}, {"activation_scale_ub", 1200.0}},
        compressed({{"type", "float"}, {"num_bits", 8}, {"strategy", "channel"}}),
        compressed({{"type", "float"}, {"num_bits", 8}, {"strategy", "tensor"}}),
        compressed(
            {{"type", "float"}, {"num_bits", 8}, {"strategy", "block"}, {"block_structure", {128, 128}}}),
        json{{"quant_method", "modelopt"}, {"quant_algo", "FP8"}},
        json{{"quant_method", "modelopt"}, {"quantization", {{"quant_algo", "FP8"}}}}}) {
    INFO(quantization.dump());
    CHECK(refusal_with(quantization) == "");
  }
  CHECK(refusal_with({{"quant_method", "mxfp4"}}, "gpt_oss") == "");
  const ModelConfig wrapped = model_from_json({{"model_type", "mistral3"},
                                               {"quantization_config", {{"quant_method", "fp8"}}},
                                               {"text_config", testing::small_config_json("mistral", 2)}});
  CHECK(contains(wrapped.not_modelled.front(), "quantization_config says how weights are stored"));
}

TEST_CASE("config.json: another quantization is refused by name", "[models]") {
  const auto begins = [](const json& quantization, const char* with, const char* model_type = "llama") {
    INFO(quantization.dump());
    CHECK(refusal_with(quantization, model_type).starts_with(std::string("quantization_config: ") + with));
  };
  begins({{"quant_method", "gptq"}, {"bits", 4}}, "quant_method \"gptq\" is not supported; ");
  begins({{"quant_method", "bitsandbytes"}}, "quant_method \"bitsandbytes\" is not supported; ");
  begins({{"quant_method", "mxfp4"}}, "quant_method \"mxfp4\" is not supported for llama; ");
  begins({{"bits", 4}}, "quant_method null is not supported; ");
  begins("fp8", "expected an object, got \"fp8\"");
  begins({{"quant_method", "fp8"}, {"weight_block_size", {64, 64}}},
         "weight_block_size [64,64] is not supported");
  begins({{"quant_method", "fp8"}, {"fmt", "e5m2"}}, "fmt \"e5m2\" is not supported");
  begins({{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}}, "quant_algo \"NVFP4\" is not supported");
  begins({{"quant_method", "compressed-tensors"}}, "compressed-tensors without config_groups");
  begins(compressed({{"type", "int"}, {"num_bits", 4}}), "group_0: weights of type \"int\" and 4 bits");
  begins(compressed({{"type", "float"}, {"num_bits", 8}, {"strategy", "group"}}),
         "group_0: strategy \"group\"");
  begins(
      compressed({{"type", "float"}, {"num_bits", 8}, {"strategy", "block"}, {"block_structure", {64, 128}}}),
      "block_structure [64,128] is not supported");
  const json wrapped = {{"model_type", "mistral3"},
                        {"quantization_config", {{"quant_method", "awq"}}},
                        {"text_config", testing::small_config_json("mistral", 2)}};
  CHECK(contains(testing::config_refusal(wrapped), "quant_method \"awq\""));
}

}  // namespace
}  // namespace precbench
