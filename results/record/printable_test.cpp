// Sanitizing of hostile texts.
#include "results/record/printable.h"

#include "kernels/testing/catch.h"

using namespace precbench;

TEST_CASE("printable: visible text is unchanged", "[printable]") {
  for (const char* text : {"", "plain", "größer", "4 × 2 → 8", "日本語", "\U0001F600", "a\\|<b>"})
    CHECK(printable(text) == text);
  CHECK(printable(std::string("a\0b", 3)) == "a b");
}

TEST_CASE("printable: terminal control characters become spaces", "[printable]") {
  CHECK(printable("\x1b[2Jline\nbreak\r\ttab\x7f") == " [2Jline break  tab ");
  CHECK(printable("\u0080a\u009b31mred\u009f") == " a 31mred ");  // C1: an escape sequence in one character
  CHECK(printable("a\u2028b\u2029c") == "a b c");
  CHECK(printable("\u202eevil\u202c \u2066x\u2069\u200e\u200f\u061c") == " evil   x    ");
}

TEST_CASE("printable: GitHub Actions log commands are broken by spaces", "[printable]") {
  CHECK(printable("##[error]x ##[group]") == "## [error]x ## [group]");
  CHECK(printable("###[##[#[") == "### [## [#[");
  CHECK(printable("::error file=a::x") == ": :error file=a::x");
  CHECK(printable("cannot read ::stop-commands::t") == "cannot read : :stop-commands::t");
  CHECK(printable("\t::warning::") == " : :warning::");
  CHECK(printable("\u3000::debug::x") == "\u3000: :debug::x");
  CHECK(printable("::::error::x") == ": : : :error::x");
  for (const char* text : {"std::vector", "a: b", "fe80::1", "# [x]", "##x[1]", ":", "[::1]:29501"})
    CHECK(printable(text) == text);
  // Removing an invisible character or replacing a noncharacter must not form a command.
  CHECK(printable("#\u200b#[x] :\u200b:x") == "# #[x] : :x");
  CHECK(printable("##\xff[x]") == "##\uFFFD[x]");
}

TEST_CASE("printable: invisible characters become spaces", "[printable]") {
  for (const char* hidden :
       {"\u00ad", "\u034f", "\u115f", "\u180e", "\u200b", "\u200c", "\u200d", "\u2060", "\u2064", "\u3164",
        "\ufe0f", "\ufeff", "\ufff9", "\U000e0001", "\U000e0041", "\U000e01ef"}) {
    INFO(hidden);
    CHECK(printable("bf" + std::string(hidden) + "16") == "bf 16");
  }
  // Neighbouring visible characters are kept.
  for (const char* seen :
       {"\u00ac", "\u00ae", "\u200a", "\u2010", "\u2027", "\u2070", "\ufe10", "\ufffc", "\U000dfffd"})
    CHECK(printable(seen) == seen);
}

TEST_CASE("printable: invalid UTF-8 becomes the replacement character", "[printable]") {
  const std::string r = "\uFFFD";
  CHECK(printable("a\xff"
                  "b") == "a" + r + "b");
  CHECK(printable("\x9b"
                  "31m") == r + "31m");  // C1 of Latin-1
  CHECK(printable("cut \xe2\x82") == "cut " + r + r);
  CHECK(printable("\xc0\x9b") == r + r);  // U+001B, overlong
  CHECK(printable("\xe0\x80\x9b") == r + r + r);
  CHECK(printable("\xf0\x80\x80\x9b") == r + r + r + r);
  CHECK(printable("\xed\xa0\x80") == r + r + r);  // half of a surrogate pair
  CHECK(printable("\xf4\x90\x80\x80") == r + r + r + r);
  CHECK(printable("\xef\xbf\xbe\xef\xbf\xbf") == r + r);  // U+FFFE and U+FFFF
  CHECK(printable(r) == r);
}
