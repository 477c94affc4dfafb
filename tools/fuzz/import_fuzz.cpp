// Fuzzes a training log (`precbench import`): every run of it is judged, and its record, if it has one, must be one that readers take
// and that shows nothing but printable text.
#include <algorithm>
#include <cmath>

#include "results/record/contradiction.h"
#include "results/record/printable.h"
#include "results/record/record_line.h"
#include "tools/fuzz/fuzz.h"
#include "tools/import/import_testing.h"
#include "tools/import/loss_verdict.h"

using namespace precbench;

PRECBENCH_FUZZ_TARGET(import) {
  static const std::string file = scratch() / "fuzzed.log";
  static const ImportHost host = import_testing::host();
  std::ofstream(file, std::ios::binary) << text_of(data, size);
  taken([&] {
    const LogFile log = read_log(file, nullptr);
    const std::string_view text = text_of(data, size);
    expect(log.lines.used + log.lines.header + log.lines.skipped <=
           std::count(text.begin(), text.end(), '\n') + 1 + static_cast<std::int64_t>(log.runs.size()));
    ImportValues given;
    given.model = "llama3.1-8b", given.recipe = "mxfp8", given.gpu = "h200";
    RecordSet set;
    for (std::size_t number = 1; number <= log.runs.size(); ++number)
      taken([&] {
        const ImportedRun run = import_run(log, number, given, host, "2026-01-01T00:00:00Z");
        for (const std::string& line : run.lines) expect(!line.empty());
        if (!run.record) return;
        expect(!not_a_record_reason(*run.record));
        expect(!contradiction(*run.record) || run.record->status != Status::ok);
        set.records.push_back({*run.record, {"f", number}});
      });
    for (const ArmGroup& group : arm_groups(set, "mxfp8"))
      for (const RunArm& arm : group.arms)
        loss_sentences(judge_losses(group.arms.front(), arm, 0.0025, 0.001));
  });
  return 0;
}
