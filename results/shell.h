// Words for a POSIX-like shell, for command lines that the program prints and a user pastes.
#pragma once

#include <string>
#include <string_view>

namespace precbench {

/// Returns `word` as one word of a shell. What a terminal would obey or hide (see printable.h) is written as octal
/// escapes in $'...', so that the result survives `printable` unchanged.
std::string shell_quoted(std::string_view word);

/// Returns a path as one argument: quoted, and with "./" in front where a command would take it for a flag or, as "-",
/// for standard input.
std::string shell_path(std::string_view path);

}  // namespace precbench
