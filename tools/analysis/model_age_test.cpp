// Tests tokens per parameter, as numbers and as text.
#include "tools/analysis/model_age.h"

#include "kernels/testing/catch.h"
#include "results/record/record_samples.h"

using namespace precbench;

TEST_CASE("parameters_of: a dense model is counted from its definition", "[age]") {
  Record record = samples::gpu_record("bf16", 10);
  CHECK(parameters_of(record).value() == 1'235'814'400);  // Llama 3.2 1B
  const auto with = [&](const char* key, const nlohmann::ordered_json& value) {
    return parameters_of(samples::redefined(record, &DefinitionRecord::model, key, value)).value() -
           1'235'814'400;
  };
  CHECK(with("/tied", false) == 128256.0 * 2048);
  CHECK(with("/qkv_bias", true) == 16.0 * (32 + 2 * 8) * 64);
  CHECK(with("/qk_norm", true) == 16.0 * 2 * 64);
  CHECK_FALSE(parameters_of(samples::redefined(record, &DefinitionRecord::model, "/width", "wide")));
  record.definition.reset();
  CHECK_FALSE(parameters_of(record));
}

TEST_CASE("parameters_of: an MoE model has the counts of its record", "[age]") {
  Record record = samples::gpu_record("bf16", 10);
  record.params = ParameterCounts{117'515'776, 29'435'392};
  CHECK(parameters_of(record).value() == 117'515'776);
}

TEST_CASE("active_parameters_of: of an MoE model those of its record, of a dense one all", "[age]") {
  Record record = samples::gpu_record("bf16", 10);
  CHECK(active_parameters_of(record) == parameters_of(record));
  record.params = ParameterCounts{117'515'776, 29'435'392};
  CHECK(active_parameters_of(record).value() == 29'435'392);
  record.params.reset(), record.definition.reset();
  CHECK_FALSE(active_parameters_of(record));
}

TEST_CASE("tokens_per_parameter: counts tokens before and during the run over the parameters", "[age]") {
  Record record = samples::gpu_record("bf16", 10);
  record.training->tokens_per_step = 16384;
  CHECK(tokens_per_parameter(record, 100).value() == Approx(1638400 / 1'235'814'400.0));
  CHECK(tokens_per_parameter(record, 100, 2e12).value() == Approx(2'000'001'638'400 / 1'235'814'400.0));
  record.training->tokens_per_step.reset();
  CHECK_FALSE(tokens_per_parameter(record, 100));
}

TEST_CASE("age_words: formats one age and a range and an unknown age", "[age]") {
  CHECK(age_words({0.7351}) == "at 0.74 tokens per parameter");
  CHECK(age_words({0.7351, 0.1838}) == "at 0.18 to 0.74 tokens per parameter");
  CHECK(age_words({0.7351, 0.7352}) == "at 0.74 tokens per parameter");
  CHECK(age_words({14868.2}) == "at 14,900 tokens per parameter");
  CHECK(age_words({99.7}) == "at 100 tokens per parameter");
  CHECK(age_words({299.6}) == "at 300 tokens per parameter");
  CHECK(age_words({0.7351, std::nullopt}) == "at an unknown number of tokens per parameter");
  CHECK(age_words(std::vector<std::optional<double>>{}) == "at an unknown number of tokens per parameter");
}
