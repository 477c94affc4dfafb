// When and by which program a record was made, as text.
#pragma once

#include <ctime>
#include <string>
#include <string_view>

#include "results/record/record.h"

namespace precbench {

/// Returns a time as in Record::created: "2026-01-31T09:30:00Z". Texts of this form sort as the times do.
std::string utc_text(std::time_t time);

/// Returns the first 12 digits of a commit's hash, printable.
std::string short_commit(std::string_view hash);

/// Returns "0123abc01234", "0123abc01234 with uncommitted changes", or "an unknown commit".
std::string commit_of(const Environment& env);

}  // namespace precbench
