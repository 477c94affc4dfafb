// Transfers state between host and device. See state.h.
#include "models/transformer/state/state.h"

#include <algorithm>
#include <cstring>

namespace precbench {
namespace {

/// Calls move(part, bytes) for this rank's data, piece by piece; `bytes` has the size of the piece.
template <class Move>
void for_each_part(const std::vector<StateTensor>& state, std::int64_t staging, Move&& move) {
  std::vector<std::byte> bytes;
  for (const StateTensor& tensor : state) {
    if (tensor.values.empty()) continue;
    const std::int64_t most = std::max<std::int64_t>(1, staging / bytes_of(tensor.values.dtype, 1));
    StateTensor part = tensor;
    for (std::int64_t done = 0; done < tensor.values.size(); done += most) {
      part.first = tensor.first + done;
      part.values = tensor.values.elements(done, std::min(most, tensor.values.size() - done));
      bytes.resize(static_cast<std::size_t>(part.values.bytes()));
      move(part, bytes);
    }
  }
}

}  // namespace

std::vector<float> read_whole(const StateReader& read, const StateTensor& tensor) {
  std::int64_t size = 1;
  for (const std::int64_t n : tensor.shape) size *= n;
  const StateTensor whole{
      .name = tensor.name, .shape = tensor.shape, .values = {nullptr, DType::f32, 1, size}};
  std::vector<std::byte> bytes(size * sizeof(float));
  read(whole, bytes);
  std::vector<float> values(size);
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

void save_state(Device& device, const std::vector<StateTensor>& state, const StateWriter& write,
                std::int64_t staging) {
  for_each_part(state, staging, [&](const StateTensor& part, std::vector<std::byte>& bytes) {
    device.download(bytes.data(), part.values);
    write(part, bytes);
  });
}

void load_state(Device& device, const std::vector<StateTensor>& state, const StateReader& read,
                std::int64_t staging) {
  for_each_part(state, staging, [&](const StateTensor& part, std::vector<std::byte>& bytes) {
    read(part, bytes);
    device.upload(part.values, bytes.data());
  });
}

}  // namespace precbench
