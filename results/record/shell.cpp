// Quoting for the shell. See shell.h.
#include "results/record/shell.h"

#include <fmt/format.h>

#include <algorithm>

#include "results/record/printable.h"

namespace precbench {
namespace {

bool needs_no_quotes(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view("-_./:,+=@%").find(c) != std::string_view::npos;
}

/// Octal escapes have three digits, so that a following digit is not part of them.
std::string escaped(std::string_view word) {
  std::string text = "$'";
  for (const char c : word) {
    const bool plain = c >= ' ' && c <= '~' && std::string_view("'\\:[").find(c) == std::string_view::npos;
    text += plain ? std::string(1, c) : fmt::format("\\{:03o}", static_cast<unsigned char>(c));
  }
  return text + "'";
}

}  // namespace

std::string shell_quoted(std::string_view word) {
  const std::string behind_a_space = " " + std::string(word);
  if (printable(behind_a_space) != behind_a_space) return escaped(word);
  if (!word.empty() && std::all_of(word.begin(), word.end(), needs_no_quotes)) return std::string(word);
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

std::string shell_path(std::string_view path) {
  return shell_quoted(path.starts_with('-') ? "./" + std::string(path) : std::string(path));
}

}  // namespace precbench
