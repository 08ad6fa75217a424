// The numbers that a guard compares in every step of a control loop: networks of one observation and action. In NumPy the
// calls between the products take longer than the products.
//
// `ringfence.deploy.guard_compiled` describes the networks; `Score` and `Layer` have the same fields there.

#pragma once

#include <algorithm>
#include <cmath>

#include "layernorm.h"
#include "vectors.h"

namespace {

struct Layer {
  const float* weight;  // (inputs, outputs)
  const float* bias;    // (outputs)
  int64_t inputs, outputs;
};

enum Meaning : int64_t { SQUARE = 0, DIVERGENCE = 1, VALUE = 2 };  // of the last layer's outputs

struct Score {
  const Layer* layers;
  int64_t depth;
  int64_t normalise, tanh;  // whether LayerNorm comes before the activation, and whether this is tanh, not ReLU
  int64_t meaning;
  double scale;                      // of VALUE
  double least_log_std, most_log_std;  // of DIVERGENCE
};

// y += the sum of factors[r] times rows[r]
template <int count>
void add_rows(const float* const* rows, const float* factors, float* y, int64_t width) {
  for_each(width, [&](int64_t j, auto kind) {
    auto total = get(y, j, kind);
#pragma GCC unroll 8
    for (int r = 0; r < count; ++r) total += factors[r] * get(rows[r], j, kind);
    put(y, j, total);
  });
}

// y = x W + bias. Inputs that are 0, after ReLU about half of them, are left out: weights are finite.
void layer_of_one_row(const float* x, const Layer& layer, float* y) {
  constexpr int TOGETHER = 4;
  const float* rows[TOGETHER];
  float factors[TOGETHER];
  int waiting = 0;
  std::copy_n(layer.bias, layer.outputs, y);
  for (int64_t i = 0; i < layer.inputs; ++i) {
    if (x[i] == 0.0f) continue;
    rows[waiting] = layer.weight + i * layer.outputs;
    factors[waiting] = x[i];
    if (++waiting == TOGETHER) {
      add_rows<TOGETHER>(rows, factors, y, layer.outputs);
      waiting = 0;
    }
  }
  for (int r = 0; r < waiting; ++r) add_rows<1>(rows + r, factors + r, y, layer.outputs);
}

void activate(float* x, int64_t width, const Score& score) {
  if (score.normalise) normalise_row(x, width);
  if (score.tanh) {
    for (int64_t j = 0; j < width; ++j) x[j] = std::tanh(x[j]);
  } else {
    for_each(width, [&](int64_t j, auto kind) { put(x, j, relu(get(x, j, kind))); });
  }
}

double square(const float* y, int64_t width) {
  double total = 0.0;
  for (int64_t j = 0; j < width; ++j) total += static_cast<double>(y[j]) * y[j];
  return total;
}

// KL(N(mean, std^2) || N(0, 1)) of outputs (means, log stds). NaN stays NaN: a comparison with it is false.
double divergence(const float* y, int64_t latents, double least, double most) {
  double total = 0.0;
  for (int64_t j = 0; j < latents; ++j) {
    double log_std = y[latents + j];
    if (log_std < least) log_std = least;
    if (log_std > most) log_std = most;
    total += static_cast<double>(y[j]) * y[j] + std::exp(2.0 * log_std) - 1.0 - 2.0 * log_std;
  }
  return 0.5 * total;
}

double value_of(const Score& score, const float* x, float* here, float* there) {
  for (int64_t i = 0; i < score.depth; ++i) {
    if (i > 0) activate(here, score.layers[i - 1].outputs, score);
    layer_of_one_row(i > 0 ? here : x, score.layers[i], there);
    std::swap(here, there);
  }
  const int64_t width = score.layers[score.depth - 1].outputs;
  if (score.meaning == SQUARE) return square(here, width);
  if (score.meaning == DIVERGENCE) return divergence(here, width / 2, score.least_log_std, score.most_log_std);
  return score.scale * here[0];
}

}  // namespace

// One number for each score, of the inputs x. `memory` has room for twice the widest layer.
extern "C" void ringfence_scores(const Score* scores, int64_t count, const float* x, float* memory, int64_t widest,
                                 double* values) {
  for (int64_t k = 0; k < count; ++k) values[k] = value_of(scores[k], x, memory, memory + widest);
}
