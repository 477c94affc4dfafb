// Transfers state between host and device. See state.h.
#include "models/transformer/state/state.h"

#include <algorithm>
#include <cstring>

#include "kernels/numerics/element_runs.h"

namespace precbench {
namespace {

/// Calls move(part, bytes) for this rank's data, piece by piece; `bytes` has the size of the piece. The range of the
/// whole that a piece spans has at most `staging` bytes, or is one element or row of a slice.
template <class Move>
void for_each_part(const std::vector<StateTensor>& state, std::int64_t staging, Move&& move) {
  std::vector<std::byte> bytes;
  for (const StateTensor& tensor : state) {
    if (tensor.values.empty()) continue;
    const ElementMap& place = tensor.place;
    std::int64_t most = std::max<std::int64_t>(1, staging / bytes_of(tensor.values.dtype, 1));
    if (place.run > 0) most = std::max<std::int64_t>(1, most / place.pitch) * place.run;
    StateTensor part = tensor;
    for (std::int64_t done = 0; done < tensor.values.size(); done += most) {
      part.place = place.from(done);
      part.values = tensor.values.elements(done, std::min(most, tensor.values.size() - done));
      bytes.resize(static_cast<std::size_t>(part.values.bytes()));
      move(part, bytes);
    }
  }
}

/// Reads the range of the whole that a part's rows span, which is consecutive, and takes the part out of it. `whole`:
/// memory for the range.
void read_rows(const StateReader& read, const StateTensor& part, std::vector<std::byte>& bytes,
               std::vector<std::byte>& whole) {
  const ElementRange range = range_of(part.place, part.values.size());
  StateTensor all = part;
  all.place = range.begin;
  all.values = {nullptr, part.values.dtype, 1, range.size()};
  whole.resize(static_cast<std::size_t>(all.values.bytes()));
  read(all, whole);
  const ElementMap place = in_bytes(part.place, part.values.dtype);
  for_each_run(place.within(-place.of(0)), part.values.bytes(),
               [&](std::int64_t i, std::int64_t first, std::int64_t count) {
                 std::copy_n(whole.begin() + first, count, bytes.begin() + i);
               });
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
  std::vector<std::byte> whole;
  for_each_part(state, staging, [&](const StateTensor& part, std::vector<std::byte>& bytes) {
    if (part.place.run == 0)
      read(part, bytes);
    else
      read_rows(read, part, bytes, whole);
    device.upload(part.values, bytes.data());
  });
}

}  // namespace precbench
