// Scratch memory of floats on a cache line boundary.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

namespace layercake::kernels {

// Grows on demand and forgets its content when it does; never shrinks. Single owner.
class AlignedFloats {
 public:
  // At least `count` floats; throws std::bad_alloc (the device turns it into a status).
  float* Require(size_t count) {
    if (count > count_) {
      const size_t bytes = (count * sizeof(float) + 63) / 64 * 64;
      memory_.reset();
      count_ = 0;
      memory_.reset(static_cast<float*>(std::aligned_alloc(64, bytes)));
      if (!memory_) throw std::bad_alloc();
      count_ = count;
    }
    return memory_.get();
  }

 private:
  struct Free {
    void operator()(float* memory) const { std::free(memory); }
  };
  std::unique_ptr<float[], Free> memory_;
  size_t count_ = 0;
};

}  // namespace layercake::kernels
