// Fuzzes a model file, with our own keys or as Hugging Face's config.json.
#include <nlohmann/json.hpp>

#include "models/config/config.h"
#include "tools/fuzz/fuzz.h"

using namespace precbench;

PRECBENCH_FUZZ_TARGET(model) {
  const std::string path = scratch().write("config.json", std::string(text_of(data, size)));
  taken([&] {
    const ModelConfig model = find_model(path);
    expect(parameter_count(model) > 0);
  });
  return 0;
}
