// Transfers state between host and device. See state.h.
#include "models/transformer/state/state.h"

#include <algorithm>
#include <cstring>

namespace precbench {
namespace {

/// Calls move(part, bytes) for this rank's data, piece by piece; `bytes` has the size of the piece. Pieces need not be
/// consecutive in the whole.
template <class Move>
void for_each_part(const std::vector<StateTensor>& state, std::int64_t staging, Move&& move) {
  std::vector<std::byte> bytes;
  for (const StateTensor& tensor : state) {
    if (tensor.values.empty()) continue;
    const std::int64_t most = std::max<std::int64_t>(1, staging / bytes_of(tensor.values.dtype, 1));
    StateTensor part = tensor;
    for (std::int64_t done = 0; done < tensor.values.size(); done += most) {
      part.place = tensor.place.from(done);
      part.values = tensor.values.elements(done, std::min(most, tensor.values.size() - done));
      bytes.resize(static_cast<std::size_t>(part.values.bytes()));
      move(part, bytes);
    }
  }
}

/// Calls visit(run, first, bytes) for each run of a part's elements that are consecutive in the whole: their part and
/// range of the part's bytes.
template <class Visit>
void for_each_run(const StateTensor& part, Visit&& visit) {
  StateTensor run = part;
  for (std::int64_t done = 0; done < part.values.size(); done += run.values.size()) {
    const std::int64_t count = std::min(part.values.size() - done, part.place.consecutive(done));
    run.place = part.place.of(done);
    run.values = part.values.elements(done, count);
    visit(run, bytes_of(part.values.dtype, done), run.values.bytes());
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
    if (part.place.run == 0) return write(part, bytes);
    for_each_run(part, [&](const StateTensor& run, std::int64_t first, std::int64_t size) {
      std::vector<std::byte> own(bytes.begin() + first, bytes.begin() + first + size);
      write(run, own);
    });
  });
}

void load_state(Device& device, const std::vector<StateTensor>& state, const StateReader& read,
                std::int64_t staging) {
  for_each_part(state, staging, [&](const StateTensor& part, std::vector<std::byte>& bytes) {
    if (part.place.run == 0)
      read(part, bytes);
    else
      for_each_run(part, [&](const StateTensor& run, std::int64_t first, std::int64_t size) {
        std::vector<std::byte> own(static_cast<std::size_t>(size));
        read(run, own);
        std::copy(own.begin(), own.end(), bytes.begin() + first);
      });
    device.upload(part.values, bytes.data());
  });
}

}  // namespace precbench
