// `pybeam._C.BeamProgram`: the Python type of a `BeamProgram`.
#pragma once

#include <memory>
#include <vector>

#include "beam_program.h"
#include "python.h"

namespace pybeam {

// An int32 tensor on the host that is handed out, and used again once nobody else holds it.
class Lent {
  public:
    Lent() = default;
    Lent(const Lent&) = delete;
    ~Lent() { Py_XDECREF(object_); }

    // Returns memory for so many numbers.
    int32_t* room(int64_t size) {
        if (object_ == nullptr || size != size_ || is_held()) {
            Py_XDECREF(object_);
            object_ = nullptr;  // if the next line throws
            object_ = THPVariable_Wrap(at::empty({size}, at::kInt));
            if (object_ == nullptr) throw python_error();
            size_ = size;
        }
        return data<int32_t>(THPVariable_Unpack(object_));
    }

    PyObject* lend() const { return Py_NewRef(object_); }

  private:
    bool is_held() const {
        if (Py_REFCNT(object_) > 1) return true;
        const Tensor& tensor = THPVariable_Unpack(object_);
        return tensor.use_count() > 1 || tensor.storage().use_count() > 1;
    }

    PyObject* object_ = nullptr;
    int64_t size_ = 0;
};

struct PyBeamProgram {
    PyObject_HEAD BeamProgram* program;
    std::array<Lent, BeamProgram::kNumRowArrays>* rows;
    Lent* report;
};

// BeamProgram(tree, beams, eos_ids, finishing, keeps_best, top, certificate, refills, normalise)
inline PyObject* new_beam_program(PyTypeObject* type, PyObject* args, PyObject*) {
    HANDLE_TH_ERRORS
    PyObject *tree = nullptr, *beams = nullptr, *eos_ids = nullptr;
    int finishing = 0, keeps_best = 0, top = 0, certificate = 0, refills = 0, normalise = 0;
    if (!PyArg_ParseTuple(args, "O!O!O!ipiipp", &PyTuple_Type, &tree, &PyTuple_Type, &beams,
                          &PyTuple_Type, &eos_ids, &finishing, &keeps_best, &top, &certificate,
                          &refills, &normalise)) {
        return nullptr;
    }
    std::vector<int64_t> eos;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(eos_ids); ++i) {
        eos.push_back(int_of(PyTuple_GET_ITEM(eos_ids, i)));
    }
    const BeamRules rules{eos_of(eos), finishing_of(finishing),
                          stop_of(keeps_best != 0, top, certificate), refills != 0, normalise != 0};
    auto program = std::make_unique<BeamProgram>(tensors_of(tree), tensors_of(beams), rules);
    auto* self = reinterpret_cast<PyBeamProgram*>(type->tp_alloc(type, 0));
    if (self == nullptr) throw python_error();
    self->program = program.release();
    self->rows = new std::array<Lent, BeamProgram::kNumRowArrays>;
    self->report = new Lent;
    return reinterpret_cast<PyObject*>(self);
    END_HANDLE_TH_ERRORS
}

inline void delete_beam_program(PyBeamProgram* self) {
    delete self->program;
    delete self->rows;
    delete self->report;
    Py_TYPE(self)->tp_free(reinterpret_cast<PyObject*>(self));
}

// open(slots, ints, floats, start_id)
inline PyObject* beam_program_open(PyBeamProgram* self, Arguments args, Py_ssize_t num_args) {
    HANDLE_TH_ERRORS
    RECORD_FUNCTION("pybeam::beam_open", {});
    check_arguments(num_args, 4);
    self->program->open(numbers_of<int32_t>(args[0]), numbers_of<int32_t>(args[1]),
                        numbers_of<float>(args[2]), static_cast<int32_t>(int_of(args[3])));
    Py_RETURN_NONE;
    END_HANDLE_TH_ERRORS
}

// close(slots)
inline PyObject* beam_program_close(PyBeamProgram* self, PyObject* slots) {
    HANDLE_TH_ERRORS
    RECORD_FUNCTION("pybeam::beam_close", {});
    self->program->close(numbers_of<int32_t>(slots));
    Py_RETURN_NONE;
    END_HANDLE_TH_ERRORS
}

// finished(slots, counts, capacity, wants_log_probs) -> the result of `FinishedArrays.packed`
inline PyObject* beam_program_finished(PyBeamProgram* self, Arguments args, Py_ssize_t num_args) {
    HANDLE_TH_ERRORS
    RECORD_FUNCTION("pybeam::backtrace", {});
    check_arguments(num_args, 4);
    return THPVariable_Wrap(self->program->finished(numbers_of<int32_t>(args[0]),
                                                    numbers_of<int32_t>(args[1]), int_of(args[2]),
                                                    PyObject_IsTrue(args[3]) != 0));
    END_HANDLE_TH_ERRORS
}

// read(slot, num_rows) -> the tensors of `RowArrays`
inline PyObject* beam_program_read(PyBeamProgram* self, Arguments args, Py_ssize_t num_args) {
    HANDLE_TH_ERRORS
    RECORD_FUNCTION("pybeam::beam_read", {});
    check_arguments(num_args, 2);
    const Tensor& slot = tensor_of(args[0]);
    const int64_t num_rows = int_of(args[1]);
    TORCH_CHECK_VALUE(num_rows >= 0, "`num_rows` must not be negative");
    std::array<int32_t*, BeamProgram::kNumRowArrays> memory;
    for (size_t i = 0; i < memory.size(); ++i) {
        memory[i] = (*self->rows)[i].room(i == BeamProgram::kOffset ? slot.numel() + 1 : num_rows);
    }
    self->program->read(slot, num_rows, memory);
    PyObject* result = PyTuple_New(static_cast<Py_ssize_t>(memory.size()));
    if (result == nullptr) throw python_error();
    for (size_t i = 0; i < memory.size(); ++i) {
        PyTuple_SET_ITEM(result, static_cast<Py_ssize_t>(i), (*self->rows)[i].lend());
    }
    return result;
    END_HANDLE_TH_ERRORS
}

// choose(logits)
inline PyObject* beam_program_choose(PyBeamProgram* self, PyObject* logits) {
    HANDLE_TH_ERRORS
    RECORD_FUNCTION("pybeam::select", {});
    const Tensor kept = tensor_of(logits);
    {
        const Unlocked unlocked;
        self->program->choose(kept);
    }
    Py_RETURN_NONE;
    END_HANDLE_TH_ERRORS
}

// commit()
inline PyObject* beam_program_commit(PyBeamProgram* self, PyObject*) {
    HANDLE_TH_ERRORS
    RECORD_FUNCTION("pybeam::beam_commit", {});
    {
        const Unlocked unlocked;
        self->program->commit();
    }
    Py_RETURN_NONE;
    END_HANDLE_TH_ERRORS
}

// moves() -> the source and target entries of the last commit, see `Session.advance`
inline PyObject* beam_program_moves(PyBeamProgram* self, PyObject*) {
    HANDLE_TH_ERRORS
    const int64_t size = self->program->num_moves();
    const Tensor source = at::empty({size}, at::kInt), target = at::empty({size}, at::kInt);
    std::copy_n(self->program->source(), size, data<int32_t>(source));
    std::copy_n(self->program->target(), size, data<int32_t>(target));
    return Py_BuildValue("(NN)", THPVariable_Wrap(source), THPVariable_Wrap(target));
    END_HANDLE_TH_ERRORS
}

// report(slot) -> the report on these slots
inline PyObject* beam_program_report(PyBeamProgram* self, PyObject* given) {
    HANDLE_TH_ERRORS
    const Tensor& slot = tensor_of(given);
    self->program->report(slot, self->report->room(BeamProgram::report_size(slot)));
    return self->report->lend();
    END_HANDLE_TH_ERRORS
}

inline PyMethodDef beam_program_methods[] = {
    {"open", fast(&beam_program_open), METH_FASTCALL, nullptr},
    {"close", reinterpret_cast<PyCFunction>(&beam_program_close), METH_O, nullptr},
    {"finished", fast(&beam_program_finished), METH_FASTCALL, nullptr},
    {"read", fast(&beam_program_read), METH_FASTCALL, nullptr},
    {"choose", reinterpret_cast<PyCFunction>(&beam_program_choose), METH_O, nullptr},
    {"commit", reinterpret_cast<PyCFunction>(&beam_program_commit), METH_NOARGS, nullptr},
    {"moves", reinterpret_cast<PyCFunction>(&beam_program_moves), METH_NOARGS, nullptr},
    {"report", reinterpret_cast<PyCFunction>(&beam_program_report), METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

// Adds the type to a module. Returns false, with an error set, if that fails.
inline bool add_beam_program(PyObject* module) {
    static PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
    type.tp_name = "pybeam._C.BeamProgram";
    type.tp_basicsize = sizeof(PyBeamProgram);
    type.tp_flags = Py_TPFLAGS_DEFAULT;
    type.tp_new = &new_beam_program;
    type.tp_dealloc = reinterpret_cast<destructor>(&delete_beam_program);
    type.tp_methods = beam_program_methods;
    return PyType_Ready(&type) == 0 &&
           PyModule_AddObjectRef(module, "BeamProgram", reinterpret_cast<PyObject*>(&type)) == 0;
}

}  // namespace pybeam
