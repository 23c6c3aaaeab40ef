// How Python's objects become arguments, for types that Python calls without torch's dispatcher.
// Its way into an operator costs more than a step of one row. Tensors come through the C interface
// that DLPack defines for this, so nothing here depends on the version of torch.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <algorithm>
#include <exception>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "check.h"
#include "dlpack_exchange.h"

namespace pybeam {

// Python has set an error.
struct PythonError : std::exception {};

// Owns a reference.
class Ref {
  public:
    Ref() = default;
    explicit Ref(PyObject* stolen) : object_(stolen) {}
    Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
    Ref& operator=(Ref&& other) noexcept {
        std::swap(object_, other.object_);
        return *this;
    }
    ~Ref() { Py_XDECREF(object_); }

    PyObject* get() const { return object_; }
    PyObject* release() { return std::exchange(object_, nullptr); }
    explicit operator bool() const { return object_ != nullptr; }

  private:
    PyObject* object_ = nullptr;
};

inline Ref checked(PyObject* stolen) {
    if (stolen == nullptr) throw PythonError();
    return Ref(stolen);
}

inline Ref attribute(const Ref& object, const char* name) {
    return checked(PyObject_GetAttrString(object.get(), name));
}

// Calls body(), and turns what it throws into Python's errors.
template <class Body>
PyObject* guarded(const Body& body) {
    try {
        return body();
    } catch (const PythonError&) {
        return nullptr;  // Python has it already
    } catch (const TypeError& error) {
        PyErr_SetString(PyExc_TypeError, error.what());
    } catch (const std::invalid_argument& error) {
        PyErr_SetString(PyExc_ValueError, error.what());
    } catch (const std::bad_alloc&) {
        PyErr_NoMemory();
    } catch (const std::exception& error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
    }
    return nullptr;
}

// The same for a method, whose object one thread at a time may use, but for what is `Unlocked`.
template <class Self, class Body>
PyObject* guarded([[maybe_unused]] Self* self, const Body& body) {
#ifdef Py_GIL_DISABLED
    PyCriticalSection held;
    PyCriticalSection_Begin(&held, reinterpret_cast<PyObject*>(self));
    PyObject* result = guarded(body);
    PyCriticalSection_End(&held);
    return result;
#else
    return guarded(body);
#endif
}

// Lets other threads of Python run while it lives.
class Unlocked {
  public:
    Unlocked() : state_(PyEval_SaveThread()) {}
    ~Unlocked() { PyEval_RestoreThread(state_); }
    Unlocked(const Unlocked&) = delete;

  private:
    PyThreadState* state_;
};

inline std::string type_name(PyObject* object) {
    const Ref name = checked(PyType_GetName(Py_TYPE(object)));
    const char* text = PyUnicode_AsUTF8AndSize(name.get(), nullptr);
    if (text == nullptr) throw PythonError();
    return text;
}

// The parts of torch that are needed.
struct Torch {
    Ref tensor_type, empty, int32, float32, boolean, storage_use_count;
    Ref profiler, is_on;  // torch.autograd.profiler, and the name of what says whether one is on
    const DLPackExchangeApi* exchange = nullptr;

    // Found when the module is imported: two threads that look for them at once might wait for
    // ever.
    static const Torch& get() {
        static const Torch* torch = new Torch;  // never freed: Python may be gone before
        return *torch;
    }

  private:
    Torch() {
        const Ref torch = checked(PyImport_ImportModule("torch"));
        tensor_type = attribute(torch, "Tensor");
        empty = attribute(torch, "empty");
        int32 = attribute(torch, "int32");
        float32 = attribute(torch, "float32");
        boolean = attribute(torch, "bool");
        profiler = checked(PyImport_ImportModule("torch.autograd.profiler"));
        is_on = checked(PyUnicode_InternFromString("_is_profiler_enabled"));
        const Ref core = attribute(torch, "_C");
        storage_use_count = Ref(PyObject_GetAttrString(core.get(), "_storage_Use_Count"));
        if (!storage_use_count) PyErr_Clear();
        const Ref capsule = attribute(tensor_type, "__dlpack_c_exchange_api__");
        exchange = static_cast<const DLPackExchangeApi*>(
            PyCapsule_GetPointer(capsule.get(), "dlpack_exchange_api"));
        if (exchange == nullptr) throw PythonError();
        PYBEAM_CHECK(
            exchange->version.major == kDLPackMajor && exchange->tensor_from_python != nullptr,
            "this version of torch has DLPack ", exchange->version.major,
            ", but pybeam was built for ", kDLPackMajor, "; install a newer pybeam");
    }
};

// While a profiler is on, what happens in its life is a range of that name.
class Recorded {
  public:
    explicit Recorded(const char* name) {
        const Torch& torch = Torch::get();
        const Ref is_on = checked(PyObject_GetAttr(torch.profiler.get(), torch.is_on.get()));
        if (is_on.get() == Py_False) return;
        range_ = checked(PyObject_CallMethod(torch.profiler.get(), "record_function", "s", name));
        checked(PyObject_CallMethod(range_.get(), "__enter__", ""));
    }
    ~Recorded() {
        if (!range_) return;
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);  // the error of the block, if there is one
        const Ref left(
            PyObject_CallMethod(range_.get(), "__exit__", "OOO", Py_None, Py_None, Py_None));
        if (!left) PyErr_Clear();
        PyErr_Restore(type, value, trace);
    }
    Recorded(const Recorded&) = delete;

  private:
    Ref range_;
};

inline bool is_tensor(PyObject* object) {
    auto* type = reinterpret_cast<PyTypeObject*>(Torch::get().tensor_type.get());
    return Py_TYPE(object) == type || PyType_IsSubtype(Py_TYPE(object), type) != 0;
}

// The tensor must live while the result is used.
inline Tensor tensor_of(PyObject* object) {
    PYBEAM_CHECK_TYPE(is_tensor(object), "expected a tensor, but got ", type_name(object));
    DLTensor given{};
    if (Torch::get().exchange->tensor_from_python(object, &given) != 0) throw PythonError();
    return tensor_of(given);
}

inline OptionalTensor optional_tensor(PyObject* object) {
    return object == Py_None ? OptionalTensor() : OptionalTensor(tensor_of(object));
}

inline std::vector<Tensor> tensors_of(PyObject* tuple) {
    PYBEAM_CHECK_TYPE(PyTuple_Check(tuple), "expected a tuple, but got ", type_name(tuple));
    std::vector<Tensor> tensors;
    const Py_ssize_t size = PyTuple_Size(tuple);
    tensors.reserve(size);
    for (Py_ssize_t i = 0; i < size; ++i) tensors.push_back(tensor_of(PyTuple_GetItem(tuple, i)));
    return tensors;
}

inline double float_of(PyObject* object) {
    const double value = PyFloat_AsDouble(object);
    if (PyErr_Occurred() != nullptr) throw PythonError();
    return value;
}

inline int64_t int_of(PyObject* object) {
    const int64_t value = PyLong_AsLongLong(object);
    if (value == -1 && PyErr_Occurred()) throw PythonError();
    return value;
}

// The item of a list, which others, and code of the item, may change meanwhile.
inline Ref item_of(PyObject* list, Py_ssize_t i) {
#ifdef Py_GIL_DISABLED
    return checked(PyList_GetItemRef(list, i));
#else
    PyObject* borrowed = PyList_GetItem(list, i);
    if (borrowed == nullptr) throw PythonError();
    return Ref(Py_NewRef(borrowed));
#endif
}

// The numbers of a list.
template <class T>
std::vector<T> numbers_of(PyObject* list) {
    PYBEAM_CHECK_TYPE(PyList_Check(list), "expected a list, but got ", type_name(list));
    std::vector<T> numbers;
    numbers.reserve(PyList_Size(list));
    for (Py_ssize_t i = 0; i < PyList_Size(list); ++i) {
        const Ref item = item_of(list, i);
        if constexpr (std::is_floating_point_v<T>) {
            const double value = PyFloat_AsDouble(item.get());
            if (value == -1.0 && PyErr_Occurred()) throw PythonError();
            numbers.push_back(static_cast<T>(value));
        } else {
            const int64_t value = int_of(item.get());
            PYBEAM_CHECK_VALUE(value == static_cast<T>(value), value, " does not fit in int32");
            numbers.push_back(static_cast<T>(value));
        }
    }
    return numbers;
}

inline void check_arguments(Py_ssize_t given, Py_ssize_t expected) {
    PYBEAM_CHECK_TYPE(given == expected, "expected ", expected, " arguments, but got ", given);
}

// A new tensor on the host.
inline Ref new_tensor(IntList sizes, const Ref& dtype) {
    const Torch& torch = Torch::get();
    const Ref shape = checked(PyTuple_New(sizes.size()));
    for (int64_t i = 0; i < sizes.size(); ++i) {
        if (PyTuple_SetItem(shape.get(), i, PyLong_FromLongLong(sizes[i])) != 0) {
            throw PythonError();
        }
    }
    const Ref args = checked(PyTuple_Pack(1, shape.get()));
    const Ref options = checked(Py_BuildValue("{sO}", "dtype", dtype.get()));
    return checked(PyObject_Call(torch.empty.get(), args.get(), options.get()));
}

inline Ref new_ints(IntList sizes) { return new_tensor(sizes, Torch::get().int32); }

// A new tensor [size] with these numbers.
template <class T>
Ref new_copy(const T* numbers, int64_t size) {
    const Torch& torch = Torch::get();
    const Ref& dtype = std::is_same_v<T, float>  ? torch.float32
                       : std::is_same_v<T, bool> ? torch.boolean
                                                 : torch.int32;
    Ref made = new_tensor({size}, dtype);
    std::copy_n(numbers, size, data<T>(tensor_of(made.get())));
    return made;
}

using Arguments = PyObject* const*;

template <class Function>
void* slot_of(Function* function) {
    return reinterpret_cast<void*>(function);
}

template <class Function>
PyCFunction method(Function* function) {
    return reinterpret_cast<PyCFunction>(slot_of(function));
}

// Adds a type to a module, which keeps it. Returns null, with an error set, if that fails.
inline PyTypeObject* add_type(PyObject* module, PyType_Spec& spec, const char* name) {
    const Ref type(PyType_FromSpec(&spec));
    const bool is_added = type && PyModule_AddObjectRef(module, name, type.get()) == 0;
    return is_added ? reinterpret_cast<PyTypeObject*>(type.get()) : nullptr;
}

// Memory for an object of a type that `add_type` made.
inline PyObject* allocate(PyTypeObject* type) {
    const auto alloc = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
    return checked(alloc(type, 0)).release();
}

inline void deallocate(PyObject* self) {
    PyTypeObject* type = Py_TYPE(self);
    reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

}  // namespace pybeam
