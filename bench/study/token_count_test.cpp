// Numbers of tokens as people write them.
#include "bench/study/token_count.h"

#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"

using namespace precbench;

TEST_CASE("parse_token_count: plain numbers and exponents and suffixes", "[study]") {
  CHECK(parse_token_count("2T") == 2'000'000'000'000);
  CHECK(parse_token_count("2t") == 2'000'000'000'000);
  CHECK(parse_token_count("300B") == 300'000'000'000);
  CHECK(parse_token_count("1.5e9") == 1'500'000'000);
  CHECK(parse_token_count("0.5M") == 500'000);
  CHECK(parse_token_count("10k") == 10'000);
  CHECK(parse_token_count("1") == 1);
}

TEST_CASE("parse_token_count: other text and numbers out of range are refused", "[study]") {
  for (const char* text : {"", "T", "2TB", "two", "2 T", "1e9x", "-", "0.1", "1e300", "nan", "inf"})
    CHECK(refusal_of([&] { parse_token_count(text); }) ==
          "\"" + std::string(text) + "\" is not a number of tokens, such as 300B, 2T or 1.5e9");
  for (const char* text : {"0", "-2T", "9001T"})
    CHECK(refusal_of([&] { parse_token_count(text); }) == std::string(text) + " is not in [1, 9e+15]");
}
