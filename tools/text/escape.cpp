// Escapes text. See escape.h.
#include "tools/text/escape.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <string_view>

#include "results/record/printable.h"

namespace precbench {
namespace {

bool is_one_of(char c, std::string_view some) { return some.find(c) != std::string_view::npos; }

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Returns `text` with each character replaced by escape(c), unless that is empty.
template <class Escape>
std::string replaced(const std::string& text, Escape&& escape) {
  std::string result;
  for (const char c : text) {
    const std::string instead = escape(c);
    if (instead.empty())
      result += c;
    else
      result += instead;
  }
  return result;
}

std::string percent(char c) {
  return fmt::format("%{:02X}", static_cast<unsigned>(static_cast<unsigned char>(c)));
}

bool is_number(const std::string& text) {
  double value = 0;
  const char *begin = text.data(), *end = begin + text.size();
  if (begin != end && *begin == '+') ++begin;
  const auto [stop, error] = std::from_chars(begin, end, value);
  return error != std::errc::invalid_argument && stop == end;
}

}  // namespace

std::string markdown_cell(const std::string& text) {
  const std::string shown = printable(text);
  const auto is_word = [&](std::size_t i) {
    return i < shown.size() && std::isalnum(static_cast<unsigned char>(shown[i])) != 0;
  };
  std::string escaped;
  for (std::size_t i = 0; i < shown.size(); ++i) {
    const char c = shown[i];
    const bool within_word = c == '_' && i > 0 && is_word(i - 1) && is_word(i + 1);
    if (c == '<')
      escaped += "&lt;";
    else if (c == '&')
      escaped += "&amp;";
    else if (is_one_of(c, "\\`*_[]|~$") && !within_word)
      escaped += std::string("\\") + c;
    else
      escaped += c;
  }
  return escaped;
}

std::string markdown_text(const std::string& text) {
  std::string escaped = markdown_cell(text);
  escaped.erase(0, escaped.find_first_not_of(' '));
  // A marker starts a list only if a space or nothing follows.
  const auto ends = [&](std::size_t i) { return i >= escaped.size() || escaped[i] == ' '; };
  const auto digits =
      static_cast<std::size_t>(std::find_if_not(escaped.begin(), escaped.end(), is_digit) - escaped.begin());
  const bool numbered =
      digits > 0 && digits < escaped.size() && is_one_of(escaped[digits], ".)") && ends(digits + 1);
  const bool bullet = !escaped.empty() && is_one_of(escaped.front(), "-+") && ends(1);
  const bool rule = !escaped.empty() && escaped.find_first_not_of("- ") == std::string::npos;
  if (numbered)
    escaped.insert(digits, "\\");
  else if (bullet || rule || (!escaped.empty() && is_one_of(escaped.front(), "#>=")))
    escaped.insert(0, "\\");
  return escaped;
}

std::string markdown_link(const std::string& path) {
  return replaced(path, [](char c) -> std::string {
    const auto byte = static_cast<unsigned char>(c);
    return byte <= 0x20 || byte >= 0x7F || is_one_of(c, "()<>%\"\\#?|[]") ? percent(c) : "";
  });
}

std::string xml_text(const std::string& text) {
  return replaced(printable(text), [](char c) -> std::string {
    switch (c) {
      case '&':
        return "&amp;";
      case '<':
        return "&lt;";
      case '>':
        return "&gt;";
      case '"':
        return "&quot;";
      default:
        return "";
    }
  });
}

std::string csv_cell(const std::string& text) {
  std::string shown = printable(text);
  if (shown.size() > 1 && is_one_of(shown.front(), "=+-@") && !is_number(shown)) shown.insert(0, "'");
  if (shown.find_first_of(",\"") == std::string::npos) return shown;
  return '"' + replaced(shown, [](char c) -> std::string { return c == '"' ? "\"\"" : ""; }) + '"';
}

std::string annotation_property(const std::string& text) {
  return replaced(printable(text), [](char c) { return is_one_of(c, "%:,") ? percent(c) : ""; });
}

std::string annotation_message(const std::string& lines) {
  std::string message;
  for (std::size_t begin = 0; begin <= lines.size();) {
    const std::size_t end = std::min(lines.find('\n', begin), lines.size());
    message += (begin == 0 ? "" : "%0A") + replaced(printable(lines.substr(begin, end - begin)),
                                                    [](char c) { return c == '%' ? percent(c) : ""; });
    begin = end + 1;
  }
  return message;
}

}  // namespace precbench
