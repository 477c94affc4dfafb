// Scans one line of a log: hostile text of any bytes, without regular expressions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace precbench {

/// Returns the line without terminal escapes, also those that lost their ESC byte ("[31m"), and of parts separated by
/// carriage returns the last one that is not empty.
std::string plain_line(std::string_view raw);

/// Returns the number at the start of `text`, after spaces: "7,026", "1.16E+01", "nan", "-inf". Null without one, and if what follows
/// is neither a separator nor a unit, as in "7,0x6".
std::optional<double> leading_number(std::string_view text);
/// Returns the same if it is an integer from 0 to 2^53.
std::optional<std::int64_t> leading_count(std::string_view text);
/// Returns the number at the start, and moves `text` behind it.
std::optional<double> take_number(std::string_view& text);

/// Returns the text behind the first occurrence of `key` that does not continue a word; null without one.
std::optional<std::string_view> text_after(std::string_view line, std::string_view key);
std::optional<double> number_after(std::string_view line, std::string_view key);
std::optional<std::int64_t> count_after(std::string_view line, std::string_view key);

std::string_view trimmed(std::string_view text);

/// Returns key and value of the parts "key: value" that bars separate.
std::vector<std::pair<std::string_view, std::string_view>> bar_fields(std::string_view text);

/// Returns the first time "2026-01-31 12:00:00,250" (or with a T) within the line's first 200 characters, as seconds since
/// 1970 in the log's own time zone.
std::optional<double> time_of_line(std::string_view line);
/// Returns "2026-01-31T12:00:00Z".
std::string iso_time(double seconds);

}  // namespace precbench
