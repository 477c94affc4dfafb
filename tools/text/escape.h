// Text from anywhere inside other text: one function for each language that a report or a check writes. Each shows what
// is printable (results/printable.h) and nothing that the language would act on.
#pragma once

#include <string>

namespace precbench {

/// Markdown with nothing in it but text: no HTML, entity, emphasis (which "_" within a word is not), code, formula, end
/// of a table's cell, or link but those that GitHub makes of a bare address, which lead where they say.
std::string markdown_cell(const std::string& text);
/// The same where a line begins, on which there is no heading, quotation, list or rule either.
std::string markdown_text(const std::string& text);

/// The path of a file as the target of a Markdown link.
std::string markdown_link(const std::string& path);

/// Text that XML 1.0 and HTML take for nothing but text, in attributes as well.
std::string xml_text(const std::string& text);

/// A cell of RFC 4180. A text that a spreadsheet would take for a formula gets an apostrophe in front, which is then
/// part of the text; numbers stay as they are.
std::string csv_cell(const std::string& text);

/// A property of a GitHub workflow command, and its message of several lines.
std::string annotation_property(const std::string& text);
std::string annotation_message(const std::string& lines);

}  // namespace precbench
