// Arrays and threads, as XLA hands them to a call.

#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "vectors.h"
#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;

constexpr int64_t PIECE = 8192;  // numbers per task in element-wise work

constexpr int64_t WORTH_A_THREAD = 4'000'000;  // operations: waking a thread takes as long as some millions of them

// Runs `task` for 0 to count - 1, `work` operations in all, on this thread and on free threads of XLA's pool. A thread that
// has not begun is not waited for, so calls that run at the same time can share the pool.
void for_all(ffi::ThreadPool& pool, int64_t count, int64_t work, const std::function<void(int64_t)>& task) {
  struct Shared {
    std::atomic<int64_t> next{0}, done{0};
  };
  auto shared = std::make_shared<Shared>();
  auto take_part = [shared, count, &task] {
    for (int64_t i; (i = shared->next.fetch_add(1)) < count;) {
      task(i);
      shared->done.fetch_add(1, std::memory_order_release);
    }
  };
  const int64_t helpers = std::min<int64_t>({pool.num_threads(), count, 1 + work / WORTH_A_THREAD}) - 1;
  for (int64_t i = 0; i < helpers; ++i) pool.Schedule(std::function<void()>(take_part));
  take_part();
  for (int spins = 0; shared->done.load(std::memory_order_acquire) < count; ++spins)
    if (spins > 1000) std::this_thread::yield();
}

using Buffer = ffi::Buffer<ffi::F32>;

// An argument or a result: `networks` matrices of rows by columns, or as many vectors (one row).
struct Tensor {
  float* data;
  int64_t networks, rows, columns;

  bool is(int64_t n, int64_t r, int64_t c) const { return networks == n && rows == r && columns == c; }

  float* of(int64_t network) const { return data + network * rows * columns; }
  float* row(int64_t network, int64_t i) const { return of(network) + i * columns; }
};

// A buffer with fewer axes than asked for becomes an empty tensor, which no check of shapes accepts.
Tensor tensor(Buffer buffer, size_t axes) {
  const auto sizes = buffer.dimensions();
  if (sizes.size() < axes) return {};
  Tensor made{buffer.typed_data(), 1, 1, static_cast<int64_t>(sizes.back())};
  for (size_t i = 0; i + 1 < sizes.size(); ++i)
    (axes == 2 && i + 2 == sizes.size() ? made.rows : made.networks) *= sizes[i];
  return made;
}

inline Buffer unwrap(Buffer buffer) { return buffer; }
inline Buffer unwrap(ffi::Result<Buffer> result) { return *result; }

// Arguments or results in order. One that is missing, or is not of floats, is an empty tensor.
template <typename All>
class InOrder {
 public:
  explicit InOrder(All all) : all_(all) {}
  Tensor matrix() { return next(2); }
  Tensor vector() { return next(1); }
  bool more() const { return next_ < all_.size(); }

 private:
  Tensor next(size_t axes) {
    auto buffer = all_.template get<Buffer>(next_++);
    return buffer.has_value() ? tensor(unwrap(*buffer), axes) : Tensor{};
  }
  All all_;
  size_t next_ = 0;
};
using Arguments = InOrder<ffi::RemainingArgs>;
using Results = InOrder<ffi::RemainingRets>;

}  // namespace
