// What a report consists of, before it becomes text: sections of lines, figures and tables.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/text/table.h"

namespace precbench {

struct Figure {
  std::string name;     ///< of its files, without ending: letters, digits, '-', '.'
  std::string script;   ///< plots/<script>.gp
  std::string heading;  ///< the setting and the machine; in files a part of the picture
  std::string caption;  ///< what is shown, in sentences
  std::string data;     ///< gnuplot statements that the script loads
  std::string svg{};    ///< drawn for a page; empty until then
  std::string link{};   ///< path of the picture; empty if there is none
};

struct Section {
  std::string title;
  std::vector<std::string> lines;  ///< one thought each; wrapped where the format wraps
  std::optional<Table> table;
  std::vector<std::string> notes;  ///< below the table
  std::vector<Figure> figures{};   ///< above the table
  bool folded = false;             ///< a long table that a page shows on request
};

struct Document {
  std::string title;
  std::vector<Section> sections;
  std::string notice{};  ///< what the reader must know about the report itself, one line
};

std::string render_term(const Document& document);
std::string render_markdown(const Document& document);
/// One file that needs no other: style, script and drawn figures are inside.
std::string render_html(const Document& document);

}  // namespace precbench
