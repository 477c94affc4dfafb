// Tests that a report made from reduced records equals that of the complete ones.
#include "tools/report/reduce_record.h"

#include <filesystem>

#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"
#include "results/record/record_file.h"
#include "results/record/record_folder.h"
#include "results/record/record_samples.h"
#include "tools/report/report.h"
#include "tools/report/sections_testing.h"

using namespace precbench;

namespace {

namespace fs = std::filesystem;

/// Packed files above this size, of tens of megabytes when unpacked, would take most of the test's time and hold nothing else.
constexpr std::uintmax_t kLargest = std::uintmax_t{1} << 20;

/// Returns the report in every format except CSV, concatenated.
std::string all_reports(const RecordSet& set) {
  const Document document = make_report(set);
  return render_markdown(document) + render_html(document) + render_term(document) + make_json(set).dump();
}

}  // namespace

TEST_CASE("reduce_record: reports of reduced and complete records are equal", "[reduce]") {
  const std::string results = PRECBENCH_SOURCE_DIR "/results/";
  for (const char* name : {"cpu", "h200/single.jsonl.xz", "h200/study-125m.jsonl.xz", "h200/moe-h200.jsonl.xz",
                           "h200x4", "h200/interleaved", "baseline"}) {
    std::vector<std::string> paths = {results + name};
    if (fs::is_directory(paths[0])) paths = record_files_in(paths[0]);
    std::erase_if(paths, [](const std::string& path) { return fs::file_size(path) > kLargest; });
    const RecordSet whole = read_records(paths), reduced = read_records(paths, reduce_for_report),
                    of_table = read_records(paths, reduce_for_table);
    INFO(name);
    CHECK(reduced.problems == whole.problems);
    CHECK((all_reports(reduced) == all_reports(whole)));
    CHECK((csv_of(of_table) == csv_of(whole)));
  }
}

TEST_CASE("reduce_for_report: the formats of a recipe file are kept for its versions", "[reduce]") {
  Record built_in = samples::gpu_record("mxfp8", 100), file = samples::gpu_record("mine.json", 100);
  reduce_for_report(built_in);
  reduce_for_report(file);
  CHECK(built_in.quantization.empty());
  CHECK(file.quantization.size() == 1);
}

TEST_CASE("reduce_for_report: rows that differ only in dropped data are still distinguished", "[reduce]") {
  const TempDirectory scratch;
  Record record = samples::gpu_record("bf16", 250);
  const std::string file = scratch / "records.jsonl";
  append_record(file, record);
  append_record(file, record);
  CHECK(read_records({file}, reduce_for_report).undecided.empty());
  record.training->lr[7] /= 2;
  append_record(file, record);
  const RecordSet set = read_records({file}, reduce_for_report);
  CHECK(set.undecided == std::vector<std::string>{record.id, record.id});
  CHECK(set.problems == read_records({file}).problems);
}
