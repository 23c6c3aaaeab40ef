// `pybeam._C.LayerProgram`: the Python type of a `LayerProgram`.
#pragma once

#include <memory>
#include <vector>

#include "layers.h"
#include "python.h"

namespace pybeam {

struct PyLayerProgram {
    struct Parts {
        Ref weights;  // own the memory
        LayerProgram program;
    };

    PyObject_HEAD Parts* parts;
};

// LayerProgram(weights, inner_size, activation, is_gated, is_parallel, has_cross, epsilon,
//              num_heads, num_key_heads, head_size, scale, soft_cap, output_soft_cap, num_columns,
//              embedding_scale, num_tokens, bias_origin, num_tables, window, rotary)
inline PyObject* new_layer_program(PyTypeObject* type, PyObject* args, PyObject*) {
    return guarded([&]() -> PyObject* {
        PyObject *weights = nullptr, *window = nullptr, *rotary = nullptr;
        StackShape shape{};
        int activation = 0, is_gated = 0, is_parallel = 0, has_cross = 0;
        long long inner_size = 0, num_columns = 0, num_tokens = 0, bias_origin = 0, num_tables = 0;
        long long num_heads = 0, num_key_heads = 0, head_size = 0;
        if (!PyArg_ParseTuple(args, "O!LipppdLLLdddLdLLLOO", &PyTuple_Type, &weights, &inner_size,
                              &activation, &is_gated, &is_parallel, &has_cross, &shape.epsilon,
                              &num_heads, &num_key_heads, &head_size, &shape.scale, &shape.soft_cap,
                              &shape.output_soft_cap, &num_columns, &shape.embedding_scale,
                              &num_tokens, &bias_origin, &num_tables, &window, &rotary)) {
            return nullptr;
        }
        check_activation(activation);
        shape.inner_size = inner_size;
        shape.activation = static_cast<Activation>(activation);
        shape.is_gated = is_gated != 0;
        shape.is_parallel = is_parallel != 0;
        shape.has_cross = has_cross != 0;
        shape.heads = {num_heads, num_key_heads, head_size};
        shape.num_columns = num_columns;
        shape.num_tokens = num_tokens;
        shape.bias_origin = bias_origin;
        shape.num_tables = num_tables;
        shape.window = numbers_of<int32_t>(window);
        shape.rotary = numbers_of<int32_t>(rotary);
        auto parts = std::unique_ptr<PyLayerProgram::Parts>(new PyLayerProgram::Parts{
            Ref(Py_NewRef(weights)), LayerProgram(tensors_of(weights), shape)});
        PyObject* self = allocate(type);
        reinterpret_cast<PyLayerProgram*>(self)->parts = parts.release();
        return self;
    });
}

inline void delete_layer_program(PyObject* self) {
    delete reinterpret_cast<PyLayerProgram*>(self)->parts;
    deallocate(self);
}

// run(out, inputs, own_pool, cross_pool, cell, own_cells, cross_cells, position, cell_position);
// inputs are x, or a tuple of tokens and places
inline PyObject* layer_program_run(PyLayerProgram* self, Arguments args, Py_ssize_t num_args) {
    return guarded([&] {
        check_arguments(num_args, 9);
        const Recorded recorded("native::layers");
        const OptionalTensor out = optional_tensor(args[0]);
        const StackCells cells{optional_tensor(args[2]), optional_tensor(args[3]),
                               optional_tensor(args[4]), tensors_of(args[5]),
                               tensors_of(args[6]),      optional_tensor(args[7]),
                               optional_tensor(args[8])};
        const std::vector<Tensor> inputs =
            PyTuple_Check(args[1]) ? tensors_of(args[1]) : std::vector<Tensor>{tensor_of(args[1])};
        PYBEAM_CHECK_VALUE(inputs.size() == 1 || inputs.size() == 2,
                           "inputs must be x, or tokens and places");
        {
            const Unlocked unlocked;
            const LayerProgram& program = self->parts->program;
            if (inputs.size() == 1) {
                program.run(out, inputs[0], cells);
            } else {
                program.run(out, inputs[0], inputs[1], cells);
            }
        }
        return Py_NewRef(Py_None);
    });
}

inline bool add_layer_program(PyObject* module) {
    static PyMethodDef methods[] = {
        {"run", method(&layer_program_run), METH_FASTCALL, nullptr},
        {nullptr, nullptr, 0, nullptr},
    };
    static PyType_Slot slots[] = {
        {Py_tp_new, slot_of(&new_layer_program)},
        {Py_tp_dealloc, slot_of(&delete_layer_program)},
        {Py_tp_methods, methods},
        {0, nullptr},
    };
    static PyType_Spec spec{"pybeam._C.LayerProgram", sizeof(PyLayerProgram), 0, Py_TPFLAGS_DEFAULT,
                            slots};
    return add_type(module, spec, "LayerProgram");
}

}  // namespace pybeam
