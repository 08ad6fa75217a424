// Matrix products of a few hundred rows.
//
// A tile of a product is up to MR rows by one or two vectors of columns: as many sums as the registers hold.

#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "vectors.h"

namespace {

constexpr int MR = LANES == 16 ? 12 : 6;
constexpr int NR = 2 * LANES;  // columns of a wide panel
constexpr int DEPTH = 256;     // a panel of this depth fits into the first-level cache

// A matrix in memory: element (i, j) lies at data[i * row + j * column].
template <typename Float>
struct Matrix {
  Float* data;
  ptrdiff_t row, column;

  Matrix at(ptrdiff_t i, ptrdiff_t j) const { return {data + i * row + j * column, row, column}; }
};
using Input = Matrix<const float>;
using Output = Matrix<float>;

enum class After { nothing, relu };  // what is applied to a sum when it is complete

// One tile of C = start + A B: `rows` rows and `vectors` vectors of columns. `start` has a row for each of C's,
// `start_row` apart, or one for all of them (0).
template <int rows, int vectors>
__attribute__((noinline)) void tile(Input a, const float* b, ptrdiff_t b_row, int depth, const float* start,
                                    ptrdiff_t start_row, float* c, ptrdiff_t c_row, After after) {
  Vec sums[rows][vectors];
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) sums[i][v] = load(start + i * start_row + v * LANES);
  // One pointer for three rows: the second and third are reached through an index register.
  constexpr int pointers = (rows + 2) / 3;
  const float* left[pointers];
#pragma GCC unroll 8
  for (int p = 0; p < pointers; ++p) left[p] = a.data + 3 * p * a.row;
  for (int k = 0; k < depth; ++k, b += b_row) {
    Vec right[vectors];
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) right[v] = load(b + v * LANES);
    __builtin_prefetch(b + NR, 0, 2);
    __builtin_prefetch(b + NR + LANES, 0, 2);
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i) {
      const Vec factor = all(left[i / 3][i % 3 * a.row]);
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) sums[i][v] += factor * right[v];
    }
#pragma GCC unroll 8
    for (int p = 0; p < pointers; ++p) left[p] += a.column;
  }
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) {
      Vec value = sums[i][v];
      if (after == After::relu) value = relu(value);
      store(c + i * c_row + v * LANES, value);
    }
}

using Tile = void (*)(Input, const float*, ptrdiff_t, int, const float*, ptrdiff_t, float*, ptrdiff_t, After);

// Tiles of 1 to MR rows
template <int vectors, int... before>
constexpr std::array<Tile, sizeof...(before)> make_tiles(std::integer_sequence<int, before...>) {
  return {tile<before + 1, vectors>...};
}
template <int vectors>
constexpr auto TILES = make_tiles<vectors>(std::make_integer_sequence<int, MR>{});

// Working memory of this thread, aligned to cache lines. It stays allocated between calls.
float* scratch(int slot, size_t size) {
  thread_local std::array<std::vector<float>, 6> slots;
  std::vector<float>& memory = slots[slot];
  constexpr size_t LINE = 64 / sizeof(float);
  if (memory.size() < size + LINE) memory.resize(size + LINE);
  const uintptr_t address = reinterpret_cast<uintptr_t>(memory.data());
  return memory.data() + (-address % 64) / sizeof(float);
}

// Transposes a square block of LANES by LANES. Each round interleaves rows i and i + LANES / 2; after log2(LANES) rounds
// rows have become columns.
void transpose(const float* from, ptrdiff_t from_row, float* to, ptrdiff_t to_row) {
  Vec block[LANES], next[LANES];
#pragma GCC unroll 16
  for (int i = 0; i < LANES; ++i) block[i] = load(from + i * from_row);
#pragma GCC unroll 4
  for (int round = LANES; round > 1; round /= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < LANES / 2; ++i) {
      next[2 * i] = interleave<0>(block[i], block[i + LANES / 2]);
      next[2 * i + 1] = interleave<1>(block[i], block[i + LANES / 2]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < LANES; ++i) block[i] = next[i];
  }
#pragma GCC unroll 16
  for (int i = 0; i < LANES; ++i) store(to + i * to_row, block[i]);
}

// Copies `columns` columns of B into rows that lie `row` apart and have room for `width` numbers; the rest is filled with 0.
void pack(Input b, int64_t depth, int columns, int width, float* to, ptrdiff_t row) {
  const bool whole = columns == width && width % LANES == 0;
  int64_t k = 0;
  if (whole && b.column == 1) {
    for (; k < depth; ++k)
      for (int j = 0; j < width; j += LANES) store(to + k * row + j, load(b.data + k * b.row + j));
  } else if (whole && b.row == 1) {
    for (; k + LANES <= depth; k += LANES)
      for (int j = 0; j < width; j += LANES) transpose(b.data + k + j * b.column, b.column, to + k * row + j, row);
  }
  for (; k < depth; ++k)
    for (int j = 0; j < width; ++j) to[k * row + j] = j < columns ? b.data[k * b.row + j * b.column] : 0.0f;
}

// C = start + A B for at most a panel's width of columns and any number of rows. `start` is a row, or null for 0. With
// `onto` the product is added to C instead.
void multiply_panel(Input a, Input b, const float* start, Output c, int64_t rows, int64_t depth, int columns,
                    After after = After::nothing, bool onto = false) {
  const int width = columns <= LANES ? LANES : NR;
  const auto& tiles = width == NR ? TILES<2> : TILES<1>;
  const int64_t high = (rows + MR - 1) / MR;  // number of tiles, of about equal height
  const bool whole = columns == width && c.column == 1;
  // Where A's rows are in the first-level cache, B is read straight from the second level. Else it is packed into a panel.
  const bool direct = a.column == 1 && b.column == 1 && columns == width;
  float* panel = scratch(0, DEPTH * NR);
  float first[NR] = {};
  if (start) std::memcpy(first, start, columns * sizeof(float));
  for (int64_t k = 0; k == 0 || k < depth; k += DEPTH) {
    const int part = static_cast<int>(std::min<int64_t>(DEPTH, depth - k));
    const After now = k + part == depth ? after : After::nothing;
    const float* right = direct ? b.at(k, 0).data : panel;
    const ptrdiff_t right_row = direct ? b.row : width;
    if (!direct) pack(b.at(k, 0), part, columns, width, panel, width);
    for (int64_t t = 0; t < high; ++t) {
      const int64_t i = rows * t / high;
      const int count = static_cast<int>(rows * (t + 1) / high - i);
      const Tile run = tiles[count - 1];
      const Output to = c.at(i, 0);
      if (whole) {
        run(a.at(i, k), right, right_row, part, k || onto ? to.data : first, k || onto ? to.row : 0, to.data, to.row, now);
        continue;
      }
      // An incomplete tile is computed in a whole one
      float edge[MR * NR] = {};
      for (int r = 0; r < count; ++r)
        for (int j = 0; j < columns; ++j)
          edge[r * width + j] = k || onto ? to.data[r * to.row + j * to.column] : first[j];
      run(a.at(i, k), right, right_row, part, edge, width, edge, width, now);
      for (int r = 0; r < count; ++r)
        for (int j = 0; j < columns; ++j) to.data[r * to.row + j * to.column] = edge[r * width + j];
    }
  }
}

void multiply(Input a, Input b, const float* start, Output c, int64_t rows, int64_t depth, int64_t columns,
              After after = After::nothing) {
  for (int64_t j = 0; j < columns; j += NR)
    multiply_panel(a, b.at(0, j), start ? start + j : nullptr, c.at(0, j), rows, depth,
                   static_cast<int>(std::min<int64_t>(NR, columns - j)), after);
}

// y = x w + b for one output, as a critic's last layer has it
void dot_rows(const float* x, const float* w, float b, float* y, int64_t rows, int64_t inputs) {
  for (int64_t i = 0; i < rows; ++i, x += inputs)
    y[i] = b + sum_over(inputs, [&](int64_t k, auto kind) { return get(x, k, kind) * get(w, k, kind); });
}

}  // namespace
