// Fingerprints: changes that affect them and changes that do not.
#include "bench/case/fingerprint.h"

#include <filesystem>

#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"

using namespace precbench;

TEST_CASE("fingerprint_of: a file counts by content and not by time or path", "[fingerprint]") {
  const TempDirectory a, b;
  for (const std::size_t size : {std::size_t{100}, std::size_t{1000000}}) {
    INFO(size);
    std::string text(size, 'x');
    const std::string file = a.write("text.txt", text);
    const std::uint64_t before = fingerprint_of(file, "*");
    CHECK(fingerprint_of(b.write("copy.txt", text), "*") == before);
    std::filesystem::last_write_time(file,
                                     std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
    CHECK(fingerprint_of(file, "*") == before);
    for (const std::size_t place : {std::size_t{0}, size - 1}) {
      text[place] = 'y';
      CHECK(fingerprint_of(a.write("text.txt", text), "*") != before);
      text[place] = 'x';
    }
    CHECK(fingerprint_of(a.write("text.txt", text + "x"), "*") != before);
  }
}

TEST_CASE("fingerprint_of: a folder counts by the files that match the glob", "[fingerprint]") {
  const TempDirectory a;
  a.write("sub/one.txt", "1");
  const auto now = [&] { return fingerprint_of(a.path().string(), "*.txt"); };
  const std::uint64_t before = now();
  a.write("other.md", "2");
  CHECK(now() == before);
  a.write("two.txt", "");
  const std::uint64_t with_two = now();
  CHECK(with_two != before);
  a.write("sub/one.txt", "2");
  CHECK(now() != with_two);
  CHECK(fingerprint_of(a / "none", "*") == kFingerprintStart);
}
