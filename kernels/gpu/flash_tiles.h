// Which tiles of queries and keys the flash attention kernels for any GPU visit, and which of them they mask
// (kernels/cuda/attention/flash_*.cuh). Plain C++, so that a test without a GPU evaluates what the kernels evaluate.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "kernels/device/operands.h"

namespace precbench::flash {

constexpr int lesser(int a, int b) { return a < b ? a : b; }
constexpr int greater(int a, int b) { return a > b ? a : b; }

// ---- shapes

/// Shape and strides as kernel arguments.
struct FlashShape {
  int T, heads, kv_heads, head_dim;
  std::int64_t qkv_stride, out_stride;  ///< elements from token to token
  float scale;                          ///< of the scores: 1 / sqrt(head_dim)
  float scale_log2;                     ///< the same for powers of two: scale * log2(e)

  /// Return the factors by which the values that softmax takes become scores, and scores for powers of two.
  constexpr float softmax_scale() const { return scale; }
  constexpr float softmax_scale_log2() const { return scale_log2; }

  constexpr int group() const { return heads / kv_heads; }
  /// Returns the column of the first element of a head in the fused rows.
  constexpr int q_column(int head) const { return head * head_dim; }

  /// Rows of keys: those of the queries. Return the number of a sequence, the elements from one to the next, and a head's
  /// first column.
  constexpr int keys() const { return T; }
  constexpr std::int64_t key_stride() const { return qkv_stride; }
  constexpr int k_column(int kv_head) const { return (heads + kv_head) * head_dim; }
  constexpr int v_column(int kv_head) const { return (heads + kv_heads + kv_head) * head_dim; }
};

/// The same with a window.
struct WindowShape : FlashShape {
  int window;  ///< keys that a query sees at most, its own included

  /// Returns the first key that query t, below T, of a sequence sees. Ascends with t.
  constexpr int first_key(std::int64_t, int t) const { return greater(0, t + 1 - window); }
};

/// The same with documents (DocumentMask), and a window.
struct PackedShape : FlashShape {
  const int* first_keys;  ///< [B, T]
  int window;             ///< keys that a query sees at most, its own included

  /// Returns the first key that query t, below T, of a sequence sees. Ascends with t.
  constexpr int first_key(std::int64_t first_token, int t) const {
    return greater(first_keys[first_token + t], t + 1 - window);
  }
};

/// The same with any number of keys, in rows of their own, at an offset; with a window and, if there are any, documents. A
/// query may see no key.
struct OffsetShape : FlashShape {
  int T_k = 0, shift = 0;           ///< keys of a sequence; query t sees keys up to t + shift
  int window = 0;                   ///< keys that a query sees at most, its own included
  const int* first_keys = nullptr;  ///< [B, T], counted in the sequence; null: no documents
  int key_start = 0;                ///< place in its sequence of the first key
  std::int64_t kv_stride = 0;
  const void* kv = nullptr;  ///< BF16: the first sequence's keys of head 0
  void* dkv = nullptr;

  constexpr int keys() const { return T_k; }
  constexpr std::int64_t key_stride() const { return kv_stride; }
  constexpr int k_column(int kv_head) const { return kv_head * head_dim; }
  constexpr int v_column(int kv_head) const { return (kv_heads + kv_head) * head_dim; }

  /// Returns the first key that query t, below T, of a sequence sees, if it sees any. Ascends with t.
  constexpr int first_key(std::int64_t first_token, int t) const {
    const int document = first_keys ? first_keys[first_token + t] - key_start : 0;
    return greater(greater(0, document), t + 1 + shift - window);
  }
};

constexpr double kLog2E = 1.4426950408889634;

inline FlashShape flash_shape(const AttentionShape& s) {
  const double scale = 1 / std::sqrt(static_cast<double>(s.head_dim));
  return {static_cast<int>(s.T),
          static_cast<int>(s.heads),
          static_cast<int>(s.kv_heads),
          static_cast<int>(s.head_dim),
          s.qkv_width(),
          s.q_width(),
          static_cast<float>(scale),
          static_cast<float>(scale * kLog2E)};
}

inline WindowShape window_shape(const AttentionShape& s) {
  return {flash_shape(s), static_cast<int>(s.window > 0 ? s.window : s.T)};
}

inline PackedShape packed_shape(const AttentionShape& s, const int* first_keys) {
  return {flash_shape(s), first_keys, static_cast<int>(s.window > 0 ? s.window : s.T)};
}

/// Without the rows of keys. `first_keys` may be null.
inline OffsetShape offset_shape(const AttentionShape& s, const int* first_keys, std::int64_t key_start) {
  OffsetShape shape = {flash_shape(s)};
  shape.T_k = static_cast<int>(s.keys());
  shape.shift =
      static_cast<int>(std::clamp(s.offset, -s.T, s.keys() + s.window));  // beyond, queries see the same keys
  shape.window = s.window > 0 ? static_cast<int>(s.window) : shape.T + std::max(shape.shift, 0);
  shape.first_keys = first_keys;
  shape.key_start = static_cast<int>(key_start);
  return shape;
}

template <class Shape>
inline constexpr bool kPacked = std::is_base_of_v<PackedShape, Shape>;
template <class Shape>
inline constexpr bool kOffset = std::is_base_of_v<OffsetShape, Shape>;
template <class Shape>
inline constexpr bool kWindowed = std::is_base_of_v<WindowShape, Shape> || kOffset<Shape>;
/// True if queries do not see all keys before them: the shape has first_key().
template <class Shape>
inline constexpr bool kHasFirstKeys = kPacked<Shape> || kWindowed<Shape>;

// ---- kernels that own queries (forward, dq)

/// Return the first tile of kBlockKV keys that a block of queries from first_q on sees, and the end of these tiles.
template <int kBlockKV, class Shape>
constexpr int first_key_tile(const Shape& shape, std::int64_t first_token, int first_q) {
  return shape.first_key(first_token, first_q) / kBlockKV;
}
template <int kBlockQ, int kBlockKV, class Shape>
constexpr int end_key_tile(const Shape& shape, int first_q) {
  const int queries = lesser(first_q + kBlockQ, shape.T);
  if constexpr (kOffset<Shape>)
    return (lesser(greater(0, queries + shape.shift), shape.keys()) + kBlockKV - 1) / kBlockKV;
  return (queries + kBlockKV - 1) / kBlockKV;
}

/// The kRows queries of a warp, and the tiles of kBlockKV keys that it visits. Rows may be beyond T. Values instead of functions
/// of the shape, which would change the code of shapes without an offset.
template <int kRows, int kBlockKV, class Shape>
struct WarpQueries {
  int place;          ///< of the first query among the keys: that of the last key that it sees
  int first_key = 0;  ///< that the first row sees
  int hidden = 0;     ///< first key that the last row sees: earlier ones are hidden from some rows

  constexpr WarpQueries(const Shape& shape, std::int64_t first_token, int query) : place(query) {
    if constexpr (kOffset<Shape>) place += shape.shift;
    if constexpr (kHasFirstKeys<Shape>) {
      first_key = shape.first_key(first_token, lesser(query, shape.T - 1));
      hidden = shape.first_key(first_token, lesser(query + kRows - 1, shape.T - 1));
    }
  }

  /// Returns true if none of the rows sees a key of a tile.
  constexpr bool skips(int first_kv) const {
    return first_kv > place + kRows - 1 || (kHasFirstKeys<Shape> && first_kv + kBlockKV <= first_key);
  }
  /// Return true if a tile has keys behind one of the queries, or behind all keys, and keys before a query's first.
  constexpr bool masks_end(const Shape& shape, int first_kv) const {
    if constexpr (kOffset<Shape>)
      return first_kv + kBlockKV - 1 > lesser(place, shape.T_k - 1);
    else
      return first_kv + kBlockKV - 1 > place;
  }
  constexpr bool masks_begin(int first_kv) const { return kHasFirstKeys<Shape> && first_kv < hidden; }
};

// ---- the kernel that owns keys (dk, dv)

/// Returns the first query, perhaps beyond T, that sees a key or one behind it.
template <class Shape>
constexpr int first_query(const Shape& shape, int key) {
  if constexpr (kOffset<Shape>) return greater(0, key - shape.shift);
  return key;
}

/// Returns the end of the tiles of kBlockQ queries that see a block of kBlockKV keys from first_kv on. last_of(key): the last
/// query of the sequence whose first key is not behind `key`, of shapes with documents or an offset.
template <int kBlockKV, int kBlockQ, class Shape, class LastOf>
constexpr int end_query_tile(const Shape& shape, int first_kv, LastOf&& last_of) {
  if constexpr (kPacked<Shape>)
    return last_of(lesser(first_kv + kBlockKV, shape.T) - 1) / kBlockQ + 1;
  else if constexpr (kOffset<Shape>)  // -1: none
    return (last_of(lesser(first_kv + kBlockKV, shape.keys()) - 1) + kBlockQ) / kBlockQ;
  else if constexpr (kWindowed<Shape>)
    return (lesser(first_kv + kBlockKV - 1 + shape.window, shape.T) - 1) / kBlockQ + 1;
  else
    return (shape.T + kBlockQ - 1) / kBlockQ;
}

/// The kRows keys of a pair of warps, from `first` on, and the tiles of kBlockQ queries that it visits. `place`: that of a
/// tile's first query among the keys.
template <int kRows, int kBlockQ>
struct PairKeys {
  int first;

  /// Returns true if all queries of a tile precede the keys.
  constexpr bool is_behind(int place) const { return place + kBlockQ - 1 < first; }
  /// Returns true if all queries' first keys are behind these. `first_key`: that of the tile's first query.
  constexpr bool is_before(int first_key) const { return first_key > first + kRows - 1; }
  /// Return true if a tile has queries before one of the keys, and queries whose window begins behind one.
  constexpr bool masks_end(int place) const { return place < first + kRows - 1; }
  constexpr bool masks_window(int place, int window) const {
    return place + kBlockQ - window > first;  // the last query's first key
  }
};

}  // namespace precbench::flash
