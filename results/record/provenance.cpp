// Formats times and commits. See provenance.h.
#include "results/record/provenance.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "results/record/printable.h"

namespace precbench {

std::string utc_text(std::time_t time) { return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(time)); }

std::string short_commit(std::string_view hash) {
  constexpr std::size_t kShown = 12;
  return printable(hash.substr(0, kShown));
}

std::string commit_of(const Environment& env) {
  if (!env.git) return "an unknown commit";
  return short_commit(*env.git) + (env.dirty.value_or(false) ? " with uncommitted changes" : "");
}

}  // namespace precbench
