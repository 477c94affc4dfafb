// Text that is a number, is none, or does not fit.
#include "kernels/base/parse_number.h"

#include <cstdint>

#include "kernels/testing/catch.h"

namespace precbench {
namespace {

TEST_CASE("parse_number: a whole number in range is parsed", "[parse_number]") {
  CHECK(parse_number<std::int64_t>("-42") == -42);
  CHECK(parse_number<double>("1.5e3") == 1500);
}

TEST_CASE("parse_number: other text and numbers out of range are null", "[parse_number]") {
  for (const char* text : {"", " 1", "1 ", "+1", "1x", "x", "0x10", "1.5", "9223372036854775808"}) {
    INFO(text);
    CHECK(!parse_number<std::int64_t>(text));
  }
  for (const char* text : {"", "1.5.", "+1.5", "1e999"}) {
    INFO(text);
    CHECK(!parse_number<double>(text));
  }
}

}  // namespace
}  // namespace precbench
