// Tests lines that fit a terminal, character by character.
#include "results/text/lines.h"

#include "kernels/testing/catch.h"
#include "results/text/table.h"

using namespace precbench;

namespace {

constexpr Screen kNarrow{30, true};

}  // namespace

TEST_CASE("definition: beside its name, or below one that is too long", "[lines]") {
  CHECK(definition({"--seq N", "length of a sequence in tokens"}, 12, kNarrow) ==
        "  --seq N   length of a\n"
        "            sequence in tokens\n");
  CHECK(definition({"--recompute", "what is done again"}, 12, kNarrow) ==
        "  --recompute\n"
        "            what is done again\n");
  CHECK(definition({"--master fp32|bf16|bf16_sr|fp16", "dtype"}, 12, kNarrow) ==
        "  --master fp32|bf16|\n"
        "    bf16_sr|fp16\n"
        "            dtype\n");
}

TEST_CASE("definition: the kept end of a text is not broken", "[lines]") {
  const std::string text = "a flag (default 3e-4)";
  CHECK(definition({"--lr X", text}, 10, kNarrow, text.find(" (default")) ==
        "  --lr X  a flag\n"
        "          (default 3e-4)\n");
  CHECK(definition({"--lr X", text}, 10, {80, true}, text.find(" (default")) ==
        "  --lr X  a flag (default 3e-4)\n");
}

TEST_CASE("definitions: texts begin in one column, which leaves them half of the screen", "[lines]") {
  CHECK(definitions({{"a", "one"}, {"bcd", "two"}}, kNarrow) == "  a    one\n  bcd  two\n");
  CHECK(definitions({{"a", "one"}, {"a long long name", "two"}}, kNarrow) ==
        "  a            one\n"
        "  a long long name\n"
        "               two\n");
  CHECK(definitions({{"\x1b[2J", "\x07"}}, kNarrow).find('\x1b') == std::string::npos);
}

TEST_CASE("command_lines: backslashes, and no word or quotation is broken", "[lines]") {
  CHECK(command_lines("precbench run --model tiny --steps 10", kNarrow) ==
        "  precbench run --model tiny \\\n"
        "    --steps 10\n");
  CHECK(command_lines("precbench report 'a folder with a long name' --brief", kNarrow) ==
        "  precbench report \\\n"
        "    'a folder with a long name' \\\n"
        "    --brief\n");
}

TEST_CASE("command_lines: a flag and its value stay together", "[lines]") {
  CHECK(command_lines("precbench sweep --json --out out/first", kNarrow) ==
        "  precbench sweep --json \\\n"
        "    --out out/first\n");
}

TEST_CASE("fitted_lines: keeps indentation, marks comments, and wraps prose", "[lines]") {
  CHECK(
      fitted_lines(
          "Exit status: 0 fine\n             1 something has failed\n\n  # a comment that is long, too long\n"
          "  precbench list models --json --model tiny",
          kNarrow) ==
      "Exit status: 0 fine\n"
      "             1 something has\n"
      "             failed\n"
      "\n"
      "  # a comment that is long,\n"
      "  # too long\n"
      "  precbench list models \\\n"
      "    --json --model tiny");
  CHECK(fitted_lines("", kNarrow).empty());
  CHECK(fitted_lines("a\n", kNarrow) == "a\n");
}

TEST_CASE("render_term: names in a column of names stay whole, text is wrapped", "[table]") {
  Table table;
  table.columns = {name_column("recipe"), text_column("note", kKeyRank), number_column("n", kDetailRank)};
  table.rows = {{"tensorwise_delayed", "many words that need space", "1,000,000"}};
  CHECK(render_term(table, {34, true}) ==
        "recipe              note\n"
        "------------------  --------------\n"
        "tensorwise_delayed  many words\n"
        "                    that need\n"
        "                    space\n"
        "\n"
        "  Too wide for this screen: n\n");
}
