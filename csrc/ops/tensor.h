// A tensor as operators see it, whoever made it. No header of torch is needed.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <ostream>
#include <span>
#include <vector>

namespace pybeam {

enum class ScalarType {
    kFloat32,
    kFloat64,
    kBFloat16,
    kFloat16,
    kUInt8,
    kInt8,
    kInt16,
    kInt32,
    kInt64,
    kBool,
    kOther
};

inline std::ostream& operator<<(std::ostream& out, ScalarType type) {
    constexpr const char* kNames[] = {"float32", "float64", "bfloat16",    "float16",
                                      "uint8",   "int8",    "int16",       "int32",
                                      "int64",   "bool",    "another type"};
    return out << kNames[static_cast<int>(type)];
}

// Numbers that somebody else keeps, such as a shape.
class IntList {
  public:
    IntList() = default;
    IntList(const int64_t* data, int64_t size) : data_(data), size_(size) {}
    IntList(std::initializer_list<int64_t> list)
        : IntList(list.begin(), static_cast<int64_t>(list.size())) {}
    IntList(const std::vector<int64_t>& list)
        : IntList(list.data(), static_cast<int64_t>(list.size())) {}
    template <size_t N>
    IntList(const std::array<int64_t, N>& list) : IntList(list.data(), N) {}

    const int64_t* begin() const { return data_; }
    const int64_t* end() const { return data_ + size_; }
    int64_t size() const { return size_; }
    bool empty() const { return size_ == 0; }
    int64_t operator[](int64_t i) const { return data_[i]; }
    IntList from(int64_t first) const { return {data_ + first, size_ - first}; }

    friend bool operator==(IntList a, IntList b) {
        return std::equal(a.begin(), a.end(), b.begin(), b.end());
    }
    friend std::ostream& operator<<(std::ostream& out, IntList list) {
        out << '[';
        for (int64_t i = 0; i < list.size(); ++i) out << (i > 0 ? ", " : "") << list[i];
        return out << ']';
    }

  private:
    const int64_t* data_ = nullptr;
    int64_t size_ = 0;
};

struct Device {
    enum Type { kCpu, kCuda, kOther } type = kCpu;
    int index = 0;

    bool operator==(const Device&) const = default;
    friend std::ostream& operator<<(std::ostream& out, Device device) {
        constexpr const char* kNames[] = {"cpu", "cuda", "another device"};
        out << kNames[device.type];
        if (device.type == kCuda) out << ':' << device.index;
        return out;
    }
};

// Where the numbers of a tensor lie. It is borrowed: whoever made the tensor keeps memory, sizes
// and strides, unless there is an owner.
class Tensor {
  public:
    Tensor() = default;
    Tensor(void* data, ScalarType type, int64_t element_size, Device device, IntList sizes,
           IntList strides, std::shared_ptr<void> owner = nullptr)
        : data_(data),
          type_(type),
          element_size_(element_size),
          device_(device),
          sizes_(sizes),
          strides_(strides),
          owner_(std::move(owner)) {}

    void* data_ptr() const { return data_; }
    ScalarType scalar_type() const { return type_; }
    int64_t element_size() const { return element_size_; }
    Device device() const { return device_; }
    IntList sizes() const { return sizes_; }
    IntList strides() const { return strides_; }
    int64_t dim() const { return sizes_.size(); }
    int64_t size(int64_t i) const { return sizes_[i < 0 ? i + dim() : i]; }
    int64_t stride(int64_t i) const { return strides_[i < 0 ? i + dim() : i]; }
    const std::shared_ptr<void>& owner() const { return owner_; }

    int64_t numel() const {
        int64_t product = 1;
        for (const int64_t size : sizes_) product *= size;
        return product;
    }

    // Whether the items from dimension `first` on lie side by side.
    bool is_contiguous(int64_t first = 0) const {
        if (numel() == 0) return true;
        int64_t expected = 1;
        for (int64_t i = dim() - 1; i >= first; --i) {
            if (sizes_[i] != 1 && strides_[i] != expected) return false;
            expected *= sizes_[i];
        }
        return true;
    }

  private:
    void* data_ = nullptr;
    ScalarType type_ = ScalarType::kOther;
    int64_t element_size_ = 0;
    Device device_;
    IntList sizes_, strides_;
    std::shared_ptr<void> owner_;
};

using OptionalTensor = std::optional<Tensor>;
using TensorList = std::span<const Tensor>;

// A new tensor, which torch allocates.
Tensor empty(IntList sizes, ScalarType type, Device device = {});

}  // namespace pybeam
