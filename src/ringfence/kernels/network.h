// Networks of linear layers with ReLU between them and, with `normalise`, LayerNorm before each ReLU.

#pragma once

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "calls.h"
#include "layernorm.h"
#include "products.h"

namespace {

constexpr int64_t STRIP = 2 * MR;  // rows whose hidden layers fit into the first-level cache together
constexpr int64_t CHUNK = 256;     // the most rows that one core takes through a network at once

// Rows of a batch in parts of about equal size and of at most CHUNK rows, the same number of parts for each thread.
struct Parts {
  Parts(int64_t rows, int64_t threads) : rows(rows), count(std::max<int64_t>(1, std::min(threads, rows / (2 * MR)))) {
    if (rows > threads * CHUNK) count = threads * ((rows + threads * CHUNK - 1) / (threads * CHUNK));
  }
  int64_t begin(int64_t part) const { return rows * part / count; }
  int64_t size(int64_t part) const { return begin(part + 1) - begin(part); }
  int64_t rows, count;
};

struct Hidden {  // what is kept of a hidden layer: its output or, with LayerNorm, the normalised values and their scales
  Tensor values, scales;
};

ffi::Error wrong_shapes(const char* call) {
  return ffi::Error::InvalidArgument(std::string(call) + ": shapes of the arguments or results do not fit together");
}

// Arguments: x, then weight and bias of each layer. Results: y; then, if asked for, what is kept of each hidden layer.
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
    Hidden hidden{out.matrix(), {}};
    if (normalise) hidden.scales = out.vector();
    kept.push_back(hidden);
  }
  if (layers.empty() || (!kept.empty() && kept.size() + 1 != layers.size())) return wrong_shapes("forward");
  for (size_t l = 0; l < layers.size(); ++l) {
    const auto& [weight, bias] = layers[l];
    const int64_t inputs = l ? layers[l - 1].first.columns : x.columns, outputs = weight.columns;
    if (!weight.is(x.networks, inputs, outputs) || !bias.is(x.networks, 1, outputs) || outputs < 1)
      return wrong_shapes("forward");
    if (l < kept.size() && (!kept[l].values.is(x.networks, x.rows, outputs) ||
                            (normalise && kept[l].scales.networks * kept[l].scales.columns != x.networks * x.rows)))
      return wrong_shapes("forward");
  }
  if (!y.is(x.networks, x.rows, layers.back().first.columns)) return wrong_shapes("forward");

  int64_t widest = 0, strip = STRIP, work = 0;
  for (const auto& layer : layers) work += 2 * x.rows * x.networks * layer.first.rows * layer.first.columns;
  for (size_t l = 0; l + 1 < layers.size(); ++l) {
    widest = std::max(widest, layers[l].first.columns);
    if (layers[l].first.columns % NR != 0) strip = CHUNK;  // an incomplete panel is packed once for all rows
  }

  const Parts parts(x.rows, pool.num_threads());
  for_all(pool, x.networks * parts.count, work, [&](int64_t task) {
    const int64_t network = task / parts.count, begin = parts.begin(task % parts.count);
    const int64_t rows = parts.size(task % parts.count);
    const size_t hidden = layers.size() - 1;
    // A strip of rows at a time goes through the hidden layers, so that it stays in the first-level cache.
    const float* last_hidden = x.of(network) + begin * x.columns;
    for (int64_t from = 0; from < rows; from += strip) {
      const int64_t count = std::min(strip, rows - from);
      const float* input = x.of(network) + (begin + from) * x.columns;
      for (size_t l = 0; l < hidden; ++l) {
        const auto& [weight, bias] = layers[l];
        const int64_t width = weight.columns;
        float* output;
        if (!kept.empty() && !normalise) {
          output = kept[l].values.row(network, begin + from);
        } else if (l + 1 == hidden) {
          output = scratch(1, CHUNK * width) + from * width;
        } else {
          output = scratch(2 + l % 2, strip * widest);
        }
        multiply({input, weight.rows, 1}, {weight.of(network), width, 1}, bias.of(network), {output, width, 1}, count,
                 weight.rows, width, normalise ? After::nothing : After::relu);
        if (normalise) {
          const bool keep = !kept.empty();
          normalise_rows(output, keep ? kept[l].values.row(network, begin + from) : nullptr,
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

// One layer in the backward pass
struct Step {
  Tensor weight;
  Hidden input;  // x, or what was kept of the layer before
  bool normalised;
  Tensor weight_gradient, bias_gradient;
  int64_t partial;     // offset of these two in a thread's partial sums
  int64_t transposed;  // offset of the transposed weight
  int64_t signal;      // offset of the gradient at this layer's input
};

// The rows of a chunk that can change a gradient. A row whose gradient at y is 0 adds nothing if all that it is multiplied
// with is finite, and such rows can be many: of two critics only the smaller has a gradient at each row, and a state without
// an out-of-distribution action has none. `adds_nothing(i)` says whether row i, with a gradient of 0, can be left out.
struct LiveRows {
  template <typename Predicate>
  LiveRows(const float* gradient, int64_t columns, int64_t rows, Predicate adds_nothing) : rows(rows) {
    for (int64_t i = 0; i < rows; ++i, gradient += columns)
      if (std::any_of(gradient, gradient + columns, [](float g) { return g != 0.0f; }) || !adds_nothing(i))
        index[count++] = i;
    if (8 * count <= 7 * rows) return;
    all = true;  // so many that gathering them does not pay
    std::iota(index, index + (count = rows), 0);
  }

  // These rows of a matrix, whose chunk begins at `begin`, gathered; with `after_relu` ReLU is applied to them
  const float* of(const Tensor& matrix, int64_t network, int64_t begin, int slot, bool after_relu = false) const {
    if (all && !after_relu) return matrix.row(network, begin);
    float* together = scratch(slot, CHUNK * matrix.columns);
    for (int64_t i = 0; i < count; ++i) {
      const float* from = matrix.row(network, begin + index[i]);
      for_each(matrix.columns, [&](int64_t j, auto kind) {
        const auto value = get(from, j, kind);
        put(together, i * matrix.columns + j, after_relu ? relu(value) : value);
      });
    }
    return together;
  }

  int64_t rows, count = 0, index[CHUNK];
  bool all = false;
};

// weight_gradient = input^T signal, bias_gradient = sums of the signal's columns; with `onto` added to what is there
void weight_gradients(const float* input, int64_t inputs, const float* signal, int64_t outputs, int64_t rows,
                      float* weight_gradient, float* bias_gradient, bool onto) {
  if (outputs < LANES) {  // few columns: compute the transpose, because a tile may have any number of rows
    for (int64_t j = 0; j < inputs; j += NR)
      multiply_panel({signal, 1, outputs}, {input + j, inputs, 1}, nullptr, {weight_gradient + j * outputs, 1, outputs},
                     outputs, rows, static_cast<int>(std::min<int64_t>(NR, inputs - j)), After::nothing, onto);
  } else {
    for (int64_t j = 0; j < outputs; j += NR)
      multiply_panel({input, 1, inputs}, {signal + j, outputs, 1}, nullptr, {weight_gradient + j, outputs, 1}, inputs,
                     rows, static_cast<int>(std::min<int64_t>(NR, outputs - j)), After::nothing, onto);
  }
  if (!onto) std::fill(bias_gradient, bias_gradient + outputs, 0.0f);
  for (int64_t i = 0; i < rows; ++i, signal += outputs)
    for_each(outputs, [&](int64_t j, auto kind) {
      put(bias_gradient, j, get(bias_gradient, j, kind) + get(signal, j, kind));
    });
}

// Arguments: the gradient at y; then for each layer, the last first: its weight, and x or what was kept of the layer before.
// Results: with `wants_input` the gradient at x; then, with `wants_weights`, those of each layer's weight and bias, the last
// first.
//
// Each thread has its own rows, whose gradients at the hidden layers ("signals") stay in its cache until they have been added
// to the weights' gradients. The threads' partial sums are added up in the end.
ffi::Error backward(ffi::ThreadPool pool, ffi::RemainingArgs arguments, ffi::RemainingRets results, bool normalise,
                    bool wants_input, bool wants_weights) {
  Arguments in(arguments);
  Results out(results);
  const Tensor gradient = in.matrix();
  const Tensor x_gradient = wants_input ? out.matrix() : Tensor{};
  std::vector<Step> steps;
  int64_t partial_size = 0, transposed_size = 0, signal_size = 0, strip = STRIP;
  while (in.more()) {
    Step step{in.matrix(), {in.matrix(), {}}, normalise && in.more(), {}, {}, partial_size, transposed_size, signal_size};
    const bool first = !in.more();
    if (step.normalised) step.input.scales = in.vector();
    if (wants_weights) step.weight_gradient = out.matrix(), step.bias_gradient = out.vector();
    const int64_t inputs = step.weight.rows, outputs = steps.empty() ? gradient.columns : steps.back().weight.rows;
    if (inputs < 1 || !step.weight.is(gradient.networks, inputs, outputs) ||
        !step.input.values.is(gradient.networks, gradient.rows, inputs) ||
        (step.normalised && step.input.scales.networks * step.input.scales.columns != gradient.networks * gradient.rows) ||
        (wants_weights && (!step.weight_gradient.is(gradient.networks, inputs, outputs) ||
                           !step.bias_gradient.is(gradient.networks, 1, outputs))) ||
        (wants_input && first && !x_gradient.is(gradient.networks, gradient.rows, inputs)))
      return wrong_shapes("backward");
    partial_size += (step.weight.rows + 1) * step.weight.columns;
    transposed_size += step.weight.rows * step.weight.columns;
    signal_size += CHUNK * step.weight.rows;
    if (!first && step.weight.rows % NR != 0) strip = CHUNK;
    steps.push_back(step);
  }
  if (steps.empty()) return wrong_shapes("backward");
  const int64_t networks = gradient.networks, threads = pool.num_threads();
  // A range of rows for each thread. More ranges would balance the threads better, but each has partial sums to be added up.
  const int64_t ranges = networks >= 4 * threads ? 1 : std::clamp<int64_t>(gradient.rows / 128, 1, threads);
  float* partials = wants_weights ? scratch(5, networks * (ranges - 1) * partial_size) : nullptr;

  for_all(pool, networks * ranges, 4 * gradient.rows * networks * transposed_size, [&](int64_t task) {
    const int64_t network = task / ranges, range = task % ranges;
    const int64_t begin = gradient.rows * range / ranges, end = gradient.rows * (range + 1) / ranges;
    float *transposed = scratch(4, transposed_size), *signals = scratch(1, signal_size);
    const size_t backs = steps.size() - (wants_input ? 0 : 1);  // layers whose input has a gradient
    for (size_t l = 0; l < backs; ++l) {
      const Tensor& weight = steps[l].weight;
      if (weight.columns == 1) continue;
      for (int64_t j = 0; j < weight.rows; j += NR) {
        const int columns = static_cast<int>(std::min<int64_t>(NR, weight.rows - j));
        pack({weight.of(network) + j * weight.columns, 1, weight.columns}, weight.columns, columns, columns,
             transposed + steps[l].transposed + j, weight.rows);
      }
    }
    auto weights_finite = [&, known = false, finite = true]() mutable {
      for (size_t l = 0; !known && finite && l < backs; ++l)
        finite = all_finite(steps[l].weight.of(network), steps[l].weight.rows * steps[l].weight.columns);
      known = true;
      return finite;
    };
    for (int64_t chunk = begin; chunk < end; chunk += CHUNK) {
      const auto adds_nothing = [&](int64_t i) {  // 0 times NaN or infinity is NaN
        return weights_finite() && std::all_of(steps.begin(), steps.end(), [&](const Step& step) {
                 return all_finite(step.input.values.row(network, chunk + i), step.input.values.columns);
               });
      };
      const LiveRows live(gradient.of(network) + chunk * gradient.columns, gradient.columns, std::min(CHUNK, end - chunk),
                          adds_nothing);
      const float* top = live.of(gradient, network, chunk, 2);
      if (wants_input && !live.all) std::fill_n(x_gradient.row(network, chunk), live.rows * x_gradient.columns, 0.0f);
      for (int64_t from = 0; from < live.count; from += strip) {
        const int64_t count = std::min(strip, live.count - from);
        const float* above = top + from * gradient.columns;
        for (size_t l = 0; l < backs; ++l) {
          const Step& step = steps[l];
          const int64_t width = step.weight.rows;
          const bool at_x = l + 1 == steps.size();
          float* below = signals + step.signal + from * width;
          if (at_x && live.all) below = x_gradient.row(network, chunk + from);
          if (step.weight.columns == 1) {  // every row is a multiple of the weights
            for (int64_t i = 0; i < count; ++i)
              for_each(width, [&](int64_t j, auto kind) {
                put(below, i * width + j, above[i] * get(step.weight.of(network), j, kind));
              });
          } else {
            multiply({above, step.weight.columns, 1}, {transposed + step.transposed, width, 1}, nullptr, {below, width, 1}, count,
                     step.weight.columns, width);
          }
          for (int64_t i = 0; i < count; ++i) {
            const int64_t row = chunk + live.index[from + i];
            float* signal = below + i * width;
            if (!at_x) {
              const float* values = step.input.values.row(network, row);
              for_each(width, [&](int64_t j, auto kind) {
                put(signal, j, where_positive(get(values, j, kind), get(signal, j, kind)));
              });
              if (normalise) normalise_row_backward(signal, values, step.input.scales.of(network)[row], width);
            } else if (!live.all) {
              std::copy_n(signal, width, x_gradient.row(network, row));
            }
          }
          above = below;
        }
      }
      for (size_t l = 0; wants_weights && l < steps.size(); ++l) {
        const Step& step = steps[l];
        const int64_t inputs = step.weight.rows, outputs = step.weight.columns;
        float* own = partials + (network * (ranges - 1) + range - 1) * partial_size + step.partial;
        const float* input = live.of(step.input.values, network, chunk, 3, step.normalised);
        const float* signal = l ? signals + steps[l - 1].signal : top;
        weight_gradients(input, inputs, signal, outputs, live.count, range ? own : step.weight_gradient.of(network),
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
  for_all(pool, static_cast<int64_t>(pieces.size()), 64 * networks * ranges * partial_size, [&](int64_t task) {
    const auto& [to, from, size] = pieces[task];
    for (int64_t range = 1; range < ranges; ++range)
      for_each(size, [&](int64_t j, auto kind) {
        put(to, j, get(to, j, kind) + get(from + (range - 1) * partial_size, j, kind));
      });
  });
  return ffi::Error::Success();
}

}  // namespace
