// Tests tables on a terminal, character by character.
#include "results/text/table.h"

#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"

using namespace precbench;

TEST_CASE("render_term: aligns columns and separates groups", "[table]") {
  const Table table{
      {{"recipe", true}, {"tokens/s"}}, {{"bf16", "1,234"}, {"a|b, \"c\"", "-"}, {"größer", "5"}}, {1}};
  CHECK(render_term(table) ==
        "recipe    tokens/s\n"
        "--------  --------\n"
        "bf16         1,234\n"
        "\n"
        "a|b, \"c\"         -\n"
        "größer           5\n");
}

TEST_CASE("render_term: a narrow screen stacks titles before it leaves out the columns of lowest rank",
          "[table]") {
  const Table table{{{"recipe", true, false, kKeyRank},
                     {"share of peak"},
                     {"detail one", false, false, kDetailRank},
                     {"tokens/s", false, false, kKeyRank}},
                    {{"bf16", "58%", "1", "11,236"}, {"rowwise", "78%", "2", "15,029"}},
                    {}};
  CHECK(render_term(table, {44, true}) ==
        "recipe   share of peak  detail one  tokens/s\n"
        "-------  -------------  ----------  --------\n"
        "bf16               58%           1    11,236\n"
        "rowwise            78%           2    15,029\n");
  CHECK(render_term(table, {35, true}) ==
        "         share\n"
        "            of  detail\n"
        "recipe    peak     one  tokens/s\n"
        "-------  -----  ------  --------\n"
        "bf16       58%       1    11,236\n"
        "rowwise    78%       2    15,029\n");
  CHECK(render_term(table, {30, true}) ==
        "         share\n"
        "            of\n"
        "recipe    peak  tokens/s\n"
        "-------  -----  --------\n"
        "bf16       58%    11,236\n"
        "rowwise    78%    15,029\n"
        "\n"
        "  Too wide for this screen:\n"
        "    detail one\n");
}

TEST_CASE("render_term: a narrow screen shows what is constant in each group once above it", "[table]") {
  const Table table{{{"model", true}, {"seq (tokens)", true}, {"recipe", true}, {"tokens/s"}},
                    {{"1b", "2048", "bf16", "1"},
                     {"1b", "2048", "rowwise", "2"},
                     {"8b", "4096", "bf16", "3"},
                     {"8b", "4096", "rowwise", "4"}},
                    {2}};
  CHECK(render_term(table, {30, true}) ==
        "recipe   tokens/s\n"
        "-------  --------\n"
        "model 1b, seq 2048 tokens\n"
        "bf16            1\n"
        "rowwise         2\n"
        "\n"
        "model 8b, seq 4096 tokens\n"
        "bf16            3\n"
        "rowwise         4\n");
}

TEST_CASE("render_term: colors the text of cells with a tone and nothing else", "[table]") {
  const auto tone = [](const std::string& cell) { return cell == "worse" ? Tone::bad : Tone::good; };
  const Table table{{{"recipe", true}, {"verdict", true, false, kKeyRank, tone}, {"n"}},
                    {{"a", "worse", "1"}, {"b", "fine", "2"}},
                    {}};
  CHECK(render_term(table, {80, true, true}) ==
        "recipe  verdict  n\n"
        "------  -------  -\n"
        "a       \033[31mworse\033[0m    1\n"
        "b       \033[32mfine\033[0m     2\n");
  CHECK(!contains(render_term(table, {80, true, false}), "\033"));
}

TEST_CASE("shorten and wrap: count characters rather than bytes", "[table]") {
  CHECK(shorten("größer", 6) == "größer");
  CHECK(shorten("größeres", 6) == "grö...");
  CHECK(wrap("aa bb cc dd", 5, "  ") == "aa bb\n  cc\n  dd");
  CHECK(wrap("äö üß", 5, "") == "äö üß");
  CHECK(wrap("unbreakable", 5, "  ") == "unbreakable");
  CHECK(wrap("an unbreakable", 5, "  ", true) == "an\n  unb\n  rea\n  kab\n  le");
  CHECK(wrap("", 5, "  ").empty());
}
