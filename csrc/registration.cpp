// Every operator: its schema, and its CPU implementation, which checks, allocates and launches.
#include <Python.h>

#include <string>

#include "counters.h"
#include "cpu/pair_kernels.h"
#include "dispatch.h"
#include "ops/automata.h"
#include "ops/automaton_places.h"
#include "ops/ctc.h"
#include "ops/edits.h"
#include "ops/embed.h"
#include "ops/gates.h"
#include "ops/layer_norm.h"
#include "ops/linear.h"
#include "ops/log_softmax.h"
#include "ops/mixture.h"
#include "ops/panels.h"
#include "ops/prompt_attention.h"
#include "ops/python_beam_program.h"
#include "ops/python_layer_program.h"
#include "ops/rms_norm.h"
#include "ops/rotary.h"
#include "ops/rows.h"
#include "ops/select.h"
#include "ops/soft_cap.h"
#include "ops/tree.h"
#include "ops/tree_attention.h"
#include "scratch.h"
#include "torch.h"

namespace pybeam {
namespace {

std::string isa() { return kernels().name; }

std::string bfloat16_way() { return bfloat16_products(); }

void choose_bfloat16_way(const std::string& name) { set_bfloat16_products(name.c_str()); }

void choose_isa(const std::string& name) { set_isa(name.c_str()); }

// The id that stands in memory which nobody has written. Tests of poison ask for it.
int64_t unwritten(bool in_tensor) {
    if (!kPoisons) return 0;
    if (in_tensor) return data<int32_t>(empty({1}, ScalarType::kInt32))[0];
    Scratch<int32_t> scratch;
    return scratch.room(1)[0];
}

}  // namespace
}  // namespace pybeam

STABLE_TORCH_LIBRARY(pybeam, m) {
    m.def(
        "select(Tensor logits, Tensor score, Tensor offset, Tensor width, Tensor? is_ended, "
        "Tensor? max_candidates, Tensor? margin, Tensor? local_margin, Tensor? best_finished, "
        "Tensor? forced, Tensor? ban_eos, int[] eos_ids, int finishing, int capacity, "
        "bool normalise=True) -> "
        "(Tensor token, Tensor parent, Tensor score, Tensor log_prob, Tensor count, "
        "Tensor num_finished, Tensor has_nan)");
    m.def(
        "tree_attention(Tensor query, Tensor key, Tensor value, Tensor offset, Tensor slot, "
        "Tensor cell, Tensor num_cells, Tensor? mask, Tensor? entry, float scale, "
        "Tensor? position=None, Tensor? cell_position=None, Tensor? bias=None, int origin=0, "
        "int window=0, float soft_cap=0.0, Tensor? path=None, Tensor? path_length=None, "
        "Tensor? num_shared=None) -> Tensor");
    m.def(
        "prompt_attention(Tensor query, Tensor key, Tensor value, Tensor offset, Tensor slot, "
        "Tensor cell, Tensor num_cells, Tensor position, float scale, int window, "
        "float soft_cap, Tensor? bias=None) -> Tensor");
    m.def("tree_append(Tensor(a!)[] tree, Tensor slot, Tensor[] survivors, int eos_id) -> ()");
    m.def("tree_release(Tensor(a!)[] tree, Tensor slot) -> ()");
    m.def("gather_rows(Tensor(a!)[] tensors, Tensor source, Tensor target) -> ()");
    m.def("scatter_rows(Tensor(a!) pool, Tensor index, Tensor rows) -> ()");
    m.def(
        "backtrace(Tensor token, Tensor parent, Tensor slot, Tensor node, int capacity) -> "
        "(Tensor tokens, Tensor length)");
    m.def(
        "automaton_walk(Tensor[] arrays, Tensor parent, Tensor(a!) state, Tensor row_slot, "
        "Tensor node, Tensor token, Tensor position, Tensor line, Tensor prefix_length, "
        "Tensor max_length) -> Tensor");
    m.def(
        "automaton_columns(Tensor[] arrays, Tensor logits, Tensor node, Tensor line, int eos_id, "
        "bool eos_first, int num_columns, int normalise) -> Tensor");
    m.def(
        "automaton_logits(Tensor(a!) logits, Tensor[] arrays, Tensor parent, Tensor(b!) state, "
        "Tensor row_slot, Tensor node, Tensor token, Tensor position, Tensor line, "
        "Tensor prefix_length, Tensor max_length, int[] eos_ids) -> ()");
    m.def(
        "automaton_places(Tensor(a!) log_probs, Tensor[] arrays, Tensor[] inputs, Tensor token, "
        "Tensor parent, int[] eos_ids) -> ()");
    m.def(
        "edit_logits(Tensor(a!) logits, int[] rules, Tensor[] arrays, Tensor history, "
        "Tensor prompt, Tensor slot, Tensor position, Tensor prefix_length, Tensor max_length, "
        "int[] eos_ids) -> ()");
    m.def(
        "ctc_beam_search(Tensor log_probs, Tensor length, int blank, int width, int n_best, "
        "int max_tokens, float threshold) -> "
        "(Tensor tokens, Tensor length, Tensor log_prob, Tensor count)");
    m.def(
        "ctc_align(Tensor log_probs, Tensor length, Tensor tokens, Tensor num_tokens, int blank) "
        "-> (Tensor spans, Tensor log_prob, Tensor total)");
    m.def(
        "ctc_prefix_scores(Tensor(a!) log_probs, Tensor(b!) prefixes, Tensor[] sources, "
        "Tensor[] rows, int[] eos_ids, int blank, int pre_beam) -> ()");
    m.def("log_softmax(Tensor logits) -> Tensor");
    m.def("fill_panels(Tensor(a!) panels, Tensor rows) -> ()");
    m.def(
        "linear(Tensor(a!) y, Tensor x, Tensor weight, Tensor? scale, Tensor? bias, "
        "int activation, bool adds) -> ()");
    m.def(
        "embed(Tensor token, Tensor position, Tensor table, Tensor? scale, int vocab_size, "
        "Tensor position_table, float embedding_scale) -> Tensor");
    m.def("layer_norm(Tensor x, Tensor weight, Tensor bias, float epsilon) -> Tensor");
    m.def("rms_norm(Tensor x, Tensor weight, float epsilon) -> Tensor");
    m.def("rotary(Tensor x, Tensor position, Tensor cos, Tensor sin) -> Tensor");
    m.def("gated(Tensor x, int activation) -> Tensor");
    m.def("soft_cap(Tensor(a!) x, float cap) -> ()");
    m.def("glu(Tensor x) -> Tensor");
    m.def("lstm_cell(Tensor gates, Tensor cell) -> (Tensor hidden, Tensor cell_after)");
    m.def("mixture(Tensor(a!) out, Tensor[] logits) -> ()");
    m.def("unwritten(bool in_tensor) -> int");
    m.def("isa() -> str");
    m.def("count_kernels(bool is_on) -> str");
    m.def("set_isa(str name) -> ()");
    m.def("bfloat16_products() -> str");
    m.def("set_bfloat16_products(str name) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(pybeam, CPU, m) {
    pybeam::implement<&pybeam::select>(m, "select");
    pybeam::implement<&pybeam::tree_attention>(m, "tree_attention");
    pybeam::implement<&pybeam::prompt_attention>(m, "prompt_attention");
    pybeam::implement<&pybeam::tree_append>(m, "tree_append");
    pybeam::implement<&pybeam::tree_release>(m, "tree_release");
    pybeam::implement<&pybeam::gather_rows>(m, "gather_rows");
    pybeam::implement<&pybeam::scatter_rows>(m, "scatter_rows");
    pybeam::implement<&pybeam::backtrace>(m, "backtrace");
    pybeam::implement<&pybeam::automaton_walk>(m, "automaton_walk");
    pybeam::implement<&pybeam::automaton_columns>(m, "automaton_columns");
    pybeam::implement<&pybeam::automaton_logits>(m, "automaton_logits");
    pybeam::implement<&pybeam::automaton_places>(m, "automaton_places");
    pybeam::implement<&pybeam::edit_logits>(m, "edit_logits");
    pybeam::implement<&pybeam::ctc_beam_search>(m, "ctc_beam_search");
    pybeam::implement<&pybeam::ctc_align>(m, "ctc_align");
    pybeam::implement<&pybeam::ctc_prefix_scores>(m, "ctc_prefix_scores");
    pybeam::implement<&pybeam::log_softmax>(m, "log_softmax");
    pybeam::implement<&pybeam::fill_panels>(m, "fill_panels");
    pybeam::implement<&pybeam::linear>(m, "linear");
    pybeam::implement<&pybeam::embed>(m, "embed");
    pybeam::implement<&pybeam::layer_norm>(m, "layer_norm");
    pybeam::implement<&pybeam::rms_norm>(m, "rms_norm");
    pybeam::implement<&pybeam::rotary>(m, "rotary");
    pybeam::implement<&pybeam::gated>(m, "gated");
    pybeam::implement<&pybeam::soft_cap>(m, "soft_cap");
    pybeam::implement<&pybeam::glu>(m, "glu");
    pybeam::implement<&pybeam::lstm_cell>(m, "lstm_cell");
    pybeam::implement<&pybeam::mixture>(m, "mixture");
}

// They take no tensor, so no device chooses among them.
STABLE_TORCH_LIBRARY_IMPL(pybeam, CompositeExplicitAutograd, m) {
    pybeam::implement<&pybeam::unwritten>(m, "unwritten");
    pybeam::implement<&pybeam::isa>(m, "isa");
    pybeam::implement<&pybeam::count_kernels>(m, "count_kernels");
    pybeam::implement<&pybeam::choose_isa>(m, "set_isa");
    pybeam::implement<&pybeam::bfloat16_way>(m, "bfloat16_products");
    pybeam::implement<&pybeam::choose_bfloat16_way>(m, "set_bfloat16_products");
}

// `import pybeam._C` loads the library, which registers the operators.
PyMODINIT_FUNC PyInit__C() {
    static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_C", nullptr, -1, nullptr};
    PyObject* module = PyModule_Create(&definition);
    if (module == nullptr) return nullptr;
#ifdef Py_GIL_DISABLED
    // what all threads share is written below alone; a method holds its beam program, but for what
    // is `Unlocked`, and a layer program does not change
    PyUnstable_Module_SetGIL(module, Py_MOD_GIL_NOT_USED);
#endif
    const pybeam::Ref torch(pybeam::guarded([] {
        pybeam::Torch::get();
        return Py_NewRef(Py_None);
    }));
    const bool is_whole =
        torch && pybeam::add_beam_program(module) && pybeam::add_layer_program(module);
    if (!is_whole) Py_CLEAR(module);
    return module;
}
