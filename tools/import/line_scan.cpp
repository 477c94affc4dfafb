// Numbers, keys and times in a log line. See line_scan.h.
#include "tools/import/line_scan.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <limits>

namespace precbench {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_space(char c) { return c == ' ' || c == '\t'; }
bool is_word(char c) { return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

/// Returns the length of a terminal escape at the start of `text`; 0 if there is none.
std::size_t escape_length(std::string_view text) {
  const bool escaped = text.front() == '\x1b';
  std::size_t at = escaped ? 1 : 0;
  if (at >= text.size() || text[at] != '[') return escaped ? 1 : 0;
  ++at;
  while (at < text.size() && (is_digit(text[at]) || text[at] == ';' || (escaped && text[at] == '?'))) ++at;
  if (at >= text.size()) return escaped ? at : 0;
  if (text[at] == 'm') return at + 1;
  return escaped ? at + 1 : 0;
}

/// Returns `length` digits at `at` as a number; null if there are other characters.
std::optional<int> digits_at(std::string_view text, std::size_t at, std::size_t length) {
  if (at + length > text.size()) return std::nullopt;
  int value = 0;
  for (std::size_t i = at; i < at + length; ++i) {
    if (!is_digit(text[i])) return std::nullopt;
    value = 10 * value + (text[i] - '0');
  }
  return value;
}

/// Returns true if a number may end before `rest`: at a separator or a known unit. Otherwise a part of a damaged number would be
/// taken for the whole.
bool ends_number(std::string_view rest) {
  if (rest.empty()) return true;
  const char next = rest.front();
  if ((next == '.' || next == ',') && rest.size() > 1 && is_word(rest[1])) return false;
  if (!is_word(next)) return static_cast<unsigned char>(next) < 0x80;
  constexpr std::string_view kUnits[] = {"GiB", "MiB", "GB", "MB", "ms", "s", "k", "MODEL_TFLOP"};
  return std::any_of(std::begin(kUnits), std::end(kUnits), [&](std::string_view unit) {
    return rest.starts_with(unit) && (rest.size() == unit.size() || !is_word(rest[unit.size()]));
  });
}

std::optional<double> time_at(std::string_view text, std::size_t at) {
  constexpr std::size_t kLength = 19;
  if (at + kLength > text.size() || text[at + 4] != '-' || text[at + 7] != '-' || text[at + 13] != ':' ||
      text[at + 16] != ':' || (text[at + 10] != ' ' && text[at + 10] != 'T'))
    return std::nullopt;
  const auto year = digits_at(text, at, 4), month = digits_at(text, at + 5, 2),
             day = digits_at(text, at + 8, 2), hour = digits_at(text, at + 11, 2),
             minute = digits_at(text, at + 14, 2), second = digits_at(text, at + 17, 2);
  if (!year || !month || !day || !hour || !minute || !second) return std::nullopt;
  const std::chrono::year_month_day date{std::chrono::year(*year),
                                         std::chrono::month(static_cast<unsigned>(*month)),
                                         std::chrono::day(static_cast<unsigned>(*day))};
  if (!date.ok() || *year < 1970 || *hour > 23 || *minute > 59 || *second > 60) return std::nullopt;
  const auto days = std::chrono::sys_days(date).time_since_epoch().count();
  double seconds = 86400.0 * static_cast<double>(days) + 3600.0 * *hour + 60.0 * *minute + *second;
  std::size_t end = at + kLength;
  if (end < text.size() && (text[end] == ',' || text[end] == '.'))
    if (const auto milliseconds = digits_at(text, end + 1, 3)) seconds += *milliseconds / 1e3;
  return seconds;
}

}  // namespace

std::string plain_line(std::string_view raw) {
  while (!raw.empty() && raw.back() == '\r') raw.remove_suffix(1);
  if (const std::size_t cut = raw.rfind('\r'); cut != std::string_view::npos) raw.remove_prefix(cut + 1);
  std::string plain;
  plain.reserve(raw.size());
  while (!raw.empty()) {
    const std::size_t length = raw.front() == '\x1b' || raw.front() == '[' ? escape_length(raw) : 0;
    if (length == 0) plain += raw.front();
    raw.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return plain;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

std::optional<double> take_number(std::string_view& text) {
  std::string_view rest = text;
  while (!rest.empty() && is_space(rest.front())) rest.remove_prefix(1);
  std::string number;  // without separators of thousands
  if (!rest.empty() && (rest.front() == '+' || rest.front() == '-')) {
    if (rest.front() == '-') number = "-";
    rest.remove_prefix(1);
  }
  for (const std::string_view word : {std::string_view("nan"), std::string_view("inf")}) {
    if (rest.size() < word.size()) continue;
    const bool equal =
        std::equal(word.begin(), word.end(), rest.begin(), [](char a, char b) { return a == (b | 0x20); });
    if (!equal || (rest.size() > word.size() && is_word(rest[word.size()]))) continue;
    text = rest.substr(word.size());
    const double infinity = std::numeric_limits<double>::infinity();
    return word == "nan" ? std::numeric_limits<double>::quiet_NaN() : number == "-" ? -infinity : infinity;
  }
  std::size_t at = 0;
  bool digits = false, point = false;
  for (; at < rest.size(); ++at) {
    const char c = rest[at];
    if (is_digit(c)) {
      number += c, digits = true;
    } else if (c == '.' && !point) {
      number += c, point = true;
    } else if (c == ',' && digits && !point && digits_at(rest, at + 1, 3) &&
               !(at + 4 < rest.size() && is_digit(rest[at + 4]))) {
      continue;
    } else {
      break;
    }
  }
  if (!digits) return std::nullopt;
  if (at < rest.size() && (rest[at] == 'e' || rest[at] == 'E')) {
    std::size_t end = at + 1;
    if (end < rest.size() && (rest[end] == '+' || rest[end] == '-')) ++end;
    if (end < rest.size() && is_digit(rest[end])) {
      number += 'e';
      if (rest[at + 1] == '-') number += '-';
      for (; end < rest.size() && is_digit(rest[end]); ++end) number += rest[end];
      at = end;
    }
  }
  double value = 0;
  const auto [stop, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  if (error != std::errc() || stop != number.data() + number.size() || !ends_number(rest.substr(at)))
    return std::nullopt;
  text = rest.substr(at);
  return value;
}

std::optional<double> leading_number(std::string_view text) { return take_number(text); }

std::optional<std::int64_t> leading_count(std::string_view text) {
  const auto value = take_number(text);
  if (!value || !(*value >= 0 && *value <= 0x1p53) || std::floor(*value) != *value) return std::nullopt;
  return static_cast<std::int64_t>(*value);
}

std::optional<std::string_view> text_after(std::string_view line, std::string_view key) {
  for (std::size_t at = line.find(key); at != std::string_view::npos; at = line.find(key, at + 1))
    if (at == 0 || !is_word(line[at - 1]) || !is_word(key.front())) return line.substr(at + key.size());
  return std::nullopt;
}

std::optional<double> number_after(std::string_view line, std::string_view key) {
  const auto rest = text_after(line, key);
  return rest ? leading_number(*rest) : std::nullopt;
}

std::optional<std::int64_t> count_after(std::string_view line, std::string_view key) {
  const auto rest = text_after(line, key);
  return rest ? leading_count(*rest) : std::nullopt;
}

std::vector<std::pair<std::string_view, std::string_view>> bar_fields(std::string_view text) {
  std::vector<std::pair<std::string_view, std::string_view>> fields;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('|'), text.size());
    const std::string_view part = trimmed(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    const std::size_t colon = part.rfind(':');
    if (colon == std::string_view::npos) continue;
    fields.emplace_back(trimmed(part.substr(0, colon)), trimmed(part.substr(colon + 1)));
  }
  return fields;
}

std::optional<double> time_of_line(std::string_view line) {
  constexpr std::size_t kSearched = 200;
  const std::size_t end = std::min(line.size(), kSearched);
  for (std::size_t at = 0; at + 19 <= end; ++at)
    if (is_digit(line[at]) && (at == 0 || !is_digit(line[at - 1])))
      if (const auto time = time_at(line, at)) return time;
  return std::nullopt;
}

std::string iso_time(double seconds) {
  using namespace std::chrono;
  const sys_seconds time{std::chrono::seconds(static_cast<std::int64_t>(std::floor(seconds)))};
  const sys_days day = floor<days>(time);
  const year_month_day date(day);
  const hh_mm_ss clock(time - day);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", static_cast<int>(date.year()),
                     static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()),
                     clock.hours().count(), clock.minutes().count(), clock.seconds().count());
}

}  // namespace precbench
