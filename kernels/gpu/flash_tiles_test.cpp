// The loops of the flash attention kernels over tiles, on the host, against the definition of attention's masks: every pair
// of a query and a key that it sees is visited once and not masked, every other one is masked or not visited. And the masks that
// cuDNN's graphs have.
#include "kernels/gpu/flash_tiles.h"

#include <string>
#include <vector>

#include "kernels/gpu/attention_choice.h"
#include "kernels/testing/catch.h"

namespace precbench::flash {
namespace {

/// A mask of one sequence.
struct MaskCase {
  AttentionShape shape;
  std::vector<int> first_keys = {};  ///< of documents, counted in the sequence; empty: none
  int key_start = 0;

  bool sees(int query, int key) const {
    const std::int64_t last = query + shape.offset;
    if (key > last || (shape.window > 0 && key <= last - shape.window)) return false;
    return first_keys.empty() || key + key_start >= first_keys[static_cast<std::size_t>(query)];
  }
  const int* documents() const { return first_keys.empty() ? nullptr : first_keys.data(); }
};

std::string text(const MaskCase& c) {
  const AttentionShape& s = c.shape;
  return std::to_string(s.T) + " queries, " + std::to_string(s.keys()) + " keys, offset " +
         std::to_string(s.offset) + ", window " + std::to_string(s.window) +
         (c.first_keys.empty() ? "" : ", documents from key " + std::to_string(c.key_start));
}

/// Visits of each pair of a query and a key, [T, keys].
class Visits {
 public:
  explicit Visits(const AttentionShape& s) : s_(s), counts_(static_cast<std::size_t>(s.T * s.keys())) {}

  /// Counts a pair of a visited tile. Rows behind the last query are not written, nor are gradients of keys behind the last.
  void add(int query, int key, bool masked) {
    if (query >= s_.T) return;
    if (key >= s_.keys())
      wrong_ += !masked;
    else if (!masked)
      ++counts_[static_cast<std::size_t>(query * s_.keys() + key)];
  }
  /// Returns the number of wrong pairs.
  int wrong(const MaskCase& c) const {
    int count = wrong_;
    for (int query = 0; query < s_.T; ++query)
      for (int key = 0; key < s_.keys(); ++key)
        count += counts_[static_cast<std::size_t>(query * s_.keys() + key)] != (c.sees(query, key) ? 1 : 0);
    return count;
  }

 private:
  AttentionShape s_;
  std::vector<int> counts_;
  int wrong_ = 0;
};

/// As QueryBlock, and the kernels that it serves (flash_queries.cuh).
template <int kWarpRows, int kBlockKV, class Shape>
int wrong_by_queries(const MaskCase& c, const Shape& shape) {
  constexpr int kBlockQ = 4 * kWarpRows;
  Visits visits(c.shape);
  for (int first_q = 0; first_q < shape.T; first_q += kBlockQ) {
    int first_tile = 0, tiles = end_key_tile<kBlockQ, kBlockKV>(shape, first_q);
    if constexpr (kHasFirstKeys<Shape>) first_tile = first_key_tile<kBlockKV>(shape, 0, first_q);
    if constexpr (kOffset<Shape>) tiles = greater(tiles, first_tile + 1);
    for (int warp_q = first_q; warp_q < first_q + kBlockQ; warp_q += kWarpRows) {
      const WarpQueries<kWarpRows, kBlockKV, Shape> queries(shape, 0, warp_q);
      for (int first_kv = first_tile * kBlockKV; first_kv < tiles * kBlockKV; first_kv += kBlockKV) {
        if (queries.skips(first_kv)) continue;
        for (int row = 0; row < kWarpRows; ++row)
          for (int key = first_kv; key < first_kv + kBlockKV; ++key) {
            bool masked = queries.masks_end(shape, first_kv) &&
                          (key > queries.place + row || (kOffset<Shape> && key >= shape.keys()));
            if constexpr (kHasFirstKeys<Shape>)
              masked |= queries.masks_begin(first_kv) &&
                        key < shape.first_key(0, lesser(warp_q + row, shape.T - 1));
            visits.add(warp_q + row, key, masked);
          }
      }
    }
  }
  return visits.wrong(c);
}

/// As flash_key_side_kernel (flash_bwd_dkv.cuh).
template <int kBlockKV, int kBlockQ, int kPairRows, class Shape>
int wrong_by_keys(const MaskCase& c, const Shape& shape) {
  Visits visits(c.shape);
  const auto last_of = [&](int key) {
    int last = -1;
    if constexpr (kHasFirstKeys<Shape>)
      while (last + 1 < shape.T && shape.first_key(0, last + 1) <= key) ++last;
    return last;
  };
  for (int first_kv = 0; first_kv < shape.keys(); first_kv += kBlockKV) {
    const int first_tile = first_query(shape, first_kv) / kBlockQ;
    const int tiles = end_query_tile<kBlockKV, kBlockQ>(shape, first_kv, last_of);
    for (const int first_q : [&] {
           std::vector<int> all;
           for (int tile = first_tile; tile < tiles; ++tile) all.push_back(tile * kBlockQ);
           return all;
         }()) {
      REQUIRE(first_q < shape.T);  // its first key is read
      int place = first_q;
      if constexpr (kOffset<Shape>) place += shape.shift;
      for (int first = first_kv; first < first_kv + kBlockKV; first += kPairRows) {
        const PairKeys<kPairRows, kBlockQ> pair{first};
        if (pair.is_behind(place)) continue;
        if constexpr (kHasFirstKeys<Shape>) {
          int first_key = place + 1 - shape.window;
          if (const int* documents = c.documents())
            first_key = greater(first_key, documents[first_q] - c.key_start);
          if (pair.is_before(first_key)) continue;
        }
        for (int key = first; key < lesser(first + kPairRows, shape.keys()); ++key)
          for (int i = 0; i < kBlockQ && first_q + i < shape.T; ++i) {
            bool masked = pair.masks_end(place) && key > place + i;
            if constexpr (kWindowed<Shape>)
              masked |= pair.masks_window(place, shape.window) && key < place + i + 1 - shape.window;
            if constexpr (kPacked<Shape> || kOffset<Shape>)
              if (const int* documents = c.documents())
                masked |= key < greater(documents[first_q + i] - c.key_start, place + i + 1 - shape.window);
            visits.add(first_q + i, key, masked);
          }
      }
    }
  }
  return visits.wrong(c);
}

/// Returns the wrong pairs of all kernels with all sizes of tiles (flash_backward.cuh, flash_forward.cuh).
template <class Shape>
int wrong_pairs(const MaskCase& c, const Shape& shape) {
  return wrong_by_queries<32, 64>(c, shape) + wrong_by_queries<32, 32>(c, shape) +
         wrong_by_queries<16, 32>(c, shape) + wrong_by_queries<16, 16>(c, shape) +
         wrong_by_keys<128, 64, 32>(c, shape) + wrong_by_keys<64, 32, 32>(c, shape) +
         wrong_by_keys<64, 32, 16>(c, shape);
}

/// Returns documents of 1, 4, 13, ... tokens for queries from position `start` on.
std::vector<int> first_keys_of(std::int64_t T, std::int64_t start) {
  std::vector<int> all;
  for (int t = 0, begin = 0, length = 1; t < start + T; ++t) {
    if (t == begin + length) begin = t, length = 3 * length + 1;
    if (t >= start) all.push_back(begin);
  }
  return all;
}

}  // namespace

TEST_CASE("flash attention: tiles of as many keys as queries cover what a query sees", "[attention]") {
  for (const std::int64_t T : {1, 16, 31, 64, 65, 127, 129, 200, 257})
    for (const std::int64_t window : {0, 1, 7, 33, 64, 129, 300}) {
      MaskCase c{{.B = 1, .T = T, .heads = 1, .kv_heads = 1, .head_dim = 64, .window = window}};
      INFO(text(c));
      if (window == 0) CHECK(wrong_pairs(c, flash_shape(c.shape)) == 0);
      CHECK(wrong_pairs(c, window_shape(c.shape)) == 0);
      CHECK(wrong_pairs(c, offset_shape(c.shape, nullptr, 0)) == 0);
      c.first_keys = first_keys_of(T, 0);
      CHECK(wrong_pairs(c, packed_shape(c.shape, c.documents())) == 0);
      CHECK(wrong_pairs(c, offset_shape(c.shape, c.documents(), 0)) == 0);
    }
}

TEST_CASE("flash attention: tiles of keys at an offset cover what a query sees", "[attention]") {
  for (const std::int64_t T : {1, 31, 64, 65, 129, 200})
    for (const std::int64_t T_k : {1, 63, 64, 65, 130, 300})
      for (const std::int64_t offset : {std::int64_t{0}, T_k - T, (T_k - T) / 2, T, T_k - 1, T_k + 40,
                                        std::int64_t{-3}, -T, -T - 50, std::int64_t{1} << 40})
        for (const std::int64_t window : {0, 1, 33, 129, 500}) {
          MaskCase c{{.B = 1,
                      .T = T,
                      .heads = 1,
                      .kv_heads = 1,
                      .head_dim = 64,
                      .T_k = T_k,
                      .offset = offset,
                      .window = window}};
          INFO(text(c));
          CHECK(wrong_pairs(c, offset_shape(c.shape, nullptr, 0)) == 0);
          // Keys of a chunk in the middle of a sequence.
          c.key_start = 70;
          if (offset + c.key_start < 0 || offset > 1000) continue;
          c.first_keys = first_keys_of(T, offset + c.key_start);
          CHECK(wrong_pairs(c, offset_shape(c.shape, c.documents(), c.key_start)) == 0);
        }
}

TEST_CASE("flash attention: a mask that is off by one is found", "[attention]") {
  const MaskCase c{
      {.B = 1, .T = 129, .heads = 1, .kv_heads = 1, .head_dim = 64, .T_k = 300, .offset = 100, .window = 50}};
  for (const int by : {-1, 1}) {
    OffsetShape late = offset_shape(c.shape, nullptr, 0), wide = late;
    late.shift += by;
    wide.window += by;
    CHECK(wrong_by_queries<32, 64>(c, late) > 0);
    CHECK(wrong_by_keys<128, 64, 32>(c, late) > 0);
    CHECK(wrong_by_queries<32, 64>(c, wide) > 0);
    CHECK(wrong_by_keys<128, 64, 32>(c, wide) > 0);
  }
}

TEST_CASE("cuDNN: masks of its graphs are those of the shapes that it takes", "[attention]") {
  using Kind = cuda::CudnnMask::Kind;
  int taken[3] = {};
  for (const std::int64_t T : {1, 5, 8})
    for (const std::int64_t T_k : {1, 4, 8, 13, 16})
      for (std::int64_t offset = -2; offset <= 20; ++offset) {
        const MaskCase c{
            {.B = 1, .T = T, .heads = 1, .kv_heads = 1, .head_dim = 64, .T_k = T_k, .offset = offset}};
        const auto mask = cuda::cudnn_mask(c.shape);
        const bool causal_chunk = offset >= 0 && offset + T <= T_k, all = offset >= T_k - 1;
        INFO(text(c));
        CHECK(mask.has_value() == (causal_chunk || all));
        if (!mask) continue;
        ++taken[static_cast<int>(mask->kind)];
        REQUIRE(mask->keys <= T_k);
        for (int query = 0; query < T; ++query)
          for (int key = 0; key < T_k; ++key) {
            bool seen = key < mask->keys;
            if (mask->kind == Kind::causal) seen &= key <= query;
            if (mask->kind == Kind::causal_at_end) seen &= key <= query + mask->keys - T;
            REQUIRE(seen == c.sees(query, key));
          }
      }
  for (const int count : taken) CHECK(count > 0);
  AttentionShape window{.B = 1, .T = 8, .heads = 1, .kv_heads = 1, .head_dim = 64, .window = 3};
  CHECK(cuda::cudnn_mask(window).has_value());
  window.T_k = 16;
  CHECK(!cuda::cudnn_mask(window));
  window.window = 0, window.softcap = 50;
  CHECK(!cuda::cudnn_mask(window));
}

}  // namespace precbench::flash
