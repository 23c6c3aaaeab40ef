// Arguments of the kernels on the token tree.
#pragma once

#include <cstdint>

#include "types.h"

namespace pybeam {

// Cells of a page; `pybeam.contracts.PAGE_CELLS`.
constexpr int kPageCells = 16;

// Most rows that the masks of a tree can tell apart; `MASK_WIDTH` in Python.
constexpr int kMaskWidth = 128;

// The tensors of a `TokenTree`, and the sizes they have.
struct Tree {
    int32_t* token;
    int32_t* parent;
    float* log_prob;
    int32_t* num_nodes;
    int32_t* row_node;
    int32_t* row_cell;
    int32_t* live_cell;
    int64_t* live_mask;
    int32_t* num_live;
    int32_t* path;
    int32_t* path_length;
    int32_t* free_cell;
    int32_t* num_free;
    int32_t* page;
    int32_t* num_pages;
    int32_t* free_page;
    int32_t* num_free_pages;
    int64_t num_slots;
    int64_t max_nodes;
    int64_t max_rows;
    int64_t max_live;
    int64_t mask_words;
    int64_t max_path;
    int64_t max_free;
    int64_t max_pages;
    int64_t max_free_pages;

    // Whether paths say which nodes a row sees, and no masks.
    bool has_paths() const { return mask_words == 0; }
};

struct TreeAppendParams {
    Tree tree;
    const int32_t* slot;
    const int32_t* first;
    const int32_t* count;
    const int32_t* survivor_parent;
    const int32_t* survivor_token;
    const float* survivor_log_prob;
    int64_t num_sources;
    int64_t capacity;  // columns of the survivors
    int32_t eos_id;
    int num_threads;
};

struct TreeReleaseParams {
    Tree tree;
    const int32_t* slot;
    int64_t num_sources;
};

struct BacktraceParams {
    const int32_t* token;
    const int32_t* parent;
    const int32_t* slot;
    const int32_t* node;
    int64_t num_slots;
    int64_t max_nodes;
    int64_t num_hypotheses;
    int64_t capacity;
    int32_t* tokens_out;
    int32_t* length_out;
};

void launch_tree_append(const TreeAppendParams& params);
void launch_tree_release(const TreeReleaseParams& params);
void launch_backtrace(const BacktraceParams& params);

}  // namespace pybeam
