// Vectors of as many floats as one instruction takes.

#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace {

#if defined(RINGFENCE_LANES)  // tests run the code for AVX-512 on processors without it
constexpr int LANES = RINGFENCE_LANES;
#elif defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX2__)
constexpr int LANES = 8;
#else
#error "compile with AVX2 or AVX-512; on other processors XLA's own products are used"
#endif

typedef float Vec __attribute__((vector_size(LANES * sizeof(float)), aligned(sizeof(float)), may_alias));

inline Vec load(const float* from) { return *reinterpret_cast<const Vec*>(from); }
inline void store(float* to, Vec value) { *reinterpret_cast<Vec*>(to) = value; }
inline Vec all(float value) { return value - Vec{}; }

// max(value, 0), and NaN for NaN as in JAX: a comparison with NaN is false.
inline Vec relu(Vec value) { return Vec{} > value ? Vec{} : value; }
inline float relu(float value) { return 0.0f > value ? 0.0f : value; }

// The gradient of ReLU: `value` where `condition` is positive, else 0, also where it is NaN, as in JAX.
inline Vec where_positive(Vec condition, Vec value) { return condition > Vec{} ? value : Vec{}; }
inline float where_positive(float condition, float value) { return condition > 0.0f ? value : 0.0f; }

// Elements of a and b in turn, from their first halves (0) or their second (1)
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

// `get` and `put` have the same name for a vector and for one number, because a loop over a row ends with single numbers.

template <typename Function>
inline float sum_over(int64_t width, Function term) {
  Vec totals[4] = {};  // four independent sums: an addition need not wait for the previous one
  int64_t j = 0;
  for (; j + 4 * LANES <= width; j += 4 * LANES)
    for (int t = 0; t < 4; ++t) totals[t] += term(j + t * LANES, Vec{});
  for (; j + LANES <= width; j += LANES) totals[0] += term(j, Vec{});
  float rest = 0.0f;
  for (; j < width; ++j) rest += term(j, 0.0f);
  return sum((totals[0] + totals[1]) + (totals[2] + totals[3])) + rest;
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

// Whether no value is NaN or infinite: 0 times any other is 0.
inline bool all_finite(const float* values, int64_t size) {
  return sum_over(size, [&](int64_t j, auto kind) { return get(values, j, kind) * 0.0f; }) == 0.0f;
}

}  // namespace
