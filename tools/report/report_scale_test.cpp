// Tests that time and memory of a report grow linearly with the number of records, in whatever
// the records differ.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <functional>

#include "kernels/testing/catch.h"
#include "kernels/testing/heap.h"
#include "kernels/testing/temp_directory.h"
#include "kernels/testing/text_checks.h"
#include "results/record/record_samples.h"
#include "tools/analysis/analysis.h"
#include "tools/report/reduce_record.h"
#include "tools/report/report.h"

using namespace precbench;

namespace {

/// Returns the minimum CPU time of three runs, all threads, which is largely independent of other load.
double cpu_seconds(const std::function<void()>& action) {
  const auto now = [] {
    timespec time{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  double least = 1e9;
  for (int run = 0; run < 3; ++run) {
    const double begin = now();
    action();
    least = std::min(least, now() - begin);
  }
  return least;
}

/// Checks that four times the work takes less than eight times the CPU time: linear work takes four times as much,
/// quadratic work sixteen. Another load on the machine can disturb one comparison, so the best of three counts.
void check_linear(const std::string& what, const std::function<void()>& few,
                  const std::function<void()>& many) {
  double ratio = 1e9;
  for (int attempt = 0; attempt < 3 && ratio >= 8; ++attempt)
    ratio = std::min(ratio, cpu_seconds(many) / cpu_seconds(few));
  INFO(what);
  CHECK(ratio < 8);
}

/// Returns a small record whose curve is long enough to be judged.
Record small_record(const std::string& recipe, int number) {
  Record r = samples::gpu_record(recipe, 200, 1e-3 * (number % 7));
  r.id = recipe + std::to_string(number);
  r.case_fields["seed"] = number;
  r.breakdown->ops.resize(1);
  return r;
}

struct Kind {
  const char* name;
  void (*change)(Record& record, int number);
};

const Kind kKinds[] = {
    {"seeds", [](Record&, int) {}},
    {"warnings", [](Record& r, int n) { r.warnings = {"warning " + std::to_string(n)}; }},
    {"machines", [](Record& r, int n) { r.env.gpu->name = "GPU " + std::to_string(n / 2); }},
    {"environments", [](Record& r, int n) { r.env.host = "host" + std::to_string(n); }},
    {"sequence lengths", [](Record& r, int n) { r.case_fields["seq"] = 16 * (n / 2 + 1); }},
    {"models", [](Record& r, int n) { r.case_fields["model"] = "model-" + std::to_string(n / 2); }},
    {"recipes",
     [](Record& r, int n) {
       r.case_fields["seed"] = 1;
       if (n > 0) r.case_fields["recipe"] = "recipe" + std::to_string(n);
     }},
    {"bf16 with other modifiers",
     [](Record& r, int n) {
       r.case_fields["seed"] = 1;
       r.case_fields["keep_bf16"] = "first:" + std::to_string(n / 2);
     }},
    {"GPU counts", [](Record& r, int n) { r.case_fields["gpus"] = n / 2 + 1; }},
    {"settings on several GPUs",
     [](Record& r, int n) {
       r.case_fields["gpus"] = n % 4 < 2 ? 1 : 4;
       r.case_fields["batch"] = n / 4 + 1;
     }},
    {"failures", [](Record& r, int n) {
       if (n > 0) r.status = Status::crashed, r.error = "signal " + std::to_string(n);
     }}};

RecordSet set_of(const Kind& kind, int count) {
  std::vector<Record> records;
  for (int i = 0; i < count; ++i) {
    records.push_back(small_record(i % 2 == 0 ? "bf16" : "mxfp8", i / 2));
    kind.change(records.back(), i);
  }
  return samples::set_of(records);
}

}  // namespace

TEST_CASE("make_report: four times the records take less than eight times the CPU time", "[report][scale]") {
  constexpr int kFew = 150;
  for (const Kind& kind : kKinds) {
    const RecordSet few = set_of(kind, kFew), many = set_of(kind, 4 * kFew);
    const auto report = [](const RecordSet& set) {
      return [&set] { CHECK(!render_term(make_report(set)).empty()); };
    };
    check_linear(kind.name, report(few), report(many));
  }
}

TEST_CASE("Workloads: four times the versions of a file take less than eight times the CPU time",
          "[works][scale]") {
  const auto set_of = [](int count, bool defined) {
    std::vector<Record> records;
    for (int i = 0; i < count; ++i) {
      Record record = samples::failed_record("bf16", Status::crashed, "gone");
      record.case_fields["model"] = "a.json";
      record.id = std::to_string(i);
      records.push_back(defined
                            ? samples::redefined(std::move(record), &DefinitionRecord::model, "/layers", i)
                            : samples::of_schema_1(std::move(record)));
    }
    return samples::set_of(records);
  };
  constexpr int kFew = 1000;
  for (const bool defined : {true, false}) {
    const RecordSet few = set_of(kFew, defined), many = set_of(4 * kFew, defined);
    const auto notes = [](const RecordSet& set) {
      return [&set] { CHECK(Workloads(all_of(set)).notes().size() == 1); };
    };
    check_linear(defined ? "defined" : "not defined", notes(few), notes(many));
  }
}

TEST_CASE("read_records: four times the lines take less than eight times the CPU time",
          "[record_file][scale]") {
  const TempDirectory folder;
  const auto write = [&](const std::string& name, const auto& line_of, int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += nlohmann::ordered_json(line_of(i)).dump() + "\n";
    return folder.write(name, text);
  };
  const auto failed = [](int i) {  // each searches in vain for a neighbour with the same machine
    Record r = samples::failed_record("rowwise", Status::crashed, "gone");
    r.id = std::to_string(i);
    r.env = Environment{};
    return r;
  };
  const auto repeated = [](int) { return samples::failed_record("rowwise", Status::crashed, "gone"); };
  constexpr int kFew = 1000;
  const auto check = [&](const char* name, const auto& line_of) {
    const std::string few = write("few", line_of, kFew), many = write("many", line_of, 4 * kFew);
    check_linear(
        name, [&] { read_records({few}); }, [&] { read_records({many}); });
  };
  check("failures", failed);
  check("repeated", repeated);
}

namespace {

constexpr int kSteps = 400;

/// Returns the additional peak heap per record for reading records of many seeds and reporting on them.
template <class Report>
double bytes_a_row(ReduceRecord reduce, const Report& report) {
  const TempDirectory folder;
  const auto peak_of = [&](int count) {
    std::string text;
    for (int i = 0; i < count; ++i) {
      const int seed = i / 2;
      Record r =
          samples::gpu_record(i % 2 == 0 ? "bf16" : "mxfp8", 200 + 1e-3 * seed, 1e-3 * (seed % 7), seed);
      r.id = fmt::format("{:016x}", i);
      r.communication.reset();
      r.timing->runs.clear();
      r.timing->between_runs.reset();
      std::vector<double> loss;  // FP32 values, as from a device
      for (int step = 0; step < kSteps; ++step)
        loss.push_back(3 + (kSteps - step) * 0x1p-8 + (i % 7) * 0x1p-10);
      r.training->loss = loss;
      for (int op = 0; op < 17; ++op)
        r.breakdown->ops.push_back({fmt::format("op {}", op), "gemm", 16, 1.0 + 1e-3 * seed, 1e9, 1e6});
      text += nlohmann::ordered_json(r).dump() + "\n";
    }
    const std::string file = folder.write("records", text);
    reset_heap_peak();
    const RecordSet set = read_records({file}, reduce);
    CHECK(set.records.size() == static_cast<std::size_t>(count));
    report(set);
    return static_cast<double>(heap_peak());
  };
  // Just below powers of two, to which the list of records grows.
  constexpr int kFew = 1000, kMany = 4000;
  return (peak_of(kMany) - peak_of(kFew)) / (kMany - kFew);
}

}  // namespace

// Records have plain members of standard types. A hundred copies of the largest committed record file (165,600
// records, 2.7 GB) are reported in 2.0 GiB.
TEST_CASE("make_report: each of many records takes its loss plus less than 8 kB of heap", "[report][scale]") {
  if (!heap_is_counted()) return;
  const double bytes = bytes_a_row(
      reduce_for_report, [](const RecordSet& set) { CHECK(!render_term(make_report(set)).empty()); });
  INFO(bytes << " bytes a row");
  CHECK(bytes < kSteps * sizeof(double) + 8000);
}

TEST_CASE("make_csv: each of many records takes its loss plus less than 8.5 kB of heap", "[report][scale]") {
  if (!heap_is_counted()) return;
  const double bytes = bytes_a_row(reduce_for_table, [](const RecordSet& set) {
    std::size_t lines = 0;
    make_csv(set, {}, [&](const std::string& line) { lines += !line.empty(); });
    CHECK(lines == set.records.size() + 1);
  });
  INFO(bytes << " bytes a row");
  CHECK(bytes < kSteps * sizeof(double) + 8500);
}
