// `pybeam._C.CausalProgram`: the Python type of a `CausalProgram`.
#pragma once

#include <memory>
#include <vector>

#include "causal_layers.h"
#include "python.h"

namespace pybeam {

struct PyCausalProgram {
    struct Parts {
        Ref weights;  // own the memory
        CausalProgram program;
    };

    PyObject_HEAD Parts* parts;
};

// CausalProgram(weights, inner_size, activation, epsilon, num_heads, num_key_heads, head_size,
//               scale, soft_cap, output_soft_cap, num_columns, embedding_scale, num_tokens,
//               num_tables, window, rotary)
inline PyObject* new_causal_program(PyTypeObject* type, PyObject* args, PyObject*) {
    return guarded([&]() -> PyObject* {
        PyObject *weights = nullptr, *window = nullptr, *rotary = nullptr;
        long long inner_size = 0, num_heads = 0, num_key_heads = 0, head_size = 0;
        long long num_columns = 0, num_tokens = 0, num_tables = 0;
        int activation = 0;
        double epsilon = 0, scale = 0, soft_cap = 0, output_soft_cap = 0, embedding_scale = 0;
        if (!PyArg_ParseTuple(args, "O!LidLLLdddLdLLOO", &PyTuple_Type, &weights, &inner_size,
                              &activation, &epsilon, &num_heads, &num_key_heads, &head_size, &scale,
                              &soft_cap, &output_soft_cap, &num_columns, &embedding_scale,
                              &num_tokens, &num_tables, &window, &rotary)) {
            return nullptr;
        }
        check_activation(activation);
        const CausalShape shape{inner_size,
                                static_cast<Activation>(activation),
                                epsilon,
                                {num_heads, num_key_heads, head_size},
                                scale,
                                soft_cap,
                                output_soft_cap,
                                num_columns,
                                embedding_scale,
                                num_tokens,
                                num_tables,
                                numbers_of<int32_t>(window),
                                numbers_of<int32_t>(rotary)};
        auto parts = std::unique_ptr<PyCausalProgram::Parts>(new PyCausalProgram::Parts{
            Ref(Py_NewRef(weights)), CausalProgram(tensors_of(weights), shape)});
        PyObject* self = allocate(type);
        reinterpret_cast<PyCausalProgram*>(self)->parts = parts.release();
        return self;
    });
}

inline void delete_causal_program(PyObject* self) {
    delete reinterpret_cast<PyCausalProgram*>(self)->parts;
    deallocate(self);
}

// run(out, token, rotary_row, pool, cell, cells, position, cell_position)
inline PyObject* causal_program_run(PyCausalProgram* self, Arguments args, Py_ssize_t num_args) {
    return guarded([&] {
        check_arguments(num_args, 8);
        const Recorded recorded("native::causal_layers");
        const OptionalTensor out = optional_tensor(args[0]);
        const Tensor token = tensor_of(args[1]), rotary_row = tensor_of(args[2]);
        const CausalCells cells{tensor_of(args[3]), tensor_of(args[4]), tensors_of(args[5]),
                                optional_tensor(args[6]), optional_tensor(args[7])};
        {
            const Unlocked unlocked;
            self->parts->program.run(out, token, rotary_row, cells);
        }
        return Py_NewRef(Py_None);
    });
}

inline bool add_causal_program(PyObject* module) {
    static PyMethodDef methods[] = {
        {"run", method(&causal_program_run), METH_FASTCALL, nullptr},
        {nullptr, nullptr, 0, nullptr},
    };
    static PyType_Slot slots[] = {
        {Py_tp_new, slot_of(&new_causal_program)},
        {Py_tp_dealloc, slot_of(&delete_causal_program)},
        {Py_tp_methods, methods},
        {0, nullptr},
    };
    static PyType_Spec spec{"pybeam._C.CausalProgram", sizeof(PyCausalProgram), 0,
                            Py_TPFLAGS_DEFAULT, slots};
    return add_type(module, spec, "CausalProgram");
}

}  // namespace pybeam
