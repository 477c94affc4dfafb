// Documents for a terminal. See document.h.
#include "results/text/lines.h"
#include "tools/text/document.h"

namespace precbench {
namespace {

void add_lines(std::string& text, const std::vector<std::string>& lines, const Screen& screen) {
  for (const std::string& line : lines) text += indented_line(line, screen);
}

}  // namespace

std::string render_term(const Document& document, const Screen& screen) {
  std::string text = paragraph(document.title, screen);
  if (!document.notice.empty()) text += indented_line(document.notice, screen);
  for (const Section& section : document.sections) {
    text += '\n' + paragraph(section.title, screen);
    add_lines(text, section.lines, screen);
    if (section.table) text += '\n' + render_term(*section.table, screen);
    if (!section.notes.empty()) text += '\n';
    add_lines(text, section.notes, screen);
  }
  if (!document.more.empty()) text += '\n' + paragraph(document.more, screen);
  return text;
}

}  // namespace precbench
