// Counts UTF-8 characters. See characters.h.
#include "results/record/characters.h"

#include <algorithm>

namespace precbench {
namespace {

bool starts_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; }

}  // namespace

std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), starts_character));
}

std::string first_characters(const std::string& text, std::size_t count) {
  std::size_t end = 0;
  for (; end < text.size(); ++end)
    if (starts_character(text[end]) && count-- == 0) break;
  return text.substr(0, end);
}

std::string shorten(const std::string& text, std::size_t width) {
  return width_of(text) <= width ? text : first_characters(text, width - 3) + "...";
}

}  // namespace precbench
