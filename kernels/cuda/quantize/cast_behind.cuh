// Amaxes and casts of one launch, for scales that belong to more than a tile, but not to all tiles: to the rows and columns of
// a group, or to an expert. Such tiles are a unit. The amaxes run ahead of the casts, by no more than L2 keeps, so that memory
// is read once:
//
//   amaxes of unit 0, 1, ... | casts of 0 | amaxes | casts of 1 | ... | casts of the last units
//
// Blocks take these items in their order from a counter. A cast waits until the amaxes of its unit's tiles are there: they are
// earlier items, so that some block has them already, and no block waits for one behind it.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/quantize/produce.cuh"

namespace precbench::cuda {

/// Tiles between the last of a unit that an amax is found of and the first that is cast: more than run at one time, so that
/// hardly a block waits.
inline constexpr int kTilesAhead = 384;

/// Tiles, unit after unit.
struct Units {
  int count = 0, tiles = 0;            ///< of a unit
  const std::int32_t* rows = nullptr;  ///< not null: a unit has `tiles` for every 128 of these rows
  const std::int32_t* offsets =
      nullptr;      ///< not null: rows where units begin and the last one ends; `tiles` for every 128
  int without = 0;  ///< tiles behind the last unit's that need no amax, with all units' before
  int ahead = 0;
  unsigned* counters = nullptr;  ///< zeroed: the next item, and of each unit the tiles whose amaxes are there

  /// The tile behind unit's last.
  __device__ int end(int unit) const {
    if (unit < 0) return 0;
    if (offsets) return __ldg(offsets + unit + 1) / kTile * tiles;
    return (unit + 1) * (rows ? __ldg(rows) / kTile * tiles : tiles);
  }
};

/// Finds items in their order. The casts of a unit follow the amax of the tile that is `ahead` behind its end.
class ItemCursor {
 public:
  int tile, unit;
  bool cast;

  explicit __device__ ItemCursor(const Units& units) : units_(units), total_(units.end(units.count - 1)) {}

  /// False behind the last item. Indices only grow.
  __device__ bool find(int index) {
    if (index >= 2 * total_) {
      cast = true, unit = units_.count, tile = index - total_;
      return tile < units_.without;
    }
    int first = 0, begin = 0;  // of the casts of unit cast_: their first item, its first tile
    for (; cast_ < units_.count; ++cast_) {
      const int end = units_.end(cast_);
      begin = units_.end(cast_ - 1), first = min(total_, end + units_.ahead) + begin;
      if (index < first + end - begin) break;
    }
    cast = cast_ < units_.count && index >= first;
    if (cast) {
      tile = begin + index - first, unit = cast_;
      return true;
    }
    tile = index - (cast_ < units_.count ? begin : total_);
    while (units_.end(amaxed_) <= tile) ++amaxed_;
    unit = amaxed_;
    return true;
  }
  __device__ int tiles_of_unit() const { return units_.end(unit) - units_.end(unit - 1); }

 private:
  const Units& units_;
  int total_, cast_ = 0, amaxed_ = 0;
};

/// A Work has: Shared; kBlocks of a multiprocessor; and for all threads of a block
///   void amax(Shared&, tile)           ends with a barrier
///   void cast(Shared&, tile, ready)    calls ready() before it takes an amax
template <class Work>
__global__ void __launch_bounds__(kTileThreads, Work::kBlocks)
    cast_behind(const __grid_constant__ Work work, const __grid_constant__ Units units) {
  __shared__ typename Work::Shared shared;
  __shared__ int next;
  ItemCursor item(units);
  if (threadIdx.x == 0) next = static_cast<int>(atomicAdd(units.counters, 1u));
  __syncthreads();
  while (item.find(next)) {
    int ahead = 0;  // asked for early, as it takes as long as a load
    if (threadIdx.x == 0) ahead = static_cast<int>(atomicAdd(units.counters, 1u));
    unsigned* const done = units.counters + 1 + item.unit;
    if (item.cast) {
      work.cast(shared, item.tile, [&] {
        if (item.unit == units.count) return;
        if (threadIdx.x == 0) {
          const auto all = static_cast<unsigned>(item.tiles_of_unit());
          while (*static_cast<volatile unsigned*>(done) < all) {
          }
          __threadfence();
        }
        __syncthreads();
      });
    } else {
      work.amax(shared, item.tile);
      if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(done, 1u);
      }
    }
    __syncthreads();
    if (threadIdx.x == 0) next = ahead;
    __syncthreads();
  }
}

/// Runs a Work's items, `items` at most, with `dynamic` bytes of shared memory.
template <class Work>
void run_behind(CudaDevice& device, const Work& work, const Units& units, std::int64_t items, int dynamic) {
  const auto kernel = cast_behind<Work>;
  if (dynamic > 0)
    PRECBENCH_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, dynamic));
  const int grid = row_grid(device, kernel, kTileThreads, dynamic, items);
  kernel<<<grid, kTileThreads, dynamic, device.stream()>>>(work, units);
}

/// The tiles of a Source.
template <class Source, bool kFull>
struct SourceWork {
  static constexpr int kOutputs = Source::kOutputs, kBlocks = kOutputs == 1 ? 3 : 2;
  union Shared {
    AmaxShared<kOutputs> amax;
    TileShared tile;
  };
  Source source;
  TileOutputs<kOutputs> outputs;
  int col_tiles;
  const std::int32_t* rows;  ///< not null: tiles follow each other down a column of so many rows

  __device__ void place(int tile, std::int64_t& row0, std::int64_t& col0) const {
    const int row_tiles = rows ? __ldg(rows) / kTile : 0;
    row0 = static_cast<std::int64_t>(rows ? tile % row_tiles : tile / col_tiles) * kTile;
    col0 = static_cast<std::int64_t>(rows ? tile / row_tiles : tile % col_tiles) * kTile;
  }
  __device__ void amax(Shared& shared, int tile) const {
    std::int64_t row0, col0;
    place(tile, row0, col0);
    std::uint32_t largest[kOutputs] = {};
    amax_tile<kFull>(source, outputs, row0, col0, shared.amax, largest);
  }
  template <class Ready>
  __device__ void cast(Shared& shared, int tile, Ready&& ready) const {
    extern __shared__ uint4 stash[];
    std::int64_t row0, col0;
    place(tile, row0, col0);
    make_tile<kFull>(source, outputs, row0, col0, shared.tile, stash, ready);
  }
};

/// Of produce_groups' counters.
inline std::size_t group_counter_bytes(const Groups& groups, std::int64_t cols) {
  return static_cast<std::size_t>(1 + std::max(groups.experts(), (cols + kTile - 1) / kTile)) *
         sizeof(unsigned);
}

/// As produce, of values of groups: in one launch where columns have scales of their own in each group, but none of the tensor
/// is on its way. `counters`: group_counter_bytes of the source's columns.
template <class Source>
void produce_groups(CudaDevice& device, const Source& source, const TileOutputs<Source::kOutputs>& outputs,
                    const Groups& groups, void* counters) {
  constexpr int kOutputs = Source::kOutputs;
  bool rows = false, columns = false, tensor = false;
  bool full = source.vectors() && source.rows % kTile == 0 && source.cols % kTile == 0;
  for (const TileOutput& out : outputs.of) {
    rows = rows || out.row_amax;
    columns = columns || out.col_amax;
    tensor = tensor || out.tensor.on_its_way();
    full = full && (!out.value.data || out.value.vectors);
  }
  const int col_tiles = static_cast<int>((source.cols + kTile - 1) / kTile);
  const int tiles = static_cast<int>((source.rows + kTile - 1) / kTile) * col_tiles;
  if (!columns || tensor || tiles == 0) return produce(device, source, outputs);
  const auto* offsets = groups.offsets.as<std::int32_t>();
  Units units{.count = static_cast<int>(groups.experts()),
              .tiles = col_tiles,
              .offsets = offsets,
              .ahead = kTilesAhead,
              .counters = static_cast<unsigned*>(counters)};
  const std::int32_t* by_columns = nullptr;
  if constexpr (requires { typename Source::ColumnByColumn; }) {
    if (!rows) {  // a column of tiles has all that its scales need
      by_columns = offsets + groups.experts();
      units.count = col_tiles, units.tiles = 1, units.rows = by_columns, units.offsets = nullptr;
    }
  }
  if constexpr (!requires { source.end; }) units.without = tiles;
  PRECBENCH_CHECK(cudaMemsetAsync(counters, 0, group_counter_bytes(groups, source.cols), device.stream()));
  for (int o = 0; o < kOutputs; ++o)
    if (o == 0 || outputs.of[o].col_amax != outputs.of[o - 1].col_amax ||
        outputs.of[o].row_amax != outputs.of[o - 1].row_amax)
      zero_amaxes(outputs.of[o], device.stream());
  const auto run = [&](auto is_full) {
    run_behind(device, SourceWork<Source, is_full>{source, outputs, col_tiles, by_columns}, units, 2 * tiles,
               kStashBytes<kOutputs>);
  };
  if (full)
    run(std::true_type());
  else
    run(std::false_type());
}

}  // namespace precbench::cuda
