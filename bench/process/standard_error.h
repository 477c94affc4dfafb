// Messages on standard error. If the stream is closed, full, gone or not read, messages are lost, but the
// program never blocks or fails because of them.
#pragma once

#include <string_view>

namespace precbench {

/// Prints one line with a newline, made `printable`: words of the user, of a file or of another process may
/// contain terminal control sequences.
void log_line(std::string_view line);

/// Prints text unchanged. Waits at most a second for a reader that has stopped reading, and not at all if it
/// waited in vain for the previous text.
void log_text(std::string_view text);

/// Opens any closed descriptor of 0 to 2 on /dev/null in the wrong direction: no file of ours gets its
/// number, and reads and writes still fail. Call it before anything else is opened.
void keep_standard_streams();

/// Makes writing to a pipe without reader an error instead of a signal that ends this process.
void survive_broken_pipes();

/// Does the same for a file that would exceed this process's limit (ulimit -f). Child processes inherit it.
void survive_file_limits();

}  // namespace precbench
