// Networks of linear layers with ReLU between them (and LayerNorm before each ReLU, if asked), for XLA on a CPU.
//
// XLA multiplies one matrix after another and waits for all cores after each. Batches of reinforcement learning are so
// small that the waiting, and the passes over activations between the products, cost as much as a third of the time. Here
// a core takes some of the batch's rows through all layers without waiting, and does what lies between two
// products while the rows are in its cache.
//
// Calls, each over any number of networks at once (the leading axis):
//
//     forward    y, and what the gradient needs of each hidden layer if it is to be kept
//     backward   the gradients of x or of weights and biases or both, given that of y
//     adam       a step of the optimiser
//     threefry   random words

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

// Products
//
// A tile of a product is MR rows by NV vectors of columns: as many sums as the registers hold.

#if defined(__AVX512F__)
constexpr int LANES = 16, MR = 12;
#elif defined(__AVX__)
constexpr int LANES = 8, MR = 6;
#else
constexpr int LANES = 4, MR = 8;
#endif
constexpr int NR = 2 * LANES;  // columns of a wide panel
constexpr int DEPTH = 256;     // a panel of this depth fits into the first cache
constexpr int64_t STRIP = 2 * MR;  // rows whose hidden layers stay in the first cache together
constexpr int64_t PIECE = 8192;    // numbers that a core takes at once where they are only added or the like
constexpr int64_t CHUNK = 256;     // rows that one core takes through a network at once, at most

typedef float Vec __attribute__((vector_size(LANES * sizeof(float)), aligned(sizeof(float)), may_alias));
typedef int32_t Mask __attribute__((vector_size(LANES * sizeof(float))));

inline Vec load(const float* from) { return *reinterpret_cast<const Vec*>(from); }
inline void store(float* to, Vec value) { *reinterpret_cast<Vec*>(to) = value; }
inline Vec all(float value) { return value - Vec{}; }
inline Vec where_positive(Vec condition, Vec value) { return condition > Vec{} ? value : Vec{}; }

// a and b by turns, beginning with their first halves or with their second
template <int half, int... i>
inline Vec interleave(Vec a, Vec b, std::integer_sequence<int, i...>) {
  return __builtin_shufflevector(a, b, (i % 2 * LANES + i / 2 + half * LANES / 2)...);
}
template <int half>
inline Vec interleave(Vec a, Vec b) {
  return interleave<half>(a, b, std::make_integer_sequence<int, LANES>{});
}

template <int step, int... i>
inline Vec rotate(Vec value, std::integer_sequence<int, i...>) {
  return __builtin_shufflevector(value, value, ((i + step) % LANES)...);
}
template <int step = LANES / 2>
inline float sum(Vec value) {
  if constexpr (step == 0) {
    return value[0];
  } else {
    return sum<step / 2>(value + rotate<step>(value, std::make_integer_sequence<int, LANES>{}));
  }
}

// A matrix in memory: element (i, j) lies at data[i * row + j * column].
template <typename Float>
struct Matrix {
  Float* data;
  ptrdiff_t row, column;

  Matrix at(ptrdiff_t i, ptrdiff_t j) const { return {data + i * row + j * column, row, column}; }
};
using Input = Matrix<const float>;
using Output = Matrix<float>;

enum class After { nothing, relu, gate };  // what happens to a sum when it is complete

// One tile of C = start + A B: `rows` rows and `vectors` vectors of columns. `start` has a row for each of C's,
// `start_row` apart, or one for all of them (0).
template <int rows, int vectors>
__attribute__((noinline)) void tile(Input a, const float* b, ptrdiff_t b_row, int depth, const float* start,
                                    ptrdiff_t start_row, float* c, ptrdiff_t c_row, After after, const float* gate) {
  Vec sums[rows][vectors];
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) sums[i][v] = load(start + i * start_row + v * LANES);
  // Three rows to a pointer: the others are reached by one index register.
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
      if (after == After::relu) value = where_positive(value, value);
      if (after == After::gate) value = where_positive(load(gate + i * c_row + v * LANES), value);
      store(c + i * c_row + v * LANES, value);
    }
}

using Tile = void (*)(Input, const float*, ptrdiff_t, int, const float*, ptrdiff_t, float*, ptrdiff_t, After,
                      const float*);

// Tiles of as many rows as are left, or the next smaller of these numbers
constexpr int TILE_ROWS[] = {MR, 4, 2, 1};
template <int vectors>
constexpr Tile TILES[] = {tile<MR, vectors>, tile<4, vectors>, tile<2, vectors>, tile<1, vectors>};

// Memory of this thread, aligned to cache lines.
float* scratch(int slot, size_t size) {
  thread_local std::array<std::vector<float>, 6> slots;
  std::vector<float>& memory = slots[slot];
  if (memory.size() < size + LANES) memory.resize(size + LANES);
  const uintptr_t address = reinterpret_cast<uintptr_t>(memory.data());
  return memory.data() + (-address % 64) / sizeof(float);
}

// A square block of LANES by LANES. Each round puts rows i and i + LANES / 2 together, element by element; after
// log2(LANES) rounds rows have become columns.
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

// `columns` columns of B into rows that lie `row` apart. A row has room for `width`; what is left of it becomes 0.
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

// C = start + A B for some columns (a panel's width at most) and any number of rows. `start` is a row, or null for 0;
// `onto` adds to what C has.
void multiply_panel(Input a, Input b, const float* start, Output c, int64_t rows, int64_t depth, int columns,
                    After after = After::nothing, const float* gate = nullptr, bool onto = false) {
  const int width = columns <= LANES ? LANES : NR;
  const auto& tiles = width == NR ? TILES<2> : TILES<1>;
  const bool whole = columns == width && c.column == 1;
  // Where A's rows lie in the first cache, B can come straight from the second. Else it is put together in the first.
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
    for (int64_t i = 0, size = 0; i < rows; i += TILE_ROWS[size]) {
      while (TILE_ROWS[size] > rows - i) ++size;
      const int count = TILE_ROWS[size];
      const Output to = c.at(i, 0);
      if (whole) {
        tiles[size](a.at(i, k), right, right_row, part, k || onto ? to.data : first, k || onto ? to.row : 0, to.data, to.row, now,
                         gate + i * c.row);
        continue;
      }
      // By way of a whole tile
      float edge[MR * NR] = {}, open[MR * NR] = {};
      for (int r = 0; r < count; ++r)
        for (int j = 0; j < columns; ++j) {
          edge[r * width + j] = k || onto ? to.data[r * to.row + j * to.column] : first[j];
          if (now == After::gate) open[r * width + j] = gate[(i + r) * c.row + j];
        }
      tiles[size](a.at(i, k), right, right_row, part, edge, width, edge, width, now, open);
      for (int r = 0; r < count; ++r)
        for (int j = 0; j < columns; ++j) to.data[r * to.row + j * to.column] = edge[r * width + j];
    }
  }
}

void multiply(Input a, Input b, const float* start, Output c, int64_t rows, int64_t depth, int64_t columns,
              After after = After::nothing, const float* gate = nullptr) {
  for (int64_t j = 0; j < columns; j += NR)
    multiply_panel(a, b.at(0, j), start ? start + j : nullptr, c.at(0, j), rows, depth,
                   static_cast<int>(std::min<int64_t>(NR, columns - j)), after, gate ? gate + j : nullptr);
}

// y = x w + b for one output: a critic's last layer
void dot_rows(const float* x, const float* w, float b, float* y, int64_t rows, int64_t inputs) {
  for (int64_t i = 0; i < rows; ++i, x += inputs) {
    Vec total{};
    int64_t k = 0;
    for (; k + LANES <= inputs; k += LANES) total += load(x + k) * load(w + k);
    float rest = b;
    for (; k < inputs; ++k) rest += x[k] * w[k];
    y[i] = sum(total) + rest;
  }
}

// LayerNorm

template <typename Function>
inline float sum_over(int64_t width, Function term) {
  Vec total{};
  int64_t j = 0;
  for (; j + LANES <= width; j += LANES) total += term(j, Vec{});
  float rest = 0.0f;
  for (; j < width; ++j) rest += term(j, 0.0f);
  return sum(total) + rest;
}

inline Vec get(const float* from, int64_t j, Vec) { return load(from + j); }
inline float get(const float* from, int64_t j, float) { return from[j]; }

template <typename Function>
inline void for_each(int64_t width, Function run) {
  int64_t j = 0;
  for (; j + LANES <= width; j += LANES) run(j, Vec{});
  for (; j < width; ++j) run(j, 0.0f);
}

inline void put(float* to, int64_t j, Vec value) { store(to + j, value); }
inline void put(float* to, int64_t j, float value) { to[j] = value; }
inline Vec positive(Vec value) { return where_positive(value, value); }
inline float positive(float value) { return value > 0.0f ? value : 0.0f; }

// In place: x becomes ReLU(LayerNorm(x)). LayerNorm's own output and scale are written where asked.
void normalise_rows(float* x, float* normalised, float* scales, int64_t rows, int64_t width) {
  for (int64_t i = 0; i < rows; ++i, x += width) {
    const float mean = sum_over(width, [&](int64_t j, auto kind) { return get(x, j, kind); }) / width;
    const float variance = sum_over(width, [&](int64_t j, auto kind) {
                             const auto centred = get(x, j, kind) - mean;
                             return centred * centred;
                           }) / width;
    const float scale = 1.0f / std::sqrt(variance + 1e-5f);
    float* out = normalised ? normalised + i * width : x;
    for_each(width, [&](int64_t j, auto kind) {
      const auto value = (get(x, j, kind) - mean) * scale;
      put(out, j, value);
      put(x, j, positive(value));
    });
    if (scales) scales[i] = scale;
  }
}

// In place: the gradient at LayerNorm's output becomes the one at its input.
void normalise_rows_backward(float* g, const float* normalised, const float* scales, int64_t rows, int64_t width) {
  for (int64_t i = 0; i < rows; ++i, g += width, normalised += width) {
    const float mean = sum_over(width, [&](int64_t j, auto kind) { return get(g, j, kind); }) / width;
    const float along = sum_over(width, [&](int64_t j, auto kind) {
                          return get(g, j, kind) * get(normalised, j, kind);
                        }) / width;
    for_each(width, [&](int64_t j, auto kind) {
      put(g, j, (get(g, j, kind) - mean - get(normalised, j, kind) * along) * scales[i]);
    });
  }
}

// Work for several cores

// Runs `task` for 0 to count - 1 on this thread and on those of XLA's that are free. None of them is waited for before it
// has begun, so calls that run at the same time share the threads without harm.
void for_all(ffi::ThreadPool& pool, int64_t count, const std::function<void(int64_t)>& task) {
  struct Shared {
    std::atomic<int64_t> next{0}, done{0};
  };
  auto shared = std::make_shared<Shared>();
  auto work = [shared, count, &task] {
    for (int64_t i; (i = shared->next.fetch_add(1)) < count;) {
      task(i);
      shared->done.fetch_add(1, std::memory_order_release);
    }
  };
  const int64_t helpers = std::min<int64_t>(pool.num_threads(), count) - 1;
  for (int64_t i = 0; i < helpers; ++i) pool.Schedule(std::function<void()>(work));
  work();
  for (int spins = 0; shared->done.load(std::memory_order_acquire) < count; ++spins)
    if (spins > 1000) std::this_thread::yield();
}

// Calls

using Buffer = ffi::Buffer<ffi::F32>;

// An argument or a result: `networks` matrices of rows by columns, or vectors (one row).
struct Tensor {
  float* data;
  int64_t networks, rows, columns;

  float* of(int64_t network) const { return data + network * rows * columns; }
};

Tensor tensor(Buffer buffer, int axes) {
  const auto sizes = buffer.dimensions();
  Tensor made{buffer.typed_data(), 1, 1, static_cast<int64_t>(sizes.back())};
  for (size_t i = 0; i + 1 < sizes.size(); ++i)
    (axes == 2 && i + 2 == sizes.size() ? made.rows : made.networks) *= sizes[i];
  return made;
}

// The arguments in order; what is read of them was checked when the call was made in Python.
class Arguments {
 public:
  explicit Arguments(ffi::RemainingArgs arguments) : arguments_(arguments) {}
  Tensor matrix() { return tensor(*arguments_.get<Buffer>(next_++), 2); }
  Tensor vector() { return tensor(*arguments_.get<Buffer>(next_++), 1); }
  bool more() const { return next_ < arguments_.size(); }

 private:
  ffi::RemainingArgs arguments_;
  size_t next_ = 0;
};

class Results {
 public:
  explicit Results(ffi::RemainingRets results) : results_(results) {}
  Tensor matrix() { return tensor(**results_.get<Buffer>(next_++), 2); }
  Tensor vector() { return tensor(**results_.get<Buffer>(next_++), 1); }
  bool more() const { return next_ < results_.size(); }

 private:
  ffi::RemainingRets results_;
  size_t next_ = 0;
};

// Rows of a batch in parts of about equal size: one a thread, or more if it is large.
struct Parts {
  Parts(int64_t rows, int64_t threads)
      : rows(rows), count(std::max<int64_t>({1, std::min(threads, rows / (2 * MR)), (rows + CHUNK - 1) / CHUNK})) {}
  int64_t begin(int64_t part) const { return rows * part / count; }
  int64_t size(int64_t part) const { return begin(part + 1) - begin(part); }
  int64_t rows, count;
};

struct Hidden {  // what is kept of a hidden layer
  Tensor output, normalised, scales;
};

// Arguments: x, then weight and bias of each layer. Results: y; then, if they are kept, the output of each hidden layer,
// and with LayerNorm its normalised values and scales.
ffi::Error forward(ffi::ThreadPool pool, ffi::RemainingArgs arguments, ffi::RemainingRets results, bool normalise) {
  Arguments in(arguments);
  Results out(results);
  const Tensor x = in.matrix(), y = out.matrix();
  std::vector<std::pair<Tensor, Tensor>> layers;
  while (in.more()) {
    const Tensor weight = in.matrix();
    layers.emplace_back(weight, in.vector());
  }
  std::vector<Hidden> kept;
  while (out.more()) {
    Hidden hidden{out.matrix(), {}, {}};
    if (normalise) hidden.normalised = out.matrix(), hidden.scales = out.vector();
    kept.push_back(hidden);
  }
  int64_t widest = 0, strip = STRIP;
  for (size_t l = 0; l + 1 < layers.size(); ++l) {
    widest = std::max(widest, layers[l].first.columns);
    if (layers[l].first.columns % NR != 0) strip = CHUNK;  // an incomplete panel is put together once for all rows
  }

  const Parts parts(x.rows, pool.num_threads());
  for_all(pool, x.networks * parts.count, [&](int64_t task) {
    const int64_t network = task / parts.count, begin = parts.begin(task % parts.count);
    const int64_t rows = parts.size(task % parts.count);
    const size_t hidden = layers.size() - 1;
    // Some rows at a time through the hidden layers, so that they stay in the first cache
    const float* last_hidden = x.of(network) + begin * x.columns;
    for (int64_t from = 0; from < rows; from += strip) {
      const int64_t count = std::min(strip, rows - from);
      const float* input = x.of(network) + (begin + from) * x.columns;
      for (size_t l = 0; l < hidden; ++l) {
        const auto& [weight, bias] = layers[l];
        const int64_t width = weight.columns;
        float* output;
        if (!kept.empty()) {
          output = kept[l].output.of(network) + (begin + from) * width;
        } else if (l + 1 == hidden) {
          output = scratch(1, CHUNK * width) + from * width;
        } else {
          output = scratch(2 + l % 2, strip * widest);
        }
        multiply({input, weight.rows, 1}, {weight.of(network), width, 1}, bias.of(network), {output, width, 1}, count,
                 weight.rows, width, normalise ? After::nothing : After::relu);
        if (normalise) {
          const bool keep = !kept.empty();
          normalise_rows(output, keep ? kept[l].normalised.of(network) + (begin + from) * width : nullptr,
                         keep ? kept[l].scales.of(network) + begin + from : nullptr, count, width);
        }
        input = output;
        if (from == 0) last_hidden = output;
      }
    }
    const auto& [weight, bias] = layers[hidden];
    float* output = y.of(network) + begin * weight.columns;
    if (weight.columns == 1) {
      dot_rows(last_hidden, weight.of(network), *bias.of(network), output, rows, weight.rows);
    } else {
      multiply({last_hidden, weight.rows, 1}, {weight.of(network), weight.columns, 1}, bias.of(network),
               {output, weight.columns, 1}, rows, weight.rows, weight.columns);
    }
  });
  return ffi::Error::Success();
}

// One layer on the way back
struct Step {
  Tensor weight, input;
  Hidden hidden;  // the layer before; its output is the input
  Tensor weight_gradient, bias_gradient;
  int64_t partial;  // where these two lie in the memory of another thread than the first
  int64_t turned;   // where the turned weight lies
  int64_t signal;   // where the gradient at the input lies, before LayerNorm and ReLU
};

// weight_gradient = input^T signal, bias_gradient = sums of the signal's columns, or added to what is there
void weight_gradients(const float* input, int64_t inputs, const float* signal, int64_t outputs, int64_t rows,
                      float* weight_gradient, float* bias_gradient, bool onto) {
  if (outputs < LANES) {  // the transpose of a product with few columns has few rows, which may be any number
    for (int64_t j = 0; j < inputs; j += NR)
      multiply_panel({signal, 1, outputs}, {input + j, inputs, 1}, nullptr, {weight_gradient + j * outputs, 1, outputs},
                     outputs, rows, static_cast<int>(std::min<int64_t>(NR, inputs - j)), After::nothing, nullptr, onto);
  } else {
    for (int64_t j = 0; j < outputs; j += NR)
      multiply_panel({input, 1, inputs}, {signal + j, outputs, 1}, nullptr, {weight_gradient + j, outputs, 1}, inputs,
                     rows, static_cast<int>(std::min<int64_t>(NR, outputs - j)), After::nothing, nullptr, onto);
  }
  if (!onto) std::fill(bias_gradient, bias_gradient + outputs, 0.0f);
  for (int64_t i = 0; i < rows; ++i, signal += outputs)
    for_each(outputs, [&](int64_t j, auto kind) {
      put(bias_gradient, j, get(bias_gradient, j, kind) + get(signal, j, kind));
    });
}

// Arguments: the gradient at y; then for each layer, the last first: weight, input and, with LayerNorm before the input,
// its normalised values and scales. Results: the gradient at x, if it is wanted; then those of each layer's weight and
// bias, the last first, if they are.
//
// Each thread has its own rows, whose signals stay in its cache until the weights' gradients have them; what the threads
// found is added up in the end.
ffi::Error backward(ffi::ThreadPool pool, ffi::RemainingArgs arguments, ffi::RemainingRets results, bool normalise,
                    bool wants_input, bool wants_weights) {
  Arguments in(arguments);
  Results out(results);
  const Tensor gradient = in.matrix();
  const Tensor x_gradient = wants_input ? out.matrix() : Tensor{};
  std::vector<Step> steps;
  int64_t partial_size = 0, turned_size = 0, signal_size = 0, strip = STRIP;
  while (in.more()) {
    Step step{in.matrix(), in.matrix(), {}, {}, {}, partial_size, turned_size, signal_size};
    const bool first = !in.more();
    if (normalise && in.more()) step.hidden.normalised = in.matrix(), step.hidden.scales = in.vector();
    if (wants_weights) step.weight_gradient = out.matrix(), step.bias_gradient = out.vector();
    partial_size += (step.weight.rows + 1) * step.weight.columns;
    turned_size += step.weight.rows * step.weight.columns;
    signal_size += CHUNK * step.weight.rows;
    if (!first && step.weight.rows % NR != 0) strip = CHUNK;
    steps.push_back(step);
  }
  const int64_t networks = gradient.networks, threads = pool.num_threads();
  // Several ranges for each thread where there is enough to do: a thread may come late.
  const int64_t ranges =
      threads == 1 || networks >= 4 * threads ? 1 : std::clamp<int64_t>(gradient.rows / 128, 1, 4 * threads);
  float* partials = wants_weights ? scratch(5, networks * (ranges - 1) * partial_size) : nullptr;

  for_all(pool, networks * ranges, [&](int64_t task) {
    const int64_t network = task / ranges, range = task % ranges;
    const int64_t begin = gradient.rows * range / ranges, end = gradient.rows * (range + 1) / ranges;
    float *turned = scratch(4, turned_size), *signals = scratch(1, signal_size);
    const size_t backs = steps.size() - (wants_input ? 0 : 1);  // layers whose input has a gradient
    for (size_t l = 0; l < backs; ++l) {
      const Tensor& weight = steps[l].weight;
      for (int64_t j = 0; j < weight.rows; j += NR) {
        const int columns = static_cast<int>(std::min<int64_t>(NR, weight.rows - j));
        pack({weight.of(network) + j * weight.columns, 1, weight.columns}, weight.columns, columns, columns,
             turned + steps[l].turned + j, weight.rows);
      }
    }
    for (int64_t chunk = begin; chunk < end; chunk += CHUNK) {
      const int64_t rows = std::min(CHUNK, end - chunk);
      const float* top = gradient.of(network) + chunk * gradient.columns;
      for (int64_t from = 0; from < rows; from += strip) {
        const int64_t count = std::min(strip, rows - from);
        const float* above = top + from * gradient.columns;
        for (size_t l = 0; l < backs; ++l) {
          const Step& step = steps[l];
          const int64_t width = step.weight.rows, first = (chunk + from) * width;
          const bool at_x = l + 1 == steps.size();
          float* below = at_x ? x_gradient.of(network) + first : signals + step.signal + from * width;
          multiply({above, step.weight.columns, 1}, {turned + step.turned, width, 1}, nullptr, {below, width, 1}, count,
                   step.weight.columns, width, at_x ? After::nothing : After::gate, step.input.of(network) + first);
          if (normalise && !at_x)
            normalise_rows_backward(below, step.hidden.normalised.of(network) + first,
                                    step.hidden.scales.of(network) + chunk + from, count, width);
          above = below;
        }
      }
      for (size_t l = 0; wants_weights && l < steps.size(); ++l) {
        const Step& step = steps[l];
        const int64_t inputs = step.weight.rows, outputs = step.weight.columns;
        float* own = partials + (network * (ranges - 1) + range - 1) * partial_size + step.partial;
        weight_gradients(step.input.of(network) + chunk * inputs, inputs, l ? signals + steps[l - 1].signal : top,
                         outputs, rows, range ? own : step.weight_gradient.of(network),
                         range ? own + inputs * outputs : step.bias_gradient.of(network), chunk > begin);
      }
    }
  });
  if (!wants_weights || ranges == 1) return ffi::Error::Success();

  struct Piece {
    float* to;
    const float* from;
    int64_t size;
  };
  std::vector<Piece> pieces;
  for (int64_t network = 0; network < networks; ++network)
    for (const Step& step : steps) {
      const float* from = partials + network * (ranges - 1) * partial_size + step.partial;
      const int64_t size = step.weight.rows * step.weight.columns;
      for (int64_t i = 0; i < size; i += PIECE)
        pieces.push_back({step.weight_gradient.of(network) + i, from + i, std::min(PIECE, size - i)});
      pieces.push_back({step.bias_gradient.of(network), from + size, step.weight.columns});
    }
  for_all(pool, static_cast<int64_t>(pieces.size()), [&](int64_t task) {
    const auto& [to, from, size] = pieces[task];
    for (int64_t range = 1; range < ranges; ++range)
      for_each(size, [&](int64_t j, auto kind) {
        put(to, j, get(to, j, kind) + get(from + (range - 1) * partial_size, j, kind));
      });
  });
  return ffi::Error::Success();
}

void adam_piece(const float* __restrict gradient, float* __restrict parameter, float* __restrict mean,
                float* __restrict square, int64_t size, float scale, float square_scale, float rate, float decay,
                float square_decay, float epsilon) {
  for (int64_t i = 0; i < size; ++i) {
    const float g = gradient[i];
    const float m = decay * mean[i] + (1.0f - decay) * g;
    const float s = square_decay * square[i] + (1.0f - square_decay) * g * g;
    mean[i] = m;
    square[i] = s;
    parameter[i] -= rate * (m * scale) / (std::sqrt(s * square_scale) + epsilon);
  }
}

// Adam (Kingma and Ba, 2015), in place. Arguments: what the two averages are divided by, then gradient, parameter, average
// gradient and average square of every array. Results: parameter and averages of every array, in the same memory.
ffi::Error adam(ffi::ThreadPool pool, Buffer corrections_buffer, ffi::RemainingArgs arguments, ffi::RemainingRets results,
                float rate, float decay, float square_decay, float epsilon) {
  const Tensor corrections = tensor(corrections_buffer, 1);
  const int64_t networks = corrections.networks;
  struct Piece {
    const float *gradient, *correction;
    float *parameter, *mean, *square;
    int64_t size;
  };
  std::vector<Piece> pieces;
  for (size_t i = 0; i < arguments.size(); i += 4) {
    const Buffer gradient = *arguments.get<Buffer>(i), parameter = *arguments.get<Buffer>(i + 1),
                 mean = *arguments.get<Buffer>(i + 2), square = *arguments.get<Buffer>(i + 3);
    for (size_t j = 0; j < 3; ++j)
      if ((*results.get<Buffer>(i / 4 * 3 + j))->typed_data() != arguments.get<Buffer>(i + 1 + j)->typed_data())
        return ffi::Error::Internal("a result of adam is not in its argument's memory");
    const int64_t size = static_cast<int64_t>(gradient.element_count()) / networks;
    for (int64_t network = 0; network < networks; ++network)
      for (int64_t from = 0; from < size; from += PIECE) {
        const int64_t at = network * size + from;
        pieces.push_back({gradient.typed_data() + at, corrections.of(network), parameter.typed_data() + at,
                          mean.typed_data() + at, square.typed_data() + at, std::min(PIECE, size - from)});
      }
  }
  for_all(pool, static_cast<int64_t>(pieces.size()), [&](int64_t task) {
    const Piece& piece = pieces[task];
    adam_piece(piece.gradient, piece.parameter, piece.mean, piece.square, piece.size, 1.0f / piece.correction[0],
               1.0f / piece.correction[1], rate, decay, square_decay, epsilon);
  });
  return ffi::Error::Success();
}

// The block cipher Threefry-2x32 (Salmon and others, 2011): two random words for each counter of two.

void threefry_words(const uint32_t* __restrict key, const uint32_t* __restrict high, const uint32_t* __restrict low,
                    uint32_t* __restrict out_high, uint32_t* __restrict out_low, int64_t size) {
  constexpr int rotations[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
  const uint32_t schedule[3] = {key[0], key[1], key[0] ^ key[1] ^ 0x1BD11BDAu};
  for (int64_t i = 0; i < size; ++i) {
    uint32_t x = high[i] + schedule[0], y = low[i] + schedule[1];
#pragma GCC unroll 5
    for (int group = 0; group < 5; ++group) {
#pragma GCC unroll 4
      for (int round = 0; round < 4; ++round) {
        const int by = rotations[group % 2][round];
        x += y;
        y = ((y << by) | (y >> (32 - by))) ^ x;
      }
      x += schedule[(group + 1) % 3];
      y += schedule[(group + 2) % 3] + group + 1;
    }
    out_high[i] = x;
    out_low[i] = y;
  }
}

ffi::Error threefry(ffi::Buffer<ffi::U32> key, ffi::Buffer<ffi::U32> high, ffi::Buffer<ffi::U32> low,
                    ffi::Result<ffi::Buffer<ffi::U32>> out_high, ffi::Result<ffi::Buffer<ffi::U32>> out_low) {
  const int64_t keys = static_cast<int64_t>(key.element_count()) / 2;
  const int64_t size = static_cast<int64_t>(high.element_count()) / keys;
  for (int64_t i = 0; i < keys; ++i)
    threefry_words(key.typed_data() + 2 * i, high.typed_data() + i * size, low.typed_data() + i * size,
                   out_high->typed_data() + i * size, out_low->typed_data() + i * size, size);
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    ringfence_forward, forward,
    ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().RemainingArgs().RemainingRets().Attr<bool>("normalise"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(ringfence_backward, backward,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<bool>("normalise")
                                  .Attr<bool>("wants_input")
                                  .Attr<bool>("wants_weights"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(ringfence_adam, adam,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<Buffer>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<float>("rate")
                                  .Attr<float>("decay")
                                  .Attr<float>("square_decay")
                                  .Attr<float>("epsilon"));
using Words = ffi::Buffer<ffi::U32>;
XLA_FFI_DEFINE_HANDLER_SYMBOL(ringfence_threefry, threefry,
                              ffi::Ffi::Bind().Arg<Words>().Arg<Words>().Arg<Words>().Ret<Words>().Ret<Words>());
