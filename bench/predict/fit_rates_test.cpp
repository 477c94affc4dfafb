// Rates from records: shapes of older records, scaling to the median step, and what gives none.
#include "bench/predict/fit_rates.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "kernels/testing/catch.h"
#include "results/record/record_file.h"
#include "results/record/step_time.h"

namespace precbench {
namespace {

const OpPeaks kPeaks{1000e12, 2000e12, 2000e12, 4e12};

OpRecord product(std::int64_t calls, std::int64_t m, std::int64_t n, std::int64_t k, double ms) {
  OpRecord op{"matmul fprop", "gemm", calls, ms, 2.0 * static_cast<double>(calls * m * n * k), 1e6};
  op.shape = std::vector<std::int64_t>{m, n, k};
  return op;
}

OpRecord of_all_shapes(const std::vector<OpRecord>& ops, double ms) {
  OpRecord sum{.name = ops.front().name, .op_class = ops.front().op_class};
  for (const OpRecord& op : ops) sum.calls += op.calls, sum.flops += op.flops, sum.bytes += op.bytes;
  sum.ms = ms;
  return sum;
}

TEST_CASE("ops_with_shapes: an older record's time is divided by expected times", "[rates]") {
  const std::vector<OpRecord> counted = {product(2, 4096, 4096, 4096, 0), product(2, 4096, 8192, 4096, 0)};
  const std::vector<OpRecord> ops = ops_with_shapes({of_all_shapes(counted, 12)}, counted, kPeaks);
  REQUIRE(ops.size() == 2);
  CHECK(ops[0].shape == counted[0].shape);
  CHECK(ops[0].ms + ops[1].ms == Approx(12));
  CHECK(ops[1].ms / ops[0].ms == Approx(2).epsilon(0.1));
}

TEST_CASE("ops_with_shapes: keeps shapes, and leaves out ops that the program runs differently now",
          "[rates]") {
  const OpRecord own = product(2, 4096, 4096, 4096, 3);
  const auto kept = ops_with_shapes({own}, {product(9, 1, 1, 1, 0)}, kPeaks);
  REQUIRE(kept.size() == 1);
  CHECK(kept[0].ms == 3);
  CHECK(ops_with_shapes({of_all_shapes({own}, 3)}, {product(3, 4096, 4096, 4096, 0)}, kPeaks).empty());
}

TEST_CASE("fit_rates: the points of a step take as long as the median step", "[rates]") {
  const RecordSet set = read_records({PRECBENCH_SOURCE_DIR "/results/h200/single.jsonl.xz"});
  std::vector<const Record*> records;
  for (const LocatedRecord& located : set.records)
    if (located.record.case_fields.at("model") == "llama3.1-8b") records.push_back(&located.record);
  const Machine machine = find_machine("h200");
  const Rates rates = fit_rates(machine, records).rates;
  CHECK(rates.sources.size() == 18);
  for (const Record* record : records) {
    const auto source = std::find_if(rates.sources.begin(), rates.sources.end(),
                                     [&](const RateSource& one) { return one.record == record->id; });
    REQUIRE(source != rates.sources.end());
    CHECK(source->clock_mhz > 1000);
    // All 32 blocks have the same attention.
    const auto index = static_cast<int>(source - rates.sources.begin());
    const auto point = std::find_if(rates.points.begin(), rates.points.end(), [&](const RatePoint& one) {
      return one.source == index && one.op == "attention";
    });
    REQUIRE(point != rates.points.end());
    const OpCost cost = op_cost(*point);
    const double seconds =
        32 * peaks_of(machine).ideal_seconds(cost.flops, cost.bytes, cost.math) / point->fraction;
    double profiled = record->breakdown->idle_ms, attention = 0;
    for (const OpRecord& op : record->breakdown->ops) {
      profiled += op.ms;
      if (op.name == "attention") attention += op.ms;
    }
    CHECK(1e3 * seconds == Approx(attention * step_ms_of_speed(*record).value() / profiled).epsilon(0.001));
  }
}

TEST_CASE("fit_rates: emulated, failed and foreign records give no rates, with the reason", "[rates]") {
  const RecordSet set = read_records({PRECBENCH_SOURCE_DIR "/results/h200/single.jsonl.xz"});
  const Record& good = set.records.front().record;
  Record failed = good, foreign = good, several = good, emulated = good;
  const auto long_one = std::find_if(set.records.begin(), set.records.end(), [](const LocatedRecord& one) {
    return step_ms_of_speed(one.record).value() > 500 && one.record.breakdown;
  });
  REQUIRE(long_one != set.records.end());
  Record uneven = long_one->record;
  for (OpRecord& op : uneven.breakdown->ops) op.ms *= 1.2;
  failed.status = Status::crashed;
  foreign.env.gpu->name = "NVIDIA B200";
  several.case_fields["gpus"] = 4;
  emulated.support->wgrad.path = ExecutionPath::emulated;
  const FittedRates fitted =
      fit_rates(find_machine("h200"), {&failed, &foreign, &several, &emulated, &uneven});
  CHECK(fitted.rates.points.empty());
  REQUIRE(fitted.skipped.size() == 5);
  CHECK(fitted.skipped[1].find("another GPU") != std::string::npos);
  CHECK(fitted.skipped[2].find("several GPUs") != std::string::npos);
  CHECK(fitted.skipped[3].find("not native") != std::string::npos);
  CHECK(fitted.skipped[4].find("its profiled step differs from its median step") != std::string::npos);
}

TEST_CASE("fit_rates: attention's points carry the kernel that ran", "[rates]") {
  // The sweep of rates ran without cuDNN: backward over 32,768 keys is precbench's there, and cuDNN's in the later
  // sweep.
  for (const auto& [file, expected] :
       {std::pair("rates/records.jsonl.xz", kHopperKernel), std::pair("rates/long.jsonl.xz", kCudnnKernel)}) {
    INFO(file);
    const RecordSet set = read_records({std::string(PRECBENCH_SOURCE_DIR "/results/h200/") + file});
    std::vector<const Record*> records;
    for (const LocatedRecord& located : set.records) {
      const auto& fields = located.record.case_fields;
      if (fields.at("model") == "llama3.1-8b" && fields.at("seq") == 32768)
        records.push_back(&located.record);
    }
    const Rates rates = fit_rates(find_machine("h200"), records).rates;
    int forward = 0, backward = 0;
    for (const RatePoint& point : rates.points) {
      forward += point.op == "attention";
      backward += point.op == "attention_backward";
      CHECK(point.kernel == (point.op == "attention"            ? kHopperKernel
                             : point.op == "attention_backward" ? expected
                                                                : ""));
    }
    CHECK(forward > 0);
    CHECK(backward > 0);
  }
}

TEST_CASE("fit_rates: steps of less than a second give attention's rates alone", "[rates]") {
  const RecordSet set = read_records({PRECBENCH_SOURCE_DIR "/results/h200/single.jsonl.xz"});
  Record brief = set.records.front().record;
  const auto ops_of = [](const Record& record) {
    std::set<std::string> ops;
    for (const RatePoint& point : fit_rates(find_machine("h200"), {&record}).rates.points)
      ops.insert(point.op);
    return ops;
  };
  CHECK(ops_of(brief).size() > 5);
  brief.timing->samples_ms.resize(2);
  brief.timing->warmup = 1;
  CHECK(ops_of(brief) == std::set<std::string>{"attention", "attention_backward"});
}

TEST_CASE("fit_rates: of two records of a case the latest counts", "[rates]") {
  const RecordSet set = read_records({PRECBENCH_SOURCE_DIR "/results/h200/single.jsonl.xz"});
  Record first = set.records.front().record, second = first;
  second.created = "2099-01-01T00:00:00Z";
  second.env.git = "fffffff";
  const Rates rates = fit_rates(find_machine("h200"), {&second, &first}).rates;
  REQUIRE(rates.sources.size() == 1);
  CHECK(rates.sources[0].commit == "fffffff");
}

}  // namespace
}  // namespace precbench
