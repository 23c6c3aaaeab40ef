// The way between torch and the operators, over LibTorch's stable ABI: one library runs with every
// torch from TORCH_TARGET_VERSION on. No other file on the CPU's side holds headers of torch.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "ops/check.h"
#include "ops/tensor.h"

namespace pybeam {

using StableTensor = torch::stable::Tensor;

inline void check_torch(AOTITorchError error, const char* what) {
    PYBEAM_CHECK(error == 0, "torch could not ", what);
}

// A tensor as operators see it.
Tensor describe(AtenTensorHandle handle, std::shared_ptr<void> owner = nullptr);

// How a value of an operator travels: what keeps it, how it is taken, and how it is given.
template <class T>
struct Passed {
    using Kept = T;
    static const T& take(const Kept& kept) { return kept; }
    static StableIValue give(const T& value) { return torch::stable::detail::from(value); }
};

template <>
struct Passed<Tensor> {
    using Kept = StableTensor;
    static Tensor take(const Kept& kept) { return describe(kept.get()); }
    static StableTensor stable(const Tensor& value) {
        AtenTensorHandle handle = nullptr;
        check_torch(aoti_torch_new_tensor_handle(static_cast<AtenTensorHandle>(value.owner().get()),
                                                 &handle),
                    "return a tensor");
        return StableTensor(handle);
    }
    static StableIValue give(const Tensor& value) {
        return torch::stable::detail::from(stable(value));
    }
};

template <>
struct Passed<OptionalTensor> {
    using Kept = std::optional<StableTensor>;
    static OptionalTensor take(const Kept& kept) {
        return kept.has_value() ? OptionalTensor(describe(kept->get())) : OptionalTensor();
    }
};

template <>
struct Passed<std::vector<Tensor>> {
    using Kept = std::vector<StableTensor>;
    static std::vector<Tensor> take(const Kept& kept) {
        std::vector<Tensor> tensors;
        tensors.reserve(kept.size());
        for (const StableTensor& tensor : kept) tensors.push_back(describe(tensor.get()));
        return tensors;
    }
    static StableIValue give(const std::vector<Tensor>& values) {
        std::vector<StableTensor> tensors;
        tensors.reserve(values.size());
        for (const Tensor& value : values) {
            tensors.push_back(Passed<Tensor>::stable(value));
        }
        return torch::stable::detail::from(tensors);
    }
};

template <>
struct Passed<TensorList> : Passed<std::vector<Tensor>> {};

template <>
struct Passed<IntList> {
    using Kept = std::vector<int64_t>;
    static IntList take(const Kept& kept) { return kept; }
};

// The boxed form of a function, as the library of operators takes it.
template <auto function>
struct Boxed;

template <class Result, class... Arguments, Result (*function)(Arguments...)>
struct Boxed<function> {
    template <class T>
    using As = Passed<std::remove_cvref_t<T>>;

    static void call(StableIValue* stack, uint64_t num_arguments, uint64_t) {
        PYBEAM_CHECK(num_arguments == sizeof...(Arguments), "the schema has ", num_arguments,
                     " arguments, but the function has ", sizeof...(Arguments));
        try {
            call(stack, std::index_sequence_for<Arguments...>());
        } catch (const std::invalid_argument& error) {
            // from 2.15 on torch makes a RuntimeError of every exception; `native.py` reads this
            fail<std::runtime_error>("ValueError: ", error.what());
        }
    }

  private:
    template <size_t... I>
    static void call(StableIValue* stack, std::index_sequence<I...>) {
        // braces, so that arguments leave the stack in order
        const std::tuple<typename As<Arguments>::Kept...> kept{
            torch::stable::detail::to<typename As<Arguments>::Kept>(stack[I])...};
        if constexpr (std::is_void_v<Result>) {
            function(As<Arguments>::take(std::get<I>(kept))...);
        } else {
            give(stack, function(As<Arguments>::take(std::get<I>(kept))...));
        }
    }

    template <class T>
    static void give(StableIValue* stack, const T& result) {
        stack[0] = Passed<T>::give(result);
    }

    template <class... T>
    static void give(StableIValue* stack, const std::tuple<T...>& results) {
        std::apply([&](const T&... result) { ((*stack++ = Passed<T>::give(result)), ...); },
                   results);
    }
};

// Registers an operator's implementation for the device of a library.
template <auto function>
void implement(torch::stable::detail::StableLibrary& library, const char* name) {
    library.impl(name, &Boxed<function>::call);
}

}  // namespace pybeam
