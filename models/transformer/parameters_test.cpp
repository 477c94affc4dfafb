// Parameters on one rank and under DDP, FSDP and HSDP: values and sums do not depend on the strategy.
#include "models/transformer/parallel/parameters.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/errors.h"
#include "kernels/comm/comm_testing.h"
#include "kernels/device/op_testing.h"
#include "kernels/numerics/state_formats.h"
#include "models/transformer/step_testing.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

/// Dimensions that divide neither each other nor a shard.
ModelConfig awkward(bool tied) {
  ModelConfig c;
  c.layers = 3, c.width = 10, c.ffn = 13, c.heads = 3, c.kv_heads = 1, c.head_dim = 6, c.vocab = 101;
  c.tied = tied, c.qk_norm = true;
  return c;
}

struct Rank {
  Parameters& parameters;
  Comm& comm;
  Arena& arena;
};

/// Runs body on every rank of a group of CPU ranks, each with parameters in its own arena.
void on_ranks(int ranks, const ModelConfig& config, ParameterOptions options,
              const std::function<void(Rank&)>& body) {
  options.optimizer = &optimizer_named("adamw");
  on_cpu_ranks(ranks, [&](Device& device, Comm& comm) {
    // NaN everywhere, so that reads of unwritten memory are noticed.
    std::vector<std::byte> memory(1 << 20, std::byte{0xFF});
    Arena arena(memory.data(), 1 << 20);
    Parameters parameters(device, comm, arena, config, options);
    Rank rank{parameters, comm, arena};
    body(rank);
  });
}

/// Returns what every rank saves after `prepare`, and checks that all ranks agree.
Named saved_by_all(int ranks, const ModelConfig& config, const ParameterOptions& options,
                   Parameters::Kind kind, const std::function<void(Rank&)>& prepare) {
  std::vector<Named> by_rank(ranks);
  on_ranks(ranks, config, options, [&](Rank& rank) {
    prepare(rank);
    by_rank[rank.comm.rank()] = saved(rank.parameters, kind);
  });
  for (const Named& values : by_rank) CHECK(values == by_rank[0]);
  return by_rank[0];
}

struct Setting {
  int ranks, shards;
};
constexpr Setting kSettings[] = {{1, 1}, {2, 1}, {3, 1},   // DDP
                                 {2, 2}, {3, 3},           // FSDP
                                 {4, 2}, {6, 2}, {6, 3}};  // HSDP

ParallelDims dims_of(const Setting& s) { return {.data = s.ranks / s.shards, .shard = s.shards}; }

std::string text(const Setting& s) {
  return std::to_string(s.ranks) + " ranks in groups of " + std::to_string(s.shards);
}

/// Returns values of a parameter from a stream of its own name.
std::vector<float> values_of(const Parameter& p) {
  return normal(std::hash<std::string>{}(p.name), p.size());
}

void load(Parameters& parameters) {
  parameters.load([](const Parameter& p, float* to) {
    const std::vector<float> values = values_of(p);
    std::copy(values.begin(), values.end(), to);
  });
}

}  // namespace

TEST_CASE("Parameters: initialize draws the same values under every sharding", "[parameters]") {
  for (bool tied : {false, true})
    for (Master master : {Master::fp32, Master::bf16, Master::bf16_sr}) {
      const ModelConfig config = awkward(tied);
      const auto initialize = [](Rank& rank) { rank.parameters.initialize(11, 0.5f); };
      Named reference;
      for (const Setting& s : kSettings) {
        INFO(text(s) << " tied " << tied << " master " << static_cast<int>(master));
        const Named values = saved_by_all(s.ranks, config, {.parallel = dims_of(s), .master = master},
                                          Parameters::Kind::weights, initialize);
        if (reference.empty()) reference = values;
        CHECK(values == reference);
      }
      std::int64_t count = 0;
      double sum = 0, squares = 0, matrix_count = 0;
      for (const auto& [name, v] : reference) {
        count += static_cast<std::int64_t>(v.size());
        if (name.find("norm") != std::string::npos) {
          CHECK(v == std::vector<float>(v.size(), 1.0f));
          continue;
        }
        for (float w : v) sum += w, squares += static_cast<double>(w) * w, ++matrix_count;
        if (master != Master::fp32) CHECK(v == rounded(v));
      }
      CHECK(count == parameter_count(config));
      // 5 standard errors of the mean and of the variance.
      CHECK(std::fabs(sum / matrix_count) < 5 * 0.5 / std::sqrt(matrix_count));
      CHECK(std::fabs(squares / matrix_count / 0.25 - 1) < 5 * std::sqrt(1.85 / matrix_count));
    }
}

TEST_CASE("Parameters: random values differ between parameters and between seeds", "[parameters]") {
  const ModelConfig config = awkward(false);
  const auto with_seed = [&](std::uint64_t seed) {
    return saved_by_all(1, config, {}, Parameters::Kind::weights,
                        [&](Rank& rank) { rank.parameters.initialize(seed, 1.0f); });
  };
  const Named values = with_seed(1), other = with_seed(2);
  for (const auto& [name, v] : values)
    for (const auto& [name2, v2] : values) {
      if (name >= name2 || name.find("norm") != std::string::npos || name2.find("norm") != std::string::npos)
        continue;
      INFO(name << " and " << name2);
      CHECK(std::search(v.begin(), v.end(), v2.begin(), v2.begin() + 8) == v.end());
      CHECK(std::search(v2.begin(), v2.end(), v.begin(), v.begin() + 8) == v2.end());
    }
  CHECK(values.at("model.embed_tokens.weight") != other.at("model.embed_tokens.weight"));
}

TEST_CASE("Parameters: saved weights equal loaded weights under every sharding", "[parameters]") {
  for (bool tied : {false, true})
    for (Master master : {Master::fp32, Master::bf16})
      for (const Setting& s : kSettings) {
        INFO(text(s) << " tied " << tied << " master " << static_cast<int>(master));
        const ModelConfig config = awkward(tied);
        const Named values =
            saved_by_all(s.ranks, config, {.parallel = dims_of(s), .master = master},
                         Parameters::Kind::weights, [](Rank& rank) { load(rank.parameters); });
        const Layout layout(config, 1);
        std::size_t parameters = 0;
        for (const Unit& unit : layout.units())
          for (const Parameter& p : unit.parameters) {
            INFO(p.name);
            ++parameters;
            CHECK(values.at(p.name) == (master == Master::fp32 ? values_of(p) : rounded(values_of(p))));
          }
        CHECK(values.size() == parameters);
      }
}

TEST_CASE("Parameters: FP16 master rounds drawn and loaded and changed matrices to FP16 under every sharding",
          "[parameters]") {
  const auto in_fp16 = [](const Parameter& p, std::vector<float> values) {
    if (p.kind != ParameterKind::matrix) return values;
    float amax = 0;
    for (const float x : values) amax = std::max(amax, std::fabs(x));
    const float scale = std::exp2(std::floor(std::log2(kF16Max / amax)));
    for (float& x : values) x = f16_decode(f16_encode(x * scale)) / scale;
    return values;
  };
  // Gains, and matrices whose scale changes when tripled.
  const auto is_tripled = [](const Parameter& p) {
    return p.kind == ParameterKind::gain || p.name.find("o_proj.weight") != std::string::npos;
  };
  for (bool tied : {false, true}) {
    const ModelConfig config = awkward(tied);
    Named drawn = saved_by_all(1, config, {}, Parameters::Kind::weights,
                               [](Rank& rank) { rank.parameters.initialize(11, 0.5f); });
    const Layout whole(config, 1);
    for (const Unit& unit : whole.units())
      for (const Parameter& p : unit.parameters) drawn[p.name] = in_fp16(p, drawn[p.name]);
    for (const Setting& s : kSettings) {
      INFO(text(s) << " tied " << tied);
      const ParameterOptions options{.parallel = dims_of(s), .master = Master::fp16};
      CHECK(saved_by_all(s.ranks, config, options, Parameters::Kind::weights,
                         [](Rank& rank) { rank.parameters.initialize(11, 0.5f); }) == drawn);
      std::vector<std::int64_t> wrong(s.ranks);
      const Named loaded = saved_by_all(s.ranks, config, options, Parameters::Kind::weights, [&](Rank& rank) {
        load(rank.parameters);
        rank.parameters.begin_step();
        const Layout& layout = rank.parameters.layout();
        for (int u = 0; u < layout.unit_count(); ++u)
          for (int twice = 0; twice < 2; ++twice) {  // the second gather must not round again
            const Tensor weights = rank.parameters.gather(u);
            for (const Parameter& p : layout.units()[u].parameters) {
              const std::vector<float> expected = in_fp16(p, values_of(p));
              for (std::int64_t i = 0; i < p.size(); ++i)
                wrong[rank.comm.rank()] +=
                    weights.as<std::uint16_t>()[p.offset + i] != bf16_encode(expected[i]);
            }
          }
      });
      CHECK(wrong == std::vector<std::int64_t>(s.ranks));
      const auto change_some = [&](Rank& rank, bool back) {
        load(rank.parameters);
        Parameters::Replaced replaced;
        const auto tripled = [&](const Parameter& p) {
          return is_tripled(p)
                     ? Parameters::ElementChange([](std::int64_t, float value) { return 3 * value; })
                     : Parameters::ElementChange();
        };
        rank.parameters.change(tripled, &replaced);
        if (back) rank.parameters.restore(replaced);
      };
      const Named changed = saved_by_all(s.ranks, config, options, Parameters::Kind::weights,
                                         [&](Rank& rank) { change_some(rank, false); });
      CHECK(saved_by_all(s.ranks, config, options, Parameters::Kind::weights,
                         [&](Rank& rank) { change_some(rank, true); }) == loaded);
      for (const Unit& unit : whole.units())
        for (const Parameter& p : unit.parameters) {
          INFO(p.name);
          std::vector<float> want = in_fp16(p, values_of(p));
          CHECK(loaded.at(p.name) == want);
          if (is_tripled(p))
            for (float& x : want) x *= 3;
          CHECK(changed.at(p.name) == in_fp16(p, want));
        }
    }
  }
}

TEST_CASE("Parameters: gather returns a unit's whole BF16 weights", "[parameters]") {
  for (const Setting& s : kSettings) {
    INFO(text(s));
    std::vector<std::int64_t> wrong(s.ranks);
    const ModelConfig config = awkward(false);
    on_ranks(s.ranks, config, {.parallel = dims_of(s)}, [&](Rank& rank) {
      load(rank.parameters);
      const Layout& layout = rank.parameters.layout();
      // Two consecutive units stay valid, as the model needs: a block and the next.
      Tensor before;
      for (int u = 0; u < layout.unit_count(); ++u) {
        const Tensor weights = rank.parameters.gather(u);
        for (int v = std::max(0, u - 1); v <= u; ++v)
          for (const Parameter& p : layout.units()[v].parameters) {
            const std::vector<float> expected = values_of(p);
            for (std::int64_t i = 0; i < p.size(); ++i)
              wrong[rank.comm.rank()] +=
                  (v == u ? weights : before).as<std::uint16_t>()[p.offset + i] != bf16_encode(expected[i]);
          }
        before = weights;
      }
    });
    CHECK(wrong == std::vector<std::int64_t>(s.ranks));
  }
}

namespace {

/// Errors that a backward pass may make, for controls.
enum class Fault : std::uint8_t { none, micro_step_lost, micro_step_twice };

/// Small integers, so that every order of summation is exact, also in BF16.
float contribution(int rank, int micro_step, int unit, std::int64_t i) {
  return static_cast<float>((rank * 3 + micro_step * 5 + unit * 7 + i) % 11) - 5;
}

/// Writes one micro-step's gradient of a unit, as backward does.
void write_gradient(Rank& rank, int unit, int micro_step, int times, bool accumulate) {
  const Tensor g = rank.parameters.gradients(unit);
  rank.parameters.commit(g);
  for (std::int64_t i = 0; i < rank.parameters.layout().units()[unit].size; ++i) {
    float value = static_cast<float>(times) * contribution(rank.comm.rank(), micro_step, unit, i);
    if (g.dtype == DType::f32) {
      if (accumulate) value += g.as<float>()[i];
      g.as<float>()[i] = value;
    } else {
      if (accumulate) value += bf16_decode(g.as<std::uint16_t>()[i]);
      g.as<std::uint16_t>()[i] = bf16_encode(value);
    }
  }
}

/// Runs the micro-steps of `steps` steps. A fault concerns rank 0, the last unit and the second micro-step.
void write_gradients(Rank& rank, int steps, Fault fault) {
  Parameters& parameters = rank.parameters;
  for (int step = 0; step < steps; ++step) {
    parameters.begin_step();
    for (int micro_step = 0; micro_step < parameters.options().accumulation; ++micro_step) {
      parameters.begin_micro_step(micro_step);
      for (int u = parameters.layout().unit_count() - 1; u >= 0; --u) {
        const bool here = rank.comm.rank() == 0 && micro_step == 1 && u == parameters.layout().head_unit();
        const bool lost = here && fault == Fault::micro_step_lost,
                   twice = here && fault == Fault::micro_step_twice;
        write_gradient(rank, u, micro_step, lost ? 0 : twice ? 2 : 1, parameters.accumulates());
        parameters.reduce(u);
      }
    }
    parameters.complete_all();
  }
}

/// Returns the sum of all ranks' and micro-steps' contributions to every parameter.
Named expected_gradients(const ModelConfig& config, int ranks, int accumulation) {
  Named expected;
  const Layout layout(config, 1);
  for (int u = 0; u < layout.unit_count(); ++u)
    for (const Parameter& p : layout.units()[u].parameters) {
      std::vector<float>& sum = expected[p.name];
      sum.resize(p.size());
      for (int r = 0; r < ranks; ++r)
        for (int m = 0; m < accumulation; ++m)
          for (std::int64_t i = 0; i < p.size(); ++i) sum[i] += contribution(r, m, u, p.offset + i);
    }
  return expected;
}

}  // namespace

TEST_CASE("Parameters: gradients are summed over ranks and micro-steps under every strategy",
          "[parameters]") {
  const ModelConfig config = awkward(false);
  for (DType dtype : {DType::f32, DType::bf16})
    for (int accumulation : {1, 2, 3})
      for (const Setting& s : kSettings)
        for (bool sync_last : {false, true})
          for (int steps : {1, 2}) {  // the second step must not keep anything of the first
            INFO(text(s) << " " << name_of(dtype) << " accumulation " << accumulation << " steps " << steps
                         << (sync_last ? ", reduced last" : ""));
            const ParameterOptions options{.parallel = dims_of(s),
                                           .gradients = dtype,
                                           .accumulation = accumulation,
                                           .sync_last = sync_last};
            const auto got_with = [&](Fault fault) {
              return saved_by_all(s.ranks, config, options, Parameters::Kind::gradients,
                                  [&](Rank& rank) { write_gradients(rank, steps, fault); });
            };
            const Named expected = expected_gradients(config, s.ranks, accumulation);
            CHECK(first_difference(got_with(Fault::none), expected) == "");
            if (accumulation != 2 || steps > 1) continue;
            for (const Fault fault : {Fault::micro_step_lost, Fault::micro_step_twice})
              CHECK(first_difference(got_with(fault), expected) != "");
          }
}

TEST_CASE("Parameters: whole gradients of a sharded rank are reduced once a step and in place",
          "[parameters]") {
  const ModelConfig config = awkward(false);
  constexpr int kMicroSteps = 3;
  for (const bool sync_last : {false, true}) {
    ParameterOptions options{.parallel = {.shard = 2}, .accumulation = kMicroSteps, .sync_last = sync_last};
    std::atomic<int> wrong = 0;
    on_ranks(2, config, options, [&](Rank& rank) {
      const Layout& layout = rank.parameters.layout();
      std::int64_t whole = 0;
      for (int u = 0; u < layout.unit_count(); ++u) whole += 2 * layout.shard_size(u);
      const auto bytes = [&](Segment segment) {
        return rank.arena.current().bytes[static_cast<int>(segment)];
      };
      rank.comm.reset_counts();
      write_gradients(rank, 1, Fault::none);
      for (const CollectiveCount& c : rank.comm.counts())
        wrong += c.name == "reduce_scatter" && c.calls != (sync_last ? 1 : kMicroSteps) * layout.unit_count();
      wrong += bytes(Segment::gradients) != bytes_of(DType::f32, sync_last ? whole : whole / 2);
      // The shard that the optimizer reads is a part of what backward wrote.
      for (int u = 0; u < layout.unit_count() && sync_last; ++u)
        wrong += rank.parameters.shard(u).gradient.as<float>() !=
                 rank.parameters.gradients(u).as<float>() + rank.comm.rank() * layout.shard_size(u);
    });
    CHECK(wrong == 0);
  }
  ParameterOptions fp8{
      .parallel = {.shard = 2}, .gradients = DType::e4m3, .accumulation = 2, .sync_last = true};
  CHECK_THROWS_AS(on_ranks(2, config, fp8, [](Rank&) {}), Unsupported);
}

TEST_CASE("Parameters: gradient buffer overlays the stack until backward commits a tensor", "[parameters]") {
  // Committed gradient bytes at the start of a step; after each commit, with the bytes needed.
  std::vector<std::int64_t> starts;
  std::vector<std::pair<std::int64_t, std::int64_t>> commits;
  on_ranks(1, awkward(false), {}, [&](Rank& rank) {
    const auto committed = [&] { return rank.arena.current().bytes[static_cast<int>(Segment::gradients)]; };
    const Layout& layout = rank.parameters.layout();
    for (int step = 0; step < 2; ++step) {
      rank.parameters.begin_step();
      starts.push_back(committed());
      for (int u = layout.unit_count() - 1; u >= 0; --u) {
        const Tensor gradient = rank.parameters.gradients(u);
        const std::vector<Parameter>& parameters = layout.units()[u].parameters;
        for (auto p = parameters.rbegin(); p != parameters.rend(); ++p) {
          rank.parameters.commit(gradient.reshape(gradient.size(), 1).slice_rows(p->offset, p->size()));
          const std::int64_t from = layout.shard_offset(u) + p->offset;
          commits.emplace_back(committed(), bytes_of(DType::f32, layout.local_size() - from));
        }
      }
    }
  });
  CHECK(starts == std::vector<std::int64_t>{0, 0});
  REQUIRE_FALSE(commits.empty());
  for (const auto& [bytes, needed] : commits) {
    CHECK(bytes >= needed);
    CHECK(bytes < needed + Arena::kAlignment);
  }
  // With shards, a unit's part is committed when it is reduced.
  for (const int shards : {2, 3}) {
    std::atomic<int> wrong = 0;
    on_ranks(shards, awkward(false), {.parallel = {.shard = shards}}, [&](Rank& rank) {
      const Layout& layout = rank.parameters.layout();
      for (int step = 0; step < 2; ++step) {
        rank.parameters.begin_step();
        for (int u = layout.unit_count() - 1; u >= 0; --u) {
          const auto committed = [&] {
            return rank.arena.current().bytes[static_cast<int>(Segment::gradients)];
          };
          const auto bytes_from = [&](int unit) {
            return bytes_of(DType::f32, layout.local_size() - layout.shard_offset(unit));
          };
          wrong += committed() >= bytes_from(u);
          rank.parameters.commit(rank.parameters.gradients(u));
          wrong += committed() >= bytes_from(u);
          rank.parameters.reduce(u);
          wrong += committed() < bytes_from(u);
        }
        rank.parameters.complete_all();
      }
    });
    CHECK(wrong == 0);
  }
  // With accumulation the buffer is committed from the first micro-step on.
  std::int64_t whole = 0, needed = 0;
  on_ranks(1, awkward(false), {.accumulation = 2}, [&](Rank& rank) {
    rank.parameters.begin_step();
    whole = rank.arena.current().bytes[static_cast<int>(Segment::gradients)];
    needed = bytes_of(DType::f32, rank.parameters.layout().local_size());
  });
  CHECK(needed > 0);
  CHECK(whole >= needed);
}

TEST_CASE("Parameters: shards hold every model element once per group", "[parameters]") {
  for (const Setting& s : kSettings) {
    if (s.shards == 1) continue;
    INFO(text(s));
    const ModelConfig config = awkward(false);
    const Layout whole(config, 1);
    std::vector<int> seen(whole.model_offset(whole.head_unit()) + whole.units().back().size);
    std::mutex mutex;
    on_ranks(s.ranks, config, {.parallel = dims_of(s)}, [&](Rank& rank) {
      const std::lock_guard lock(mutex);
      for (int u = 0; u < whole.unit_count(); ++u) {
        const Parameters::Shard shard = rank.parameters.shard(u);
        for (const Run& run : shard.runs)
          for (std::int64_t i = 0; i < run.count; ++i) ++seen[run.in_model.of(i)];
      }
    });
    std::int64_t once = 0, more = 0;
    for (int n : seen) once += n == s.ranks / s.shards, more += n > s.ranks / s.shards;
    CHECK(once == parameter_count(config));
    CHECK(more == 0);
  }
}

TEST_CASE("Parameters: fingerprints identify the changed parameter", "[parameters]") {
  for (const Setting& s : kSettings) {
    INFO(text(s));
    const ModelConfig config = awkward(false);
    std::vector<std::vector<bool>> changed(s.ranks);
    std::vector<char> repeatable(s.ranks);
    on_ranks(s.ranks, config, {.parallel = dims_of(s)}, [&](Rank& rank) {
      const int r = rank.comm.rank();
      rank.parameters.initialize(1, 0.02f);
      const std::vector<std::uint64_t> before = rank.parameters.fingerprints();
      repeatable[r] = rank.parameters.fingerprints() == before;
      // One element of one parameter, the last one of layer 1's down projection.
      const Layout& layout = rank.parameters.layout();
      const int unit = layout.block_unit(1);
      const Parameter& p = layout.units()[unit].parameters[6];
      const int shard_rank = r % s.shards;
      const auto [first, last] = layout.shard_range(unit, shard_rank);
      const std::int64_t at = p.offset + p.size() - 1;
      if (at >= first && at < last) rank.parameters.shard(unit).master.as<float>()[at - first] *= 1.0001f;
      const std::vector<std::uint64_t> after = rank.parameters.fingerprints();
      for (std::size_t i = 0; i < before.size(); ++i) changed[r].push_back(before[i] != after[i]);
    });
    std::vector<std::string> names, expected = {"model.layers.1.mlp.down_proj.weight"};
    const Layout layout(config, 1);
    std::size_t index = 0;
    for (const Unit& unit : layout.units())
      for (const Parameter& p : unit.parameters) {
        bool any = false;
        for (int r = 0; r < s.ranks; ++r) any = any || changed[r][index];
        if (any) names.push_back(p.name);
        ++index;
      }
    CHECK(names == expected);
    for (int r = 0; r < s.ranks; ++r) {
      CHECK(changed[r].size() == index);
      CHECK(repeatable[r]);
    }
  }
}

TEST_CASE("Parameters: mismatched rank counts are refused", "[parameters]") {
  const auto device = make_cpu_device(1);
  std::vector<std::byte> memory(1 << 20);
  const auto make = [&](int ranks, const ParallelDims& dims) {
    const auto comm = make_dry_comm(0, ranks);
    Arena arena(memory.data(), 1 << 20);
    Parameters(*device, *comm, arena, awkward(false),
               {.parallel = dims, .optimizer = &optimizer_named("adamw")});
  };
  CHECK_NOTHROW(make(6, {.data = 3, .shard = 2}));
  CHECK_THROWS_WITH(make(6, {.data = 2, .shard = 2}), "parallel groups: 6 ranks, but the axes have 4");
  CHECK_THROWS_WITH(make(4, {.data = 4, .tensor = 2}), "parallel groups: 4 ranks, but the axes have 8");
}
