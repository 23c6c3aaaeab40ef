// Memory that calls work in, which has no meaning when a call begins.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace pybeam {

// Whether such memory is poisoned, as `pybeam/backends/poison.py` says.
inline const bool kPoisons = [] {
    const char* variable = std::getenv("PYBEAM_POISON");
    return variable != nullptr && std::strcmp(variable, "1") == 0;
}();

// Fills memory that nobody may read before it is written. A number of any type in it is NaN or
// absurd.
inline void poison(void* memory, size_t bytes) {
    // NaN in bfloat16, and twice NaN in float32; as an id beyond all others
    constexpr unsigned char kPattern[2] = {0xC0, 0x7F};
    if (!kPoisons) return;
    // copies as bytes, as what is read there later has another type
    size_t filled = std::min(bytes, sizeof kPattern);
    std::memcpy(memory, kPattern, filled);
    for (size_t count; filled < bytes; filled += count) {
        count = std::min(filled, bytes - filled);
        std::memcpy(static_cast<unsigned char*>(memory) + filled, memory, count);
    }
}

// Numbers of one call, in memory that is kept for the next, because fresh memory costs more than
// the work.
template <class T>
class Scratch {
  public:
    // Returns room for so many.
    T* room(int64_t size) {
        if (size > size_) {
            items_ = std::make_unique_for_overwrite<T[]>(size);
            size_ = size;
        }
        poison(items_.get(), size * sizeof(T));
        return items_.get();
    }
    T* get() const { return items_.get(); }

  private:
    std::unique_ptr<T[]> items_;
    int64_t size_ = 0;
};

}  // namespace pybeam
