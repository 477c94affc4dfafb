// A run that is saved and resumed in new objects equals a run without interruption.
#include "models/transformer/state/state.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>

#include "bench/predict/predict.h"
#include "bench/step/rank_testing.h"
#include "bench/step/weights.h"
#include "kernels/base/errors.h"
#include "kernels/numerics/element_runs.h"
#include "kernels/testing/temp_directory.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

struct StateSetup {
  int ranks = 1;
  std::string parallel = "ddp";
  int shard_group = 1;
  std::string master = "fp32", moments = "fp32", recipe = "tensorwise";
  std::string gather = "bf16";
  std::int64_t seed = 7, batch = 1;
  std::string keep_bf16 = "", switch_recipe = "";
  int context = 1, tensor = 1;
};

/// No unit is divisible into two or three shards without padding.
Plan state_plan(const StateSetup& setup) {
  const TempDirectory directory;
  Case c;
  c.model = directory.write("uneven.json", R"({"layers": 2, "width": 32, "ffn": 96, "heads": 4, "kv_heads": 2,
                                              "head_dim": 16, "vocab": 100, "qk_norm": true})");
  c.recipe = setup.recipe;
  c.seq = 32;
  c.batch = setup.batch;
  c.gpus = setup.ranks;
  c.parallel = setup.parallel;
  c.shard_group = setup.shard_group;
  c.context = setup.context;
  c.tensor = setup.tensor;
  c.master = setup.master;
  c.moments = setup.moments;
  c.gather = setup.gather;
  c.seed = setup.seed;
  c.clip = 0;  // the norm is the one sum whose order depends on the sharding
  c.lr = 1e-3;
  c.keep_bf16 = setup.keep_bf16;
  c.switch_recipe = setup.switch_recipe;
  if (!setup.switch_recipe.empty()) c.steps = 4;
  return validate(c);
}

/// State of a run on the host: whole tensors, assembled from the ranks' parts.
struct Checkpoint {
  RunPosition position;
  std::map<std::string, std::vector<std::byte>> tensors;
  std::map<std::string, std::int64_t> elements;  // that the ranks have saved
};

std::int64_t element_bytes(const StateTensor& tensor) { return bits_of(tensor.values.dtype) / 8; }

std::int64_t whole_size(const StateTensor& tensor) {
  std::int64_t size = 1;
  for (const std::int64_t n : tensor.shape) size *= n;
  return size;
}

void save(Rank& rank, std::int64_t step, Checkpoint& checkpoint, std::mutex& mutex) {
  // Replicas are identical, so one of them is enough.
  const int me = rank.comm().rank();
  const Comm* replicas = rank.parameters().groups().replicas.comm;
  if (replicas && replicas->rank() != 0) return;
  rank.parameters().save_state([&](const StateTensor& tensor, const std::vector<std::byte>& bytes) {
    const std::lock_guard lock(mutex);
    std::vector<std::byte>& whole = checkpoint.tensors[tensor.name];
    whole.resize(whole_size(tensor) * element_bytes(tensor));
    for_each_run(in_bytes(tensor.place, tensor.values.dtype), tensor.values.bytes(),
                 [&](std::int64_t i, std::int64_t first, std::int64_t count) {
                   std::memcpy(whole.data() + first, bytes.data() + i, static_cast<std::size_t>(count));
                 });
    checkpoint.elements[tensor.name] += tensor.values.size();
  });
  if (me == 0) checkpoint.position = rank.position(step);
}

std::int64_t load(Rank& rank, const Checkpoint& checkpoint) {
  return rank.continue_from(
      checkpoint.position, [&](const StateTensor& tensor, std::vector<std::byte>& bytes) {
        const std::vector<std::byte>& whole = checkpoint.tensors.at(tensor.name);
        std::memcpy(bytes.data(), whole.data() + tensor.place.first * element_bytes(tensor), bytes.size());
      });
}

struct StateOutcome {
  std::vector<double> losses;
  Checkpoint end;
};

/// Runs the steps up to `last`, from the initial weights or from a checkpoint.
StateOutcome run_until(const StateSetup& setup, std::int64_t last, const Checkpoint* from = nullptr) {
  const Plan plan = state_plan(setup);
  StateOutcome result;
  std::mutex mutex;
  run_cpu_ranks(plan, dry_run(plan, nullptr).extent, [&](Rank& rank, const DataSource& data) {
    std::int64_t step = 0;
    if (from)
      step = load(rank, *from);
    else
      rank.parameters().initialize(plan.seed, kInitialDeviation);
    for (; step < last; ++step) {
      rank.prepare(data, step, 0);
      rank.enqueue();
      const StepResult one = rank.finish();
      if (rank.comm().rank() == 0) result.losses.push_back(one.loss);
    }
    save(rank, step, result.end, mutex);
  });
  return result;
}

std::string first_difference(const Checkpoint& x, const Checkpoint& y) {
  REQUIRE(x.tensors.size() == y.tensors.size());
  for (const auto& [name, bytes] : x.tensors)
    if (bytes != y.tensors.at(name)) return name;
  return "";
}

}  // namespace

TEST_CASE("state: a saved and loaded run continues with the same bits", "[state]") {
  const StateSetup layouts[] = {
      {}, {.ranks = 2}, {.ranks = 2, .parallel = "fsdp"}, {.ranks = 4, .parallel = "hsdp", .shard_group = 2}};
  for (StateSetup setup : layouts)
    for (const char* master : {"fp32", "bf16", "bf16_sr"})
      for (const char* moments : {"fp32", "bf16"}) {
        if (setup.ranks == 4 && moments == std::string("bf16")) continue;
        setup.master = master, setup.moments = moments;
        INFO(setup.ranks << " ranks " << setup.parallel << ", master " << master << ", moments " << moments);
        const StateOutcome straight = run_until(setup, 3), half = run_until(setup, 2);
        const StateOutcome rest = run_until(setup, 3, &half.end);
        REQUIRE(rest.losses.size() == 1);
        CHECK(rest.losses[0] == straight.losses[2]);
        CHECK(first_difference(rest.end, straight.end) == "");
        CHECK(rest.end.position == straight.end.position);
        CHECK(first_difference(half.end, straight.end) != "");
      }
}

TEST_CASE("state: a state saved in one sharding resumes in another", "[state]") {
  for (const char* master : {"fp32", "bf16_sr"}) {
    const StateSetup ddp{.ranks = 2, .master = master},
        fsdp{.ranks = 2, .parallel = "fsdp", .master = master};
    const StateOutcome whole = run_until(ddp, 3);
    const StateOutcome sharded = run_until(fsdp, 2);
    const StateOutcome rest = run_until(ddp, 3, &sharded.end);
    CHECK(rest.losses[0] == whole.losses[2]);
    CHECK(first_difference(rest.end, whole.end) == "");
    const StateOutcome back = run_until(ddp, 2);
    CHECK(first_difference(run_until(fsdp, 3, &back.end).end, whole.end) == "");
  }
}

TEST_CASE("state: a run over context ranks resumes in every layout of the same batch", "[state][context]") {
  const StateSetup one{.recipe = "bf16", .batch = 2},
      ddp{.ranks = 2, .recipe = "bf16", .batch = 2, .context = 2},
      fsdp{.ranks = 2, .parallel = "fsdp", .recipe = "bf16", .batch = 2, .context = 2},
      hsdp{.ranks = 4, .parallel = "hsdp", .shard_group = 2, .recipe = "bf16", .batch = 1, .context = 2};
  const StateOutcome straight = run_until(ddp, 3), half = run_until(fsdp, 2);
  CHECK(first_difference(run_until(fsdp, 3).end, straight.end) == "");
  CHECK(first_difference(run_until(ddp, 3, &half.end).end, straight.end) == "");
  // Other numbers of ranks sum in another order, and the gradients of keys and values are rounded in between.
  for (const StateSetup& other : {one, hsdp}) {
    INFO(other.ranks << " ranks");
    CHECK(std::fabs(run_until(other, 3, &half.end).losses[0] / straight.losses[2] - 1) <= 1e-4);
    const StateOutcome theirs = run_until(other, 2);
    CHECK(std::fabs(run_until(fsdp, 3, &theirs.end).losses[0] / straight.losses[2] - 1) <= 1e-4);
  }
}

TEST_CASE("state: a run over tensor ranks resumes in every layout of the same batch, and back",
          "[state][tensor]") {
  for (const char* master : {"fp32", "bf16_sr"}) {
    const StateSetup one{.master = master, .recipe = "bf16", .batch = 2},
        tensor{.ranks = 2, .master = master, .recipe = "bf16", .batch = 2, .tensor = 2},
        fsdp{.ranks = 4, .parallel = "fsdp", .master = master, .recipe = "bf16", .tensor = 2},
        hsdp{.ranks = 8,
             .parallel = "hsdp",
             .shard_group = 2,
             .master = master,
             .recipe = "bf16",
             .batch = 1,
             .context = 2,
             .tensor = 2};
    // Initial weights do not depend on the layout. A state that is loaded and saved is the same, whoever has it.
    const StateOutcome first = run_until(one, 0), trained = run_until(one, 2);
    for (const StateSetup& other : {tensor, fsdp, hsdp}) {
      INFO(other.ranks << " ranks " << other.parallel << ", master " << master);
      CHECK(first_difference(run_until(other, 0).end, first.end) == "");
      CHECK(first_difference(run_until(other, 2, &trained.end).end, trained.end) == "");
      const StateOutcome theirs = run_until(other, 2), straight = run_until(other, 3);
      CHECK(first_difference(run_until(one, 2, &theirs.end).end, theirs.end) == "");
      CHECK(first_difference(run_until(other, 3, &theirs.end).end, straight.end) == "");
      // Partial outputs are rounded to BF16 before they are summed.
      CHECK(std::fabs(run_until(one, 3, &theirs.end).losses[0] / straight.losses[2] - 1) <= 1e-3);
    }
  }
}

TEST_CASE("state: a run that switches recipes equals a second run resumed with the next recipe", "[state]") {
  for (StateSetup setup : {StateSetup{}, {.ranks = 2, .parallel = "fsdp"}})
    for (const char* next : {"rowwise", "bf16"}) {
      INFO(setup.ranks << " ranks, tensorwise then " << next);
      setup.keep_bf16 = "first_linear,down";
      StateSetup switching = setup, second = setup;
      switching.switch_recipe = next + std::string("@2");
      second.recipe = next;
      const StateOutcome whole = run_until(switching, 4), first = run_until(setup, 2),
                         rest = run_until(second, 4, &first.end);
      REQUIRE(whole.losses.size() == 4);
      CHECK(std::vector(whole.losses.begin(), whole.losses.begin() + 2) == first.losses);
      CHECK(std::vector(whole.losses.begin() + 2, whole.losses.end()) == rest.losses);
      CHECK(first_difference(whole.end, rest.end) == "");
      CHECK(first_difference(whole.end, run_until(setup, 4).end) != "");
      // Resumes at the switch and after it.
      for (const std::int64_t at : {2, 3}) {
        const StateOutcome half = run_until(switching, at);
        CHECK(first_difference(run_until(switching, 4, &half.end).end, whole.end) == "");
      }
    }
}

TEST_CASE("state: the amaxes of delayed scaling are saved and resumed", "[state]") {
  for (const char* recipe : {"tensorwise_delayed", "tensorwise_delayed_recent"})
    for (StateSetup setup : {StateSetup{},
                             {.ranks = 2},
                             {.ranks = 2, .parallel = "fsdp"},
                             {.ranks = 2, .parallel = "fsdp", .gather = "fp8"}}) {
      setup.recipe = recipe;
      INFO(recipe << ", " << setup.ranks << " ranks " << setup.parallel << " " << setup.gather);
      const StateOutcome straight = run_until(setup, 4), half = run_until(setup, 2);
      const StateOutcome rest = run_until(setup, 4, &half.end);
      CHECK(rest.losses[1] == straight.losses[3]);
      CHECK(first_difference(rest.end, straight.end) == "");
      CHECK(half.end.tensors.contains("scales/known"));
    }
}

TEST_CASE("state: delayed scaling starts at the step where its recipe starts", "[state]") {
  StateSetup setup{.recipe = "bf16"};
  setup.switch_recipe = "tensorwise_delayed@2";
  const StateOutcome delayed = run_until(setup, 4), first = run_until(setup, 2);
  const StateOutcome rest = run_until(setup, 4, &first.end);
  CHECK(first_difference(rest.end, delayed.end) == "");
  setup.switch_recipe = "tensorwise@2";
  const StateOutcome current = run_until(setup, 4);
  CHECK(current.losses[2] == delayed.losses[2]);  // current scaling in the first step, which has no history
  CHECK(current.losses[3] != delayed.losses[3]);
}

TEST_CASE("state: save and load work with staging buffers of any size", "[state]") {
  const Plan plan = state_plan({});
  run_cpu_ranks(plan, dry_run(plan, nullptr).extent, [&](Rank& rank, const DataSource&) {
    rank.parameters().initialize(plan.seed, kInitialDeviation);
    const std::vector<StateTensor> state = rank.parameters().state();
    const auto saved = [&](std::int64_t staging) {
      std::map<std::string, std::vector<std::byte>> tensors;
      const auto write = [&](const StateTensor& part, std::vector<std::byte>& bytes) {
        CHECK(static_cast<std::int64_t>(bytes.size()) <= staging);
        CHECK(part.values.bytes() == static_cast<std::int64_t>(bytes.size()));
        std::vector<std::byte>& whole = tensors[part.name];
        REQUIRE(part.place.first * element_bytes(part) == static_cast<std::int64_t>(whole.size()));
        whole.insert(whole.end(), bytes.begin(), bytes.end());
      };
      save_state(rank.device(), state, write, staging);
      return tensors;
    };
    const auto whole = saved(kStagingBytes);
    CHECK(saved(100) == whole);
    rank.parameters().initialize(plan.seed + 1, kInitialDeviation);
    CHECK(saved(100) != whole);
    const auto read = [&](const StateTensor& part, std::vector<std::byte>& bytes) {
      std::memcpy(bytes.data(), whole.at(part.name).data() + part.place.first * element_bytes(part),
                  bytes.size());
    };
    load_state(rank.device(), state, read, 52);
    CHECK(saved(kStagingBytes) == whole);
  });
}

TEST_CASE("state: columns of a matrix are saved and loaded in few pieces of any size", "[state][tensor]") {
  constexpr std::int64_t kRows = 6, kCols = 5, kOwn = 2, kFirst = 3;  // columns 3 and 4 of rows of 5
  const std::unique_ptr<Device> device = make_cpu_device(1);
  std::vector<float> whole(kRows * kCols), own(kRows * kOwn);
  std::iota(whole.begin(), whole.end(), 1.0f);
  // A shard of the slice: from the second element of its first row to the first of its last.
  const ElementMap place = ElementMap(kFirst, kOwn, kCols).from(1);
  const std::int64_t size = kRows * kOwn - 2;
  const std::vector<StateTensor> state = {{.name = "weights/o",
                                           .shape = {kRows, kCols},
                                           .place = place,
                                           .values = {own.data(), DType::f32, 1, size}}};
  for (const std::int64_t staging : {4, 45, 1000}) {
    INFO("staging " << staging);
    std::fill(own.begin(), own.end(), 0.0f);
    int pieces = 0;
    load_state(
        *device, state,
        [&](const StateTensor& part, std::vector<std::byte>& bytes) {
          CHECK(part.place.run == 0);
          CHECK(part.values.bytes() == static_cast<std::int64_t>(bytes.size()));
          CHECK(part.values.size() <= std::max(staging / 4, kCols));
          std::memcpy(bytes.data(), whole.data() + part.place.first, bytes.size());
          ++pieces;
        },
        staging);
    CHECK(pieces == (staging == 4 ? 5 : staging == 45 ? 3 : 1));
    for (std::int64_t i = 0; i < size; ++i) CHECK(own[i] == whole[place.of(i)]);
    std::int64_t saved = 0;
    save_state(
        *device, state,
        [&](const StateTensor& part, const std::vector<std::byte>& bytes) {
          CHECK(part.place == place.from(saved));
          CHECK(std::memcmp(bytes.data(), own.data() + saved, bytes.size()) == 0);
          saved += part.values.size();
          --pieces;
        },
        staging);
    CHECK(saved == size);
    CHECK(pieces == 0);
  }
}

TEST_CASE("state: runs that gather weights in FP8 resume with the same bits", "[state]") {
  const StateSetup setup{.ranks = 2, .parallel = "fsdp", .gather = "fp8"};
  const StateOutcome straight = run_until(setup, 3), half = run_until(setup, 2);
  const StateOutcome rest = run_until(setup, 3, &half.end);
  CHECK(rest.losses[0] == straight.losses[2]);
  CHECK(first_difference(rest.end, straight.end) == "");
}

TEST_CASE("state: holds every parameter's weight and moments once over the shards", "[state]") {
  for (const StateSetup& setup : {StateSetup{}, {.ranks = 3, .parallel = "fsdp"}}) {
    const Plan plan = state_plan(setup);
    const StateOutcome one = run_until(setup, 1);
    std::int64_t elements = 0, bytes = 0;
    for (const auto& [name, values] : one.end.tensors) {
      bytes += static_cast<std::int64_t>(values.size());
      elements += one.end.elements.at(name);
    }
    CHECK(elements == 3 * parameter_count(plan.model));
    CHECK(bytes == 3 * 4 * parameter_count(plan.model));
    CHECK(one.end.tensors.count("weights/model.layers.1.mlp.down_proj.weight") == 1);
    CHECK(one.end.tensors.count("v/model.norm.weight") == 1);
    CHECK(one.end.position == RunPosition{1, setup.ranks, 7});
    // The predicted memory is the same except for alignment.
    const MemoryUse use = dry_run(plan, nullptr).highest;
    const auto kept = static_cast<double>(use.bytes[static_cast<int>(Segment::master)] +
                                          use.bytes[static_cast<int>(Segment::moments)]);
    CHECK(kept * setup.ranks >= static_cast<double>(bytes));
    CHECK(kept * setup.ranks <= 1.05 * static_cast<double>(bytes));
  }
}

TEST_CASE("state: continue_from refuses another seed and another number of ranks", "[state]") {
  const StateOutcome half = run_until({}, 2);
  const auto refusal = [&](const StateSetup& setup) -> std::string {
    try {
      run_until(setup, 3, &half.end);
    } catch (const InvalidInput& error) {
      return error.what();
    }
    return "";
  };
  CHECK(refusal({.seed = 8}) == "state: it was saved by a run of seed 7, this one has 8");
  CHECK(refusal({.ranks = 2}) == "state: its 2 steps have read 2 sequences, this run's would have read 4");
}
