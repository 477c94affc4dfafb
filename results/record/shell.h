// Quoting for a POSIX-like shell, for command lines that the program prints and a user pastes.
#pragma once

#include <string>
#include <string_view>

namespace precbench {

/// Returns `word` as one shell word. Characters that a terminal would act on or hide (see printable.h) become
/// octal escapes in $'...', so that `printable` leaves the result unchanged.
std::string shell_quoted(std::string_view word);

/// Returns a path as one quoted argument. A leading "./" is added if a command would take it for a flag or,
/// as "-", for standard input.
std::string shell_path(std::string_view path);

}  // namespace precbench
