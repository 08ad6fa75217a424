// What a call gets from XLA: arrays and threads.

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

constexpr int64_t PIECE = 8192;  // numbers that a core takes at once where they are only added or the like

constexpr int64_t WORTH_A_THREAD = 4'000'000;  // operations: to wake one takes as long as some millions

// Runs `task` for 0 to count - 1, `work` operations in all, on this thread and on those of XLA's that are free. None of them
// is waited for before it has begun, so calls that run at the same time share the threads without harm.
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

// An argument or a result: `networks` matrices of rows by columns, or vectors (one row).
struct Tensor {
  float* data;
  int64_t networks, rows, columns;

  float* of(int64_t network) const { return data + network * rows * columns; }
  float* row(int64_t network, int64_t i) const { return of(network) + i * columns; }
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

}  // namespace
