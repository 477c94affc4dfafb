// Appending, repairing and reading record files, including damaged ones.
#include "results/record/record_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "kernels/base/xz_testing.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/heap.h"
#include "kernels/testing/temp_directory.h"
#include "kernels/testing/text_checks.h"
#include "results/record/compressed.h"
#include "results/record/record_folder.h"
#include "results/record/record_samples.h"

using namespace precbench;
namespace fs = std::filesystem;

namespace {

void append(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::app) << text; }

}  // namespace

TEST_CASE("append_record: records are read back in order", "[record_file]") {
  const TempDirectory scratch;
  const std::string file = scratch / "records.jsonl";
  append_record(file, samples::gpu_record("bf16", 250));
  append_record(file, samples::gpu_record("blockwise", 200));
  for (const std::string& path : {file, scratch.path().string()}) {
    const RecordSet set = read_records({path});
    REQUIRE(set.records.size() == 2);
    CHECK(set.problems.empty());
    CHECK(set.records[1].record.case_fields["recipe"] == "blockwise");
    CHECK(set.records[1].origin.text() == file + ":2");
  }
  // A file named twice is read once.
  CHECK(read_records({file, scratch.path().string()}).problems.empty());
}

TEST_CASE("read_records: a record with a repeated key is left out and the key named", "[record_file]") {
  const TempDirectory scratch;
  const std::string good = nlohmann::ordered_json(samples::gpu_record("bf16", 250)).dump();
  const auto problem = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    const RecordSet set = read_records({scratch.write("r.jsonl", text + "\n")});
    return set.problems.empty() ? "none" : set.problems.front();
  };
  CHECK(problem("\"status\":\"ok\"", "\"status\":\"crashed\",\"status\":\"ok\"")
            .ends_with("not a valid record: \"status\" is there twice in one object, left out"));
  CHECK(contains(problem("\"training\":{", "\"training\":{\"loss\":[99],"), "\"loss\" is there twice"));
  // Colons and quotes inside of strings are no keys.
  CHECK(problem("\"compiler\":\"GNU 12.2.0\"", R"("compiler":"a: \"b\": c\\")") == "none");
}

TEST_CASE("read_records: Repeats::all keeps the measured records of a case that have times of their own",
          "[record_file]") {
  const TempDirectory scratch;
  const std::string file = scratch / "records.jsonl";
  Record first = samples::gpu_record("bf16", 250), second = samples::gpu_record("bf16", 251);
  second.created = "2025-03-02T12:00:00Z";
  append_record(file, first);
  append_record(file, second);
  const auto all = [&] { return read_records({file}, nullptr, Repeats::all); };
  CHECK(read_records({file}).records.size() == 1);
  CHECK(read_records({file}).problems.size() == 1);
  REQUIRE(all().records.size() == 2);
  CHECK(all().problems.empty());
  CHECK(all().records[0].record.timing->median_ms == 250);
  // The same record twice is no repeat, and neither is another of the same time.
  append_record(file, first);
  CHECK(all().records.size() == 2);
  CHECK(contains(all().problems.at(0), "is repeated at"));
  CHECK(all().undecided.empty());
  first.timing->wall_ms = 260;
  append_record(file, first);
  CHECK(all().undecided == std::vector<std::string>{first.id});
  // A failed case is no repeat.
  const TempDirectory other;
  second.status = Status::crashed, second.error = "why";
  append_record(other / "r.jsonl", samples::gpu_record("bf16", 250));
  append_record(other / "r.jsonl", second);
  CHECK(read_records({other / "r.jsonl"}, nullptr, Repeats::all).records.size() == 1);
}

TEST_CASE("read_records: a byte order mark at the start is accepted", "[record_file]") {
  const TempDirectory scratch;
  const std::string file = scratch.write("records.jsonl", "\xEF\xBB\xBF");
  append_record(file, samples::gpu_record("bf16", 250));
  append_record(file, samples::gpu_record("blockwise", 200));
  const RecordSet set = read_records({file});
  CHECK(set.records.size() == 2);
  CHECK(set.problems.empty());
  CHECK_FALSE(repair_tail(file));
}

TEST_CASE("read_records: lines beyond one parsing round keep their order and number", "[record_file]") {
  const TempDirectory scratch;
  constexpr int kLines = 20'000, kEvery = 500;  // 20 MB
  std::string text;
  for (int line = 1; line <= kLines; ++line) {
    Record record = samples::failed_record("bf16", Status::crashed, std::string(900, 'x'));
    record.id = std::to_string(line);
    text += line % kEvery == 0 ? nlohmann::ordered_json(record).dump() : std::string(1000, 'x');
    text += '\n';
  }
  const std::string file = scratch.write("records.jsonl", text);
  const RecordSet set = read_records({file});
  REQUIRE(set.records.size() == kLines / kEvery);
  for (std::size_t i = 0; i < set.records.size(); ++i) {
    CHECK(set.records[i].record.id == std::to_string((i + 1) * kEvery));
    CHECK(set.records[i].origin.text() == file + ":" + set.records[i].record.id);
  }
  REQUIRE(set.problems.size() == kMostProblems + 1);
  for (std::size_t i = 0; i < kMostProblems; ++i)  // the lines of records are not among them
    CHECK(set.problems[i] == fmt::format("{}:{}: not JSON, left out", file, i + 1 + i / (kEvery - 1)));
}

TEST_CASE("append_record: an unwritable file is reported in one line", "[record_file]") {
  const TempDirectory scratch;
  const Record record = samples::gpu_record("bf16", 250);
  CHECK(contains(refusal_of([&] { append_record("/dev/full", record); }),
                 "cannot write /dev/full: No space left"));
  CHECK(contains(refusal_of([&] { append_record(scratch / "no/such/file", record); }), "No such file"));
}

TEST_CASE("append_record: a partial write leaves the file unchanged", "[record_file]") {
  const TempDirectory scratch;
  const std::string file = scratch / "records.jsonl";
  append_record(file, samples::gpu_record("bf16", 250));
  const std::string before = file_text(file);
  // A limit on the file size interrupts the next write, as a full disk does.
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &old) == 0);
  rlimit tight = old;
  tight.rlim_cur = before.size() + 100;
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &tight) == 0);
  const std::string message = refusal_of([&] { append_record(file, samples::gpu_record("rowwise", 225)); });
  ::setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  CHECK(contains(message, "cannot write " + file + ": File too large; the limit is that of ulimit -f"));
  CHECK(file_text(file) == before);
}

TEST_CASE("repair_tail: a broken last line is moved to FILE.broken", "[record_file]") {
  const TempDirectory scratch;
  const std::string file = scratch / "records.jsonl";
  CHECK_FALSE(repair_tail(file));
  append_record(file, samples::gpu_record("bf16", 250));
  const std::string whole = file_text(file);
  CHECK_FALSE(repair_tail(file));
  CHECK(file_text(file) == whole);

  SECTION("half a line") { append(file, whole.substr(0, 50)); }
  SECTION("half a line with a newline") { append(file, whole.substr(0, 50) + "\n"); }
  SECTION("zeros, as some file systems leave after a power cut") { append(file, std::string(40, '\0')); }
  const auto done = repair_tail(file);
  REQUIRE(done);
  CHECK(contains(*done, ".broken"));
  CHECK(file_text(file) == whole);
  CHECK(fs::file_size(file + ".broken") > 40);
  append_record(file, samples::gpu_record("rowwise", 225));
  CHECK(read_records({file}).records.size() == 2);
  CHECK(read_records({file}).problems.empty());
}

TEST_CASE("repair_tail: handles a file with only a broken line and a missing newline", "[record_file]") {
  const TempDirectory scratch;
  append(scratch / "only.jsonl", "{\"schema\": 1, \"met");
  CHECK(repair_tail(scratch / "only.jsonl"));
  CHECK(file_text(scratch / "only.jsonl").empty());
  CHECK_FALSE(repair_tail(scratch / "only.jsonl"));

  const std::string file = scratch / "records.jsonl";
  append_record(file, samples::gpu_record("bf16", 250));
  const std::string whole = file_text(file);
  fs::resize_file(file, whole.size() - 1);
  CHECK(repair_tail(file));
  CHECK(file_text(file) == whole);
  CHECK_FALSE(fs::exists(file + ".broken"));
}

TEST_CASE("read_records: names each problem and keeps the good records", "[record_file]") {
  const TempDirectory scratch;
  const std::string file = scratch / "records.jsonl";
  append_record(file, samples::gpu_record("bf16", 250));  // 1: repeated by line 6
  append(file, "{not json\n");                            // 2
  append(file, "[1, 2]\n");                               // 3
  append(file, "{\"epoch\": 3, \"loss\": 2.5}\n\n");      // 4, and 5 empty
  append_record(file, samples::gpu_record("bf16", 253));  // 6
  Record old = samples::gpu_record("rowwise", 225);
  old.schema = 99;
  append(file, nlohmann::ordered_json(old).dump() + "\n");  // 7
  Record wrong = samples::gpu_record("rowwise", 225);
  wrong.metrics->mfu_bf16 = -1.5;
  append(file, nlohmann::ordered_json(wrong).dump() + "\n");  // 8
  Record method = samples::gpu_record("blockwise", 200);
  method.method_version = kMethodVersion + 1;
  append_record(file, method);      // 9
  append(file, "{\"schema\": 1,");  // 10

  const RecordSet set = read_records({file});
  REQUIRE(set.records.size() == 2);
  CHECK(*set.records[0].record.timing->median_ms == 253);
  std::string all;
  for (const std::string& problem : set.problems) all += problem + "\n";
  INFO(all);
  CHECK(set.problems.size() == 9);
  CHECK(set.first_problem == file + ":2: not JSON");
  for (const std::string& part : std::vector<std::string>{
           ":2: not JSON, left out", ":3: not a record but a JSON array",
           ":4: not a record: it has no schema version",
           ":7: schema version 99, but this program reads 1 to 2",
           ":8: not a valid record: /metrics/mfu_bf16: -1.5 is below 0",
           ":10: half-written last line, left out", ":1: case 1b-bf16-1 is repeated at",
           "method versions " + std::to_string(kMethodVersion) + ", " + std::to_string(kMethodVersion + 1),
           "method version " + std::to_string(kMethodVersion + 1) + ", but this program knows 1 to"})
    CHECK(contains(all, part));
}

TEST_CASE("read_records: imported records are read, and mixed with measured ones they are a problem", "[record_file]") {
  const TempDirectory scratch;
  append_record(scratch / "imports.jsonl", samples::imported_record("bf16", 250));
  const RecordSet imports = read_records({scratch / "imports.jsonl"});
  CHECK(imports.records.size() == 1);
  CHECK(imports.problems.empty());
  append_record(scratch / "own.jsonl", samples::gpu_record("bf16", 250));
  const RecordSet mixed = read_records({scratch / "imports.jsonl", scratch / "own.jsonl"});
  CHECK(mixed.records.size() == 2);
  CHECK(mixed.problems == std::vector<std::string>{
                              "measured records and imported ones are mixed; they are not compared with each other"});
}

TEST_CASE("read_records: a record of an unknown method version is kept and reported", "[record_file]") {
  const TempDirectory scratch;
  Record record = samples::gpu_record("bf16", 250);
  record.method_version = 99;
  append_record(scratch / "records.jsonl", record);
  const RecordSet set = read_records({scratch / "records.jsonl"});
  CHECK(set.records.size() == 1);
  CHECK(set.problems == std::vector<std::string>{fmt::format(
                            "records of method version 99, but this program knows 1 to {}; their numbers may "
                            "mean something else than it says",
                            kMethodVersion)});
}

TEST_CASE("read_records and repair_tail: a non-JSON line is not called half-written", "[record_file]") {
  const TempDirectory scratch;
  const auto read = [&](const std::string& text) {
    return read_records({scratch.write("records.jsonl", text)}).problems.front();
  };
  const auto repaired = [&](const std::string& text) {
    return repair_tail(scratch.write("records.jsonl", text)).value_or("nothing");
  };
  CHECK(read("garbage").ends_with(":1: not JSON, left out"));
  CHECK(read("garbage\n").ends_with(":1: not JSON, left out"));
  CHECK(read("{\"schema\": 1, \"me").ends_with(":1: half-written last line, left out"));
  CHECK(contains(repaired("garbage"), "the last line is not JSON; moved to"));
  CHECK(contains(repaired("garbage\n"), "the last line is not JSON; moved to"));
  CHECK(contains(repaired("{\"schema\": 1, \"me\n"), "the last line is not whole JSON; moved to"));
  CHECK(contains(repaired("{\"schema\": 1, \"me"), "the last line was only half written; moved to"));
}

TEST_CASE("read_records: the newest record of a repeated case is kept", "[record_file]") {
  const TempDirectory scratch;
  const std::string file = scratch / "records.jsonl";
  const auto add = [&](double median_ms, const std::string& created) {
    Record record = samples::gpu_record("bf16", median_ms);
    record.created = created;
    append_record(file, record);
  };
  const auto kept = [&] {
    const RecordSet set = read_records({file});
    REQUIRE(set.records.size() == 1);
    return *set.records[0].record.timing->median_ms;
  };
  add(250, "2025-03-02T12:00:00Z");
  add(200, "2025-03-01T12:00:00Z");  // older and faster
  CHECK(kept() == 250);
  CHECK(read_records({file}).undecided.empty());
  CHECK(read_records({file}).problems ==
        std::vector<std::string>{file + ":2: case 1b-bf16-1 is repeated at " + file +
                                 ":1; the newer one is used"});
  add(250, "2025-03-02T12:00:00Z");  // the same line again
  CHECK(kept() == 250);
  CHECK(read_records({file}).undecided.empty());
  SECTION("of equal times nobody knows the newer") { add(240, "2025-03-02T12:00:00Z"); }
  SECTION("no more of what is no time") { add(240, "zzzz"); }
  CHECK(kept() == 240);
  const RecordSet set = read_records({file});
  REQUIRE_FALSE(set.undecided.empty());
  CHECK(set.undecided.front() == "1b-bf16-1");
  CHECK(
      contains(set.problems.back(), "their times do not tell which is newer, so nothing can be said of it"));
}

TEST_CASE("read_records: one case on two GPU models is not a repetition", "[record_file]") {
  const TempDirectory scratch;
  append_record(scratch / "a.jsonl", samples::gpu_record("bf16", 250));
  Record other = samples::gpu_record("bf16", 175);
  other.env.gpu->name = "NVIDIA B200";
  append_record(scratch / "b.jsonl", other);
  const RecordSet set = read_records({scratch.path().string()});
  CHECK(set.records.size() == 2);
  CHECK(set.problems.empty());
}

TEST_CASE("read_records: a case that failed without an environment takes its neighbour's", "[record_file]") {
  const TempDirectory scratch;
  const auto lost = [](Record record) {
    record.env = Environment{};
    return record;
  };
  const std::string file = scratch / "records.jsonl";
  append_record(file, lost(samples::failed_record("mxfp8", Status::unsupported, "no such mode")));
  append_record(file, samples::cpu_record("bf16"));  // another device, so not a neighbour
  append_record(file, samples::gpu_record("bf16", 250));
  Record b200 = samples::gpu_record("bf16", 150);
  b200.env.gpu->name = "NVIDIA B200";
  append_record(file, b200);
  append_record(file, lost(samples::failed_record("rowwise", Status::crashed, "gone")));
  Record vague = lost(samples::gpu_record("blockwise", 200));
  append_record(file, vague);  // it has numbers, so its machine must not be guessed
  const RecordSet set = read_records({file});
  REQUIRE(set.records.size() == 6);
  CHECK(machine_of(set.records[0].env()) == "NVIDIA H200");
  CHECK(machine_of(set.records[4].env()) == "NVIDIA B200");
  CHECK(machine_of(set.records[5].env()) == "unknown CPU");
  CHECK_FALSE(set.records[0].record.env.gpu);  // the record itself is unchanged
}

TEST_CASE("read_records: paths without a record are named", "[record_file]") {
  const TempDirectory scratch;
  append_record(scratch / "a.jsonl", samples::gpu_record("bf16", 250));
  append_record(scratch / "b.jsonl", samples::gpu_record("bf16", 240));
  const std::string text = scratch.write("notes.txt", "no record\n"), empty = scratch.write("empty", "");
  const std::string a = scratch / "a.jsonl";
  // The record of a.jsonl is repeated in b.jsonl, and a.jsonl is given twice: both contain a record.
  const RecordSet set = read_records({a, text, scratch / "b.jsonl", a, empty});
  CHECK(set.without_record ==
        std::vector<std::string>{text + ": no record in it (" + text + ":1: not JSON, left out)",
                                 empty + ": no record in it"});
}

TEST_CASE("read_records: a file of another kind has one line", "[record_file]") {
  const TempDirectory scratch;
  append_record(scratch / "a.jsonl", samples::gpu_record("bf16", 250));
  std::string log;
  for (int step = 0; step < 3000; ++step) log += fmt::format("[titan] step: {} loss: 8.2\n", step);
  const std::string text = scratch.write("train.log", log);
  const RecordSet set = read_records({text, scratch / "a.jsonl"});
  CHECK(set.records.size() == 1);
  CHECK(set.problems ==
        std::vector<std::string>{text + ":1: not JSON, left out, as are all 3000 lines of the file"});
  CHECK(set.without_record.size() == 1);
  append_record(text,
                samples::gpu_record("mxfp8", 200));  // with a record in it, every other line is a problem
  CHECK(read_records({text}).problems.size() == kMostProblems + 1);
}

TEST_CASE("read_records: a folder without record files stands for the folders in it", "[record_file]") {
  const TempDirectory scratch;
  for (const char* inner : {"b", "a", "none", "a/deeper"}) fs::create_directories(scratch / inner);
  append_record(scratch / "b/records.jsonl", samples::gpu_record("bf16", 250));
  append_record(scratch / "a/records.jsonl", samples::gpu_record("mxfp8", 200));
  append_record(scratch / "a/deeper/records.jsonl", samples::gpu_record("rowwise", 200));
  const std::string folder = scratch.path().string();
  const std::vector<std::string> both = {scratch / "a/records.jsonl", scratch / "b/records.jsonl"};
  CHECK(record_files_in(folder) == both);
  CHECK(read_records({folder}).records.size() == 2);
  append_record(scratch / "own.jsonl", samples::gpu_record("blockwise", 200));
  CHECK(record_files_in(folder) == std::vector<std::string>{scratch / "own.jsonl"});
  CHECK(contains(refusal_of([&] { read_records({scratch / "none"}); }),
                 "none: no record file (*.jsonl, *.jsonl.xz) in this folder or in the folders in it"));
}

TEST_CASE("read_records: files packed with xz are read like plain ones, alone and in folders",
          "[record_file]") {
  const TempDirectory scratch;
  const std::string plain = scratch / "a.jsonl";
  append_record(plain, samples::gpu_record("bf16", 250));
  append_record(plain, samples::gpu_record("mxfp8", 200));
  const std::string text = file_text(plain),
                    xz = scratch.write("b/a.jsonl.xz", testing::packed_with_xz(text));
  const auto text_of_records = [](const std::string& path) {
    const RecordSet set = read_records({path});
    CHECK(set.problems.empty());
    std::string all;
    for (const LocatedRecord& located : set.records)
      all += nlohmann::ordered_json(located.record).dump() + "\n";
    return all;
  };
  CHECK(text_of_records(xz) == text);
  CHECK(text_of_records(scratch / "b") == text);
  CHECK(read_records({xz}).records[1].origin.text() == xz + ":2");
  // Whatever its name, and from a descriptor that gives a byte at a time.
  CHECK(text_of_records(scratch.write("packed", file_text(xz))) == text);
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  std::thread writer([&] {
    for (const char byte : file_text(xz)) REQUIRE(::write(ends[1], &byte, 1) == 1);
    ::close(ends[1]);
  });
  CHECK(text_of_records(fmt::format("/dev/fd/{}", ends[0])) == text);
  writer.join();
  ::close(ends[0]);
  // The copy that xz -dk leaves is read in its place.
  scratch.write("b/a.jsonl", text.substr(0, text.find('\n') + 1));
  CHECK(record_files_in(scratch / "b") == std::vector<std::string>{scratch / "b/a.jsonl"});
  CHECK(is_record_file("x/y.jsonl.xz"));
  CHECK_FALSE(is_record_file("x/y.xz"));
  CHECK_FALSE(is_record_file("x.jsonl/y"));
  CHECK(without_record_extension("x.y/z.jsonl.xz") == "x.y/z");
}

TEST_CASE("read_records: damaged packed records are refused with the file's name", "[record_file]") {
  const TempDirectory scratch;
  append_record(scratch / "a.jsonl", samples::gpu_record("bf16", 250));
  const std::string packed = testing::packed_with_xz(file_text(scratch / "a.jsonl"));
  const std::string cut = scratch.write("b/cut.jsonl.xz", packed.substr(0, packed.size() / 2));
  CHECK(contains(refusal_of([&] { read_records({cut}); }), cut + ": truncated xz data"));
  CHECK(contains(refusal_of([&] { read_records({scratch / "b"}); }), cut + ": truncated xz data"));
  const std::string bomb =
      scratch.write("bomb.jsonl.xz", testing::packed_with_xz(std::string(std::size_t{66} << 20, '\n'), 0));
  reset_heap_peak();
  CHECK(refusal_of([&] { read_records({bomb}); }) ==
        bomb + ": unpacks to more than 500 times its size, which no records do");
  if (heap_is_counted()) CHECK(heap_peak() < (std::size_t{16} << 20));
}

TEST_CASE("refuse_compressed: compressed records are named with the command that unpacks them",
          "[record_file]") {
  const TempDirectory scratch;
  const std::string bzip2 = scratch.write("my records.jsonl.bz2", "BZh9..."),
                    gzip = scratch.write("r.jsonl.gz", "\x1F\x8B..."),
                    plain = scratch.write("r.jsonl", "{}\n");
  CHECK(refusal_of([&] {
          refuse_compressed({plain, bzip2}, "precbench report -");
        }) == bzip2 + ": compressed with bzip2; unpack it on the way: bzip2 -dc '" + bzip2 +
                  "' | precbench report -");
  CHECK(contains(refusal_of([&] { refuse_compressed({gzip}, "precbench check --baseline FILE -"); }),
                 "compressed with gzip; unpack it on the way: gzip -dc " + gzip +
                     " | precbench check --baseline FILE -"));
  refuse_compressed({plain, scratch / "absent", "-", scratch.path().string()}, "");
  fs::remove(plain);
  CHECK(contains(refusal_of([&] { refuse_compressed({scratch.path().string()}, "precbench predict -"); }),
                 "no record file (*.jsonl, *.jsonl.xz); " + bzip2 + ": compressed with bzip2"));
  // From a pipe it is seen when it is read.
  CHECK(read_records({gzip}).problems ==
        std::vector<std::string>{gzip + ": compressed; unpack it first: gzip -dc, left out"});
}

TEST_CASE("read_records: missing and unreadable paths are refused", "[record_file]") {
  const TempDirectory scratch;
  CHECK(contains(refusal_of([&] { read_records({scratch / "none"}); }), "no such file or folder"));
  CHECK(contains(refusal_of([&] { read_records({scratch.path().string()}); }),
                 "no record file (*.jsonl, *.jsonl.xz)"));
  if (::geteuid() == 0) return;  // root reads everything
  append(scratch / "secret.jsonl", "{}\n");
  fs::permissions(scratch / "secret.jsonl", fs::perms::none);
  CHECK(contains(refusal_of([&] { read_records({scratch / "secret.jsonl"}); }), "Permission denied"));
}

TEST_CASE("read_records: a schema 1 record yields to a schema 2 record of the same case", "[record_file]") {
  const TempDirectory scratch;
  const std::string file = scratch / "records.jsonl";
  Record old = samples::of_schema_1(samples::gpu_record("bf16", 250));
  old.id = "of another algorithm";
  append_record(file, old);
  append_record(file, samples::of_schema_1(samples::gpu_record("rowwise", 225)));
  Record today = samples::gpu_record("bf16", 240);
  today.case_fields["younger"] = "default";
  append_record(file, today);
  Record elsewhere = today;
  elsewhere.id = "elsewhere";
  elsewhere.env.gpu->name = "NVIDIA B200";
  append_record(file, elsewhere);
  const RecordSet set = read_records({file});
  REQUIRE(set.records.size() == 3);
  CHECK(set.records[0].record.case_fields["recipe"] == "rowwise");
  REQUIRE(set.problems.size() == 1);
  CHECK(set.problems[0] ==
        file + ":1: case of another algorithm is of record schema 1, and its fields are those of " + file +
            ":3, which is used");
}

TEST_CASE("read_records: a schema 2 record without definition is left out", "[record_file]") {
  const TempDirectory scratch;
  const std::string file = scratch / "records.jsonl";
  nlohmann::ordered_json json = samples::gpu_record("bf16", 250);
  json.erase("definition");
  append(file, json.dump() + "\n");
  const RecordSet set = read_records({file});
  CHECK(set.records.empty());
  CHECK(set.problems ==
        std::vector<std::string>{file + ":1: not a valid record: /definition: missing, left out"});
}

TEST_CASE("read_records: an open pipe is read like a file", "[record_file]") {
  const std::string text = nlohmann::ordered_json(samples::gpu_record("bf16", 250)).dump() + "\nno record\n" +
                           nlohmann::ordered_json(samples::gpu_record("blockwise", 200)).dump();
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  REQUIRE(::write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  ::close(ends[1]);
  const std::string path = fmt::format("/dev/fd/{}", ends[0]),
                    same = fmt::format("/proc/self/fd/{}", ends[0]);
  const RecordSet set = read_records({path, same});  // two names of one pipe
  ::close(ends[0]);
  REQUIRE(set.records.size() == 2);
  CHECK(set.records[1].origin.text() == path + ":3");
  CHECK(set.problems == std::vector<std::string>{path + ":2: not JSON, left out"});
  CHECK(set.without_record.empty());
  CHECK(contains(refusal_of([&] { read_records({path}); }), "Bad file descriptor"));
}

TEST_CASE("read_records: a descriptor that is not a file or pipe or terminal is refused", "[record_file]") {
  const TempDirectory scratch;
  const auto refusal_on = [](const char* path) {
    const int descriptor = ::open(path, O_RDONLY);
    REQUIRE(descriptor >= 0);
    const std::string refusal = refusal_of([&] { read_records({fmt::format("/dev/fd/{}", descriptor)}); });
    ::close(descriptor);
    return refusal;
  };
  CHECK(contains(refusal_on("/dev/zero"), "not a file, a pipe or a terminal"));
  CHECK(contains(refusal_on(scratch.path().c_str()), "a folder, not a file"));
  CHECK(refusal_of([] { read_records({"/dev/fd/x"}); }) == "/dev/fd/x: no such file or folder");
}
