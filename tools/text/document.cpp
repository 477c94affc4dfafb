// Documents as text for a terminal and as Markdown.
#include "tools/text/document.h"

#include <fmt/format.h>

#include "results/record/printable.h"
#include "tools/text/escape.h"

namespace precbench {
namespace {

/// Wide enough for the tables, which are not wrapped; narrower windows wrap by themselves.
constexpr std::size_t kTerminalWidth = 110;

void add_term_lines(std::string& text, const std::vector<std::string>& lines) {
  for (const std::string& line : lines)
    text += "  " + wrap(printable(line), kTerminalWidth - 2, "    ") + '\n';
}

void add_markdown_lines(std::string& text, const std::vector<std::string>& lines) {
  for (const std::string& line : lines) text += "- " + markdown_text(line) + '\n';
}

}  // namespace

std::string render_term(const Document& document) {
  std::string text = printable(document.title) + '\n';
  if (!document.notice.empty()) add_term_lines(text, {document.notice});
  for (const Section& section : document.sections) {
    text += '\n' + printable(section.title) + '\n';
    add_term_lines(text, section.lines);
    if (section.table) text += '\n' + render_term(*section.table);
    if (!section.notes.empty()) text += '\n';
    add_term_lines(text, section.notes);
  }
  return text;
}

std::string render_markdown(const Document& document) {
  std::string text = "# " + markdown_text(document.title) + '\n';
  if (!document.notice.empty()) text += '\n' + markdown_text(document.notice) + '\n';
  for (const Section& section : document.sections) {
    text += "\n## " + markdown_text(section.title) + '\n';
    if (!section.lines.empty()) text += '\n';
    add_markdown_lines(text, section.lines);
    for (const Figure& figure : section.figures)
      if (!figure.link.empty())
        text += fmt::format("\n![{}]({})\n", markdown_text(figure.heading + ": " + figure.caption),
                            markdown_link(figure.link));
    if (section.table) text += '\n' + render_markdown(*section.table);
    if (!section.notes.empty()) text += '\n';
    add_markdown_lines(text, section.notes);
  }
  return text;
}

}  // namespace precbench
