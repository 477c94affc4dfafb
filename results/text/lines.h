// Lines of text that fit a terminal: paragraphs, definitions, and commands that can be pasted.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "results/text/screen.h"

namespace precbench {

/// Returns the text's lines without their newlines; one more, empty, after a newline at the end.
std::vector<std::string> lines_in(const std::string& text);

/// Returns the line after two spaces, with a newline at the end. What does not fit goes to further lines, after
/// four spaces. The text is made printable.
std::string indented_line(const std::string& line, const Screen& screen);

/// Returns the text, wrapped, with a newline at the end; lines after the first start with `indent`. The text is
/// made printable.
std::string paragraph(const std::string& text, const Screen& screen, const std::string& indent = "  ");

/// A name, such as a flag with its values, and the text that explains it.
using NamedText = std::pair<std::string, std::string>;

/// Returns the name after two spaces and the text from `column` on, below the name if that is too long. A long
/// name is broken at spaces and behind '|'. The part of the text from `kept` on stays on one line.
std::string definition(const NamedText& one, std::size_t column, const Screen& screen,
                       std::size_t kept = std::string::npos);

/// Returns the text, wrapped to what is left of the screen from `column` on, where all lines but the first begin.
/// Without a newline at the end.
std::string hanging(const std::string& text, std::size_t column, const Screen& screen);

/// Returns all of them, with the texts in the first column that every name leaves free, but at most in the
/// middle of the screen.
std::string definitions(const std::vector<NamedText>& all, const Screen& screen);

/// Returns a shell command after `indent`, with a newline at the end. Lines end with a backslash where it goes
/// on; quoted words are never broken, and nothing on a screen that is not fitted.
std::string command_lines(const std::string& command, const Screen& screen, const std::string& indent = "  ");

/// Returns text whose lines keep their indentation: prose is wrapped, indented commands as in command_lines()
/// and shell comments with a "#" on each line. Ends as the text does.
std::string fitted_lines(const std::string& text, const Screen& screen);

}  // namespace precbench
