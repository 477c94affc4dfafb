// Checksums by block: written in any parts, verified in any others.
#include "bench/step/block_sums.h"

#include <algorithm>

#include "kernels/base/errors.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"

using namespace precbench;

namespace {

using Bytes = std::vector<std::byte>;

Bytes ramp(std::int64_t bytes) {
  Bytes values(static_cast<std::size_t>(bytes));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::byte>(i * i >> 7);
  return values;
}

/// Returns the sums of a tensor "w" whose writers' parts end at these bytes.
BlockSums summed(const Bytes& values, const std::vector<std::int64_t>& ends) {
  BlockSums all;
  std::int64_t first = 0;
  for (const std::int64_t end : ends) {
    BlockSums part;
    part.add("w", first, values.data() + first, end - first);
    all.add(std::move(part));
    first = end;
  }
  return all;
}

}  // namespace

TEST_CASE("BlockSums: a reader of any part finds damage in the blocks that overlap it", "[checksum]") {
  const std::int64_t bytes = 2 * kBlockBytes + 10;
  Bytes values = ramp(bytes);
  const std::int64_t middle = kBlockBytes + 6;  // where one writer ended, not at a block boundary
  const BlockSums sums = summed(values, {middle, bytes});
  REQUIRE(sums.cover("w", bytes));
  const auto damaged = [&](std::int64_t at, std::int64_t begin, std::int64_t end) {
    values[at] ^= std::byte{1};
    const BlockSums::Range found = sums.damaged("w", values.data(), {begin, end});
    values[at] ^= std::byte{1};
    CHECK(sums.damaged("w", values.data(), {begin, end}).empty());
    return std::pair(found.begin, found.end);
  };
  using Found = std::pair<std::int64_t, std::int64_t>;
  const Found none{0, 0}, head{0, kBlockBytes}, rest{kBlockBytes, middle}, next{middle, middle + kBlockBytes},
      last{middle + kBlockBytes, bytes};
  CHECK(damaged(0, 0, bytes) == head);
  CHECK(damaged(kBlockBytes + 5, 0, bytes) == rest);
  CHECK(damaged(middle, 0, bytes) == next);
  CHECK(damaged(bytes - 1, 0, bytes) == last);
  // Parts of blocks: damage elsewhere in an overlapping block counts, damage in other blocks does not.
  CHECK(damaged(0, kBlockBytes - 1, kBlockBytes) == head);
  CHECK(damaged(0, kBlockBytes, bytes) == none);
  CHECK(damaged(middle, middle + 100, middle + 104) == next);
  CHECK(damaged(middle, kBlockBytes, middle) == none);
  CHECK(damaged(bytes - 1, 0, middle + kBlockBytes) == none);
  CHECK(damaged(bytes - 1, middle, middle + kBlockBytes + 1) == last);
  CHECK(damaged(0, 5, 5) == none);
  const BlockSums::Range around = sums.around("w", {middle + 5, middle + kBlockBytes + 1});
  CHECK(std::pair(around.begin, around.end) == Found{middle, bytes});
  const BlockSums::Range unknown = sums.around("other", {3, 9});
  CHECK(std::pair(unknown.begin, unknown.end) == Found{3, 9});
}

TEST_CASE("BlockSums: cover() requires every byte of the tensor", "[checksum]") {
  const Bytes values = ramp(2 * kBlockBytes);
  const std::int64_t bytes = 2 * kBlockBytes, part = kBlockBytes / 2;
  CHECK(summed(values, {part, bytes}).cover("w", bytes));
  CHECK(!summed(values, {part, bytes}).cover("w", bytes - 1));
  CHECK(!summed(values, {part, bytes - 1}).cover("w", bytes));
  BlockSums gap;
  gap.add("w", 0, values.data(), part);
  gap.add("w", part + 1, values.data(), part);
  CHECK(!gap.cover("w", 2 * part + 1));
  CHECK(!BlockSums("sums", "ff 0 5 2 9223372036854775807 0 w\n").cover("w", 5));
  CHECK(!gap.cover("other", 1));
  CHECK(gap.cover("other", 0));
}

TEST_CASE("BlockSums: writers of columns have one sum per block, not per row", "[checksum][tensor]") {
  constexpr std::int64_t kRow = 10, kRows = 7, kLeft = 6, bytes = kRows * kRow;  // columns 0 to 5, and 6 to 9
  Bytes values = ramp(bytes);
  const auto add_columns = [&](BlockSums& sums, std::int64_t first, std::int64_t width, std::int64_t from,
                               std::int64_t end) {
    const ElementMap place = ElementMap(first, width, kRow).from(from);
    Bytes own;
    for (std::int64_t i = 0; i < end - from; ++i) own.push_back(values[place.of(i)]);
    sums.add("w", place, own.data(), end - from);
  };
  BlockSums sums;
  add_columns(sums, 0, kLeft, 0, 20);  // two shards, the first of which ends inside the fourth row
  add_columns(sums, 0, kLeft, 20, kRows * kLeft);
  CHECK(!sums.cover("w", bytes));
  BlockSums right;
  add_columns(right, kLeft, kRow - kLeft, 0, kRows * (kRow - kLeft));
  sums.add(std::move(right));
  CHECK(sums.cover("w", bytes));
  CHECK(!sums.cover("w", bytes - 1));
  CHECK(!sums.cover("w", bytes + 1));
  const std::string text = sums.text();
  CHECK(std::count(text.begin(), text.end(), '\n') == 3);
  CHECK(contains(text, " 32 22 6 10 2 w\n"));
  const BlockSums read("sums", text);
  CHECK(read.text() == text);
  CHECK(read.cover("w", bytes));
  const auto damaged = [&](std::int64_t at, std::int64_t begin, std::int64_t end) {
    values[at] ^= std::byte{1};
    const BlockSums::Range found = read.damaged("w", values.data(), {begin, end});
    values[at] ^= std::byte{1};
    CHECK(read.damaged("w", values.data(), {begin, end}).empty());
    return std::pair(found.begin, found.end);
  };
  using Found = std::pair<std::int64_t, std::int64_t>;
  for (std::int64_t at = 0; at < bytes; ++at) {
    const bool on_left = at % kRow < kLeft;
    const Found block = !on_left ? Found{6, 70} : at < 32 ? Found{0, 32} : Found{32, 66};
    INFO("byte " << at);
    CHECK(damaged(at, 0, bytes) == block);
    CHECK(damaged(at, at, at + 1) == block);
  }
  CHECK(damaged(0, 32, 40) == Found{0, 0});  // of a block that ends before
  const BlockSums::Range around = read.around("w", {40, 41});
  CHECK(std::pair(around.begin, around.end) == Found{6, 70});
  // Sums of single rows, which earlier versions wrote, are read as before.
  BlockSums rows;
  for (std::int64_t row = 0; row < bytes; row += kRow) {
    rows.add("w", row, values.data() + row, kLeft);
    rows.add("w", row + kLeft, values.data() + row + kLeft, kRow - kLeft);
  }
  const BlockSums old("sums", rows.text());
  CHECK(old.cover("w", bytes));
  CHECK(old.damaged("w", values.data(), {0, bytes}).empty());
  // One byte in two blocks, rows apart, and none in any.
  BlockSums twice;
  add_columns(twice, 0, kLeft, 0, kRows * kLeft);
  add_columns(twice, kLeft - 1, kRow - kLeft + 1, 0, kRows * (kRow - kLeft + 1));
  CHECK(!twice.cover("w", bytes));
  CHECK(!twice.cover("w", bytes + kRows));
}

TEST_CASE("BlockSums: text() can be parsed again and other text is refused", "[checksum]") {
  const Bytes values = ramp(kBlockBytes + 9);
  BlockSums sums = summed(values, {100, kBlockBytes + 9});
  sums.add("m/a tensor", 0, values.data(), 5);
  const std::string text = sums.text();
  CHECK(BlockSums("sums", text).text() == text);
  CHECK(text.ends_with(" 100 4194213 w\n"));
  const auto refusal = [](const std::string& damaged) {
    return refusal_of([&] { BlockSums("a/sums", damaged); });
  };
  const std::string line = "00000000000000ff 0 5 w\n",
                    why = "a/sums: damaged: not the checksums of a checkpoint";
  CHECK(refusal("") == "");
  CHECK(refusal(line) == "");
  for (const char* damaged :
       {"00000000000000ff 0 5 w", "0 5 w\n", "ff 0 5 \n", "ff 0 5\n", "ff -1 5 w\n", "ff 0 -5 w\n",
        "xx 0 5 w\n", "ff 0 99999999999999999999 w\n", "100000000000000ff 0 5 w\n", "\n", "ff 0 5 2 3 w\n",
        "ff 0 5 2 3 2 w\n", "ff 0 5 3 2 0 w\n", "ff 0 5 -2 3 0 w\n", "ff 0 5 2 3 0 \n"}) {
    INFO(damaged);
    CHECK(refusal(damaged) == why);
  }
  CHECK(refusal(line + line) == why);
}
