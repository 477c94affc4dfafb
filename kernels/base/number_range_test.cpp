// Numbers of files outside their range are refused with the range, before they are converted.
#include "kernels/base/number_range.h"

#include <nlohmann/json.hpp>
#include <string>

#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"

namespace precbench {
namespace {

using Json = nlohmann::json;

std::string refused(const std::string& text, const NumberRange& range) {
  return refusal_of([&] { number_within(Json::parse(text), range, "FILE: key"); });
}
std::string refused_integer(const std::string& text, const NumberRange& range) {
  return refusal_of([&] { integer_within(Json::parse(text), range, "FILE: key"); });
}

TEST_CASE("number_within: accepts the range with its ends and names it otherwise", "[untrusted]") {
  constexpr NumberRange kRange{0.5, 1e12};
  for (const char* text : {"0.5", "1", "1e12", "1000000000000"}) CHECK(refused(text, kRange).empty());
  CHECK(refused("0.25", kRange) == "FILE: key: 0.25 is not a number from 0.5 to 1e+12");
  for (const char* text :
       {"0", "-1", "1e13", "1e308", "18446744073709551615", "null", "true", "\"1\"", "[1]"})
    CHECK(contains(refused(text, kRange), "is not a number from 0.5 to 1e+12"));
  CHECK(contains(refused('"' + std::string(5000, 'a') + '"', kRange), "FILE: key: a long string is not"));
}

TEST_CASE("integer_within: accepts whole numbers of any spelling", "[untrusted]") {
  constexpr NumberRange kRange{1, 1048576};
  CHECK(integer_within(Json::parse("8"), kRange, "x") == 8);
  CHECK(integer_within(Json::parse("8.0"), kRange, "x") == 8);
  CHECK(integer_within(Json::parse("1.048576e6"), kRange, "x") == 1048576);
  CHECK(refused_integer("235000000000", kRange) ==
        "FILE: key: 235000000000 is not a whole number from 1 to 1048576");
  for (const char* text : {"0", "-1", "1.5", "1048577", "1e300", "9223372036854775808", "\"8\"", "null"})
    CHECK(contains(refused_integer(text, kRange), "is not a whole number from 1 to 1048576"));
}

}  // namespace
}  // namespace precbench
