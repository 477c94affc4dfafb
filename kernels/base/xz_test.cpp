// Unpacking xz data: whole, in pieces, damaged, truncated and inflated.
#include "kernels/base/xz.h"

#include <algorithm>
#include <string>

#include "kernels/base/errors.h"
#include "kernels/base/xz_testing.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"

namespace precbench {
namespace {

using testing::packed_with_xz;

/// Unpacks `data`, of which the source returns at most `piece` bytes at a time and the reader `block`.
std::string unpacked(const std::string& data, std::size_t piece = 1000, std::size_t block = 777) {
  const std::size_t begun = std::min(kXzMagicBytes, data.size());
  std::size_t at = begun;
  XzReader reader("r.jsonl.xz", data.substr(0, begun), [&](char* to, std::size_t most) {
    const std::size_t count = std::min({piece, most, data.size() - at});
    std::copy_n(data.data() + at, count, to);
    at += count;
    return count;
  });
  std::string text, part(block, '\0');
  for (std::size_t count; (count = reader.read(part.data(), block)) > 0;) text.append(part, 0, count);
  return text;
}

std::string numbers(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += std::to_string(i * i) + "\n";
  return text;
}

TEST_CASE("XzReader: returns what was packed, whatever the sizes of pieces and blocks", "[xz]") {
  const std::string text = numbers(5000);
  for (const std::string& data : {packed_with_xz(text), packed_with_xz(text, 9)})
    for (const std::size_t piece : {std::size_t{1}, std::size_t{4096}})
      for (const std::size_t block : {std::size_t{1}, std::size_t{100'000}})
        CHECK(unpacked(data, piece, block) == text);
  CHECK(unpacked(packed_with_xz("")).empty());
  CHECK(unpacked(packed_with_xz(text) + packed_with_xz("end")) == text + "end");  // xz -c a >>b
}

TEST_CASE("XzReader: truncated and damaged data are refused by name, wherever the fault is", "[xz]") {
  const std::string text = numbers(2000), data = packed_with_xz(text);
  for (std::size_t bytes = kXzMagicBytes; bytes < data.size(); bytes += 97) {
    INFO(bytes);
    CHECK(contains(refusal_of([&] { unpacked(data.substr(0, bytes)); }),
                   "r.jsonl.xz: truncated xz data: the file ends after "));
  }
  int refused = 0;
  for (std::size_t at = kXzMagicBytes; at < data.size(); at += 101) {
    std::string wrong = data;
    wrong[at] = static_cast<char>(wrong[at] ^ 0x10);
    INFO(at);
    const std::string why = refusal_of([&] { unpacked(wrong); });
    CHECK(why.starts_with("r.jsonl.xz: "));
    ++refused;
  }
  CHECK(refused > 10);
  CHECK(contains(refusal_of([&] { unpacked(data + "{\"more\": \"than a header\"}"); }),
                 "r.jsonl.xz: damaged xz data, found "));
}

TEST_CASE("XzReader: a bomb is refused after at most 64 MiB more than 500 times its size", "[xz]") {
  const std::string bomb = packed_with_xz(std::string(std::size_t{66} << 20, '0'), 0);
  CHECK(bomb.size() < 20'000);
  CHECK(refusal_of([&] { unpacked(bomb, 64, 1 << 16); }) ==
        "r.jsonl.xz: unpacks to more than 500 times its size, which no records do");
  // Little of it is no bomb.
  CHECK(unpacked(packed_with_xz(std::string(1 << 20, '0')), 64, 1 << 16).size() == 1 << 20);
}

TEST_CASE("XzReader: a dictionary larger than that of xz -9 is refused", "[xz]") {
  lzma_options_lzma options;
  REQUIRE(!lzma_lzma_preset(&options, 0));
  options.dict_size = std::uint32_t{1} << 28;
  const lzma_filter filters[] = {{LZMA_FILTER_LZMA2, &options}, {LZMA_VLI_UNKNOWN, nullptr}};
  std::string data(1000, '\0');
  std::size_t bytes = 0;
  const std::uint8_t text[] = "{}\n";
  REQUIRE(lzma_stream_buffer_encode(const_cast<lzma_filter*>(filters), LZMA_CHECK_CRC32, nullptr, text, 3,
                                    reinterpret_cast<std::uint8_t*>(data.data()), &bytes,
                                    data.size()) == LZMA_OK);
  data.resize(bytes);
  CHECK(
      refusal_of([&] { unpacked(data); }) ==
      "r.jsonl.xz: unpacking it takes 257 MiB of memory, and at most 128 are used; pack it again with xz -9");
}

TEST_CASE("is_xz: six bytes tell, and fewer may", "[xz]") {
  const std::string data = packed_with_xz("");
  CHECK(is_xz(data));
  CHECK_FALSE(is_xz(data.substr(0, 5)));
  CHECK(may_be_xz(data.substr(0, 5)));
  CHECK_FALSE(may_be_xz("{"));
  CHECK_FALSE(is_xz("{\"schema\": 2}"));
}

}  // namespace
}  // namespace precbench
