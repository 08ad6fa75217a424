// LayerNorm without learned parameters, and ReLU.

#pragma once

#include <cmath>

#include "vectors.h"

namespace {

// Of one row: its mean and 1 / its standard deviation
struct Moments {
  float mean, scale;
};
inline Moments moments(const float* x, int64_t width) {
  const float mean = sum_over(width, [&](int64_t j, auto kind) { return get(x, j, kind); }) / width;
  const float variance = sum_over(width, [&](int64_t j, auto kind) {
                           const auto centred = get(x, j, kind) - mean;
                           return centred * centred;
                         }) / width;
  return {mean, 1.0f / std::sqrt(variance + 1e-5f)};
}

// In place: x becomes LayerNorm(x).
inline void normalise_row(float* x, int64_t width) {
  const auto [mean, scale] = moments(x, width);
  for (int64_t j = 0; j < width; ++j) x[j] = (x[j] - mean) * scale;
}

// In place: x becomes ReLU(LayerNorm(x)). LayerNorm's own output and scales are also written where pointers are given.
void normalise_rows(float* x, float* normalised, float* scales, int64_t rows, int64_t width) {
  for (int64_t i = 0; i < rows; ++i, x += width) {
    const Moments row = moments(x, width);
    const float mean = row.mean, scale = row.scale;
    float* out = normalised ? normalised + i * width : x;
    for_each(width, [&](int64_t j, auto kind) {
      const auto value = (get(x, j, kind) - mean) * scale;
      put(out, j, value);
      put(x, j, relu(value));
    });
    if (scales) scales[i] = scale;
  }
}

// In place, for one row: the gradient at LayerNorm's output becomes the gradient at its input.
void normalise_row_backward(float* g, const float* normalised, float scale, int64_t width) {
  const float mean = sum_over(width, [&](int64_t j, auto kind) { return get(g, j, kind); }) / width;
  const float along = sum_over(width, [&](int64_t j, auto kind) {
                        return get(g, j, kind) * get(normalised, j, kind);
                      }) / width;
  for_each(width, [&](int64_t j, auto kind) {
    put(g, j, (get(g, j, kind) - mean - get(normalised, j, kind) * along) * scale);
  });
}

}  // namespace
