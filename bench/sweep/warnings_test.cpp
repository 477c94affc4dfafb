// Selection of warnings that are printed at once, and that each is printed once per process.
#include "bench/sweep/warnings.h"

#include "bench/step/lost_files.h"
#include "kernels/gpu/device_info.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"

namespace precbench {
namespace {

TEST_CASE("immediate_warnings: returns warnings that affect the whole sweep and each kind once",
          "[warnings]") {
  using Lines = std::vector<std::string>;
  const std::string overlap = "--eval-data: holds what --data holds",
                    driver = hopper_fallback_reason(90, false).value();
  Record record;
  record.warnings = {"--reshard auto: on"};
  CHECK(immediate_warnings(record).empty());
  record.warnings = {"--reshard auto: on", driver};
  CHECK(immediate_warnings(record) == Lines{driver});
  const std::string build =
      "the checkpoint c/step-000003 was written by commit 0123abc, and this program is of commit 4567";
  record.warnings = {build};
  CHECK(immediate_warnings(record) == Lines{build});
  record.warnings = {driver, overlap};
  CHECK(immediate_warnings(record) == Lines{overlap});
  CHECK(immediate_warnings(record).empty());
}

TEST_CASE("immediate_warnings: each input file has its own warning, unless it was printed before",
          "[warnings]") {
  using Lines = std::vector<std::string>;
  const std::string one = "--init-from: 1 tensor of a is not part of the model and was left out: b",
                    other = "--init-from: 1 tensor of c is not part of the model and was left out: d",
                    narrow =
                        "uint16 tokens: the vocabulary has 151936 tokens, and e cannot hold ids above 65535";
  Record record;
  record.warnings = {one, other, narrow};
  warn_once(other);
  CHECK(immediate_warnings(record) == Lines{one, narrow});
  CHECK(immediate_warnings(record).empty());
}

TEST_CASE("model_warnings: warnings of a model are returned once for all its cases", "[warnings]") {
  const TempDirectory folder;
  const std::string small =
      R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "vocab_size": 96,
    "num_hidden_layers": 1, "num_attention_heads": 4, "max_position_embeddings": 64, "mystery": 1})";
  std::vector<Case> cases;
  for (const std::string& model :
       {folder.write("a/config.json", small), folder.write("b/config.json", small)})
    for (const std::int64_t seq : {32, 256, 128})
      for (const char* recipe : {"bf16", "tensorwise"}) {
        Case& c = cases.emplace_back();
        c.device = "cpu", c.model = model, c.seq = seq, c.recipe = recipe;
      }
  cases.emplace_back().device = "cpu";  // a preset has no warnings
  CHECK(model_warnings(validate(cases)) ==
        std::vector<std::string>{"a: keys that are not known here were left out: mystery",
                                 "b: keys that are not known here were left out: mystery",
                                 "a: seq 256 is beyond the 64 positions that the model is made for",
                                 "b: seq 256 is beyond the 64 positions that the model is made for"});
}

TEST_CASE("immediate_warnings: returns every lost file and each other kind once", "[warnings]") {
  using Lines = std::vector<std::string>;
  const std::string lost = lost_file_warning("--save-final: a: cannot be written"),
                    read_again = "--data: 100 sequences of 32 tokens were read, and the data has 50";
  Record record;
  record.warnings = {read_again, lost};
  CHECK(immediate_warnings(record) == Lines{lost, read_again});
  CHECK(immediate_warnings(record) == Lines{lost});
}

}  // namespace
}  // namespace precbench
