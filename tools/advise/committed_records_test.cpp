// Tests where the records that come with the program are looked for.
#include "tools/advise/committed_records.h"

#include <filesystem>
#include <fstream>

#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"

using namespace precbench;
namespace fs = std::filesystem;

namespace {

void add_file(const fs::path& path) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << "\n";
}

}  // namespace

TEST_CASE("committed_record_files: beside an installed program and in a build folder", "[advise]") {
  const TempDirectory folder;
  const fs::path root = folder / "root";
  CHECK(committed_record_files((root / "bin" / "precbench").string()).empty());
  add_file(root / "build" / "share" / "precbench" / "records" / "h200" / "single.jsonl.xz");
  CHECK(committed_record_files((root / "build" / "precbench").string()).size() == 1);
  add_file(root / "bin" / "precbench");
  add_file(root / "share" / "precbench" / "records" / "h200" / "study.jsonl");
  add_file(root / "share" / "precbench" / "records" / "h100" / "a.jsonl");
  add_file(root / "share" / "precbench" / "records" / "h100" / "a.md");
  add_file(root / "share" / "precbench" / "records" / "h100" / "b.jsonl.xz");
  const auto files = committed_record_files((root / "bin" / "precbench").string());
  REQUIRE(files.size() == 3);
  CHECK(files[0] == (root / "share/precbench/records/h100/a.jsonl").string());
  CHECK(files[1] == (root / "share/precbench/records/h100/b.jsonl.xz").string());
  CHECK(files[2] == (root / "share/precbench/records/h200/study.jsonl").string());
}
