// Documents as one HTML file.
#include <fmt/format.h>

#include <algorithm>

#include "tools/document.h"
#include "tools/embedded_text.h"

namespace precbench {
namespace {

/// Tables with more rows than this are folded where the section allows it.
constexpr std::size_t kRowsAlwaysShown = 12;

std::string escaped(const std::string& text) {
  std::string result;
  for (char c : printable(text)) {
    if (c == '<')
      result += "&lt;";
    else if (c == '>')
      result += "&gt;";
    else if (c == '&')
      result += "&amp;";
    else if (c == '"')
      result += "&quot;";
    else
      result += c;
  }
  return result;
}

/// The name of a section in the page's address: "speed-on-nvidia-h200".
std::string anchor(const std::string& title) {
  std::string result;
  for (char c : title) {
    const bool word = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
    if (word)
      result += c;
    else if (c >= 'A' && c <= 'Z')
      result += static_cast<char>(c - 'A' + 'a');
    else if (!result.empty() && result.back() != '-')
      result += '-';
  }
  while (!result.empty() && result.back() == '-') result.pop_back();
  return result;
}

std::string paragraphs(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += "<p>" + escaped(line) + "</p>\n";
  return text;
}

std::string bullets(const std::vector<std::string>& lines) {
  if (lines.size() < 2) return paragraphs(lines);
  std::string text = "<ul>\n";
  for (const std::string& line : lines) text += "<li>" + escaped(line) + "</li>\n";
  return text + "</ul>\n";
}

const char* cell_class(const TableColumn& column) {
  return column.wrap ? " class=\"l wrap\"" : column.left ? " class=\"l\"" : "";
}

std::string table_html(const Table& table) {
  std::string text = "<div class=\"scroll\"><table>\n<thead><tr>";
  for (const TableColumn& column : table.columns)
    text += fmt::format("<th scope=\"col\"{}><button>{}</button></th>", column.left ? " class=\"l\"" : "",
                        escaped(column.title));
  text += "</tr></thead>\n<tbody>\n";
  for (std::size_t r = 0; r < table.rows.size(); ++r) {
    const bool starts = std::count(table.group_starts.begin(), table.group_starts.end(), r) > 0;
    text += starts ? "<tr class=\"g\">" : "<tr>";
    for (std::size_t c = 0; c < table.columns.size(); ++c)
      text += fmt::format("<td{}>{}</td>", cell_class(table.columns[c]), escaped(table.rows[r][c]));
    text += "</tr>\n";
  }
  return text + "</tbody></table></div>\n";
}

std::string section_html(const Section& section) {
  std::string text =
      fmt::format("<section id=\"{}\">\n<h2>{}</h2>\n", anchor(section.title), escaped(section.title));
  text += bullets(section.lines);
  std::string figures;
  for (const Figure& figure : section.figures)
    if (!figure.svg.empty())
      figures += fmt::format("<figure>{}<figcaption>{}</figcaption></figure>\n", figure.svg,
                             escaped(figure.caption));
  if (!figures.empty()) text += "<div class=\"figures\">\n" + figures + "</div>\n";
  if (section.table) {
    const std::size_t rows = section.table->rows.size();
    if (section.folded && rows > kRowsAlwaysShown)
      text += fmt::format("<details><summary>Table of {} rows</summary>\n{}</details>\n", rows,
                          table_html(*section.table));
    else
      text += table_html(*section.table);
  }
  return text + "<div class=\"notes\">" + bullets(section.notes) + "</div>\n</section>\n";
}

}  // namespace

std::string render_html(const Document& document) {
  std::string text = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n<title>{}</title>\n<style>\n",
      escaped(document.title));
  text += kReportCss;
  text += fmt::format("</style>\n</head>\n<body>\n<header><h1>{}</h1>\n", escaped(document.title));
  if (!document.notice.empty()) text += "<p class=\"notice\">" + escaped(document.notice) + "</p>\n";
  text += "<nav>";
  for (const Section& section : document.sections)
    text += fmt::format("<a href=\"#{}\">{}</a> ", anchor(section.title), escaped(section.title));
  text += "</nav></header>\n<main>\n";
  for (const Section& section : document.sections) text += section_html(section);
  text += "</main>\n<script>\n";
  text += kReportJs;
  return text + "</script>\n</body>\n</html>\n";
}

}  // namespace precbench
