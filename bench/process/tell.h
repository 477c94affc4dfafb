// What the program says on standard error. Nobody need listen: an error stream that is closed, full, gone or not
// read costs the words and never the work.
#pragma once

#include <string_view>

namespace precbench {

/// One line, its newline added, as `printable`: a word of the user's, a file's or another process's in it may hold
/// what a terminal would obey.
void tell(std::string_view line);

/// As it is. Waits a second at most for a reader that has stopped reading, and not at all where it did so for the
/// words before these.
void tell_raw(std::string_view text);

/// Opens what is closed of the descriptors 0 to 2, the wrong way round, so that no file of ours gets the number and
/// a reader or writer still hears that there is nothing. Before anything else is opened.
void keep_standard_streams();

/// A reader that has gone is then an error of writing, not the end of this process.
void survive_broken_pipes();

/// The same of a file that would exceed the limit of this process (ulimit -f). Processes that it starts inherit that.
void survive_file_limits();

}  // namespace precbench
