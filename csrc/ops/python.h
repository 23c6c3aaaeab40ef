// How Python's objects become arguments, for types that Python calls without torch's dispatcher.
// Its way into an operator costs more than a step of one row.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <Python.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <type_traits>
#include <vector>

#include "check.h"

namespace pybeam {

// Lets other threads of Python run while it lives.
class Unlocked {
  public:
    Unlocked() : state_(PyEval_SaveThread()) {}
    ~Unlocked() { PyEval_RestoreThread(state_); }
    Unlocked(const Unlocked&) = delete;

  private:
    PyThreadState* state_;
};

inline const Tensor& tensor_of(PyObject* object) {
    TORCH_CHECK_TYPE(THPVariable_Check(object), "expected a tensor, but got ",
                     Py_TYPE(object)->tp_name);
    return THPVariable_Unpack(object);
}

inline std::vector<Tensor> tensors_of(PyObject* tuple) {
    std::vector<Tensor> tensors;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i) {
        tensors.push_back(tensor_of(PyTuple_GET_ITEM(tuple, i)));
    }
    return tensors;
}

inline int64_t int_of(PyObject* object) {
    const int64_t value = PyLong_AsLongLong(object);
    if (value == -1 && PyErr_Occurred()) throw python_error();
    return value;
}

// The numbers of a list.
template <class T>
std::vector<T> numbers_of(PyObject* list) {
    TORCH_CHECK_TYPE(PyList_Check(list), "expected a list, but got ", Py_TYPE(list)->tp_name);
    std::vector<T> numbers;
    numbers.reserve(PyList_GET_SIZE(list));
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) {
        PyObject* item = PyList_GET_ITEM(list, i);
        if constexpr (std::is_floating_point_v<T>) {
            const double value = PyFloat_AsDouble(item);
            if (value == -1.0 && PyErr_Occurred()) throw python_error();
            numbers.push_back(static_cast<T>(value));
        } else {
            const int64_t value = int_of(item);
            TORCH_CHECK_VALUE(value == static_cast<T>(value), value, " does not fit in int32");
            numbers.push_back(static_cast<T>(value));
        }
    }
    return numbers;
}

inline void check_arguments(Py_ssize_t given, Py_ssize_t expected) {
    TORCH_CHECK_TYPE(given == expected, "expected ", expected, " arguments, but got ", given);
}

using Arguments = PyObject* const*;

// A function that takes its arguments as an array.
template <class Function>
PyCFunction fast(Function* function) {
    return reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(function));
}

}  // namespace pybeam
