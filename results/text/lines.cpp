// Wraps lines to a terminal. See lines.h.
#include "results/text/lines.h"

#include <algorithm>

#include "results/record/short_text.h"
#include "results/text/table.h"

namespace precbench {
namespace {

/// Returns the parts of a command between which it may be broken: words, a flag with its value. Spaces in quotes do
/// not separate words.
std::vector<std::string> shell_parts(const std::string& command) {
  std::vector<std::string> words(1);
  char quote = 0;
  for (const char c : command) {
    if (quote == 0 && c == ' ') {
      if (!words.back().empty()) words.emplace_back();
      continue;
    }
    if (c == quote)
      quote = 0;
    else if (quote == 0 && (c == '\'' || c == '"'))
      quote = c;
    words.back() += c;
  }
  if (words.back().empty()) words.pop_back();
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const bool value = i > 0 && words[i - 1].starts_with("--") && !words[i].starts_with('-');
    if (value)
      parts.back() += " " + words[i];
    else
      parts.push_back(words[i]);
  }
  return parts;
}

/// Returns the lines of a name of at most `width` characters each, where it has spaces or bars.
std::vector<std::string> name_lines(const std::string& name, std::size_t width) {
  std::vector<std::string> lines(1);
  for (std::size_t begin = 0; begin < name.size();) {
    const std::size_t end = std::min(name.find_first_of(" |", begin), name.size() - 1) + 1;
    const std::string part = name.substr(begin, end - begin);
    const std::size_t needed = width_of(part) - (part.back() == ' ' ? 1 : 0);
    if (!lines.back().empty() && width_of(lines.back()) + needed > width) lines.emplace_back();
    lines.back() += part;
    begin = end;
  }
  for (std::string& line : lines) line.erase(line.find_last_not_of(' ') + 1);
  return lines;
}

/// Returns the width that remains beside `used` characters; never less than a few.
std::size_t rest_of(const Screen& screen, std::size_t used) {
  constexpr std::size_t kLeast = 10;
  return screen.width > used + kLeast ? screen.width - used : kLeast;
}

/// Returns the text, wrapped, with `mark` before each line.
std::string marked(const std::string& text, const std::string& mark, const Screen& screen) {
  std::string lines;
  for (const std::string& part : lines_in(wrap(text, rest_of(screen, mark.size()), "")))
    lines += (lines.empty() ? "" : "\n") + mark + part;
  return lines;
}

std::string fitted_line(const std::string& line, const Screen& screen) {
  const std::size_t start = line.find_first_not_of(' ');
  if (start == std::string::npos) return "";
  const std::string indent(start, ' '), text = line.substr(start);
  if (width_of(line) <= screen.width) return line;
  if (text.starts_with("# ")) return marked(text.substr(2), indent + "# ", screen);
  if (start > 0 && (text.starts_with("precbench ") || text.starts_with("source "))) {
    std::string lines = command_lines(text, screen, indent);
    lines.pop_back();
    return lines;
  }
  return marked(text, indent, screen);
}

}  // namespace

std::vector<std::string> lines_in(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

std::string indented_line(const std::string& line, const Screen& screen) {
  return "  " + wrap(short_printable(line, kLongestLine), screen.width - 2, "    ", screen.fitted) + '\n';
}

std::string paragraph(const std::string& text, const Screen& screen, const std::string& indent) {
  return wrap(short_printable(text, kLongestLine), screen.width, indent, screen.fitted) + '\n';
}

std::string definition(const NamedText& one, std::size_t column, const Screen& screen, std::size_t kept) {
  constexpr std::size_t kIndent = 2;
  const std::string margin(column, ' ');
  const std::string text = one.second.substr(0, kept),
                    end = kept < one.second.size() ? one.second.substr(kept) : "";
  std::vector<std::string> lines = lines_in(wrap(text, rest_of(screen, column), ""));
  if (width_of(lines.back()) + width_of(end) <= rest_of(screen, column))
    lines.back() += end;
  else
    lines.push_back(end.substr(std::min(end.find_first_not_of(' '), end.size())));
  std::string all;
  const std::vector<std::string> name = name_lines(one.first, rest_of(screen, kIndent + 2));
  for (std::size_t i = 0; i < name.size(); ++i) all += (i > 0 ? "\n    " : "  ") + name[i];
  const bool beside = name.size() == 1 && width_of(name[0]) + kIndent + 1 < column;
  if (!beside) all += '\n';
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const bool first = i == 0 && beside;
    all += first ? std::string(column - kIndent - width_of(name[0]), ' ') : margin;
    all += lines[i] + '\n';
  }
  return all;
}

std::string hanging(const std::string& text, std::size_t column, const Screen& screen) {
  std::string all;
  for (const std::string& line : lines_in(wrap(text, rest_of(screen, column), "")))
    all += (all.empty() ? "" : "\n" + std::string(column, ' ')) + line;
  return all;
}

std::string definitions(const std::vector<NamedText>& all, const Screen& screen) {
  constexpr std::size_t kIndent = 2, kGap = 2;
  std::size_t longest = 0;
  for (const NamedText& one : all) longest = std::max(longest, width_of(printable(one.first)));
  const std::size_t column = std::min(longest + kIndent + kGap, screen.width / 2);
  std::string text;
  for (const NamedText& one : all)
    text += definition({printable(one.first), printable(one.second)}, column, screen);
  return text;
}

std::string command_lines(const std::string& command, const Screen& screen, const std::string& indent) {
  if (!screen.fitted) return indent + command + '\n';
  const std::string further = indent + "  ";
  std::string text, line = indent;
  for (const std::string& part : shell_parts(command)) {
    const bool empty = line.find_first_not_of(' ') == std::string::npos;
    const std::size_t needed = width_of(line) + (empty ? 0 : 1) + width_of(part);
    if (!empty && needed + 2 > screen.width) {  // the backslash and its space
      text += line + " \\\n";
      line = further + part;
    } else {
      line += (empty ? "" : " ") + part;
    }
  }
  return text + line + '\n';
}

std::string fitted_lines(const std::string& text, const Screen& screen) {
  std::string fitted;
  for (const std::string& line : lines_in(text)) fitted += fitted_line(line, screen) + '\n';
  fitted.pop_back();
  return fitted;
}

}  // namespace precbench
