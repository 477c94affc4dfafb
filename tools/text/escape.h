// Escapes untrusted text, with one function for each output language. Each removes unprintable characters
// (results/record/printable.h) and everything that has a meaning in the language.
#pragma once

#include <string>

namespace precbench {

/// Escapes text for Markdown: no HTML, entities, emphasis ("_" within a word is none), code, formulas, table
/// cell ends, or links, except bare addresses, which GitHub links to themselves.
std::string markdown_cell(const std::string& text);
/// Escapes text at the start of a line: additionally no headings, quotations, lists or rules.
std::string markdown_text(const std::string& text);

/// Escapes a file path as the target of a Markdown link.
std::string markdown_link(const std::string& path);

/// Escapes text for XML 1.0 and HTML, including attributes.
std::string xml_text(const std::string& text);

/// Escapes an RFC 4180 cell. Text that a spreadsheet would treat as a formula gets a leading apostrophe,
/// which becomes part of the text; numbers are unchanged.
std::string csv_cell(const std::string& text);

/// Escape a property of a GitHub workflow command, and its message of several lines.
std::string annotation_property(const std::string& text);
std::string annotation_message(const std::string& lines);

}  // namespace precbench
