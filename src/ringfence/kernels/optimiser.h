// Adam (Kingma and Ba, 2015).

#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "calls.h"

namespace {

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

// A step in place. Arguments: the bias corrections by which the two averages are divided; then gradient, parameter, average
// gradient and average square of every array. Results: parameter and averages of every array, in their arguments' memory.
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
  int64_t work = 0;
  if (corrections.columns != 2 || networks < 1 || arguments.size() % 4 || results.size() != arguments.size() / 4 * 3)
    return ffi::Error::InvalidArgument("adam: two corrections, four arguments and three results of each array");
  for (size_t i = 0; i < arguments.size(); i += 4) {
    const size_t elements = arguments.get<Buffer>(i)->element_count();
    for (size_t j = 1; j < 4; ++j)
      if (arguments.get<Buffer>(i + j)->element_count() != elements || elements % networks)
        return ffi::Error::InvalidArgument("adam: gradient, parameter and averages must have the same shape");
    const Buffer gradient = *arguments.get<Buffer>(i), parameter = *arguments.get<Buffer>(i + 1),
                 mean = *arguments.get<Buffer>(i + 2), square = *arguments.get<Buffer>(i + 3);
    for (size_t j = 0; j < 3; ++j)
      if ((*results.get<Buffer>(i / 4 * 3 + j))->typed_data() != arguments.get<Buffer>(i + 1 + j)->typed_data())
        return ffi::Error::Internal("adam: a result is not in its argument's memory");
    const int64_t size = static_cast<int64_t>(gradient.element_count()) / networks;
    work += 64 * networks * size;  // divisions, square roots, memory
    for (int64_t network = 0; network < networks; ++network)
      for (int64_t from = 0; from < size; from += PIECE) {
        const int64_t at = network * size + from;
        pieces.push_back({gradient.typed_data() + at, corrections.of(network), parameter.typed_data() + at,
                          mean.typed_data() + at, square.typed_data() + at, std::min(PIECE, size - from)});
      }
  }
  for_all(pool, static_cast<int64_t>(pieces.size()), work, [&](int64_t task) {
    const Piece& piece = pieces[task];
    adam_piece(piece.gradient, piece.parameter, piece.mean, piece.square, piece.size, 1.0f / piece.correction[0],
               1.0f / piece.correction[1], rate, decay, square_decay, epsilon);
  });
  return ffi::Error::Success();
}

}  // namespace
