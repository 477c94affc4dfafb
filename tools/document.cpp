// Documents as text for a terminal and as Markdown.
#include "tools/document.h"

#include <fmt/format.h>

#include "results/printable.h"

namespace precbench {
namespace {

/// Wide enough for the tables, which are not wrapped; narrower windows wrap by themselves.
constexpr std::size_t kTerminalWidth = 110;

/// Text that Markdown must not take for HTML, emphasis or code.
std::string markdown_text(const std::string& text) {
  std::string escaped;
  for (char c : printable(text)) {
    if (c == '<')
      escaped += "&lt;";
    else if (c == '*' || c == '_' || c == '`' || c == '\\')
      escaped += std::string("\\") + c;
    else
      escaped += c;
  }
  return escaped;
}

/// A path as the target of a link: what would end it early, or is no character of an address, as %XX.
std::string link_text(const std::string& path) {
  std::string link;
  for (const char c : path) {
    const auto byte = static_cast<unsigned char>(c);
    const bool special =
        byte <= 0x20 || byte == 0x7F || std::string("()<>%\"\\#?").find(c) != std::string::npos;
    link += special ? fmt::format("%{:02X}", static_cast<unsigned>(byte)) : std::string(1, c);
  }
  return link;
}

void add_term_lines(std::string& text, const std::vector<std::string>& lines) {
  for (const std::string& line : lines)
    text += "  " + wrap(printable(line), kTerminalWidth - 2, "    ") + '\n';
}

void add_markdown_lines(std::string& text, const std::vector<std::string>& lines) {
  for (const std::string& line : lines) text += "- " + markdown_text(line) + '\n';
}

}  // namespace

std::string render_term(const Document& document) {
  std::string text = document.title + '\n';
  if (!document.notice.empty()) add_term_lines(text, {document.notice});
  for (const Section& section : document.sections) {
    text += '\n' + section.title + '\n';
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
                            link_text(figure.link));
    if (section.table) text += '\n' + render_markdown(*section.table);
    if (!section.notes.empty()) text += '\n';
    add_markdown_lines(text, section.notes);
  }
  return text;
}

}  // namespace precbench
