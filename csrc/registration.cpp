// Every operator: its schema and its CPU implementation, which checks, allocates and launches.
// The only file that includes torch headers beyond check.h.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <Python.h>
#include <torch/library.h>

#include <tuple>
#include <vector>

#include "check.h"
#include "dispatch.h"
#include "draft_params.h"
#include "params.h"

namespace pybeam {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> select(
    const Tensor& logits, const Tensor& score, const Tensor& offset, const Tensor& width,
    const OptionalTensor& is_ended, const OptionalTensor& max_candidates,
    const OptionalTensor& margin, const OptionalTensor& local_margin,
    const OptionalTensor& best_finished, const OptionalTensor& forced,
    const OptionalTensor& ban_eos, at::IntArrayRef eos_ids, int64_t finishing, int64_t capacity,
    bool normalise) {
    check_dim("logits", logits, 2);
    check_unit_stride("logits", logits);
    check_dim("score", score, 1);
    check_dim("width", width, 1);
    TORCH_CHECK_VALUE(finishing >= 0 && finishing <= 3, "`finishing` must be 0 to 3, but is ",
                      finishing);
    TORCH_CHECK_VALUE(capacity >= 0, "`capacity` must not be negative, but is ", capacity);
    TORCH_CHECK_VALUE(logits.size(1) <= INT32_MAX, "`logits` has too many columns");
    const int64_t num_beams = width.size(0), num_entries = score.size(0);

    const Argument<float> score_arg("score", score, at::kFloat, {num_entries});
    const Argument<int32_t> offset_arg("offset", offset, at::kInt, {num_beams + 1});
    const Argument<int32_t> width_arg("width", width, at::kInt, {num_beams});
    const Argument<bool> is_ended_arg("is_ended", is_ended, at::kBool, {num_entries});
    const Argument<int32_t> max_candidates_arg("max_candidates", max_candidates, at::kInt,
                                               {num_beams});
    const Argument<float> margin_arg("margin", margin, at::kFloat, {num_beams});
    const Argument<float> local_margin_arg("local_margin", local_margin, at::kFloat, {num_beams});
    const Argument<float> best_finished_arg("best_finished", best_finished, at::kFloat,
                                            {num_beams});
    const Argument<int32_t> forced_arg("forced", forced, at::kInt, {num_beams});
    const Argument<bool> ban_eos_arg("ban_eos", ban_eos, at::kBool, {num_beams});
    const int32_t* offsets = offset_arg;
    TORCH_CHECK_VALUE(offsets[num_beams] <= num_entries, "the last `offset` must be at most ",
                      num_entries, ", the number of entries, but is ", offsets[num_beams]);

    const auto floats = score.options();
    const auto ints = width.options();
    Tensor token = at::empty({num_beams, capacity}, ints);
    Tensor parent = at::empty({num_beams, capacity}, ints);
    Tensor score_out = at::empty({num_beams, capacity}, floats);
    Tensor log_prob = at::empty({num_beams, capacity}, floats);
    Tensor count = at::empty({num_beams}, ints);
    Tensor num_finished = at::empty({num_beams}, ints);
    Tensor has_nan = at::empty({num_beams}, ints.dtype(at::kBool));

    SelectParams params{};
    params.logits = logits.data_ptr();
    params.dtype = float_type("logits", logits);
    params.row_stride = logits.stride(0);
    params.vocab_size = logits.size(1);
    params.score = score_arg;
    params.offset = offset_arg;
    params.width = width_arg;
    params.is_ended = is_ended_arg;
    params.max_candidates = max_candidates_arg;
    params.margin = margin_arg;
    params.local_margin = local_margin_arg;
    params.best_finished = best_finished_arg;
    params.forced = forced_arg;
    params.ban_eos = ban_eos_arg;
    params.eos = eos_of(eos_ids);
    params.finishing = static_cast<Finishing>(finishing);
    params.normalise = normalise;
    params.num_rows = logits.size(0);
    params.num_beams = num_beams;
    params.capacity = capacity;
    params.num_threads = at::get_num_threads();
    params.token_out = data<int32_t>(token);
    params.parent_out = data<int32_t>(parent);
    params.score_out = data<float>(score_out);
    params.log_prob_out = data<float>(log_prob);
    params.count_out = data<int32_t>(count);
    params.num_finished_out = data<int32_t>(num_finished);
    params.has_nan_out = data<bool>(has_nan);
    launch_select(params);
    return {token, parent, score_out, log_prob, count, num_finished, has_nan};
}

Tensor tree_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                      const Tensor& offset, const Tensor& slot, const Tensor& cell,
                      const Tensor& num_cells, const OptionalTensor& mask,
                      const OptionalTensor& bit, double scale) {
    check_dim("query", query, 3);
    check_dim("key", key, 3);
    check_dim("slot", slot, 1);
    check_dim("cell", cell, 2);
    TORCH_CHECK_VALUE(mask.has_value() == bit.has_value(), "`mask` and `bit` go together");
    const int64_t num_sources = slot.size(0), num_slots = cell.size(0), max_cells = cell.size(1);
    if (mask.has_value()) check_dim("mask", *mask, 3);
    const int64_t mask_words = mask.has_value() ? mask->size(2) : 0;

    const at::ScalarType dtype = query.scalar_type();
    check_tensor("key", key, dtype, {key.size(0), key.size(1), query.size(2)});
    check_tensor("value", value, dtype, key.sizes());
    for (const Tensor* tensor : {&query, &key, &value}) {
        check_unit_stride("query, key and value", *tensor);
    }
    TORCH_CHECK_VALUE(key.size(1) > 0 && query.size(1) % key.size(1) == 0, "`query` has ",
                      query.size(1), " heads, which must be a multiple of the ", key.size(1),
                      " heads of `key`");
    const Argument<int32_t> offset_arg("offset", offset, at::kInt, {num_sources + 1});
    const Argument<int32_t> slot_arg("slot", slot, at::kInt, {num_sources});
    const Argument<int32_t> cell_arg("cell", cell, at::kInt, {num_slots, max_cells});
    const Argument<int32_t> num_cells_arg("num_cells", num_cells, at::kInt, {num_slots});
    const Argument<int64_t> mask_arg("mask", mask, at::kLong, {num_slots, max_cells, mask_words});
    const Argument<int32_t> bit_arg("bit", bit, at::kInt, {query.size(0)});
    Tensor out = at::empty(query.sizes(), query.options());

    TreeAttentionParams params{};
    params.query = query.data_ptr();
    params.key = key.data_ptr();
    params.value = value.data_ptr();
    params.out = out.data_ptr();
    params.dtype = float_type("query", query);
    params.query_row_stride = query.stride(0);
    params.query_head_stride = query.stride(1);
    params.key_cell_stride = key.stride(0);
    params.key_head_stride = key.stride(1);
    params.value_cell_stride = value.stride(0);
    params.value_head_stride = value.stride(1);
    params.offset = offset_arg;
    params.slot = slot_arg;
    params.cell = cell_arg;
    params.num_cells = num_cells_arg;
    params.mask = mask_arg;
    params.bit = bit_arg;
    params.num_rows = query.size(0);
    params.num_sources = num_sources;
    params.num_slots = num_slots;
    params.num_pool_cells = key.size(0);
    params.num_heads = query.size(1);
    params.num_key_heads = key.size(1);
    params.head_size = query.size(2);
    params.max_cells = max_cells;
    params.mask_words = mask_words;
    params.scale = static_cast<float>(scale);
    params.num_threads = at::get_num_threads();
    launch_tree_attention(params);
    // rows behind the last offset are padding
    const int64_t num_counted = params.offset[num_sources];
    if (num_counted < params.num_rows)
        out.narrow(0, num_counted, params.num_rows - num_counted).zero_();
    return out;
}

// clang-format off: each needs those above it
#include "tree-inl.h"
#include "beams-inl.h"
#include "drafts-inl.h"
#include "rows-inl.h"
#include "linear-inl.h"
#include "layer_norm-inl.h"
#include "gates-inl.h"
#include "mixture-inl.h"
// clang-format on

std::string isa() { return kernels().name; }

void choose_isa(const std::string& name) { set_isa(name.c_str()); }

}  // namespace
}  // namespace pybeam

TORCH_LIBRARY(pybeam, m) {
    m.def(
        "select(Tensor logits, Tensor score, Tensor offset, Tensor width, Tensor? is_ended, "
        "Tensor? max_candidates, Tensor? margin, Tensor? local_margin, Tensor? best_finished, "
        "Tensor? forced, Tensor? ban_eos, int[] eos_ids, int finishing, int capacity, "
        "bool normalise=True) -> "
        "(Tensor token, Tensor parent, Tensor score, Tensor log_prob, Tensor count, "
        "Tensor num_finished, Tensor has_nan)");
    m.def(
        "tree_attention(Tensor query, Tensor key, Tensor value, Tensor offset, Tensor slot, "
        "Tensor cell, Tensor num_cells, Tensor? mask, Tensor? bit, float scale) -> Tensor");
    m.def(
        "tree_append(Tensor(a!) token, Tensor(b!) parent, Tensor(c!) log_prob, "
        "Tensor(d!) num_nodes, Tensor(e!) row_node, Tensor(f!) row_cell, Tensor(g!) live_cell, "
        "Tensor(h!) live_mask, Tensor(i!) num_live, Tensor(j!) free_cell, Tensor(k!) num_free, "
        "Tensor(l!) page, Tensor(m!) num_pages, Tensor(n!) free_page, "
        "Tensor(o!) num_free_pages, Tensor slot, Tensor first, Tensor count, "
        "Tensor survivor_parent, Tensor survivor_token, Tensor survivor_log_prob, "
        "int eos_id) -> ()");
    m.def(
        "tree_release(Tensor(a!) num_nodes, Tensor(b!) num_live, Tensor(c!) num_free, "
        "Tensor page, Tensor(d!) num_pages, Tensor(e!) free_page, Tensor(f!) num_free_pages, "
        "Tensor slot) -> ()");
    m.def(
        "beam_open(Tensor(a!)[] tree, Tensor(b!)[] beams, Tensor slot, Tensor ints, "
        "Tensor floats, int start_id) -> ()");
    m.def(
        "beam_read(Tensor token, Tensor row_node, Tensor row_cell, Tensor[] beams, Tensor slot, "
        "bool refills, int num_rows, int num_entries) -> Tensor[]");
    m.def(
        "beam_commit(Tensor(a!)[] tree, Tensor(b!)[] beams, Tensor slot, Tensor survivor_token, "
        "Tensor survivor_parent, Tensor survivor_score, Tensor survivor_log_prob, Tensor count, "
        "Tensor first, Tensor has_nan, Tensor? survivor_raw, int eos_id, int finishing, bool "
        "keeps_best, "
        "int top, int certificate) -> (Tensor source, Tensor target)");
    m.def("beam_close(Tensor(a!)[] tree, Tensor(b!)[] beams, Tensor slot) -> ()");
    m.def(
        "draft_open(Tensor(a!)[] tree, Tensor(b!)[] beams, Tensor(c!)[] drafts, Tensor slot, "
        "Tensor ints, Tensor floats, Tensor draft_ints, int start_id, int eos_id, "
        "int vocab_size) -> ()");
    m.def(
        "draft_commit(Tensor(a!)[] tree, Tensor(b!)[] beams, Tensor(c!)[] drafts, Tensor slot, "
        "Tensor token, Tensor log_prob, Tensor has_nan, Tensor? raw, int eos_id, int vocab_size) "
        "-> ()");
    m.def("gather_rows(Tensor(a!)[] tensors, Tensor source, Tensor target) -> ()");
    m.def("scatter_rows(Tensor(a!) pool, Tensor index, Tensor rows) -> ()");
    m.def(
        "backtrace(Tensor token, Tensor parent, Tensor slot, Tensor node, int capacity) -> "
        "(Tensor tokens, Tensor length)");
    m.def(
        "linear(Tensor(a!) y, Tensor x, Tensor weight, Tensor? bias, int activation, "
        "bool adds) -> ()");
    m.def("layer_norm(Tensor x, Tensor weight, Tensor bias, float epsilon) -> Tensor");
    m.def("glu(Tensor x) -> Tensor");
    m.def("lstm_cell(Tensor gates, Tensor cell) -> (Tensor hidden, Tensor cell_after)");
    m.def("mixture(Tensor(a!) out, Tensor[] logits) -> ()");
    m.def("isa() -> str", &pybeam::isa);
    m.def("set_isa(str name) -> ()", &pybeam::choose_isa);
}

TORCH_LIBRARY_IMPL(pybeam, CPU, m) {
    m.impl("select", &pybeam::select);
    m.impl("tree_attention", &pybeam::tree_attention);
    m.impl("tree_append", &pybeam::tree_append);
    m.impl("tree_release", &pybeam::tree_release);
    m.impl("beam_open", &pybeam::beam_open);
    m.impl("beam_read", &pybeam::beam_read);
    m.impl("beam_commit", &pybeam::beam_commit);
    m.impl("beam_close", &pybeam::beam_close);
    m.impl("draft_open", &pybeam::draft_open);
    m.impl("draft_commit", &pybeam::draft_commit);
    m.impl("gather_rows", &pybeam::gather_rows);
    m.impl("scatter_rows", &pybeam::scatter_rows);
    m.impl("backtrace", &pybeam::backtrace);
    m.impl("linear", &pybeam::linear);
    m.impl("layer_norm", &pybeam::layer_norm);
    m.impl("glu", &pybeam::glu);
    m.impl("lstm_cell", &pybeam::lstm_cell);
    m.impl("mixture", &pybeam::mixture);
}

// `import pybeam._C` loads the library, which registers the operators; the module itself is empty.
PyMODINIT_FUNC PyInit__C() {
    static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_C", nullptr, -1, nullptr};
    return PyModule_Create(&module);
}
