// Tests whole numbers and durations as people write them.
#include "kernels/base/parse_count.h"

#include <limits>

#include "kernels/testing/catch.h"

using namespace precbench;

TEST_CASE("parse_count: digits, fractions, exponents and suffixes, exactly", "[parse]") {
  const auto value = [](const char* text) { return parse_count(text).value().value; };
  CHECK(value("0") == 0);
  CHECK(value("8192") == 8192);
  CHECK(value("-5") == -5);
  CHECK(value("1e3") == 1000);
  CHECK(value("1E+3") == 1000);
  CHECK(value("1.5e3") == 1500);
  CHECK(value("1000e-3") == 1);
  CHECK(value("1.5k") == 1500);
  CHECK(value("8K") == 8000);
  CHECK(value("300B") == 300'000'000'000);
  CHECK(value("1T") == 1'000'000'000'000);
  CHECK(value("1e12") == 1'000'000'000'000);
  CHECK(value("0.3t") == 300'000'000'000);
  CHECK(value("9007199254740993") == 9007199254740993);  // no double
  CHECK(value("9223372036854775807") == std::numeric_limits<std::int64_t>::max());
}

TEST_CASE("parse_count: anything else is no whole number", "[parse]") {
  for (const char* text : {"",     "-",   "e3",   "1e",  "1e+", "1.",    "1.5",  "2.5001k",
                           "k",    "8kk", "8 k",  " 8",  "8 ",  "+8",    "1e31", "9223372036854775808",
                           "1e19", "10s", "0x10", "inf", "nan", "1,000", "1e-1"}) {
    INFO(text);
    CHECK(!parse_count(text));
  }
  CHECK(!parse_count(std::string(100'000, '9')));
  CHECK(!parse_count("0." + std::string(100'000, '0') + "1"));
}

TEST_CASE("plain_forms: both meanings of a suffix", "[parse]") {
  CHECK(plain_forms("8k") == "8192 or 8000");
  CHECK(plain_forms("1.5K") == "1536 or 1500");
  CHECK(plain_forms("1.3k") == "1300");  // 1331.2 is not whole
  CHECK(plain_forms("1M") == "1048576 or 1000000");
  CHECK(plain_forms("2B") == "2000000000");
  CHECK(!plain_forms("8192"));
  CHECK(!plain_forms("8q"));
  CHECK(parse_whole("1e3") == 1000);
  CHECK(!parse_whole("8k"));
}

TEST_CASE("parse_seconds: numbers with and without a unit", "[parse]") {
  CHECK(parse_seconds("90") == 90);
  CHECK(parse_seconds("10s") == 10);
  CHECK(parse_seconds("1e2") == 100);
  CHECK(parse_seconds("0.5") == 0.5);
  CHECK(parse_seconds("2m") == 120);
  CHECK(parse_seconds("2min") == 120);
  CHECK(parse_seconds("1.5h") == 5400);
  CHECK(parse_seconds("1d") == 86400);
  CHECK(parse_seconds("500ms") == 0.5);
  CHECK(parse_seconds("-1") == -1);
  for (const char* text : {"", "s", "10 s", "10x", "inf", "nan", "1e400", "ten"}) {
    INFO(text);
    CHECK(!parse_seconds(text));
  }
}
