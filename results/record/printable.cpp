// Classifies the characters of a text. See printable.h.
#include "results/record/printable.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

namespace precbench {
namespace {

constexpr char32_t kReplacement = 0xFFFD;

struct Character {
  char32_t code = kReplacement;
  std::size_t bytes = 1;
};

/// Returns the first character of `text`, which is not empty. For invalid UTF-8 (truncated, overlong, half of
/// a surrogate pair, beyond Unicode) returns the first byte as U+FFFD.
Character first_of(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(0) < 0x80) return {byte(0), 1};
  const std::size_t bytes = byte(0) >= 0xF0 ? 4 : byte(0) >= 0xE0 ? 3 : 2;
  if (byte(0) < 0xC2 || byte(0) > 0xF4 || text.size() < bytes) return {};
  char32_t code = byte(0) & (0xFFu >> (bytes + 1));
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3Fu);
  }
  const bool too_long = (bytes == 3 && code < 0x800) || (bytes == 4 && code < 0x10000);
  const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
  if (too_long || surrogate || code > 0x10FFFF) return {};
  return {code, bytes};
}

struct Range {
  char32_t first, last;
};

/// Invisible characters: Unicode's Default_Ignorable_Code_Point, i.e. direction marks, joiners, fillers,
/// variation selectors and tags.
constexpr Range kIgnorable[] = {{0x00AD, 0x00AD},  {0x034F, 0x034F}, {0x061C, 0x061C},   {0x115F, 0x1160},
                                {0x17B4, 0x17B5},  {0x180B, 0x180F}, {0x200B, 0x200F},   {0x202A, 0x202E},
                                {0x2060, 0x206F},  {0x3164, 0x3164}, {0xFE00, 0xFE0F},   {0xFEFF, 0xFEFF},
                                {0xFFA0, 0xFFA0},  {0xFFF0, 0xFFFB}, {0x1BCA0, 0x1BCA3}, {0x1D173, 0x1D17A},
                                {0xE0000, 0xE0FFF}};

/// Returns true if a terminal or editor acts on the character or hides it instead of showing it.
bool acts(char32_t code) {
  const bool control = code < 0x20 || (code >= 0x7F && code <= 0x9F);
  const bool line_end = code == 0x2028 || code == 0x2029;
  return control || line_end || std::any_of(std::begin(kIgnorable), std::end(kIgnorable), [&](Range range) {
           return code >= range.first && code <= range.last;
         });
}

/// Returns true if `next` after `shown` completes a log command of GitHub Actions.
bool completes_command(std::string_view shown, char next) {
  if (next == '[') return shown.ends_with("##");
  if (next != ':' || !shown.ends_with(':')) return false;
  shown.remove_suffix(1);
  // Unicode white space starts a line there too, so a space is inserted after any non-ASCII character.
  const auto before = static_cast<unsigned char>(shown.empty() ? ' ' : shown.back());
  return before <= ' ' || before >= 0x80;
}

}  // namespace

std::string printable(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const Character character = first_of(text);
    const bool none = character.code == kReplacement || character.code == 0xFFFE || character.code == 0xFFFF;
    if (acts(character.code))
      result += ' ';
    else if (none)
      result += "\xEF\xBF\xBD";
    else
      result.append(completes_command(result, text.front()) ? " " : "").append(text, 0, character.bytes);
    text.remove_prefix(character.bytes);
  }
  return result;
}

}  // namespace precbench
