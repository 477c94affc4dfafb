// Parts of sequences: positions, balance of causal work, and rows in the matrix of all ranks.
#include "kernels/numerics/sequence_part.h"

#include <set>

#include "kernels/testing/catch.h"

using namespace precbench;

TEST_CASE("SequencePart: the ranks have every position once, in two ascending chunks", "[numerics]") {
  for (const int parts : {1, 2, 3, 4}) {
    const std::int64_t T = 24, B = 3;
    std::set<std::int64_t> seen;
    for (int index = 0; index < parts; ++index) {
      const SequencePart part{T, parts, index};
      CHECK(part.tokens() == T / parts);
      const RowMap map = part.rows(B);
      for (std::int64_t row = 0; row < B * part.tokens(); ++row) {
        CHECK(seen.insert(map.of(row)).second);
        if (parts == 1) continue;
        const std::int64_t half = row / (B * part.chunk()), b = row / part.chunk() % B,
                           t = row % part.chunk();
        CHECK(map.of(row) == b * T + part.start(static_cast<int>(half)) + t);
      }
    }
    CHECK(std::ssize(seen) == B * T);
    CHECK(*seen.begin() == 0);
    CHECK(*seen.rbegin() == B * T - 1);
  }
}

TEST_CASE("SequencePart: every rank has the same number of visible pairs", "[numerics]") {
  for (const int parts : {2, 3, 8}) {
    const std::int64_t T = 4 * 2 * parts;
    for (int index = 0; index < parts; ++index) {
      const SequencePart part{T, parts, index};
      std::int64_t pairs = 0;
      for (std::int64_t row = 0; row < part.tokens(); ++row) pairs += part.rows(1).of(row) + 1;
      CHECK(pairs == T * (T + 1) / 2 / parts);
    }
  }
}

TEST_CASE("SequencePart: rows count from the rank's first sequence", "[numerics]") {
  CHECK(SequencePart{16, 1, 0}.rows(2, 3).of(5) == 3 * 16 + 5);
  const RowMap late = SequencePart{16, 2, 1}.rows(2, 3);  // chunks of 4 from 4 and from 8
  CHECK(late.of(0) == 3 * 16 + 4);
  CHECK(late.of(4) == 4 * 16 + 4);
  CHECK(late.of(8) == 3 * 16 + 8);
  CHECK(late.of(15) == 4 * 16 + 11);
  CHECK(RowMap(7).of(2) == 9);
}
