// The arena's accounts and addresses: the dry run's prediction must equal the real run's need to the byte.
#include "kernels/device/memory.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/errors.h"
#include "kernels/numerics/random.h"
#include "kernels/testing/catch.h"

using namespace precbench;

namespace {

constexpr std::int64_t kUnit = Arena::kAlignment;

std::int64_t bytes(const MemoryUse& use, Segment segment) { return use.bytes[static_cast<int>(segment)]; }

/// Memory that an arena hands out and a test writes to.
struct Block {
  explicit Block(std::int64_t n) : memory(n + kUnit), size(n) {}
  std::byte* base() {
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    return memory.data() + (kUnit - address % kUnit) % kUnit;
  }
  std::vector<std::byte> memory;
  std::int64_t size;
};

std::int64_t offset(Block& block, const Tensor& t) { return t.as<std::byte>() - block.base(); }

/// A miniature training step: weights, a gradient buffer over the stack, activations pushed in forward and
/// popped in backward while the gradients are committed from the end. Sizes are random and never whole units.
void arena_step(Arena& arena, std::uint64_t seed, DType gradient_type) {
  constexpr int kLayers = 5;
  const auto size = [&](int i) { return 50 + random_bits(seed, i) % 3000; };
  arena.push(Segment::weights, DType::bf16, 1, size(100));
  const std::int64_t per_layer = size(101);
  arena.overlay_gradients(gradient_type, kLayers * per_layer);
  std::vector<Arena::Mark> marks;
  for (int layer = 0; layer < kLayers; ++layer) {
    marks.push_back(arena.mark());
    arena.push(Segment::activations, DType::bf16, 1, size(layer));
    const Scope transient(arena);
    arena.push(Segment::workspace, DType::f32, 1, size(200 + layer));
  }
  for (int layer = kLayers - 1; layer >= 0; --layer) {
    arena.commit_gradients(layer * per_layer);
    const Scope transient(arena);
    arena.push(Segment::activations, DType::f32, 1, size(300 + layer));
    arena.release(marks[layer]);
  }
  arena.release_gradients();
}

}  // namespace

TEST_CASE("Arena: tensors are aligned and stacked and popped memory is reused", "[memory]") {
  Block block(64 * kUnit);
  Arena arena(block.base(), block.size);
  const Tensor a = arena.push(Segment::weights, DType::bf16, 3, 5);
  const Tensor b = arena.push(Segment::activations, DType::f32, 1, 65);
  CHECK(offset(block, a) == 0);
  CHECK(offset(block, b) == kUnit);
  CHECK((a.dtype == DType::bf16 && a.rows == 3 && a.cols == 5));
  {
    const Scope scope(arena);
    CHECK(offset(block, arena.push(Segment::workspace, DType::e4m3, 1, 1)) == 3 * kUnit);
    CHECK(offset(block, arena.push(Segment::other, DType::e4m3, 1, kUnit)) == 4 * kUnit);
  }
  // Popped memory is free again, at the same address.
  CHECK(offset(block, arena.push(Segment::communication, DType::f32, 1, 1)) == 3 * kUnit);
}

TEST_CASE("Arena: bytes are counted by segment and the peak is one moment", "[memory]") {
  Block block(64 * kUnit);
  Arena arena(block.base(), block.size);
  arena.push(Segment::weights, DType::f32, 1, 64);  // 1 unit
  {
    const Scope scope(arena);
    arena.push(Segment::activations, DType::f32, 1, 10 * 64);
  }
  {
    const Scope scope(arena);
    arena.push(Segment::workspace, DType::f32, 1, 6 * 64);
    arena.push(Segment::other, DType::e4m3, 1, 1);
    CHECK(bytes(arena.current(), Segment::weights) == kUnit);
    CHECK(bytes(arena.current(), Segment::activations) == 0);
    CHECK(bytes(arena.current(), Segment::workspace) == 6 * kUnit);
    CHECK(bytes(arena.current(), Segment::other) == kUnit);
    CHECK(arena.current().total() == 8 * kUnit);
  }
  CHECK(arena.current().total() == kUnit);
  // The peak moment of 11 units, not each segment's own maximum.
  CHECK(arena.peak().total() == 11 * kUnit);
  CHECK(bytes(arena.peak(), Segment::activations) == 10 * kUnit);
  CHECK(bytes(arena.peak(), Segment::workspace) == 0);
  CHECK(arena.peak_extent() == 11 * kUnit);
}

TEST_CASE("Arena: an allocation beyond the capacity throws OutOfMemory and changes nothing", "[memory]") {
  Block block(4 * kUnit);
  Arena arena(block.base(), block.size);
  arena.push(Segment::weights, DType::e4m3, 1, 2 * kUnit);
  try {
    arena.push(Segment::activations, DType::e4m3, 1, 2 * kUnit + 1);
    FAIL("it fit");
  } catch (const OutOfMemory& error) {
    CHECK(error.bytes == 3 * kUnit);
    CHECK(std::string(error.what()).find("activations") == 0);
  }
  CHECK(arena.current().total() == 2 * kUnit);
  CHECK(offset(block, arena.push(Segment::activations, DType::e4m3, 1, 2 * kUnit)) == 2 * kUnit);
}

TEST_CASE("Arena: an uncounted allocation takes memory and leaves the accounts unchanged", "[memory]") {
  Block block(4 * kUnit);
  Arena arena(block.base(), block.size);
  arena.push(Segment::weights, DType::e4m3, 1, kUnit);
  {
    const Scope scope(arena);
    CHECK(offset(block, arena.push_uncounted(DType::f32, 1, kUnit / 4)) == kUnit);
    CHECK(offset(block, arena.push_uncounted(DType::e4m3, 1, 1)) == 2 * kUnit);
    CHECK_THROWS_AS(arena.push_uncounted(DType::e4m3, 2, kUnit), OutOfMemory);
  }
  CHECK(arena.current().total() == kUnit);
  CHECK(arena.highest().total() == kUnit);
  CHECK(arena.peak_extent() == kUnit);
  CHECK(offset(block, arena.push(Segment::other, DType::e4m3, 1, 1)) == kUnit);
}

TEST_CASE("Arena: a repetition fits into the peak extent and not into one byte less", "[memory]") {
  for (std::uint64_t seed = 0; seed < 50; ++seed)
    for (DType gradient_type : {DType::f32, DType::bf16}) {
      INFO("seed " << seed << " " << name_of(gradient_type));
      Arena dry(reinterpret_cast<void*>(std::uintptr_t{1} << 20),
                std::int64_t{1} << 40);  // like the dry device's
      arena_step(dry, seed, gradient_type);
      Block block(dry.peak_extent());
      Arena exact(block.base(), dry.peak_extent());
      arena_step(exact, seed, gradient_type);
      CHECK(exact.peak_extent() == dry.peak_extent());
      CHECK(exact.peak().bytes == dry.peak().bytes);
      // The block is never larger than the bytes in use at once: at the peak nothing lies between the stack
      // and the committed gradients.
      CHECK(dry.peak_extent() == dry.peak().total());
      Arena small(block.base(), dry.peak_extent() - 1);
      CHECK_THROWS_AS(arena_step(small, seed, gradient_type), OutOfMemory);
    }
}

TEST_CASE("Arena: committed gradients hold every requested element and never overlap the stack", "[memory]") {
  for (DType dtype : {DType::f32, DType::bf16})
    for (std::int64_t elements : {1, 127, 128, 129, 1000})
      for (std::int64_t slack : {std::int64_t{0}, std::int64_t{100}, kUnit}) {
        const std::int64_t capacity = 20 * kUnit + slack;
        for (std::int64_t first = 0; first < elements; ++first) {
          Block block(capacity);
          Arena arena(block.base(), capacity);
          const Tensor gradients = arena.overlay_gradients(dtype, elements);
          REQUIRE(gradients.size() == elements);
          arena.commit_gradients(first);
          // Fill the stack to the last byte that the arena gives.
          std::int64_t stack_end = 0;
          try {
            while (true) {
              const Tensor t = arena.push(Segment::activations, DType::e4m3, 1, kUnit);
              stack_end = offset(block, t) + kUnit;
            }
          } catch (const OutOfMemory&) {
          }
          const std::int64_t start = offset(block, gradients) + bytes_of(dtype, first);
          REQUIRE(stack_end <= start);
          REQUIRE(start - stack_end < kUnit);  // at most one unit is wasted
          REQUIRE(offset(block, gradients) + gradients.bytes() <= capacity);
        }
      }
}

TEST_CASE("Arena: committed gradients count once and only grow until released", "[memory]") {
  Block block(40 * kUnit);
  Arena arena(block.base(), block.size);
  arena.overlay_gradients(DType::bf16, 10 * 128);  // 10 units
  CHECK(arena.current().total() == 0);
  arena.commit_gradients(7 * 128);
  CHECK(bytes(arena.current(), Segment::gradients) == 3 * kUnit);
  arena.commit_gradients(8 * 128);  // already committed
  CHECK(bytes(arena.current(), Segment::gradients) == 3 * kUnit);
  arena.commit_gradients(0);
  CHECK(bytes(arena.current(), Segment::gradients) == 10 * kUnit);
  arena.release_gradients();
  CHECK(arena.current().total() == 0);
  CHECK(bytes(arena.peak(), Segment::gradients) == 10 * kUnit);
}

TEST_CASE("Arena: gradients that would overlap the stack throw OutOfMemory", "[memory]") {
  Block block(10 * kUnit);
  Arena arena(block.base(), block.size);
  arena.overlay_gradients(DType::f32, 6 * 64);
  arena.push(Segment::activations, DType::e4m3, 1, 6 * kUnit);
  arena.commit_gradients(2 * 64);  // 4 units: exactly full
  CHECK_THROWS_AS(arena.commit_gradients(1 * 64), OutOfMemory);
  CHECK(arena.current().total() == 10 * kUnit);
}
