// Tests the texts of times and commits.
#include "results/record/provenance.h"

#include "kernels/testing/catch.h"

using namespace precbench;

TEST_CASE("utc_text: as in Record::created, and in the order of the times", "[record]") {
  CHECK(utc_text(0) == "1970-01-01T00:00:00Z");
  CHECK(utc_text(1'767'225'599) == "2025-12-31T23:59:59Z");
  CHECK(utc_text(999'999'999) < utc_text(1'000'000'000));
}

TEST_CASE("commit_of: short hash, uncommitted changes, or unknown", "[record]") {
  Environment env;
  CHECK(commit_of(env) == "an unknown commit");
  env.git = "0123456789abcdef0123456789abcdef01234567";
  CHECK(commit_of(env) == "0123456789ab");
  env.dirty = false;
  CHECK(commit_of(env) == "0123456789ab");
  env.dirty = true;
  CHECK(commit_of(env) == "0123456789ab with uncommitted changes");
  CHECK(short_commit("x\x1b[2J").find('\x1b') == std::string::npos);
}
