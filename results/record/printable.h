// Makes arbitrary text safe to show in a terminal, a log or a page.
#pragma once

#include <string>
#include <string_view>

namespace precbench {

/// Returns one line of valid UTF-8 with visible characters only. Control characters (ASCII and U+0080 to
/// U+009F), line ends and invisible characters (joiners, fillers, direction marks: Unicode's
/// Default_Ignorable_Code_Point) become spaces. Invalid UTF-8 bytes and the noncharacters U+FFFE and U+FFFF
/// become U+FFFD. Text that GitHub Actions would execute in a log is broken by a space: "##[" anywhere, and
/// "::" at the start of a word, since a line may be broken there. Everything shown to a person goes through
/// this.
std::string printable(std::string_view text);

}  // namespace precbench
