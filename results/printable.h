// Text from anywhere as text that a terminal, a log and a page may show.
#pragma once

#include <string>
#include <string_view>

namespace precbench {

/// One line of valid UTF-8 in which nothing but visible characters is left. Control characters (of ASCII, and U+0080
/// to U+009F), line ends and what is never shown (joiners, fillers, marks that turn the direction of writing, Unicode's
/// Default_Ignorable_Code_Point) become spaces; bytes that are no UTF-8, and
/// U+FFFE and U+FFFF, which are no characters, become U+FFFD. Nor is anything left that GitHub Actions takes for a
/// command in a log: a space parts "##[", wherever it stands, and "::" where a word begins, since a line may be broken
/// there. Whatever is shown to a person goes through it.
std::string printable(std::string_view text);

}  // namespace precbench
