// The arena: a stack that accounts for every byte. See memory.h.
#include "kernels/device/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "kernels/base/errors.h"

namespace precbench {
namespace {

std::int64_t align_up(std::int64_t bytes) {
  return (bytes + Arena::kAlignment - 1) / Arena::kAlignment * Arena::kAlignment;
}

}  // namespace

const char* name_of(Segment segment) {
  static constexpr const char* kNames[kSegments] = {"weights",   "quantized_weights", "master",
                                                    "gradients", "moments",           "activations",
                                                    "workspace", "communication",     "other"};
  return kNames[static_cast<int>(segment)];
}

std::int64_t MemoryUse::total() const { return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0}); }

void Arena::account(Segment segment, std::int64_t bytes) {
  const int index = static_cast<int>(segment);
  current_.bytes[index] += bytes;
  highest_.bytes[index] = std::max(highest_.bytes[index], current_.bytes[index]);
  if (current_.total() > peak_.total()) peak_ = current_;
  peak_extent_ = std::max(peak_extent_, top_ + committed_);
}

std::byte* Arena::take(const char* what, std::int64_t bytes) {
  if (top_ + committed_ + bytes > capacity_)
    throw OutOfMemory(fmt::format("{} needs {:.1f} MiB more than the {:.1f} MiB this run planned for", what,
                                  (top_ + committed_ + bytes - capacity_) / 1048576.0, capacity_ / 1048576.0),
                      bytes);
  std::byte* start = base_ + top_;
  top_ += bytes;
  return start;
}

Tensor Arena::push(Segment segment, DType dtype, std::int64_t rows, std::int64_t cols) {
  const std::int64_t bytes = align_up(bytes_of(dtype, rows * cols));
  const Tensor tensor{take(name_of(segment), bytes), dtype, rows, cols};
  stack_.push_back({segment, bytes, true});
  account(segment, bytes);
  return tensor;
}

Tensor Arena::push_uncounted(DType dtype, std::int64_t rows, std::int64_t cols) {
  const std::int64_t bytes = align_up(bytes_of(dtype, rows * cols));
  const Tensor tensor{take("a buffer beside the step", bytes), dtype, rows, cols};
  stack_.push_back({Segment::other, bytes, false});
  return tensor;
}

Tensor Arena::overlay_gradients(DType dtype, std::int64_t elements) {
  // Whole alignment units, so that the buffer's last byte is the block's last byte.
  overlay_ = align_up(bytes_of(dtype, elements));
  overlay_element_bits_ = bits_of(dtype);
  // The dry run's capacity is unbounded; there the address only has to be distinct.
  const std::int64_t start = capacity_ / kAlignment * kAlignment - overlay_;
  return {base_ + start, dtype, elements, 1};
}

void Arena::commit_gradients(std::int64_t first_element) {
  const std::int64_t wanted = overlay_ - first_element * overlay_element_bits_ / 8 / kAlignment * kAlignment;
  if (wanted <= committed_) return;
  const std::int64_t growth = wanted - committed_;
  if (top_ + wanted > capacity_)
    throw OutOfMemory(fmt::format("gradients and activations need {:.1f} MiB, {:.1f} MiB were planned",
                                  (top_ + wanted) / 1048576.0, capacity_ / 1048576.0),
                      growth);
  committed_ = wanted;
  account(Segment::gradients, growth);
}

void Arena::release_gradients() {
  current_.bytes[static_cast<int>(Segment::gradients)] -= committed_;
  committed_ = 0;
}

void Arena::release(Mark mark) {
  while (stack_.size() > mark.allocations) {
    const Allocation& last = stack_.back();
    top_ -= last.bytes;
    if (last.counted) current_.bytes[static_cast<int>(last.segment)] -= last.bytes;
    stack_.pop_back();
  }
}

}  // namespace precbench
