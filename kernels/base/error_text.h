// Text of the error of a system call, for messages.
#pragma once

#include <string>
#include <system_error>

namespace precbench {

/// Returns the system's text for an errno value. For limits of the process, which a user can raise, the command is
/// added: "Too many open files; the limit is that of ulimit -n".
std::string error_text(int error);
std::string error_text(const std::error_code& error);

/// Returns what error_text() adds to the system's text; "" for most errors. For exceptions whose text has the rest.
std::string limit_text(const std::error_code& error);

}  // namespace precbench
