// RoPE's backward without QK-norm as Sources of tile.cuh: element by element, or three heads at a time.
//
// The angles of a vector of 8 elements are 64 bytes beside the 16 of its gradient, and all heads of a token have the same.
// One head at a time they are most of what a pass reads from L2, which bounds it; three at a time they are a third of that.
#pragma once

#include "kernels/cuda/quantize/tile.cuh"

namespace precbench::cuda {

/// cos and sin of eight neighbouring pairs.
struct Angles {
  float cos[8], sin[8];

  __device__ Angles(const float* table) {
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const float4 two = __ldg(reinterpret_cast<const float4*>(table) + q);
      cos[2 * q] = two.x, sin[2 * q] = two.y;
      cos[2 * q + 1] = two.z, sin[2 * q + 1] = two.w;
    }
  }
};

/// Backward without QK-norm, element by element.
struct RopeBackwardSource {
  static constexpr int kOutputs = 1, kBatch = 4;
  struct Column {
    std::int64_t partner;  // column of the vector that turns with this one
    std::int64_t angles;   // place of the angles in a table row
    float sign;            // of the sine
    bool turned;
  };
  struct Raw {
    Bf16x8 x, partner;
  };
  Matrix dout;
  const float* table;
  std::int64_t T, D, turned_cols;
  std::int64_t rows = dout.rows, cols = dout.cols;

  bool vectors() const { return dout.vectors; }
  template <bool kFull>
  __device__ Column column(std::int64_t col) const {
    const int i = static_cast<int>(col) % static_cast<int>(D), half = static_cast<int>(D) / 2;
    if (col >= turned_cols) return {col, 0, 0.0f, false};
    return i < half ? Column{col + half, 2 * i, 1.0f, true} : Column{col - half, 2 * (i - half), -1.0f, true};
  }
  template <bool kFull>
  __device__ Raw fetch(std::int64_t row, std::int64_t col) const {
    const Column column = this->template column<kFull>(col);
    Raw raw{load<kFull>(dout, row, col), {}};
    if (column.turned) raw.partner = load<kFull>(dout, row, column.partner);
    return raw;
  }
  __device__ void make(Bf16x8 (&out)[1], const Raw& raw, const Column& column, std::int64_t row,
                       std::int64_t) const {
    out[0] = raw.x;
    if (!column.turned) return;
    const Angles angles(table + static_cast<int>(row) % static_cast<int>(T) * D + column.angles);
    float x[8], y[8];
    unpack(x, raw.x);
    unpack(y, raw.partner);
#pragma unroll
    for (int j = 0; j < 8; ++j) x[j] = x[j] * angles.cos[j] + column.sign * y[j] * angles.sin[j];
    out[0] = pack(x);
  }
};

/// The same of three columns at a time, a third of the row apart, whose heads turn by the same angles.
struct RopeBackwardThirds {
  static constexpr int kOutputs = 3, kBatch = 4;
  struct Column {
    std::int64_t angles;
    float sign;
  };
  struct Raw {
    Bf16x8 x[kOutputs];
  };
  Matrix third[kOutputs];  // of dout
  const float* table;
  std::int64_t T, D, turned_cols;
  std::int64_t rows = third[0].rows, cols = third[0].cols;

  /// Whether the thirds of rows are whole tiles, and pairs lie inside a tile.
  static bool takes(std::int64_t width, std::int64_t D) {
    return width % (kOutputs * kTile) == 0 && kTile % D == 0;
  }
  bool vectors() const { return third[0].vectors && third[1].vectors && third[2].vectors; }
  template <bool kFull>
  __device__ Column column(std::int64_t col) const {
    const int i = static_cast<int>(col) % static_cast<int>(D), half = static_cast<int>(D) / 2;
    return i < half ? Column{2 * i, 1.0f} : Column{2 * (i - half), -1.0f};
  }
  template <bool kFull>
  __device__ Raw fetch(std::int64_t row, std::int64_t col) const {
    return {
        {load<kFull>(third[0], row, col), load<kFull>(third[1], row, col), load<kFull>(third[2], row, col)}};
  }
  __device__ const Matrix& input(int i) const { return third[i]; }
  __device__ Raw raw(const Bf16x8 (&in)[kOutputs]) const { return {{in[0], in[1], in[2]}}; }
  /// Every lane calls it: the partner of a vector of 8 is the lane's whose columns are D / 2 away.
  __device__ void make(Bf16x8 (&out)[kOutputs], const Raw& raw, const Column& column, std::int64_t row,
                       std::int64_t col) const {
    const Angles angles(table + static_cast<int>(row) % static_cast<int>(T) * D + column.angles);
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) {
      Bf16x8 partner;
#pragma unroll
      for (int p = 0; p < 4; ++p)
        partner.pair[p] = __shfl_xor_sync(kAllLanes, raw.x[o].pair[p], static_cast<int>(D) / (2 * kSquare));
      out[o] = raw.x[o];
      if (o * cols + col >= turned_cols) continue;
      float x[8], y[8];
      unpack(x, raw.x[o]);
      unpack(y, partner);
#pragma unroll
      for (int j = 0; j < 8; ++j) x[j] = x[j] * angles.cos[j] + column.sign * y[j] * angles.sin[j];
      out[o] = pack(x);
    }
  }
};

}  // namespace precbench::cuda
