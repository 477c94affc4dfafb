// Fuzzes a single-file checkpoint: header, data, and the values of every tensor.
#include <vector>

#include "models/checkpoint/safetensors.h"
#include "tools/fuzz/fuzz.h"

using namespace precbench;

PRECBENCH_FUZZ_TARGET(safetensors) {
  const std::string path = scratch().write("model.safetensors", std::string(text_of(data, size)));
  taken([&] {
    const SafetensorsFile file(path);
    for (const StoredTensor& tensor : file.tensors()) {
      expect(file.find(tensor.name) != nullptr);
      taken([&] {
        std::vector<float> values(static_cast<std::size_t>(tensor.size()));
        copy_to_f32(values.data(), tensor);
      });
    }
    file.at("model.embed_tokens.weight");
  });
  return 0;
}
