// Tests the record of a case that did not run: its counts are those of records of cases that did.
#include "bench/measure/dry_record.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "bench/predict/predict.h"
#include "kernels/testing/catch.h"
#include "results/record/record_file.h"

using namespace precbench;

namespace {

Case case_of(const std::string& recipe, std::int64_t gpus = 1) {
  Case c;
  c.model = "llama3.1-8b";
  c.recipe = recipe;
  c.seq = 8192;
  c.batch = 1;
  c.gpus = gpus;
  c.device = "cuda";
  c.master = c.moments = c.grads = "bf16";
  c.clip = 0;
  if (gpus > 1) c.parallel = "fsdp";
  return c;
}

/// Returns the sums over the shapes of an op.
OpRecord sum_of_op(const Record& record, const OpRecord& like) {
  OpRecord sum{.name = like.name, .op_class = like.op_class};
  for (const OpRecord& op : record.breakdown->ops) {
    if (op.name != like.name || op.op_class != like.op_class) continue;
    sum.calls += op.calls;
    sum.flops += op.flops;
    sum.ms += op.ms;
  }
  return sum;
}

}  // namespace

TEST_CASE("dry_record: counts of GEMMs and attention are those of a measured step", "[predict]") {
  const RecordSet set = read_records({PRECBENCH_SOURCE_DIR "/results/h200/single.jsonl.xz"});
  int compared = 0;
  for (const LocatedRecord& located : set.records) {
    const CaseFields& fields = located.record.case_fields;
    if (fields.at("model") != "llama3.1-8b" || fields.at("seq") != 8192) continue;
    const Record dry = dry_record(validate(case_of(fields.at("recipe").get<std::string>())));
    REQUIRE(dry.status == Status::ok);
    for (const OpRecord& op : located.record.breakdown->ops) {
      if (op.flops == 0) continue;
      const OpRecord own = sum_of_op(dry, op);
      INFO(fields.at("recipe") << " " << op.name << " " << op.op_class);
      CHECK(own.calls == op.calls);
      CHECK(own.flops == op.flops);
      CHECK(own.ms == 0);
      ++compared;
    }
  }
  CHECK(compared > 40);
}

TEST_CASE("dry_record: ops are apart by shape, with the formats of their operands", "[predict]") {
  const Record record = dry_record(validate(case_of("blockwise")));
  std::map<std::vector<std::int64_t>, const OpRecord*> products;
  for (const OpRecord& op : record.breakdown->ops)
    if (op.name == "matmul wgrad" && op.op_class == "gemm") products[op.shape.value()] = &op;
  REQUIRE(products.size() == 4);
  const std::int64_t k = 8192;
  for (const auto& [m, n] :
       {std::pair<std::int64_t, std::int64_t>(6144, 4096), {4096, 4096}, {28672, 4096}, {4096, 14336}}) {
    INFO(m << " x " << n);
    const OpRecord* op = products[{m, n, k}];
    REQUIRE(op);
    CHECK(op->calls == 32);
    CHECK(op->flops == 32 * 2.0 * static_cast<double>(m * n * k));
    CHECK(op->formats == "e4m3 1x128 f32, e4m3 1x128 f32");
  }
  const auto attention = std::find_if(record.breakdown->ops.begin(), record.breakdown->ops.end(),
                                      [](const OpRecord& op) { return op.name == "attention"; });
  REQUIRE(attention != record.breakdown->ops.end());
  CHECK(attention->shape == std::vector<std::int64_t>{1, 8192, 8192, 0, 32, 8, 128});
}

TEST_CASE("dry_record: memory, tokens and collectives are the dry run's", "[predict]") {
  const Plan plan = validate(case_of("tensorwise", 4));
  const Record record = dry_record(plan);
  CHECK(record.memory->predicted->peak == predict(plan).memory.peak);
  CHECK(record.training->tokens_per_step == 4 * 8192);
  REQUIRE(record.communication);
  const auto& collectives = record.communication->collectives;
  const auto gather = std::find_if(collectives.begin(), collectives.end(),
                                   [](const CollectiveRecord& one) { return one.name == "all_gather"; });
  REQUIRE(gather != collectives.end());
  CHECK(gather->wire_bytes > 1e9);
  CHECK_FALSE(dry_record(validate(case_of("bf16"))).communication);
}

TEST_CASE("dry_record: a case that cannot run says why", "[predict]") {
  Case c = case_of("rowwise", 4);
  c.gather = "fp8";
  const Record record = dry_record(validate(c, Refusals::kept));
  CHECK(record.status == Status::unsupported);
  REQUIRE(record.error);
  CHECK(record.error->find("FP8 gather") != std::string::npos);
  CHECK_FALSE(record.breakdown);
}
