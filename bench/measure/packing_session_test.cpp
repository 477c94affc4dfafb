// Whole cases on packed documents: the record says how they are packed, and counts their attention alone.
#include <algorithm>
#include <string>

#include "bench/measure/session_testing.h"
#include "bench/predict/predict.h"
#include "kernels/testing/temp_directory.h"

using namespace precbench;

namespace {

/// Documents of 12 to 36 tokens.
std::string short_documents() {
  std::string text;
  for (int i = 0; i < 24; ++i)
    text +=
        "{\"prompt\": \"" + std::string(static_cast<std::size_t>(8 + i), 'a') + "\", \"answer\": \"bcd\"}\n";
  return text;
}

bool warns(const Record& record, const std::string& words) {
  return std::any_of(record.warnings.begin(), record.warnings.end(),
                     [&](const std::string& line) { return line.find(words) != std::string::npos; });
}

}  // namespace

TEST_CASE("run_case with --packing: fewer sequences, less padding, and the attention of documents",
          "[session][packing]") {
  const TempDirectory directory;
  Case c = tiny_case();
  c.data = c.eval_data = directory.write("chat.jsonl", short_documents());
  c.seq = 64;
  c.steps = 2;
  c.eval_tokens = 64;
  c.fidelity_batches = 1;
  const Record apart = run_ok(c);
  CHECK(warns(apart, "--packing on puts several into each sequence"));
  c.packing = "on";
  for (const int ranks : {1, 2}) {
    c.gpus = ranks;
    const Plan plan = validate(c);
    const Record record = run_case(plan);
    REQUIRE(record.status == Status::ok);
    valid_json(record);
    CHECK(warns(record, "24 of 564 tokens, 96 of them in answers; packed into"));
    CHECK(!warns(record, "--packing on puts"));
    CHECK(record.memory->measured->peak == record.memory->predicted->peak);
    CHECK(record.flops->per_token < apart.flops->per_token);
    CHECK(record.flops->per_token == static_cast<double>(plan.flops_per_token()));
    CHECK(record.training->evaluations.size() == 1);
  }
}
