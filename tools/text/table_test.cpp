// Tests tables as Markdown and CSV, and documents on a terminal, character by character.
#include "tools/text/table.h"

#include <sstream>

#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"
#include "results/record/short_text.h"
#include "tools/text/document.h"

using namespace precbench;

namespace {
const Table kTable{
    {{"recipe", true}, {"tokens/s"}}, {{"bf16", "1,234"}, {"a|b, \"c\"", "-"}, {"größer", "5"}}, {1}};
}

namespace {

std::string csv_of(const Table& table) {
  std::vector<std::string> titles;
  for (const TableColumn& column : table.columns) titles.push_back(column.title);
  std::string text = csv_line(titles);
  for (const std::vector<std::string>& row : table.rows) text += csv_line(row);
  return text;
}

}  // namespace

TEST_CASE("render_term: no line is longer than the screen whatever the table", "[table]") {
  const std::string word(150, 'w'), text = "many words of text that have no end and then some more " + word;
  for (const std::size_t columns : {1, 2, 5, 40})
    for (const bool left : {true, false})
      for (const std::string& cell : {word, text, std::string("größer")}) {
        Table table;
        for (std::size_t c = 0; c < columns; ++c) table.columns.push_back({cell, left, false, kKeyRank});
        table.rows = {std::vector<std::string>(columns, cell), std::vector<std::string>(columns, "-")};
        std::istringstream lines(
            render_term(Document{"", {{text, {text}, table, {text}}}, text, text}, {60, true}));
        for (std::string line; std::getline(lines, line);) {
          INFO(columns << " " << cell << "\n" << line);
          CHECK(width_of(line) <= 60);
        }
      }
}

TEST_CASE("render_markdown: escapes bars", "[table]") {
  CHECK(render_markdown(kTable) ==
        "| recipe    | tokens/s |\n"
        "| :-------- | -------: |\n"
        "| bf16      |    1,234 |\n"
        "| a\\|b, \"c\" |        - |\n"
        "| größer    |        5 |\n");
}

TEST_CASE("csv_line: quotes cells if needed", "[table]") {
  CHECK(csv_of(kTable) == "recipe,tokens/s\nbf16,\"1,234\"\n\"a|b, \"\"c\"\"\",-\ngrößer,5\n");
}

TEST_CASE("render table: text of a file cannot control the terminal or break a line", "[table]") {
  const Table evil{{{"note", true}}, {{"\x1b[2Jline\nbreak\r\x7f"}}, {}};
  for (const std::string& text : {render_term(evil), render_markdown(evil), csv_of(evil)}) {
    CHECK(text.find('\x1b') == std::string::npos);
    CHECK(text.find('\r') == std::string::npos);
    CHECK(text.find("line break") != std::string::npos);
  }
}

TEST_CASE("render_markdown: untrusted text is neither Markdown nor HTML", "[table]") {
  const Document document{"title", {{"Section", {"<b> a_b *c* `d`"}, kTable, {"a note"}}}};
  const std::string text = render_markdown(document);
  CHECK(text.find("- &lt;b> a_b \\*c\\* \\`d\\`\n\n| recipe") != std::string::npos);
  CHECK(text.find("\n\n- a note\n") != std::string::npos);
  CHECK(render_term(document).find("title\n\nSection\n  <b> a_b *c* `d`\n\nrecipe") == 0);
}

TEST_CASE("take_constants: removes constant columns", "[table]") {
  Table table{{{"recipe", true}, {"batch"}, {"other"}, {"master", true}, {"tokens/s"}},
              {{"bf16", "1", "-", "fp32", "10"}, {"bf16", "1", "-", "fp32", "20"}},
              {1}};
  CHECK(take_constants(table, {"recipe"}) == "batch 1, master fp32");
  CHECK(csv_of(table) == "recipe,tokens/s\nbf16,10\nbf16,20\n");
  Table single{{{"recipe", true}, {"batch"}, {"other"}}, {{"bf16", "1", "-"}}, {}};
  CHECK(take_constants(single, {"recipe"}).empty());  // of a single row only empty columns
  CHECK(csv_of(single) == "recipe,batch\nbf16,1\n");
}

TEST_CASE("render_markdown: headings have one blank line and links escape any path", "[table]") {
  Section section{"Figures", {}, kTable, {}};
  CHECK(contains(render_markdown(Document{"t", {section}}), "# t\n\n## Figures\n\n| recipe"));
  section.figures.push_back({"name", "script", "8B", "what it shows", "", "", "my plots (1)/a%b#c.svg"});
  CHECK(contains(render_markdown(Document{"t", {section}}),
                 "## Figures\n\n![8B: what it shows](my%20plots%20%281%29/a%25b%23c.svg)\n\n| recipe"));
}

TEST_CASE("render_term: titles of any length are cut off as other lines are", "[table][hostile]") {
  const Document document{std::string(100'000, 't'), {{std::string(100'000, 's'), {}, {}, {}}}};
  CHECK(render_term(document).size() == 2 * (kLongestLine + 1) + 1);
}
