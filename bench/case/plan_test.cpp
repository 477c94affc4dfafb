// Effects of a model's own file on a case: sequences beyond its window, and warnings in its record.
#include "bench/case/plan.h"

#include <nlohmann/json.hpp>

#include "bench/measure/session.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"
#include "kernels/testing/text_checks.h"

using namespace precbench;

namespace {

/// Returns a config.json of a small model; `more` overrides.
nlohmann::json config_json(const char* model_type, const nlohmann::json& more) {
  nlohmann::json object = {{"model_type", model_type}, {"hidden_size", 32},
                           {"intermediate_size", 64},  {"num_hidden_layers", 1},
                           {"num_attention_heads", 2}, {"num_key_value_heads", 1},
                           {"vocab_size", 64},         {"head_dim", 16}};
  object.update(more);
  return object;
}

Case case_of(const TempDirectory& folder, const nlohmann::json& config, std::int64_t seq) {
  Case c;
  c.model = folder.write("small/config.json", config.dump());
  c.device = "cpu";
  c.batch = 1;
  c.seq = seq;
  c.steps = 1;
  return c;
}

}  // namespace

TEST_CASE("unsupported_reason: a sequence beyond the sliding window is computed with it", "[plan]") {
  const TempDirectory folder;
  const Case longer = case_of(folder, config_json("mistral", {{"sliding_window", 64}}), 128);
  CHECK(!unsupported_reason(validate(longer)));
  CHECK(run_case(validate(longer)).status == Status::ok);
}

TEST_CASE("unsupported_reason: learned positions end, and the cuda device needs biases of a multiple of 8",
          "[plan]") {
  const TempDirectory folder;
  const nlohmann::json gpt2 = {{"model_type", "gpt2"}, {"n_layer", 2},      {"n_embd", 64},
                               {"n_head", 4},          {"n_positions", 64}, {"vocab_size", 100}};
  CHECK(!unsupported_reason(validate(case_of(folder, gpt2, 64))));
  CHECK(unsupported_reason(validate(case_of(folder, gpt2, 65))) ==
        "seq: 65 is beyond the 64 positions that the model has learned");
  const nlohmann::json phi = {{"model_type", "phi"},      {"num_hidden_layers", 2},   {"hidden_size", 64},
                              {"intermediate_size", 128}, {"num_attention_heads", 4}, {"vocab_size", 100}};
  Case c = case_of(folder, phi, 64);
  CHECK(!unsupported_reason(validate(c)));
  c.device = "cuda";
  CHECK(unsupported_reason(validate(c)) ==
        "vocab: 100 is not a multiple of 8, which its bias needs on the cuda device");
}

TEST_CASE("unsupported_reason: a sequence beyond the original context whose attention changes", "[plan]") {
  const TempDirectory folder;
  const nlohmann::json ministral = config_json("ministral3", {{"rope_parameters",
                                                               {{"rope_type", "yarn"},
                                                                {"factor", 4.0},
                                                                {"original_max_position_embeddings", 64},
                                                                {"llama_4_scaling_beta", 0.1}}}});
  CHECK(!unsupported_reason(validate(case_of(folder, ministral, 64))));
  CHECK(unsupported_reason(validate(case_of(folder, ministral, 128))) ==
        "seq: 128 is beyond the model's original context of 64 positions, where its attention changes "
        "(rope_scaling), which is not supported");
}

TEST_CASE("unsupported_reason: Llama 4 beyond its chunks, and where its temperature changes queries",
          "[plan]") {
  const TempDirectory folder;
  const auto scout = [](std::int64_t chunk, std::int64_t floor) {
    return config_json("llama4_text", {{"num_hidden_layers", 2},
                                       {"num_local_experts", 4},
                                       {"attention_chunk_size", chunk},
                                       {"floor_scale", floor},
                                       {"no_rope_layers", {1, 0}}});
  };
  CHECK(!unsupported_reason(validate(case_of(folder, scout(64, 64), 64))));
  CHECK(unsupported_reason(validate(case_of(folder, scout(64, 128), 128))) ==
        "seq: 128 is beyond the model's chunks of 64 positions; chunked attention is not supported");
  CHECK(unsupported_reason(validate(case_of(folder, scout(128, 64), 128))) ==
        "seq: 128 is beyond 64 positions, after which the model scales each query, which is not supported");
  Case c = case_of(folder, scout(128, 64), 64);
  c.gpus = c.context = 2;
  CHECK(
      unsupported_reason(validate(c)) ==
      "seq: with 64 the model scales the last query of a sequence, which is not supported with context ranks");
  c.seq = 32;
  CHECK(!unsupported_reason(validate(c)));
  // Kernels of a norm need a power of two.
  c = case_of(folder, config_json("llama4_text", {{"num_local_experts", 4}, {"head_dim", 48}}), 64);
  CHECK(!unsupported_reason(validate(c)));
  c.device = "cuda";
  CHECK(contains(unsupported_reason(validate(c)).value_or(""), "48"));
}

TEST_CASE("warnings: settings of a model file that are ignored are in the record", "[plan]") {
  const TempDirectory folder;
  const nlohmann::json config =
      config_json("llama", {{"attention_dropout", 0.1}, {"max_position_embeddings", 32}, {"mystery", 3}});
  CHECK(run_case(validate(case_of(folder, config, 64))).warnings ==
        std::vector<std::string>{"small: attention_dropout 0.1 is left out",
                                 "small: keys that are not known here were left out: mystery",
                                 "small: seq 64 is beyond the 32 positions that the model is made for"});
  // Positions count up to the stretched context.
  const nlohmann::json stretched = config_json(
      "llama", {{"max_position_embeddings", 32}, {"rope_scaling", {{"rope_type", "yarn"}, {"factor", 2.0}}}});
  CHECK(run_case(validate(case_of(folder, stretched, 64))).warnings.empty());
}

TEST_CASE("unsupported_reason: a sequence beyond the positions of a dynamic RoPE is refused", "[plan]") {
  const TempDirectory folder;
  const nlohmann::json dynamic = config_json(
      "llama", {{"max_position_embeddings", 32}, {"rope_scaling", {{"type", "dynamic"}, {"factor", 2.0}}}});
  CHECK(!unsupported_reason(validate(case_of(folder, dynamic, 32))));
  CHECK(unsupported_reason(validate(case_of(folder, dynamic, 33))) ==
        "seq: 33 is beyond 32 positions, where the model's dynamic RoPE is no longer plain RoPE");
}
