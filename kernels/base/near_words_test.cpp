// Tests the candidates for mistyped words.
#include "kernels/base/near_words.h"

#include "kernels/base/errors.h"
#include "kernels/testing/catch.h"

using namespace precbench;

TEST_CASE("edit_distance: insertions, deletions, replacements and swaps of neighbours", "[errors]") {
  CHECK(edit_distance("fsdp", "FSDP") == 0);
  CHECK(edit_distance("fdsp", "fsdp") == 1);
  CHECK(edit_distance("fdsp", "ddp") == 2);
  CHECK(edit_distance("", "abc") == 3);
  CHECK(edit_distance("abc", "") == 3);
  CHECK(edit_distance("kitten", "sitting") == 3);
  CHECK(edit_distance("ab", "ba") == 1);
}

TEST_CASE("nearest: a swap is nearer than a deletion with a replacement", "[errors]") {
  CHECK(nearest("fdsp", {"ddp", "fsdp", "hsdp"}) == "fsdp");
  CHECK(nearest("mxpf8", {"mxfp8", "mxfp4"}) == "mxfp8");
}

TEST_CASE("nearest_strictly: half of the letters wrong is no typo", "[errors]") {
  CHECK(nearest("device", {"recipe"}) == "recipe");
  CHECK(nearest_strictly("device", {"recipe"}).empty());
  CHECK(nearest_strictly("reciep", {"recipe"}) == "recipe");
  CHECK(nearest_strictly("float8", {"coat"}).empty());
  CHECK(nearest_strictly("checkpoint", {"checkpoint-every"}) == "checkpoint-every");
}

TEST_CASE("nearest_few: the nearest first, whatever the word", "[errors]") {
  const std::vector<std::string> words = {"bf16", "mxfp8", "mxfp8_even", "nvfp4"};
  CHECK(nearest_few("mxfp9", words, 2) == std::vector<std::string>{"mxfp8", "nvfp4"});
  CHECK(nearest_few("x", {"y"}, 3) == std::vector<std::string>{"y"});
  CHECK(nearest_few(std::string(100'000, 'x'), words, 3).size() == 3);
}

TEST_CASE("joined_with_or: a sentence's list", "[errors]") {
  CHECK(joined_with_or({}).empty());
  CHECK(joined_with_or({"a"}) == "a");
  CHECK(joined_with_or({"a", "b"}) == "a or b");
  CHECK(joined_with_or({"a", "b", "c"}) == "a, b or c");
}
