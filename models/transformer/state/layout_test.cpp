// Layout arithmetic: no element is lost, counted twice or misplaced, however a model is sharded.
#include "models/transformer/state/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "kernels/testing/catch.h"

using namespace precbench;

namespace {

// Dimensions that divide neither each other nor any alignment, with every option.
ModelConfig awkward(bool tied, bool qk_norm, bool qkv_bias = false) {
  ModelConfig c;
  c.layers = 3, c.width = 6, c.ffn = 11, c.heads = 3, c.kv_heads = 1, c.head_dim = 2, c.vocab = 37;
  c.tied = tied, c.qk_norm = qk_norm, c.qkv_bias = qkv_bias;
  return c;
}

std::vector<ModelConfig> configs() {
  std::vector<ModelConfig> all = {model_presets().front()};
  for (bool tied : {false, true})
    for (bool qk_norm : {false, true}) all.push_back(awkward(tied, qk_norm));
  all.push_back(awkward(false, false, true));
  all.push_back(awkward(false, true));
  all.back().qk_norm_over = QkNormOver::heads;
  return all;
}

}  // namespace

TEST_CASE("Layout: units hold every parameter of every preset once", "[layout]") {
  for (const ModelConfig& config : model_presets()) {
    INFO(config.name);
    const Layout layout(config, 1);
    std::int64_t total = 0;
    std::set<std::string> names;
    for (const Unit& unit : layout.units())
      for (const Parameter& p : unit.parameters) {
        total += p.size();
        CHECK(names.insert(p.name).second);
      }
    CHECK(total == parameter_count(config));
    CHECK(names.count("model.embed_tokens.weight") == 1);
    CHECK(names.count("lm_head.weight") == (config.tied ? 0 : 1));
    for (std::int64_t layer = 0; layer < config.layers; ++layer)
      CHECK(layout.is_block(layout.block_unit(layer)));
    CHECK_FALSE(layout.is_block(layout.embedding_unit()));
    CHECK_FALSE(layout.is_block(layout.head_unit()));
    CHECK((layout.embedding_unit() == layout.head_unit()) == config.tied);
  }
}

TEST_CASE("Layout: shards and units are aligned and do not overlap", "[layout]") {
  for (const ModelConfig& config : configs())
    for (int shards : {1, 2, 3, 5}) {
      INFO(config.name << " tied " << config.tied << " qk_norm " << config.qk_norm << " shards " << shards);
      const Layout layout(config, shards);
      std::int64_t local = 0, model = 0;
      for (int u = 0; u < layout.unit_count(); ++u) {
        CHECK(layout.shard_offset(u) >= local);
        CHECK(layout.shard_offset(u) % 128 == 0);
        local = layout.shard_offset(u) + layout.shard_size(u);
        CHECK(layout.model_offset(u) >= model);
        model = layout.model_offset(u) + layout.units()[u].size;
        CHECK(layout.shard_size(u) * shards >= layout.units()[u].size);
        std::int64_t next = 0;
        for (int shard_rank = 0; shard_rank < shards; ++shard_rank) {
          const auto [first, last] = layout.shard_range(u, shard_rank);
          CHECK(first == next);
          CHECK(last - first <= layout.shard_size(u));
          next = last;
        }
        CHECK(next == layout.units()[u].size);
      }
      CHECK(layout.local_size() >= local);
    }
}

TEST_CASE("Layout: runs cover every parameter element exactly once with its decay", "[layout]") {
  for (const ModelConfig& config : configs())
    for (int shards : {1, 2, 3, 5}) {
      INFO(config.name << " tied " << config.tied << " qk_norm " << config.qk_norm << " shards " << shards);
      const Layout layout(config, shards);
      for (int u = 0; u < layout.unit_count(); ++u) {
        const Unit& unit = layout.units()[u];
        enum : char { kHole, kVector, kMatrix };
        std::vector<char> expected(unit.size, kHole), covered(unit.size, kHole);
        for (const Parameter& p : unit.parameters)
          std::fill_n(expected.begin() + p.offset, p.size(),
                      p.kind == ParameterKind::matrix ? kMatrix : kVector);
        std::int64_t twice = 0, outside = 0;
        for (int shard_rank = 0; shard_rank < shards; ++shard_rank) {
          const auto [first, last] = layout.shard_range(u, shard_rank);
          for (const Run& run : layout.runs(u, shard_rank))
            for (std::int64_t i = run.first; i < run.first + run.count; ++i) {
              if (i < 0 || first + i >= last) {
                ++outside;
                continue;
              }
              twice += covered[first + i] != kHole;
              covered[first + i] = run.decay() ? kMatrix : kVector;
            }
        }
        CHECK(twice == 0);
        CHECK(outside == 0);
        CHECK(covered == expected);
      }
    }
}

TEST_CASE("Layout: tensor ranks hold every matrix element once, and all vectors", "[layout][tensor]") {
  for (const bool tied : {false, true})
    for (const int ranks : {2, 4}) {
      ModelConfig config = find_model("tiny");
      config.layers = 2, config.kv_heads = 4, config.tied = tied, config.qk_norm = true;
      INFO("tied " << tied << " ranks " << ranks);
      const Layout whole(config, 1);
      std::vector<int> seen(whole.model_offset(whole.head_unit()) + whole.units().back().size);
      bool columns = false;
      std::int64_t moved = 0;
      for (int rank = 0; rank < ranks; ++rank)
        for (const int shards : {1, 3}) {
          const Layout layout(config, shards, false, {}, {ranks, rank});
          for (int u = 0; u < layout.unit_count(); ++u)
            for (int shard = 0; shard < shards; ++shard)
              for (const Run& run : layout.runs(u, shard)) {
                columns = columns || run.in_model.run > 0;
                for (std::int64_t i = 0; i < run.count; ++i) {
                  moved += run.in_model.from(i).of(0) != run.in_model.of(i);
                  seen[run.in_model.of(i)] += run.decay() ? ranks : 1;
                }
              }
        }
      CHECK(columns);  // of o and down
      CHECK(moved == 0);
      std::int64_t twice = 0;  // in each of two layouts
      for (const int n : seen) twice += n == 2 * ranks;
      CHECK(twice == parameter_count(config));
      const Layout last(config, 1, false, {}, {ranks, ranks - 1});
      for (const Parameter& p : last.units()[last.block_unit(0)].parameters) {
        INFO(p.name);
        const bool reads = p.name.ends_with("o_proj.weight") || p.name.ends_with("down_proj.weight");
        CHECK(p.slice.has_value() == (p.kind == ParameterKind::matrix));
        if (!p.slice) continue;
        CHECK(p.whole().size() == ranks * p.size());
        CHECK(p.slice->first_row == (reads ? 0 : (ranks - 1) * p.rows));
        CHECK(p.slice->first_col == (reads ? (ranks - 1) * p.cols : 0));
        CHECK(p.slice_of(0).in_whole().of(0) == 0);
        CHECK(p.in_whole().of(p.size() - 1) == p.whole().size() - 1);
      }
    }
}

TEST_CASE("Layout: norm gains and biases have no weight decay", "[layout]") {
  for (const ModelConfig& config : configs()) {
    const Layout layout(config, 1);
    for (const Unit& unit : layout.units())
      for (const Parameter& p : unit.parameters) {
        INFO(p.name);
        const bool gain = p.name.find("norm") != std::string::npos, bias = p.name.ends_with(".bias");
        CHECK(p.kind == (gain ? ParameterKind::gain : bias ? ParameterKind::bias : ParameterKind::matrix));
      }
  }
}

TEST_CASE("Layout: a block with aligned dimensions has one decay run", "[layout]") {
  const Layout layout(model_presets().front(), 1);
  const std::vector<Run> runs = layout.runs(layout.block_unit(0), 0);
  REQUIRE(runs.size() == 2);
  CHECK((runs[0].decay() && !runs[1].decay()));
}

TEST_CASE("Layout: fused block matrices hold their parameters row by row", "[layout]") {
  for (const ModelConfig& config : configs()) {
    INFO(config.name << " tied " << config.tied << " qk_norm " << config.qk_norm);
    const Layout layout(config, 1);
    const Unit& unit = layout.units()[layout.block_unit(1)];
    // Every element holds its index in the unit.
    std::vector<float> memory(unit.size);
    std::iota(memory.begin(), memory.end(), 0.0f);
    const BlockTensors t = layout.block(0, {memory.data(), DType::f32, 1, unit.size});
    const auto check = [&](const Tensor& whole, std::initializer_list<const char*> parts) {
      std::int64_t row = 0;
      for (const char* part : parts)
        for (const Parameter& p : unit.parameters) {
          if (p.name != "model.layers.1." + std::string(part) + ".weight") continue;
          INFO(p.name);
          CHECK(whole.cols == p.cols);
          REQUIRE(row + p.rows <= whole.rows);
          CHECK(whole.as<float>()[row * whole.cols] == static_cast<float>(p.offset));
          CHECK(whole.as<float>()[(row + p.rows) * whole.cols - 1] ==
                static_cast<float>(p.offset + p.size() - 1));
          row += p.rows;
        }
      CHECK(row == whole.rows);
    };
    check(t[LinearRole::qkv], {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"});
    check(t[LinearRole::o], {"self_attn.o_proj"});
    check(t[LinearRole::gate_up], {"mlp.gate_proj", "mlp.up_proj"});
    check(t[LinearRole::down], {"mlp.down_proj"});
    check(t.norm1, {"input_layernorm"});
    check(t.norm2, {"post_attention_layernorm"});
    CHECK(t.q_norm.empty() != config.qk_norm);
    if (config.qk_norm) {
      check(t.q_norm, {"self_attn.q_norm"});
      check(t.k_norm, {"self_attn.k_norm"});
    }
    CHECK(t.qkv_bias.empty() != config.qkv_bias);
    if (config.qkv_bias) {
      std::int64_t next = 0;
      for (const char* part : {"q_proj", "k_proj", "v_proj"})
        for (const Parameter& p : unit.parameters) {
          if (p.name != fmt::format("model.layers.1.self_attn.{}.bias", part)) continue;
          CHECK(t.qkv_bias.as<float>()[next] == static_cast<float>(p.offset));
          next += p.size();
        }
      CHECK(next == t.qkv_bias.cols);
      CHECK((t.qkv_bias.as<float>() - memory.data()) % 8 == 0);
    }
    // 16 bytes in BF16, the alignment that GEMMs and vector loads need.
    for (const Tensor& whole : {t[LinearRole::qkv], t[LinearRole::o], t[LinearRole::gate_up],
                                t[LinearRole::down], t.norm1, t.norm2})
      CHECK((whole.as<float>() - memory.data()) % 8 == 0);
  }
}

TEST_CASE("Layout: embedding and final_norm and lm_head are views at their parameters' offsets", "[layout]") {
  for (const ModelConfig& config : configs()) {
    INFO(config.name << " tied " << config.tied);
    const Layout layout(config, 1);
    const auto offset = [&](int unit, const std::string& name) {
      for (const Parameter& p : layout.units()[unit].parameters)
        if (p.name == name) return p.offset;
      return std::int64_t{-1};
    };
    std::vector<float> memory(
        std::max(layout.units()[layout.embedding_unit()].size, layout.units()[layout.head_unit()].size));
    const Tensor unit{memory.data(), DType::f32, 1, static_cast<std::int64_t>(memory.size())};
    const auto place = [&](const Tensor& t) { return t.as<float>() - memory.data(); };
    CHECK(place(layout.embedding(unit)) == offset(layout.embedding_unit(), "model.embed_tokens.weight"));
    CHECK(place(layout.final_norm(unit)) == offset(layout.head_unit(), "model.norm.weight"));
    const char* head = config.tied ? "model.embed_tokens.weight" : "lm_head.weight";
    CHECK(place(layout.lm_head(unit)) == offset(layout.head_unit(), head));
    CHECK(layout.lm_head(unit).rows == config.vocab);
    CHECK(layout.final_norm(unit).cols == config.width);
  }
}
