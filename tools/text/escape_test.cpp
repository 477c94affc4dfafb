// Tests that malicious text is harmless in every output language of report and check.
#include "tools/text/escape.h"

#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"
#include "tools/text/table.h"

using namespace precbench;

namespace {

/// Returns true if all characters are valid in XML 1.0 and none is markup. The text must be UTF-8.
bool is_xml_text(const std::string& text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < 0x20 || byte == '<' || byte == '"') return false;
    if (text.compare(i, 3, "\xEF\xBF\xBE") == 0 || text.compare(i, 3, "\xEF\xBF\xBF") == 0) return false;
    if (text[i] == '&' && text.find(';', i) > i + 5) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("markdown_cell: escapes markup in malicious text", "[escape]") {
  CHECK(markdown_cell("<img src=x>") == "&lt;img src=x>");
  CHECK(markdown_cell("a|b") == "a\\|b");
  CHECK(markdown_cell("a\\|b") == "a\\\\\\|b");  // a single backslash would unescape the bar
  CHECK(markdown_cell("\\") == "\\\\");
  CHECK(markdown_cell("`x` *y* _z_ ~~w~~ $v$") == "\\`x\\` \\*y\\* \\_z\\_ \\~\\~w\\~\\~ \\$v\\$");
  CHECK(markdown_cell("![i](u)") == "!\\[i\\](u)");
  CHECK(markdown_cell("&lt; R&D") == "&amp;lt; R&amp;D");
  CHECK(markdown_cell("line\nbreak\x1b[0m") == "line break \\[0m");
  for (const char* plain : {"-", "+0.0123", "1.28x", "12 of 56", "bf16, seq 2048", "blockwise_pow2"})
    CHECK(markdown_cell(plain) == plain);
}

TEST_CASE("markdown_text: a line never starts a block", "[escape]") {
  CHECK(markdown_text("# heading") == "\\# heading");
  CHECK(markdown_text("> quotation") == "\\> quotation");
  CHECK(markdown_text("- list") == "\\- list");
  CHECK(markdown_text("+ list") == "\\+ list");
  CHECK(markdown_text("12. list") == "12\\. list");
  CHECK(markdown_text("3) list") == "3\\) list");
  CHECK(markdown_text("---") == "\\---");
  CHECK(markdown_text("      code") == "code");
  for (const char* plain : {"", "1.28x over bf16", "-0.5 nats", "3 cases", "a - b"})
    CHECK(markdown_text(plain) == plain);
}

TEST_CASE("render_markdown: a bar after a backslash ends no table cell", "[escape][table]") {
  const Table table{{{"note", true}, {"n"}}, {{"a\\|b", "<i>"}}, {}};
  CHECK(render_markdown(table) ==
        "| note   |      n |\n"
        "| :----- | -----: |\n"
        "| a\\\\\\|b | &lt;i> |\n");
}

TEST_CASE("xml_text: the result is valid for any text", "[escape]") {
  CHECK(xml_text("a<b>&\"c\"") == "a&lt;b&gt;&amp;&quot;c&quot;");
  for (const std::string text :
       {"\xEF\xBF\xBE", "\xEF\xBF\xBF", "\x01\x1f", "\xff\xfe", "\xed\xa0\x80", "]]>", "<!--", "&#0;"})
    CHECK(is_xml_text(xml_text("a" + text + "b")));
  CHECK(xml_text("\uFFFE") == "\uFFFD");
}

TEST_CASE("csv_cell: the result is one cell and never a formula", "[escape]") {
  CHECK(csv_cell("a,\"b\"\nc") == "\"a,\"\"b\"\" c\"");
  CHECK(csv_cell("=HYPERLINK(1)") == "'=HYPERLINK(1)");
  CHECK(csv_cell("@SUM(1)") == "'@SUM(1)");
  CHECK(csv_cell("+1+1") == "'+1+1");
  CHECK(csv_cell("-2+3,x") == "\"'-2+3,x\"");
  for (const char* number : {"-0.5", "+3", "-1e-07", "-", "1,5"}) CHECK(contains(csv_cell(number), number));
  for (const char* number : {"-0.5", "+3", "-1e-07"}) CHECK(csv_cell(number) == number);
}

TEST_CASE("annotation_message: the result is a single command", "[escape]") {
  CHECK(annotation_property("WORSE: a,b 5%\n::error::x") == "WORSE%3A a%2Cb 5%25 %3A %3Aerror%3A%3Ax");
  CHECK(annotation_message("5% more\r::error::x\nagain: run \x1b[2J") ==
        "5%25 more : :error::x%0Aagain: run  [2J");
}

TEST_CASE("markdown_link: any path is escaped", "[escape]") {
  CHECK(markdown_link("my plots (1)/a%b#c|d.svg") == "my%20plots%20%281%29/a%25b%23c%7Cd.svg");
  CHECK(markdown_link("\xff.svg") == "%FF.svg");
}
