// Entry point of the test program; works with Catch2 2.13 and 3.
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_session.hpp>
#define PRECBENCH_CATCH2_3
#else
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#endif

#include <cstdlib>
#include <regex>
#include <string>
#include <vector>

#include "kernels/testing/temp_directory.h"

namespace {

/// Adds ~[.] to each alternative of a filter that only excludes tests. Otherwise Catch2 2.13 would include
/// hidden tests: children of other tests, and some that need tens of gigabytes.
std::string without_hidden_tests(const std::string& filter) {
  static const std::regex kOnlyExclusions(R"(\s*(~(\[[^\]]*\]|"[^"]*")\s*)*(~[^\[\]",]+)?\s*)");
  std::string result, alternative;
  const auto end = [&] {
    // Prepend it: appended to a name it would become part of the name.
    if (alternative.find('~') != std::string::npos && std::regex_match(alternative, kOnlyExclusions))
      result += "~[.]";
    result += alternative;
    alternative.clear();
  };
  for (std::size_t i = 0; i < filter.size(); ++i) {
    const bool escaped = i > 0 && filter[i - 1] == '\\';
    if (filter[i] != ',' || escaped) {
      alternative += filter[i];
      continue;
    }
    end();
    result += ',';
  }
  end();
  return result;
}

/// Returns the arguments with --list-test-names-only, of Catch2 2.13 alone, in the words of Catch2 3.
std::vector<const char*> arguments_of(int argc, char** argv) {
  std::vector<const char*> arguments;
  for (int i = 0; i < argc; ++i) {
#ifdef PRECBENCH_CATCH2_3
    if (std::string(argv[i]) == "--list-test-names-only") {
      arguments.insert(arguments.end(), {"--list-tests", "--verbosity", "quiet"});
      continue;
    }
#endif
    arguments.push_back(argv[i]);
  }
  return arguments;
}

}  // namespace

int main(int argc, char** argv) {
  Catch::Session session;
  const std::vector<const char*> arguments = arguments_of(argc, argv);
  if (const int status = session.applyCommandLine(static_cast<int>(arguments.size()), arguments.data()))
    return status;
  std::string filter;
  for (const std::string& words : session.configData().testsOrTags)
    filter += (filter.empty() ? "" : " ") + words;
  if (!filter.empty()) session.configData().testsOrTags = {without_hidden_tests(filter)};
  // No test may depend on what doctor found on this machine before.
  const precbench::TempDirectory cache;
  setenv("XDG_CACHE_HOME", cache.path().c_str(), 1);
  return session.run();
}
