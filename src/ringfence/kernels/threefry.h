// Random words: Threefry-2x32 with 20 rounds (Salmon and others, 2011), two random words for each counter of two words.

#pragma once

#include <cstdint>

#include "calls.h"

namespace {

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
  const size_t words = high.element_count();
  if (key.element_count() < 2 || words % (key.element_count() / 2) || low.element_count() != words ||
      out_high->element_count() != words || out_low->element_count() != words)
    return ffi::Error::InvalidArgument("threefry: counters and results must have the same shape");
  const int64_t keys = static_cast<int64_t>(key.element_count()) / 2;
  const int64_t size = static_cast<int64_t>(words) / keys;
  for (int64_t i = 0; i < keys; ++i)
    threefry_words(key.typed_data() + 2 * i, high.typed_data() + i * size, low.typed_data() + i * size,
                   out_high->typed_data() + i * size, out_low->typed_data() + i * size, size);
  return ffi::Error::Success();
}

}  // namespace
