// Renders documents as a single HTML file.
#include <fmt/format.h>

#include <algorithm>

#include "tools/text/document.h"
#include "tools/text/embedded_text.h"
#include "tools/text/escape.h"
#include "tools/text/text.h"

namespace precbench {
namespace {

/// Tables with more rows are folded if the section allows it.
constexpr std::size_t kRowsAlwaysShown = 12;

std::string paragraphs(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += "<p>" + xml_text(line) + "</p>\n";
  return text;
}

std::string bullets(const std::vector<std::string>& lines) {
  if (lines.size() < 2) return paragraphs(lines);
  std::string text = "<ul>\n";
  for (const std::string& line : lines) text += "<li>" + xml_text(line) + "</li>\n";
  return text + "</ul>\n";
}

const char* cell_class(const TableColumn& column) {
  return column.wrap ? " class=\"l wrap\"" : column.left ? " class=\"l\"" : "";
}

/// Returns a table with one body of rows per group, because the page's script sorts within groups.
std::string table_html(const Table& table) {
  // Said once above each group, so that the numbers start near the left edge.
  const std::vector<bool> said =
      table.group_starts.empty() ? std::vector<bool>(table.columns.size(), false) : constant_in_groups(table);
  const auto shown = static_cast<std::size_t>(std::count(said.begin(), said.end(), false));
  const bool titles = shown < said.size();
  std::string text = "<div class=\"scroll\"><table>\n<thead><tr>";
  for (std::size_t c = 0; c < said.size(); ++c)
    if (!said[c])
      text += fmt::format("<th scope=\"col\"{}><button title=\"Sort by this column\">{}</button></th>",
                          table.columns[c].left ? " class=\"l\"" : "", xml_text(table.columns[c].title));
  text += "</tr></thead>\n";
  const std::vector<std::size_t> bounds = group_bounds(table);
  for (std::size_t g = 0; g + 1 < bounds.size(); ++g) {
    if (titles)
      text += fmt::format(
          "<tbody class=\"name\"><tr><th scope=\"rowgroup\" colspan=\"{}\"><span>{}</span></th></tr></tbody>\n",
          shown, xml_text(group_title(table, said, bounds[g])));
    text += "<tbody>\n";
    for (std::size_t r = bounds[g]; r < bounds[g + 1]; ++r) {
      text += "<tr>";
      for (std::size_t c = 0; c < said.size(); ++c)
        if (!said[c])
          text += fmt::format("<td{}>{}</td>", cell_class(table.columns[c]), xml_text(table.rows[r][c]));
      text += "</tr>\n";
    }
    text += "</tbody>\n";
  }
  return text + "</table></div>\n";
}

std::string section_html(const Section& section) {
  std::string text =
      fmt::format("<section id=\"{}\">\n<h2>{}</h2>\n", file_name(section.title), xml_text(section.title));
  text += bullets(section.lines);
  std::string figures;
  for (const Figure& figure : section.figures)
    if (!figure.svg.empty())
      figures += fmt::format("<figure><figcaption><strong>{}</strong> {}</figcaption>{}</figure>\n",
                             xml_text(figure.heading), xml_text(figure.caption), figure.svg);
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
      xml_text(document.title));
  text += kReportCss;
  text += fmt::format("</style>\n</head>\n<body>\n<header><h1>{}</h1>\n", xml_text(document.title));
  if (!document.notice.empty()) text += "<p class=\"notice\">" + xml_text(document.notice) + "</p>\n";
  text += "<nav>";
  for (const Section& section : document.sections)
    text += fmt::format("<a href=\"#{}\">{}</a> ", file_name(section.title), xml_text(section.title));
  text += "</nav></header>\n<main>\n";
  for (const Section& section : document.sections) text += section_html(section);
  text += "</main>\n<script>\n";
  text += kReportJs;
  return text + "</script>\n</body>\n</html>\n";
}

}  // namespace precbench
