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

// The Python type, once the module has it.
inline PyTypeObject* layer_program_type = nullptr;

inline const LayerProgram& layer_program_of(PyObject* object) {
    PYBEAM_CHECK_TYPE(Py_TYPE(object) == layer_program_type, "expected a LayerProgram, but got ",
                      type_name(object));
    return reinterpret_cast<PyLayerProgram*>(object)->parts->program;
}

// LayerProgram(weights, inner_size, activation, is_gated, is_parallel, has_cross, epsilon,
//              num_heads, num_key_heads, head_size, scale, soft_cap, output_soft_cap, num_columns,
//              embedding_scale, num_tokens, skipped_id, bias_origin, num_tables, window, rotary)
inline PyObject* new_layer_program(PyTypeObject* type, PyObject* args, PyObject*) {
    return guarded([&]() -> PyObject* {
        PyObject *weights = nullptr, *window = nullptr, *rotary = nullptr;
        StackShape shape{};
        int activation = 0, is_gated = 0, is_parallel = 0, has_cross = 0;
        long long inner_size = 0, num_columns = 0, num_tokens = 0, bias_origin = 0, num_tables = 0;
        long long skipped_id = 0, num_heads = 0, num_key_heads = 0, head_size = 0;
        if (!PyArg_ParseTuple(args, "O!LipppdLLLdddLdLLLLOO", &PyTuple_Type, &weights, &inner_size,
                              &activation, &is_gated, &is_parallel, &has_cross, &shape.epsilon,
                              &num_heads, &num_key_heads, &head_size, &shape.scale, &shape.soft_cap,
                              &shape.output_soft_cap, &num_columns, &shape.embedding_scale,
                              &num_tokens, &skipped_id, &bias_origin, &num_tables, &window,
                              &rotary)) {
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
        shape.skipped_id = skipped_id;
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

// The arguments of `run` live as long as the result is used.
inline LayerArguments layer_arguments(Arguments args, Py_ssize_t num_args) {
    check_arguments(num_args, 9);
    return {optional_tensor(args[0]),
            PyTuple_Check(args[1]) ? tensors_of(args[1]) : std::vector<Tensor>{tensor_of(args[1])},
            {optional_tensor(args[2]), optional_tensor(args[3]), optional_tensor(args[4]),
             tensors_of(args[5]), tensors_of(args[6]), optional_tensor(args[7]),
             optional_tensor(args[8])}};
}

// The arguments in a tuple.
inline LayerArguments layer_arguments(PyObject* tuple) {
    PYBEAM_CHECK_TYPE(PyTuple_Check(tuple), "expected a tuple, but got ", type_name(tuple));
    std::vector<PyObject*> args;
    for (Py_ssize_t i = 0; i < PyTuple_Size(tuple); ++i) args.push_back(PyTuple_GetItem(tuple, i));
    return layer_arguments(args.data(), static_cast<Py_ssize_t>(args.size()));
}

// run(out, inputs, own_pool, cross_pool, cell, own_cells, source_cells, position, cell_position);
// inputs are x, or a tuple of tokens and places
inline PyObject* layer_program_run(PyLayerProgram* self, Arguments args, Py_ssize_t num_args) {
    return guarded([&] {
        const Recorded recorded("native::layers");
        const LayerArguments given = layer_arguments(args, num_args);
        {
            const Unlocked unlocked;
            self->parts->program.run(given);
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
    layer_program_type = add_type(module, spec, "LayerProgram");
    return layer_program_type != nullptr;
}

}  // namespace pybeam
