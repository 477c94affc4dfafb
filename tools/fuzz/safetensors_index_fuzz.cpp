// Fuzzes the index of a sharded checkpoint, next to two valid shards.
#include <array>

#include "models/checkpoint/safetensors.h"
#include "tools/fuzz/fuzz.h"

using namespace precbench;

namespace {

void write_shards() {
  const std::array<float, 4> values = {1, 2, 3, 4};
  for (const char* name : {"a", "b"})
    write_safetensors(scratch() / (std::string(name) + ".safetensors"),
                      {{name, "F32", {2, 2}, values.data()}});
}

}  // namespace

PRECBENCH_FUZZ_TARGET(safetensors_index) {
  static const bool written = (write_shards(), true);
  expect(written);
  scratch().write("model.safetensors.index.json", std::string(text_of(data, size)));
  taken([] {
    const SafetensorsFile file(scratch().path().string());
    for (const StoredTensor& tensor : file.tensors()) expect(tensor.size() == 4);
  });
  return 0;
}
