// Text from anywhere as text that a terminal, a log and a page may show.
#pragma once

#include <string>
#include <string_view>

namespace precbench {

/// One line of valid UTF-8 in which nothing but visible characters is left. Control characters (of ASCII, and U+0080
/// to U+009F), line ends and the marks that turn the direction of writing become spaces; bytes that are no UTF-8, and
/// U+FFFE and U+FFFF, which are no characters, become U+FFFD. Whatever is shown to a person goes through it.
std::string printable(std::string_view text);

}  // namespace precbench
