// `pybeam._C.LayerProgram`: the Python type of a `LayerProgram`.
#pragma once

#include <memory>
#include <vector>

#include "layers.h"
#include "python.h"

namespace pybeam {

struct PyLayerProgram {
    PyObject_HEAD LayerProgram* program;
};

inline OptionalTensor optional_tensor(PyObject* object) {
    return object == Py_None ? OptionalTensor() : OptionalTensor(tensor_of(object));
}

// LayerProgram(weights, num_layers, inner_size, activation, is_pre_norm, has_cross, epsilon,
//              num_heads, scale, num_columns, embedding_scale, num_tokens)
inline PyObject* new_layer_program(PyTypeObject* type, PyObject* args, PyObject*) {
    HANDLE_TH_ERRORS
    PyObject* weights = nullptr;
    long long num_layers = 0, inner_size = 0, num_heads = 0, num_columns = 0, num_tokens = 0;
    int activation = 0, is_pre_norm = 0, has_cross = 0;
    double epsilon = 0, scale = 0, embedding_scale = 0;
    if (!PyArg_ParseTuple(args, "O!LLippdLdLdL", &PyTuple_Type, &weights, &num_layers, &inner_size,
                          &activation, &is_pre_norm, &has_cross, &epsilon, &num_heads, &scale,
                          &num_columns, &embedding_scale, &num_tokens)) {
        return nullptr;
    }
    check_activation(activation);
    const StackShape shape{num_layers,       inner_size,     static_cast<Activation>(activation),
                           is_pre_norm != 0, has_cross != 0, epsilon,
                           num_heads,        scale,          num_columns,
                           embedding_scale,  num_tokens};
    auto program = std::make_unique<LayerProgram>(tensors_of(weights), shape);
    auto* self = reinterpret_cast<PyLayerProgram*>(type->tp_alloc(type, 0));
    if (self == nullptr) throw python_error();
    self->program = program.release();
    return reinterpret_cast<PyObject*>(self);
    END_HANDLE_TH_ERRORS
}

inline void delete_layer_program(PyLayerProgram* self) {
    delete self->program;
    Py_TYPE(self)->tp_free(reinterpret_cast<PyObject*>(self));
}

inline std::vector<Tensor> cells_of(PyObject* tuple) {
    TORCH_CHECK_TYPE(PyTuple_Check(tuple), "expected a tuple, but got ", Py_TYPE(tuple)->tp_name);
    std::vector<Tensor> cells = tensors_of(tuple);
    return cells;
}

// run(out, inputs, own_pool, cross_pool, cell, own_cells, cross_cells); inputs are x, or a tuple of
// tokens and positions
inline PyObject* layer_program_run(PyLayerProgram* self, Arguments args, Py_ssize_t num_args) {
    HANDLE_TH_ERRORS
    RECORD_FUNCTION("pybeam::layers", {});
    check_arguments(num_args, 7);
    const Tensor out = tensor_of(args[0]);
    const StackCells cells{optional_tensor(args[2]), optional_tensor(args[3]),
                           optional_tensor(args[4]), cells_of(args[5]), cells_of(args[6])};
    const std::vector<Tensor> inputs =
        PyTuple_Check(args[1]) ? tensors_of(args[1]) : std::vector<Tensor>{tensor_of(args[1])};
    TORCH_CHECK_VALUE(inputs.size() == 1 || inputs.size() == 2,
                      "inputs must be x, or tokens and positions");
    {
        const Unlocked unlocked;
        if (inputs.size() == 1) {
            self->program->run(out, inputs[0], cells);
        } else {
            self->program->run(out, inputs[0], inputs[1], cells);
        }
    }
    Py_RETURN_NONE;
    END_HANDLE_TH_ERRORS
}

inline PyMethodDef layer_program_methods[] = {
    {"run", fast(&layer_program_run), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

// Adds the type to a module. Returns false, with an error set, if that fails.
inline bool add_layer_program(PyObject* module) {
    static PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
    type.tp_name = "pybeam._C.LayerProgram";
    type.tp_basicsize = sizeof(PyLayerProgram);
    type.tp_flags = Py_TPFLAGS_DEFAULT;
    type.tp_new = &new_layer_program;
    type.tp_dealloc = reinterpret_cast<destructor>(&delete_layer_program);
    type.tp_methods = layer_program_methods;
    return PyType_Ready(&type) == 0 &&
           PyModule_AddObjectRef(module, "LayerProgram", reinterpret_cast<PyObject*>(&type)) == 0;
}

}  // namespace pybeam
