// Fuzzes precbench report --history with files of rows and records, in all formats, and what it appends of them.
#include <filesystem>

#include "tools/fuzz/fuzz.h"
#include "tools/history/history_command.h"

using namespace precbench;

PRECBENCH_FUZZ_TARGET(history) {
  HistoryOptions options;
  options.paths = {scratch().write("nights.jsonl", std::string(text_of(data, size)))};
  options.output = scratch() / "history";
  options.fail_on = "slower", options.since = "4w";
  for (const char* format : {"term", "md", "json"}) {
    options.format = format;
    if (!taken([&] { report_history(options, {}); })) return 0;
  }
  // Rows that are appended are read again, and none twice.
  const std::string kept = scratch() / "kept-rows.jsonl";
  std::filesystem::remove(kept);
  options.append = kept;
  taken([&] { report_history(options, {}); });
  const auto bytes = std::filesystem::file_size(kept);
  expect(taken([&] { report_history(options, {}); }));
  expect(std::filesystem::file_size(kept) == bytes);
  return 0;
}
