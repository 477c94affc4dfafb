// Traces of every format are read; damaged and hostile ones are refused in one line.
#include "tools/explain/trace_file.h"

#include <sqlite3.h>
#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "kernels/base/errors.h"
#include "kernels/base/xz_testing.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"
#include "tools/explain/explain_output.h"
#include "tools/explain/gzip.h"
#include "tools/explain/kineto_reader.h"
#include "tools/explain/nsys_reader.h"
#include "tools/explain/trace_testing.h"

namespace precbench {
namespace {

using testing::KinetoWriter;
using testing::Planted;
using testing::StepWriter;

std::string packed_with_gzip(const std::string& text) {
  z_stream stream{};
  if (deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) != Z_OK)
    throw std::runtime_error("zlib");
  std::string packed(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  deflate(&stream, Z_FINISH);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

std::string refusal(const std::string& path) {
  try {
    read_trace(path);
  } catch (const InvalidInput& error) {
    const std::string what = error.what();
    CHECK(what.find('\n') == std::string::npos);
    return what;
  }
  return "";
}

/// Feeds text in blocks.
ByteSource source_of(const std::string& text, std::size_t& at) {
  return [&text, &at](char* to, std::size_t most) {
    const std::size_t count = std::min(most, text.size() - at);
    text.copy(to, count, at);
    at += count;
    return count;
  };
}

/// An export of Nsight Systems with one step of a few kernels.
std::string nsys_export(const TempDirectory& folder, const std::string& more = "") {
  const std::string path = folder / "profile.sqlite";
  sqlite3* database = nullptr;
  REQUIRE(sqlite3_open(path.c_str(), &database) == SQLITE_OK);
  const std::string sql =
      "CREATE TABLE StringIds(id INTEGER PRIMARY KEY, value TEXT);"
      "CREATE TABLE TARGET_INFO_GPU(name TEXT);"
      "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL(start INT, end INT, deviceId INT, streamId INT, correlationId INT, demangledName INT, shortName INT);"
      "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY(start INT, end INT, deviceId INT, streamId INT, correlationId INT, bytes INT, copyKind INT);"
      "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME(start INT, end INT, correlationId INT, globalTid INT, nameId INT);"
      "CREATE TABLE NVTX_EVENTS(start INT, end INT, eventType INT, text TEXT, textId INT, globalTid INT);"
      "INSERT INTO StringIds VALUES(1, 'nvjet_tst_128x128'), (2, 'cudaLaunchKernel'), (3, 'odd_kernel');"
      "INSERT INTO TARGET_INFO_GPU VALUES('NVIDIA H200');"
      "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES(1000, 2000, 1, 5, 2), (3000, 4000, 2, 5, 2);"
      "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES(10000, 90000, 0, 7, 1, 1, 1), (95000, 99000, 0, 7, 2, NULL, 3);"
      "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES(99500, 99400, 0, 7, 2, 1, 3);"
      "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES(100000, 101000, 0, 7, 3, 64, 1);"
      "INSERT INTO NVTX_EVENTS VALUES(900, 2100, 59, 'aten::mm, seq = 3, op_id = 9, sizes = [[512, 256], [256, 1024]]', NULL, 5);" +
      more;
  char* error = nullptr;
  const int result = sqlite3_exec(database, sql.c_str(), nullptr, nullptr, &error);
  INFO((error ? error : ""));
  REQUIRE(result == SQLITE_OK);
  sqlite3_close(database);
  return path;
}

}  // namespace

TEST_CASE("trace file: plain, gzip and xz hold the same trace", "[explain]") {
  const TempDirectory folder;
  const std::string text = StepWriter(false, Planted::nothing).steps();
  const TrainingTrace plain = read_trace(folder.write("a.json", text));
  CHECK(plain.gpu_name == "NVIDIA H200");
  CHECK(plain.format == "Kineto");
  for (const std::string& path :
       {folder.write("a.json.gz", packed_with_gzip(text)),
        folder.write("two.gz", packed_with_gzip(text.substr(0, 999)) + packed_with_gzip(text.substr(999))),
        folder.write("a.xz", testing::packed_with_xz(text))}) {
    INFO(path);
    const TrainingTrace packed = read_trace(path);
    REQUIRE(packed.gpu.size() == plain.gpu.size());
    CHECK(packed.gpu.back().start == plain.gpu.back().start);
    CHECK(packed.names == plain.names);
  }
}

TEST_CASE("trace file: kernels are linked to launches and operations", "[explain]") {
  const TempDirectory folder;
  KinetoWriter writer;
  writer.begin("CompiledFunctionBackward");
  writer.kernel("aten::mm", "nvjet_tst", 12.5, {{64, 32}, {32, 16}}, {"c10::BFloat16", "c10::BFloat16"});
  writer.end();
  const TrainingTrace trace = read_trace(folder.write("a.json", writer.json()));
  REQUIRE(trace.gpu.size() == 1);
  CHECK(trace.gpu[0].duration == 12'500);
  REQUIRE(trace.gpu[0].call != kNoIndex);
  CHECK(trace.name(trace.calls[trace.gpu[0].call].name) == "cudaLaunchKernel");
  REQUIRE(trace.gpu[0].op != kNoIndex);
  const HostEvent& op = trace.ops[trace.gpu[0].op];
  CHECK(trace.name(op.name) == "aten::mm");
  REQUIRE(op.parent != kNoIndex);
  CHECK(trace.name(trace.ops[op.parent].name) == "CompiledFunctionBackward");
  REQUIRE(op.inputs != kNoIndex);
  CHECK(trace.inputs[op.inputs].dims == testing::TraceDims{{64, 32}, {32, 16}});
}

TEST_CASE("trace file: kernels without a call are linked by external id, and the busiest GPU is kept",
          "[explain]") {
  KinetoWriter writer;
  writer.raw(
      R"({"ph": "X", "cat": "cpu_op", "name": "aten::mm", "tid": 1, "ts": 1, "dur": 1, "args": {"External id": 9}})");
  for (const auto& [device, start] : {std::pair(0, 3), std::pair(1, 4), std::pair(1, 6)})
    writer.raw(fmt::format(R"({{"ph": "X", "cat": "kernel", "name": "k{}", "tid": 7, "ts": {}, "dur": 1,
                       "args": {{"External id": 9, "device": {}}}}})",
                           device, start, device));
  const std::string json = writer.json();
  std::size_t at = 0;
  const TrainingTrace trace = read_kineto("a", source_of(json, at));
  CHECK(trace.other_devices == 1);
  REQUIRE(trace.gpu.size() == 2);
  for (const GpuEvent& event : trace.gpu) {
    CHECK(trace.name(event.name) == "k1");
    REQUIRE(event.op != kNoIndex);
    CHECK(trace.name(trace.ops[event.op].name) == "aten::mm");
  }
}

TEST_CASE("trace file: lists of tensors count their elements", "[explain]") {
  KinetoWriter writer;
  writer.kernel("aten::mm", "k", 1);
  writer.raw(R"({"ph": "X", "cat": "cpu_op", "name": "aten::_fused_adamw_", "tid": 1, "ts": 1e12, "dur": 1,
    "args": {"External id": 77, "Input Dims": [[[10, 20], [5]], [], [3]], "Input type": ["TensorList", "", "float"]}})");
  const std::string json = writer.json();
  std::size_t at = 0;
  const TrainingTrace trace = read_kineto("a", source_of(json, at));
  REQUIRE(trace.inputs.size() == 1);
  CHECK(trace.inputs[0].elements == std::vector<std::int64_t>{205, 0, 0});
  CHECK(trace.inputs[0].dims[2] == std::vector<std::int64_t>{3});
}

TEST_CASE("trace file: an array of events is a trace, events of other categories are counted", "[explain]") {
  const std::string json =
      R"([{"ph": "M", "name": "process_name"}, {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 5, "dur": 2, "args": {"stream": 7}},
          {"ph": "X", "cat": "python_function", "name": "f", "ts": 1, "dur": 2}, {"ph": "X", "cat": "kernel", "name": "gemm"},
          {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1, "dur": -3}])";
  std::size_t at = 0;
  const TrainingTrace trace = read_kineto("a", source_of(json, at));
  CHECK(trace.gpu.size() == 1);
  CHECK(trace.malformed == 2);
  CHECK(trace.skipped.at("python_function") == 1);
}

TEST_CASE("trace file: an export of Nsight Systems", "[explain]") {
  const TempDirectory folder;
  const TrainingTrace trace = read_trace(nsys_export(folder));
  CHECK(trace.format == "Nsight Systems");
  CHECK(trace.gpu_name == "NVIDIA H200");
  REQUIRE(trace.gpu.size() == 3);
  CHECK(trace.malformed == 1);
  CHECK(trace.name(trace.gpu[1].name) == "odd_kernel");
  CHECK(trace.name(trace.gpu[2].name) == "Memcpy HtoD");
  REQUIRE(trace.gpu[0].op != kNoIndex);
  CHECK(trace.name(trace.ops[trace.gpu[0].op].name) == "aten::mm");
  const Explanation all = explain_trace(trace, nullptr);
  REQUIRE(all.gemms.size() == 1);
  CHECK(all.gemms[0].shape == GemmShape{1, 512, 1024, 256, GemmFormat::bf16});
}

TEST_CASE("trace file: strings that name no kernel or call of an export do not fill the limit of names",
          "[explain]") {
  const TempDirectory folder;
  const TrainingTrace trace = read_trace(nsys_export(
      folder,
      "INSERT INTO StringIds VALUES(4, 'train.py'), (5, 'cudaMalloc'), (6, 'shown ' || char(27) || '[31m');"
      "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES(5000, 6000, 9, 5, 5);"
      "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES(200000, 201000, 0, 7, 8, 6, 6), (1, 1e300, 0, 7, 8, 1, 1);"));
  const auto has = [&](const char* name) {
    return std::find(trace.names.begin(), trace.names.end(), name) != trace.names.end();
  };
  CHECK(has("cudaMalloc"));
  CHECK(has("odd_kernel"));
  CHECK_FALSE(has("train.py"));
  CHECK(trace.malformed == 2);
  ExplainedTrace one;
  one.trace = trace;
  one.all = explain_trace(trace, nullptr);
  CHECK(explain_text({one}, Screen{80, true, false}).find('\x1b') == std::string::npos);
}

TEST_CASE("trace file: a view in place of a table of Nsight Systems is not executed", "[explain]") {
  const TempDirectory folder;
  const std::string path = nsys_export(
      folder,
      "DROP TABLE CUPTI_ACTIVITY_KIND_MEMCPY;"
      "CREATE VIEW CUPTI_ACTIVITY_KIND_MEMCPY AS WITH RECURSIVE r(start) AS (SELECT 1 UNION ALL SELECT start + 1 FROM r) "
      "SELECT start, start AS end, 0 AS deviceId, 0 AS streamId, 0 AS correlationId, 1 AS copyKind FROM r;");
  CHECK(read_trace(path).gpu.size() == 2);
}

TEST_CASE("trace file: bad input is refused in one line", "[explain]") {
  const TempDirectory folder;
  const std::string text = StepWriter(false, Planted::nothing).steps(), packed = packed_with_gzip(text);
  CHECK_THAT(refusal(folder / "none.json"), ContainsText("cannot read"));
  CHECK_THAT(refusal(folder.path().string()), ContainsText("cannot read"));
  CHECK_THAT(refusal(folder.write("empty", "")), ContainsText("empty"));
  CHECK_THAT(refusal(folder.write("log.txt", "step: 1 loss: 2.5\n")), ContainsText("neither JSON"));
  CHECK_THAT(refusal(folder.write("cut.json", text.substr(0, text.size() / 2))),
             ContainsText("still being written"));
  for (const std::size_t kept :
       {packed.size() / 2, packed.size() - 5})  // within the data; within the check sum
    CHECK_THAT(refusal(folder.write("cut.gz", packed.substr(0, kept))), ContainsText("truncated gzip data"));
  std::string damaged = packed;
  damaged[damaged.size() / 2] = static_cast<char>(damaged[damaged.size() / 2] ^ 0x55);
  CHECK_FALSE(refusal(folder.write("damaged.gz", damaged)).empty());
  CHECK_THAT(refusal(folder.write("other.json", "{\"a\": 1}")), ContainsText("traceEvents"));
  CHECK_THAT(refusal(folder.write("not.json", "{\"traceEvents\": [}")), ContainsText("not JSON at byte"));
  CHECK_THAT(refusal(folder.write("cpu.json", "{\"traceEvents\": []}")), ContainsText("no GPU work"));
  CHECK_THAT(refusal(folder.write(
                 "times.json", R"({"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1}]})")),
             ContainsText("beside 1 event without a name or a possible time"));
  CHECK_THAT(
      refusal(folder.write("bomb.gz", packed_with_gzip("[" + std::string(std::size_t{80} << 20, ' ')))),
      ContainsText("far more"));
  CHECK_THAT(refusal(folder.write("deep.json", std::string(100'000, '['))), ContainsText("nested"));
  CHECK_THAT(refusal(folder.write("long.json", "[\"" + std::string(std::size_t{3} << 20, 'x'))),
             ContainsText("text of more"));
  CHECK_THAT(refusal(folder.write("a.sqlite", std::string("SQLite format 3\0garbage", 23))),
             ContainsText("Nsight"));
}

TEST_CASE("trace file: impossible times are counted, and no sum of times overflows", "[explain][hostile]") {
  const auto event = [](double start, double duration) {
    return fmt::format(R"({{"ph": "X", "cat": "kernel", "name": "k", "tid": 1, "ts": {}, "dur": {}}})", start,
                       duration);
  };
  const std::string json = "{\"traceEvents\": [" + event(-9.1e15, 9e15) + "," + event(9.1e15, 1) + "," +
                           event(-2.9e15, 3.5e9) + "," + event(2.9e15, 3.5e9) + "," + event(5, -1) + "," +
                           event(5, 4e9) + "]}";
  std::size_t at = 0;
  ExplainedTrace one;
  one.trace = read_kineto("a", source_of(json, at));
  CHECK(one.trace.malformed == 4);
  REQUIRE(one.trace.gpu.size() == 2);
  CHECK(one.trace.gpu[1].start == 5'800'000'000'000'000'000);
  one.all = explain_trace(one.trace, nullptr);
  const std::string text = explain_text({one}, Screen{80, true, false});
  CHECK_THAT(text, ContainsText("4 events without a name or a possible time, left out."));
  CHECK_THAT(text, ContainsText("7000000.00 ms  k"));
}

TEST_CASE("trace file: sizes beyond any tensor's are no numbers of launches", "[explain][hostile]") {
  KinetoWriter writer;
  const testing::TraceDims dims = {std::vector<std::int64_t>(16, 100'000'000'000)};
  writer.begin("Optimizer.step#AdamW.step");
  for (int i = 0; i < 40; ++i) writer.kernel("aten::addcdiv_", "k", 100, dims, {"float"});
  writer.end();
  writer.raw(R"({"ph": "X", "cat": "cpu_op", "name": "list", "tid": 1, "ts": 1e12, "dur": 1,
    "args": {"Input Dims": [[[999999999999, 999999999999], [3000000000]], [[3000000000, 1]]]}})");
  const std::string json = writer.json();
  std::size_t at = 0;
  const TrainingTrace trace = read_kineto("a", source_of(json, at));
  bool found = false;
  for (const OpInputs& inputs : trace.inputs)
    found |= inputs.elements == std::vector<std::int64_t>{1'000'000'000'000'000'000, 3'000'000'000};
  CHECK(found);
  const testing::PlainRates rates;
  for (const Finding& finding : explain_trace(trace, &rates).findings) CHECK(finding.predicted >= 0);
}

TEST_CASE("trace file: mutated traces are read or refused, and what is read can be explained", "[explain]") {
  const std::string text = StepWriter(true, Planted::casts).steps(1);
  std::mt19937 random(1);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  const testing::PlainRates rates;
  int taken = 0;
  for (int i = 0; i < 1000; ++i) {
    std::string mutated = text;
    for (std::size_t changes = 1 + below(4); changes-- > 0;) {
      const std::size_t at = below(mutated.size());
      static const std::string words[] = {
          "-1", "1e308", "99999999999999999999", "[", "\"", "kernel", "null", "0.5", "\\u0007"};
      switch (below(3)) {
        case 0:
          mutated[at] = static_cast<char>(32 + below(95));
          break;
        case 1:
          mutated.erase(at, below(40));
          break;
        default:
          mutated.insert(at, words[below(std::size(words))]);
      }
    }
    try {
      std::size_t at = 0;
      ExplainedTrace one;
      one.trace = read_kineto("trace.json", source_of(mutated, at));
      if (one.trace.gpu.empty()) continue;
      one.all = explain_trace(one.trace, i % 4 ? &rates : nullptr);
      for (const Finding& finding : one.all.findings) {
        CHECK(std::isfinite(finding.lost));
        CHECK((std::isfinite(finding.predicted) && finding.predicted >= 0));
      }
      std::int64_t sum = 0;
      for (const std::int64_t time : one.all.steps.step.exclusive) sum += time;
      CHECK(sum == one.all.steps.step.duration());
      const std::string shown = explain_text({one}, Screen{80, true, false});
      CHECK(shown.find('\x07') == std::string::npos);
      ++taken;
    } catch (const InvalidInput& error) {
      CHECK(std::string(error.what()).find('\n') == std::string::npos);
    }
  }
  CHECK(taken > 100);
}

TEST_CASE("trace file: a long trace takes bounded memory", "[explain]") {
  // 40 MB of events that repeat, generated while they are read: only what is distinct and what is counted is kept.
  constexpr int kEvents = 200'000;
  int event = 0;
  std::string pending = "{\"traceEvents\": [";
  const ByteSource source = [&](char* to, std::size_t most) {
    while (pending.size() < most && event <= kEvents) {
      if (event == kEvents) {
        pending += "]}";
      } else {
        pending += fmt::format(
            "{}{{\"ph\": \"X\", \"cat\": \"python_function\", \"name\": \"module.py({}): forward\", \"pid\": 1, \"tid\": 1, "
            "\"ts\": {}.5, \"dur\": 3, \"args\": {{\"Python id\": {}, \"Python parent id\": 1}}}}",
            event ? "," : "", event % 7, event, event);
      }
      ++event;
    }
    const std::size_t count = std::min(most, pending.size());
    pending.copy(to, count);
    pending.erase(0, count);
    return count;
  };
  const TrainingTrace trace = read_kineto("long", source);
  CHECK(trace.skipped.at("python_function") == kEvents);
  CHECK(trace.ops.empty());
  CHECK(trace.names.size() <= 8);
}

}  // namespace precbench
