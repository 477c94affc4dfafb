// For tests of whole cases on the CPU device: a small case, and checks of its finished record.
#pragma once

#include <stdlib.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "bench/measure/session.h"
#include "kernels/testing/catch.h"
#include "results/record/valid_json_testing.h"

namespace precbench {

inline Case tiny_case() {
  // One thread: these models are too small for two, which wait for each other on a busy machine.
  setenv("OMP_NUM_THREADS", "1", 1);
  Case c;
  c.device = "cpu";
  c.batch = 4;
  c.seq = 32;
  c.steps = 8;
  c.lr = 3e-3;
  return c;
}

/// Runs a case, which must succeed.
inline Record run_ok(const Case& c) {
  const Record record = run_case(validate(c));
  INFO(record.error.value_or("no error"));
  REQUIRE(record.status == Status::ok);
  REQUIRE(static_cast<std::int64_t>(record.training->loss.size()) == c.steps);
  return record;
}

inline void check_same_training(const Record& a, const Record& b) {
  CHECK(a.training->loss == b.training->loss);
  CHECK(a.training->grad_norm == b.training->grad_norm);
  CHECK(a.training->lr == b.training->lr);
}

/// Checks everything that a finished record must contain, whatever the case.
inline void check_complete(const Record& record, const Case& c) {
  INFO(record.error.value_or("no error"));
  CHECK(record.status == Status::ok);
  CHECK(!record.error.has_value());
  const nlohmann::ordered_json json = valid_json(record);
  REQUIRE(record.training.has_value());
  const Training& training = *record.training;
  REQUIRE(static_cast<std::int64_t>(training.loss.size()) == c.steps);
  CHECK(training.grad_norm.size() == training.loss.size());
  CHECK(training.lr.size() == training.loss.size());
  CHECK(training.params_changed == training.params_total);
  CHECK(training.params_total == 4 * 9 + 2);
  CHECK(training.tokens_per_step == c.batch * c.seq * c.gpus * c.accumulation);
  // The first loss is ln V up to the random logits, whose deviation is 0.02 sqrt(128) = 0.23.
  CHECK(std::fabs(training.loss.front() - *training.uniform_loss) < 0.3);
  REQUIRE(record.timing.has_value());
  CHECK(record.timing->stop_reason == StopReason::fixed_steps);
  CHECK(record.timing->warmup + static_cast<std::int64_t>(record.timing->samples_ms.size()) == c.steps);
  // The host's clock includes what the samples leave out.
  const std::vector<double>& samples = record.timing->samples_ms;
  REQUIRE(record.timing->wall_ms.has_value());
  CHECK(*record.timing->wall_ms * static_cast<double>(samples.size()) >=
        std::accumulate(samples.begin(), samples.end(), 0.0));
  REQUIRE(record.breakdown.has_value());
  CHECK(record.breakdown->gemm_ms > 0);
  // Measured equals predicted, including the CPU device's own scratch memory.
  REQUIRE(record.memory.has_value());
  CHECK(record.memory->measured->workspace > 0);
  const nlohmann::ordered_json memory = json.at("memory");
  CHECK(memory.at("measured") == memory.at("predicted"));
}

}  // namespace precbench
