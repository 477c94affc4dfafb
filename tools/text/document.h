// Structure of a report before rendering: sections of lines, figures and tables.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/text/table.h"

namespace precbench {

struct Figure {
  std::string name;     ///< base name of its files: letters, digits, '-', '.'
  std::string script;   ///< plots/<script>.gp
  std::string heading;  ///< setting and machine; part of the picture in files
  std::string caption;  ///< description of the content, in sentences
  std::string data;     ///< gnuplot statements loaded by the script
  std::string svg{};    ///< drawing for an HTML page; empty until drawn
  std::string link{};   ///< path of the picture; empty if there is none
};

struct Section {
  std::string title;
  std::vector<std::string> lines;  ///< one statement each; wrapped if the format wraps
  std::optional<Table> table;
  std::vector<std::string> notes;  ///< below the table
  std::vector<Figure> figures{};   ///< above the table
  bool folded = false;             ///< long table that an HTML page shows on request
  std::string name{};              ///< one word by which a user asks for it
};

struct Document {
  std::string title;
  std::vector<Section> sections;
  std::string notice{};  ///< one-line remark about the report itself
  std::string more{};    ///< last line on a terminal: what else there is
};

std::string render_term(const Document& document, const Screen& screen = {});
std::string render_markdown(const Document& document);
/// Returns a single file that contains style, script and drawn figures.
std::string render_html(const Document& document);

}  // namespace precbench
