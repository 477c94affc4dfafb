// precbench import: records from logs of other training programs.
//
// Exit status: 0 every run has a record, 1 a run lacks a value that its log does not say, 2 bad input (InvalidInput), 3 a file
// with no line of a step that is recognised.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/import/import_run.h"

namespace CLI {
class App;
}

namespace precbench {

struct ImportOptions {
  std::vector<std::string> paths;    ///< logs, or "-" for standard input; none: judge the losses in `out`
  std::string format;                ///< --as; empty: by content
  std::string model, gpu;            ///< empty: as the log says
  std::vector<std::string> recipes;  ///< one for all runs, or one for each in order; empty: as the log says
  std::vector<std::int64_t> seeds;   ///< likewise
  std::optional<std::int64_t> seq, global_batch, gpus;
  std::string out;                    ///< folder whose records.jsonl is extended; empty: print alone
  std::string map;                    ///< file that says what the columns are; empty: none
  std::string reference = "bf16";     ///< recipe that others' losses are compared with
  std::optional<double> target_loss;  ///< nats; null: no samples to a target
  std::string tolerance = "5%";       ///< of additional samples to the target
};

inline constexpr int kImported = 0, kImportLacksValues = 1, kNothingRecognised = 3;

/// Prints what the logs say, writes the records and returns the exit status.
int import_logs(const ImportOptions& options, const ImportHost& host);

/// Adds the subcommand `import PATH...`. Parsing fills `options`, which must outlive the app.
CLI::App* add_import_command(CLI::App& app, ImportOptions& options);

}  // namespace precbench
