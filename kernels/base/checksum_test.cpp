// The checksum against known sums, and the changes that it must detect.
#include "kernels/base/checksum.h"

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "kernels/testing/catch.h"

using namespace precbench;

namespace {

std::string noise(std::size_t bytes) {
  std::mt19937 draw(5);
  std::string text(bytes, '\0');
  for (char& c : text) c = static_cast<char>(draw());
  return text;
}

std::uint64_t sum_of(const std::string& bytes) {
  return checksum(bytes.data(), static_cast<std::int64_t>(bytes.size()));
}

}  // namespace

TEST_CASE("checksum: known sums stored in checkpoints never change", "[checksum]") {
  CHECK(sum_of("") == 0x2aa4e68b77282b00u);
  CHECK(sum_of("a") == 0x499cb855d6fa754fu);
  CHECK(sum_of(std::string(64, '\0')) == 0x077dde51ec37eeecu);
  CHECK(sum_of(noise(1000)) == 0x864317c2837d069bu);
}

TEST_CASE("checksum: detects every flipped bit at any length and alignment", "[checksum]") {
  const std::string all = noise(300);
  for (const std::size_t bytes : {1, 7, 8, 63, 64, 65, 200, 300}) {
    const std::string text = all.substr(0, bytes);
    std::set<std::uint64_t> sums = {sum_of(text)};
    for (std::size_t bit = 0; bit < 8 * bytes; ++bit) {
      std::string flipped = text;
      flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
      sums.insert(sum_of(flipped));
    }
    CHECK(sums.size() == 8 * bytes + 1);
    for (std::size_t shift = 1; shift < 8; ++shift) {
      const std::string moved = std::string(shift, 'x') + text;
      CHECK(checksum(moved.data() + shift, static_cast<std::int64_t>(bytes)) == sum_of(text));
    }
  }
}

TEST_CASE("checksum: no two flipped bits cancel", "[checksum]") {
  std::string text = noise(2 * 64 + 11);
  const auto flip = [&](std::size_t bit) {
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << bit % 8));
  };
  std::vector<std::uint64_t> sums = {sum_of(text)};
  for (std::size_t one = 0; one < 8 * text.size(); ++one) {
    flip(one);
    sums.push_back(sum_of(text));
    for (std::size_t other = 0; other < one; ++other) {
      flip(other);
      sums.push_back(sum_of(text));
      flip(other);
    }
    flip(one);
  }
  std::sort(sums.begin(), sums.end());
  CHECK(std::adjacent_find(sums.begin(), sums.end()) == sums.end());
}

TEST_CASE("checksum: detects typical disk and program damage to floats", "[checksum]") {
  const std::string text = noise(4096);
  std::set<std::uint64_t> sums = {sum_of(text)};
  const auto changed = [&](const std::string& what, const std::string& other) {
    INFO(what);
    CHECK(sums.insert(sum_of(other)).second);
  };
  std::string other = text;
  for (std::size_t i = 3; i < other.size(); i += 4) other[i] = static_cast<char>(other[i] ^ 0x80);
  changed("every sign turned", other);
  // Pairs of sign flips: in consecutive words of one lane, and in neighbouring words.
  for (const std::size_t apart : {4, 8, 64, 128, 512}) {
    other = text;
    other[7] = static_cast<char>(other[7] ^ 0x80);
    other[7 + apart] = static_cast<char>(other[7 + apart] ^ 0x80);
    changed("two signs turned", other);
  }
  for (const std::size_t apart : {4, 8, 64, 512}) {
    other = text;
    std::swap_ranges(other.begin(), other.begin() + 4, other.begin() + static_cast<std::ptrdiff_t>(apart));
    changed("two floats exchanged", other);
  }
  other = text;
  std::fill(other.begin() + 512, other.begin() + 1024, '\0');
  changed("a sector of zeros", other);
  for (std::size_t bytes = 0; bytes < 200; ++bytes) changed("zeros alone", std::string(bytes, '\0'));
  changed("shorter", text.substr(0, 4095));
  changed("longer", text + '\0');
}
