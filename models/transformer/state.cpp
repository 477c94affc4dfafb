// State between host and device. See state.h.
#include "models/transformer/state.h"

namespace precbench {

void save_state(Device& device, const std::vector<StateTensor>& state, const StateWriter& write) {
  std::vector<std::byte> bytes;
  for (const StateTensor& tensor : state) {
    if (tensor.values.empty()) continue;
    bytes.resize(tensor.values.bytes());
    device.download(bytes.data(), tensor.values);
    write(tensor, bytes);
  }
}

void load_state(Device& device, const std::vector<StateTensor>& state, const StateReader& read) {
  std::vector<std::byte> bytes;
  for (const StateTensor& tensor : state) {
    if (tensor.values.empty()) continue;
    bytes.resize(tensor.values.bytes());
    read(tensor, bytes);
    device.upload(tensor.values, bytes.data());
  }
}

}  // namespace precbench
