// Records that share common parts keep their values.
#include "results/record_pool.h"

#include <utility>
#include <vector>

#include "results/record_samples.h"
#include "tools/testing/catch.h"

using namespace precbench;

TEST_CASE("RecordPool: records share equal parts and keep their own", "[record_pool]") {
  Record first = samples::gpu_record("mxfp8", 200, 0, 1), second = samples::gpu_record("mxfp8", 210, 0.1, 2);
  second.memory->measured->peak += 1;
  const nlohmann::ordered_json before[] = {first, second};
  RecordPool pool;
  pool.share(first);
  pool.share(second);
  CHECK(nlohmann::ordered_json(first) == before[0]);
  CHECK(nlohmann::ordered_json(second) == before[1]);
  const Record &a = first, &b = second;
  CHECK(&*a.env == &*b.env);
  CHECK(&*a.support == &*b.support);
  CHECK(&*a.flops == &*b.flops);
  CHECK(&*a.metrics->peaks == &*b.metrics->peaks);
  CHECK(&*a.memory->predicted == &*b.memory->predicted);
  CHECK(&*a.memory->measured != &*b.memory->measured);
  CHECK(a.definition->model == b.definition->model);
  CHECK(a.definition->data != b.definition->data);  // another seed
  CHECK(&*a.breakdown->ops[0].work == &*b.breakdown->ops[0].work);

  second.support->attention = "own";
  CHECK(a.support->attention == "cudnn 9.8.0");
}

TEST_CASE("RecordPool: many runs of a case share all fields but the seed", "[record_pool]") {
  RecordPool pool;
  std::vector<Record> records;
  for (int seed = 0; seed < 20; ++seed) {
    Record& record = records.emplace_back(samples::gpu_record("mxfp8", 200, 0, seed));
    record.definition = samples::definition("mxfp8", 1);
    pool.share(record);
    CHECK(record.case_fields.at("seed") == seed);
  }
  const Record &a = records[10], &b = records[19];
  CHECK(&a.case_fields.at("recipe") == &b.case_fields.at("recipe"));
  CHECK(&*a.definition == &*b.definition);
}

TEST_CASE("RecordPool: keeps working beyond its maximum size", "[record_pool]") {
  RecordPool pool;
  for (int i = 0; i < 10'000; ++i) {
    Record record = samples::failed_record("bf16", Status::crashed, "gone");
    record.env->host = "host" + std::to_string(i);
    pool.share(record);
    REQUIRE(*std::as_const(record.env)->host == "host" + std::to_string(i));
  }
}
