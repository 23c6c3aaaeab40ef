// `pybeam._C.BeamProgram`: the Python type of a `BeamProgram`.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "draft_program.h"
#include "python.h"
#include "python_layer_program.h"
#include "steps.h"

namespace pybeam {

// An int32 tensor on the host that is handed out, and used again once nobody else holds it.
class Lent {
  public:
    // Returns memory for so many numbers.
    int32_t* room(int64_t size) {
        if (!object_ || size != size_ || is_held()) {
            object_ = new_ints({size});
            size_ = size;
            data_ = data<int32_t>(tensor_of(object_.get()));
            const Ref storage = checked(PyObject_CallMethod(object_.get(), "untyped_storage", ""));
            storage_ = attribute(storage, "_cdata");
            holders_ = num_holders();
        }
        poison(data_, size * sizeof(int32_t));
        return data_;
    }

    PyObject* lend() const { return Py_NewRef(object_.get()); }

  private:
    // Somebody may hold the tensor, in Python or in C++, or another view of its memory.
    bool is_held() const {
        return Py_REFCNT(object_.get()) > 1 || holders_ == kUnknown || num_holders() > holders_;
    }

    // How many hold the tensor in C++, and how many its memory, the asking included.
    int64_t num_holders() const {
        const Torch& torch = Torch::get();
        if (!torch.storage_use_count) return kUnknown;
        const Ref own(PyObject_CallMethod(object_.get(), "_use_count", ""));
        const Ref all(
            PyObject_CallFunctionObjArgs(torch.storage_use_count.get(), storage_.get(), nullptr));
        if (own && all) return PyLong_AsLongLong(own.get()) + PyLong_AsLongLong(all.get());
        PyErr_Clear();
        return kUnknown;
    }

    // This version of torch does not tell, so somebody may hold the memory.
    static constexpr int64_t kUnknown = -1;

    Ref object_, storage_;
    int64_t holders_ = kUnknown;
    int32_t* data_ = nullptr;
    int64_t size_ = 0;
};

struct PyBeamProgram {
    struct Parts {
        Ref tree, beams, drafts;  // own the memory
        std::unique_ptr<BeamProgram> program;
        // those of steps that differ by a row or two, because guesses and beams come and go
        std::array<std::array<Lent, BeamProgram::kNumRowArrays>, 4> rows;
        Lent report;
        StepRows step_rows;
        SlotOutputs outputs;
    };

    PyObject_HEAD Parts* parts;
};

// BeamProgram(tree, beams, eos_ids, finishing, keeps_best, top, certificate, refills, normalise
//             [, drafts, vocab_size])
inline PyObject* new_beam_program(PyTypeObject* type, PyObject* args, PyObject*) {
    return guarded([&]() -> PyObject* {
        PyObject *tree = nullptr, *beams = nullptr, *eos_ids = nullptr, *drafts = nullptr;
        long long vocab_size = 0;
        int finishing = 0, keeps_best = 0, top = 0, certificate = 0, refills = 0, normalise = 0;
        if (!PyArg_ParseTuple(args, "O!O!O!ipiipp|O!L", &PyTuple_Type, &tree, &PyTuple_Type, &beams,
                              &PyTuple_Type, &eos_ids, &finishing, &keeps_best, &top, &certificate,
                              &refills, &normalise, &PyTuple_Type, &drafts, &vocab_size)) {
            return nullptr;
        }
        std::vector<int64_t> eos(PyTuple_Size(eos_ids));
        for (size_t i = 0; i < eos.size(); ++i) eos[i] = int_of(PyTuple_GetItem(eos_ids, i));
        const BeamRules rules{eos_of(eos), finishing_of(finishing),
                              stop_of(keeps_best != 0, top, certificate), refills != 0,
                              normalise != 0};
        std::unique_ptr<BeamProgram> program;
        if (drafts) {
            program = std::make_unique<DraftProgram>(tensors_of(tree), tensors_of(beams), rules,
                                                     tensors_of(drafts), vocab_size);
        } else {
            program = std::make_unique<BeamProgram>(tensors_of(tree), tensors_of(beams), rules);
        }
        auto parts =
            std::unique_ptr<PyBeamProgram::Parts>(new PyBeamProgram::Parts{Ref(Py_NewRef(tree)),
                                                                           Ref(Py_NewRef(beams)),
                                                                           Ref(Py_XNewRef(drafts)),
                                                                           std::move(program),
                                                                           {},
                                                                           {},
                                                                           {},
                                                                           {}});
        PyObject* self = allocate(type);
        reinterpret_cast<PyBeamProgram*>(self)->parts = parts.release();
        return self;
    });
}

inline void delete_beam_program(PyObject* self) {
    delete reinterpret_cast<PyBeamProgram*>(self)->parts;
    deallocate(self);
}

// open(slots, ints, floats, start_id)
inline PyObject* beam_program_open(PyBeamProgram* self, Arguments args, Py_ssize_t num_args) {
    return guarded(self, [&] {
        const Recorded recorded("native::open");
        check_arguments(num_args, 4);
        self->parts->program->open(numbers_of<int32_t>(args[0]), numbers_of<int32_t>(args[1]),
                                   numbers_of<float>(args[2]),
                                   static_cast<int32_t>(int_of(args[3])));
        return Py_NewRef(Py_None);
    });
}

// close(slots)
inline PyObject* beam_program_close(PyBeamProgram* self, PyObject* slots) {
    return guarded(self, [&] {
        const Recorded recorded("native::close");
        self->parts->program->close(numbers_of<int32_t>(slots));
        return Py_NewRef(Py_None);
    });
}

// finished(slots, counts, capacity, wants_log_probs) -> the result of `FinishedArrays.packed`
inline PyObject* beam_program_finished(PyBeamProgram* self, Arguments args, Py_ssize_t num_args) {
    return guarded(self, [&] {
        const Recorded recorded("native::finished");
        check_arguments(num_args, 4);
        Ref table;
        const auto room = [&](int64_t num_hypotheses, int64_t num_columns) {
            table = new_ints({num_hypotheses, num_columns});
            return data<int32_t>(tensor_of(table.get()));
        };
        self->parts->program->finished(numbers_of<int32_t>(args[0]), numbers_of<int32_t>(args[1]),
                                       int_of(args[2]), PyObject_IsTrue(args[3]) != 0, room);
        return table.release();
    });
}

// read(slot, num_rows) -> the tensors of `RowArrays`
inline PyObject* beam_program_read(PyBeamProgram* self, Arguments args, Py_ssize_t num_args) {
    return guarded(self, [&] {
        const Recorded recorded("native::read");
        check_arguments(num_args, 2);
        const Tensor slot = tensor_of(args[0]);
        const int64_t num_rows = int_of(args[1]);
        PYBEAM_CHECK_VALUE(num_rows >= 0, "`num_rows` must not be negative");
        auto& rows = self->parts->rows[num_rows % self->parts->rows.size()];
        std::array<int32_t*, BeamProgram::kNumRowArrays> memory;
        for (size_t i = 0; i < memory.size(); ++i) {
            memory[i] = rows[i].room(i == BeamProgram::kOffset ? slot.numel() + 1 : num_rows);
        }
        self->parts->program->read(slot, num_rows, memory);
        Ref result = checked(PyTuple_New(static_cast<Py_ssize_t>(rows.size())));
        for (size_t i = 0; i < rows.size(); ++i) {
            const auto place = static_cast<Py_ssize_t>(i);
            if (PyTuple_SetItem(result.get(), place, rows[i].lend()) != 0) throw PythonError();
        }
        return result.release();
    });
}

// inputs() -> the tensors of `SelectInputs`
inline PyObject* beam_program_inputs(PyBeamProgram* self, PyObject*) {
    return guarded(self, [&] {
        const Ref list = checked(PyList_New(0));
        self->parts->program->inputs([&](const auto* numbers, int64_t size) {
            if (PyList_Append(list.get(), new_copy(numbers, size).get()) != 0) throw PythonError();
        });
        return PyList_AsTuple(list.get());
    });
}

// take(slot, survivors)
inline PyObject* beam_program_take(PyBeamProgram* self, Arguments args, Py_ssize_t num_args) {
    return guarded(self, [&] {
        check_arguments(num_args, 2);
        self->parts->program->take(tensor_of(args[0]), tensors_of(args[1]));
        return Py_NewRef(Py_None);
    });
}

// The columns of logits, see `ColumnTokens` in Python.
inline ColumnTokens column_tokens_of(PyObject* given, const Tensor& logits) {
    PYBEAM_CHECK_TYPE(PyTuple_Check(given) && PyTuple_Size(given) == 5,
                      "expected ColumnTokens, but got ", type_name(given));
    const Tensor token = tensor_of(PyTuple_GetItem(given, 0));
    const Tensor first = tensor_of(PyTuple_GetItem(given, 1));
    const Tensor node = tensor_of(PyTuple_GetItem(given, 2));
    check_dim("logits", logits, 2);
    ColumnTokens columns{};
    columns.automata = edges_of(token, first);
    columns.node = state<const int32_t>("node", node, ScalarType::kInt32, {node.numel()});
    columns.num_rows = node.numel();
    columns.num_columns = logits.size(1);
    columns.eos_id = static_cast<int32_t>(int_of(PyTuple_GetItem(given, 3)));
    columns.eos_first = PyObject_IsTrue(PyTuple_GetItem(given, 4)) != 0;
    return columns;
}

// choose(logits[, columns])
inline PyObject* beam_program_choose(PyBeamProgram* self, Arguments args, Py_ssize_t num_args) {
    return guarded(self, [&] {
        const Recorded recorded("native::choose");
        check_arguments(num_args, num_args == 2 ? 2 : 1);
        const Tensor logits = tensor_of(args[0]);
        std::optional<ColumnTokens> columns;
        if (num_args == 2) columns = column_tokens_of(args[1], logits);
        {
            const Unlocked unlocked;
            self->parts->program->choose(logits, columns ? &*columns : nullptr);
        }
        return Py_NewRef(Py_None);
    });
}

// The report on these slots.
inline PyObject* report_of(PyBeamProgram* self, const Tensor& slot) {
    Lent& report = self->parts->report;
    self->parts->program->report(slot, report.room(BeamProgram::report_size(slot)));
    return report.lend();
}

// commit(live) -> the report on slots `live`
inline PyObject* beam_program_commit(PyBeamProgram* self, PyObject* given) {
    return guarded(self, [&] {
        const Recorded recorded("native::commit");
        const Tensor live = tensor_of(given);
        {
            const Unlocked unlocked;
            self->parts->program->commit();
        }
        return report_of(self, live);
    });
}

// An `EditList` of Python and prompts, as `ProcessorChain.edits` returns them.
inline EditList edit_list_of(PyObject* given, int64_t num_slots) {
    PyObject *rules = nullptr, *arrays = nullptr, *prompt = nullptr;
    PYBEAM_CHECK_TYPE(PyTuple_Check(given), "expected edits, but got ", type_name(given));
    if (!PyArg_ParseTuple(given, "(OO)O", &rules, &arrays, &prompt)) throw PythonError();
    return {numbers_of<int64_t>(rules), tensors_of(arrays), tensor_of(prompt), num_slots};
}

// The columns of a program's steps, see `StepColumns` in Python; nothing for None.
inline std::optional<StepColumns> step_columns_of(PyObject* given, SlotOutputs* outputs) {
    if (given == Py_None) return std::nullopt;
    PyObject *arrays = nullptr, *line = nullptr, *node = nullptr;
    long long eos_id = 0, num_columns = 0, normalise = 0;
    int eos_first = 0;
    PYBEAM_CHECK_TYPE(PyTuple_Check(given), "expected StepColumns, but got ", type_name(given));
    if (!PyArg_ParseTuple(given, "OOO(LpLL)", &arrays, &line, &node, &eos_id, &eos_first,
                          &num_columns, &normalise)) {
        throw PythonError();
    }
    return StepColumns(tensors_of(arrays), tensor_of(line), tensor_of(node), eos_id, eos_first != 0,
                       normalise, outputs);
}

// run(layers, arguments, edits, columns, live, most, now, soon, patience) -> how many steps it has
// done, the report on slots `live`, and the seconds of reading, layers, choosing and committing
inline PyObject* beam_program_run(PyBeamProgram* self, Arguments args, Py_ssize_t num_args) {
    return guarded(self, [&] {
        check_arguments(num_args, 9);
        const LayerProgram& layers = layer_program_of(args[0]);
        LayerArguments given = layer_arguments(args[1]);
        StepEdits edits(edit_list_of(args[2], self->parts->program->num_slots()));
        std::optional<StepColumns> columns = step_columns_of(args[3], &self->parts->outputs);
        const Tensor live = tensor_of(args[4]);
        const int64_t most = int_of(args[5]);
        const StepEnds ends{state<bool>("now", tensor_of(args[6]), ScalarType::kBool, {1}),
                            state<bool>("soon", tensor_of(args[7]), ScalarType::kBool, {1}),
                            float_of(args[8])};
        PYBEAM_CHECK_VALUE(given.out.has_value() && given.cells.own.size() >= 6 &&
                               given.cells.sources.size() >= 4 && most > 0,
                           "a decoder with sources and an output layer must take a step");
        check_dim("out", *given.out, 2);
        StepsDone done;
        {
            const Unlocked unlocked;
            done = run_steps(*self->parts->program, layers, self->parts->step_rows, live, given,
                             edits, columns ? &*columns : nullptr, most, ends);
        }
        const Ref report(report_of(self, live));
        return Py_BuildValue("LO(ddd)", static_cast<long long>(done.num), report.get(), done.read,
                             done.layers, done.commit);
    });
}

// moves() -> the source and target entries of the last commit, see `Session.advance`
inline PyObject* beam_program_moves(PyBeamProgram* self, PyObject*) {
    return guarded(self, [&] {
        const BeamProgram& program = *self->parts->program;
        const int64_t size = program.num_moves();
        const Ref source = new_ints({size}), target = new_ints({size});
        std::copy_n(program.source(), size, data<int32_t>(tensor_of(source.get())));
        std::copy_n(program.target(), size, data<int32_t>(tensor_of(target.get())));
        return PyTuple_Pack(2, source.get(), target.get());
    });
}

// report(slot) -> the report on these slots
inline PyObject* beam_program_report(PyBeamProgram* self, PyObject* given) {
    return guarded(self, [&] { return report_of(self, tensor_of(given)); });
}

inline bool add_beam_program(PyObject* module) {
    static PyMethodDef methods[] = {
        {"open", method(&beam_program_open), METH_FASTCALL, nullptr},
        {"close", method(&beam_program_close), METH_O, nullptr},
        {"finished", method(&beam_program_finished), METH_FASTCALL, nullptr},
        {"read", method(&beam_program_read), METH_FASTCALL, nullptr},
        {"choose", method(&beam_program_choose), METH_FASTCALL, nullptr},
        {"inputs", method(&beam_program_inputs), METH_NOARGS, nullptr},
        {"take", method(&beam_program_take), METH_FASTCALL, nullptr},
        {"commit", method(&beam_program_commit), METH_O, nullptr},
        {"run", method(&beam_program_run), METH_FASTCALL, nullptr},
        {"moves", method(&beam_program_moves), METH_NOARGS, nullptr},
        {"report", method(&beam_program_report), METH_O, nullptr},
        {nullptr, nullptr, 0, nullptr},
    };
    static PyType_Slot slots[] = {
        {Py_tp_new, slot_of(&new_beam_program)},
        {Py_tp_dealloc, slot_of(&delete_beam_program)},
        {Py_tp_methods, methods},
        {0, nullptr},
    };
    static PyType_Spec spec{"pybeam._C.BeamProgram", sizeof(PyBeamProgram), 0, Py_TPFLAGS_DEFAULT,
                            slots};
    return add_type(module, spec, "BeamProgram") != nullptr;
}

}  // namespace pybeam
