// scale_layout.h: every scale has its own position inside the buffer, and known positions of each layout.
#include "kernels/numerics/scale_layout.h"

#include <set>

#include "kernels/testing/catch.h"

using namespace precbench;

namespace {

constexpr Granularity kAll[] = {Granularity::tensor,        Granularity::row,        Granularity::block_1x128,
                                Granularity::block_128x128, Granularity::block_1x32, Granularity::block_1x16,
                                Granularity::block_32x32,   Granularity::block_16x16};

}  // namespace

TEST_CASE("scale_index: every row and block has a distinct position inside the buffer", "[scale_layout]") {
  for (Granularity g : kAll) {
    for (std::int64_t rows : {1, 5, 32, 127, 128, 129, 300}) {
      for (std::int64_t k : {16, 32, 100, 128, 160, 512, 640}) {
        const std::int64_t step = g == Granularity::block_128x128 ? 128 : g == Granularity::tensor ? rows : 1;
        const std::int64_t count = scale_count(g, rows, k);
        std::set<std::int64_t> slots;
        std::int64_t scales = 0;
        for (std::int64_t r = 0; r < rows; r += step) {
          for (std::int64_t kb = 0; kb < scale_blocks(g, k); ++kb) {
            const std::int64_t slot = scale_index(g, rows, k, r, kb);
            REQUIRE((slot >= 0 && slot < count));
            slots.insert(slot);
            ++scales;
          }
        }
        INFO("granularity " << static_cast<int>(g) << " rows " << rows << " k " << k);
        CHECK(static_cast<std::int64_t>(slots.size()) == scales);
      }
    }
  }
}

TEST_CASE("scale_index: 128 rows share a 128x128 scale", "[scale_layout]") {
  constexpr Granularity g = Granularity::block_128x128;
  CHECK(scale_index(g, 300, 384, 127, 2) == scale_index(g, 300, 384, 0, 2));
  CHECK(scale_index(g, 300, 384, 128, 2) != scale_index(g, 300, 384, 127, 2));
}

TEST_CASE("scale_count: buffer sizes include cuBLASLt's padding", "[scale_layout]") {
  CHECK(scale_count(Granularity::none, 100, 300) == 0);
  CHECK(scale_count(Granularity::tensor, 100, 300) == 1);
  CHECK(scale_count(Granularity::row, 100, 300) == 100);
  CHECK(scale_count(Granularity::block_1x128, 101, 300) == 3 * 104);
  CHECK(scale_count(Granularity::block_128x128, 300, 300) == 3 * 4);
  CHECK(scale_count(Granularity::block_128x128, 300, 128 * 5) == 3 * 8);
  CHECK(scale_count(Granularity::block_1x32, 100, 96) == 128 * 4);
  CHECK(scale_count(Granularity::block_1x32, 129, 160) == 256 * 8);
  CHECK(scale_count(Granularity::block_1x16, 128, 160) == 128 * 12);
}

TEST_CASE("scale_index: known positions of each layout", "[scale_layout]") {
  CHECK(scale_index(Granularity::tensor, 100, 300, 99, 0) == 0);
  CHECK(scale_index(Granularity::row, 100, 300, 99, 0) == 99);
  CHECK(scale_index(Granularity::block_1x128, 101, 300, 7, 2) == 2 * 104 + 7);
  CHECK(scale_index(Granularity::block_128x128, 300, 640, 256, 4) == 2 * 8 + 4);

  constexpr Granularity mx = Granularity::block_1x32;
  CHECK(scale_index(mx, 256, 256, 0, 3) == 3);
  CHECK(scale_index(mx, 256, 256, 1, 0) == 16);
  CHECK(scale_index(mx, 256, 256, 31, 0) == 496);
  CHECK(scale_index(mx, 256, 256, 32, 0) == 4);
  CHECK(scale_index(mx, 256, 256, 127, 3) == 511);
  CHECK(scale_index(mx, 256, 256, 0, 4) == 512);     // the next tile lies along the contraction
  CHECK(scale_index(mx, 256, 256, 128, 0) == 1024);  // 8 blocks are two tiles per tile row
  CHECK(scale_index(Granularity::block_1x16, 256, 128, 128, 0) == 1024);
}
