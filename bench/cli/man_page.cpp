// Writes the sections of the man page. See man_page.h.
#include "bench/cli/man_page.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>

#include "bench/cli/help_topics.h"
#include "results/text/lines.h"
#include "results/text/table.h"

namespace precbench {
namespace {

/// Escapes text for troff: backslashes, hyphens (which would become dashes), and control characters at the
/// start of a line.
std::string escaped(const std::string& text) {
  std::string out;
  bool line_start = true;
  for (const char c : text) {
    if (line_start && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else
      out += c;
    line_start = c == '\n';
  }
  return out;
}

/// Width of the page's source. Text that troff does not fill is printed as it stands in the source.
constexpr Screen kSource{78, true};

/// Returns filled text, escaped, in lines of the source's width.
std::string filled(const std::string& text) { return escaped(wrap(text, kSource.width, "")); }

/// Returns a line, such as the tag of a flag, as several of the source: troff joins lines at a final backslash.
std::string joined_lines(const std::string& line) {
  constexpr std::size_t kLongestWord = 20;
  std::string lines;
  std::size_t length = 0;
  for (const char c : line) {
    if (length >= kSource.width - kLongestWord && (c == ' ' || c == '|')) {
      lines += "\\\n";
      length = 0;
    }
    lines += c;
    ++length;
  }
  return lines;
}

std::string bold(const std::string& text) { return "\\fB" + escaped(text) + "\\fR"; }
std::string italic(const std::string& text) { return "\\fI" + escaped(text) + "\\fR"; }

std::string flag_entry(const HelpFlag& flag) {
  std::vector<std::string> names;
  for (const std::string& name : flag.names) names.push_back(bold(name));
  const std::string tag =
      fmt::format("{}{}", fmt::join(names, ", "), flag.value.empty() ? "" : " " + italic(flag.value));
  return fmt::format(".TP\n{}\n{}\n", joined_lines(tag), filled(flag.text));
}

/// Returns lines that troff does not fill.
std::string verbatim(const std::string& text) {
  return text.empty() ? "" : ".PP\n.nf\n" + escaped(fitted_lines(text, kSource)) + "\n.fi\n";
}

std::string flags_of(const HelpPage& page) {
  std::string text, group;
  for (const HelpFlag& argument : page.arguments) text += flag_entry(argument);
  for (const HelpFlag& flag : page.flags) {
    if (flag.group != group) text += fmt::format(".PP\n{}\n", italic(flag.group + ":"));
    group = flag.group;
    text += flag_entry(flag);
  }
  return text;
}

std::string section_of(const HelpPage& page) {
  return fmt::format(".SS {}\n{}.\n{}{}{}", escaped("precbench " + page.name), filled(page.description),
                     flags_of(page), verbatim(page.footer.text), verbatim(page.footer.examples));
}

}  // namespace

std::string man_page(const std::vector<HelpPage>& pages, const std::string& version) {
  const HelpPage& program = pages.front();
  const std::string what = program.description.substr(program.description.find(": ") + 2);
  std::string text = fmt::format(
      ".TH PRECBENCH 1 \"\" \"precbench {}\" \"User Commands\"\n.SH NAME\n{}\n.SH SYNOPSIS\n"
      ".B precbench\n.I COMMAND\n.RI [ OPTIONS ]\n.SH DESCRIPTION\n{}.\n",
      escaped(version), filled("precbench - " + what), filled(program.description));
  text += ".SH COMMANDS\n";
  for (std::size_t i = 1; i < pages.size(); ++i)
    text += fmt::format(".TP\n{}\n{}\n", bold(pages[i].name), filled(pages[i].description));
  text += ".SH OPTIONS\n" + flags_of(program);
  for (std::size_t i = 1; i < pages.size(); ++i) text += section_of(pages[i]);
  for (const HelpTopic& topic : help_topics()) {
    std::string heading = topic.name;
    std::transform(heading.begin(), heading.end(), heading.begin(),
                   [](unsigned char c) { return std::toupper(c); });
    std::string lines = topic.text(pages, kSource);
    lines.pop_back();
    text += fmt::format(".SH {}\n{}", heading, verbatim(lines));
  }
  return text;
}

}  // namespace precbench
