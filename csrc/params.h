// What the kernels are told: plain pointers and numbers, no torch types.
#pragma once

#include <cstdint>

#include "eos_ids.h"

namespace pybeam {

enum class DType { kFloat32, kBFloat16, kFloat16 };

constexpr int kPageCells = 16;
constexpr int kMaxWidth = 128;

enum class Finishing { kNone, kHeld, kRefill, kShrink };

// Pointers to optional arguments may be null. Strides are in elements, `num_rows` counts the rows
// of logits and `num_beams` the entries of `width`.
struct SelectParams {
    const void* logits;
    DType dtype;
    int64_t row_stride;
    int64_t vocab_size;
    const float* score;
    const int32_t* offset;
    const int32_t* width;
    const bool* is_ended;
    const int32_t* max_candidates;
    const float* margin;
    const float* local_margin;
    const float* best_finished;
    const int32_t* forced;
    const bool* ban_eos;
    EosIds eos;
    Finishing finishing;
    bool normalise;  // or the logits are log-probabilities already
    int64_t num_rows;
    int64_t num_beams;
    int64_t capacity;
    int num_threads;

    int32_t* token_out;
    int32_t* parent_out;
    float* score_out;
    float* log_prob_out;
    int32_t* count_out;
    int32_t* num_finished_out;
    bool* has_nan_out;
};

struct TreeAttentionParams {
    const void* query;
    const void* key;
    const void* value;
    void* out;  // contiguous
    DType dtype;
    int64_t query_row_stride, query_head_stride;
    int64_t key_cell_stride, key_head_stride;
    int64_t value_cell_stride, value_head_stride;
    const int32_t* offset;
    const int32_t* slot;
    const int32_t* cell;
    const int32_t* num_cells;
    const int64_t* mask;
    const int32_t* bit;
    int64_t num_rows;
    int64_t num_sources;
    int64_t num_slots;
    int64_t num_pool_cells;
    int64_t num_heads;
    int64_t num_key_heads;
    int64_t head_size;
    int64_t max_cells;   // columns of `cell` and `mask`
    int64_t mask_words;  // words per cell of `mask`
    float scale;
    int num_threads;
};

constexpr int kPanel = 64;

struct Pair;

// `Activation` of `pybeam/models/linear.py`.
enum class Activation : int32_t { kNone, kRelu, kGelu, kTanhGelu, kSilu, kTanh };
constexpr int kNumActivations = 6;

// y [rows, columns] = f(x W^T + bias), f the activation; or y += x W^T + bias where `adds`.
// W is packed: panels of kPanel columns, [panels, depth, kPanel], zeros behind the last column;
// float32 or float16. In bfloat16 two neighbours of the depth stand together, [panels,
// ceil(depth / 2), kPanel, 2], a zero behind an odd depth, and x is rounded to bfloat16 too.
struct LinearParams {
    const float* x;
    int64_t x_stride;
    const Pair* rounded_x;  // [rows, ceil(depth / 2)], made by the launch
    const void* weight;
    DType weight_dtype;
    const float* bias;  // or null
    float* y;           // contiguous
    int64_t num_rows;
    int64_t depth;
    int64_t num_columns;
    Activation activation;
    bool adds;
    int num_threads;
};

struct LayerNormParams {
    const float* x;
    int64_t x_stride;
    const float* weight;
    const float* bias;
    float epsilon;
    float* y;  // contiguous
    int64_t num_rows;
    int64_t size;
    int num_threads;
};

// y [rows, size] = a sigmoid(b) of x [rows, 2 size] = [a, b].
struct GluParams {
    const float* x;
    int64_t x_stride;
    float* y;  // contiguous
    int64_t num_rows;
    int64_t size;
    int num_threads;
};

// One step of an LSTM: gates [rows, 4 size] = [i, f, g, o] before their functions,
// cell_out = sigmoid(f) cell + sigmoid(i) tanh(g), hidden_out = sigmoid(o) tanh(cell_out).
struct LstmCellParams {
    const float* gates;
    int64_t gates_stride;
    const float* cell;
    int64_t cell_stride;
    float* hidden_out;  // contiguous
    float* cell_out;    // contiguous
    int64_t num_rows;
    int64_t size;
    int num_threads;
};

// out = log((1 / n) sum_i softmax(logits_i)) of the rows of `num_members` tensors.
struct MixtureParams {
    const float* const* logits;  // per member
    const int64_t* row_stride;
    float* out;  // contiguous
    int64_t num_members;
    int64_t num_rows;
    int64_t vocab_size;
    int num_threads;
};

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
    int64_t max_free;
    int64_t max_pages;
    int64_t max_free_pages;
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
    Tree tree;  // the tokens, rows and live lists are not needed and may be null
    const int32_t* slot;
    int64_t num_sources;
};

enum class StopReason : int32_t {
    kRunning,
    kWidth,
    kNBest,
    kTopFinished,
    kOptimal,
    kHeuristic,
    kEmptyBeam,
    kMaxLength,
    kNaN
};

// `Certificate` of `pybeam/ops.py`.
enum class Certificate : int32_t { kNone, kBound, kCurrent };

// `Top` of `pybeam/ops.py`.
enum class Top : int32_t { kIgnored, kNow, kEver };

// `Stop` of `pybeam/stopping.py`, but for the counting of finished hypotheses.
struct StopRule {
    bool keeps_best;
    Top top;
    Certificate certificate;
};

// The tensors of `Beams` in `pybeam/backends/arrays.py`, and the sizes they have.
struct Beams {
    enum Int {
        kReason,
        kNumRows,
        kDepth,
        kNumFinished,
        kSteps,
        kExpansions,
        kWaited,
        kNumEntries,
        kWidth,
        kStopAt,
        kMaxCandidates,
        kMinLength,
        kMaxLength,
        kPrefixLength,
        kCertified,
        kNumFound,
        kHasTopped,
        kTargetLength,
        kEndedOnly,
        kNumInts,
    };
    enum Float {
        kMargin,
        kLocalMargin,
        kBestFinished,
        kAlpha,
        kOffset,
        kScale,
        kReward,
        kCap,
        kCutLengthOffset,
        kNumFloats
    };
    enum FinishedInt { kNode, kLength, kEos, kNumFinishedInts };
    enum FinishedFloat { kScore, kLogProb, kFinal, kNumFinishedFloats };
    int32_t* ints;
    float* floats;
    int32_t* prefix;
    float* score;
    bool* is_alive;
    int32_t* ended_length;
    float* eos_log_prob;
    int32_t* eos_token;
    int32_t* finished_ints;
    float* finished_floats;
    int64_t num_slots;
    int64_t max_prefix;
    int64_t max_entries;
    int64_t max_finished;
};

struct BeamOpenParams {
    Beams beams;
    Tree tree;
    const int32_t* slot;
    const int32_t* ints;  // a line per source
    const float* floats;
    int64_t num_sources;
    int32_t start_id;
};

struct BeamReadParams {
    Beams beams;
    const int32_t* token;
    const int32_t* row_node;
    const int32_t* row_cell;
    int64_t max_nodes;
    const int32_t* slot;
    int64_t num_sources;
    bool refills;      // the places of finished hypotheses are there again
    int64_t num_rows;  // there is room for
    int64_t num_entries;

    int32_t* row_offset_out;  // per source and one more
    int32_t* token_out;       // per row
    int32_t* position_out;
    int32_t* row_slot_out;
    int32_t* bit_out;
    int32_t* node_out;
    int32_t* cell_out;
    float* score_out;           // per entry
    int32_t* entry_offset_out;  // per source and one more
    bool* is_ended_out;         // per entry
    int32_t* width_out;         // per source
    int32_t* max_candidates_out;
    float* margin_out;
    float* local_margin_out;
    float* best_finished_out;
    int32_t* forced_out;
    bool* ban_eos_out;
};

struct BeamCommitParams {
    Beams beams;
    TreeAppendParams append;  // of the same survivors
    const float* survivor_score;
    const int32_t* survivor_raw;  // tokens before all EOS became one, or null
    const bool* has_nan;
    Finishing finishing;
    StopRule stop;

    int32_t* source_out;  // per source and entry, -1 where no row lives on
    int32_t* target_out;
};

struct BeamCloseParams {
    Beams beams;
    TreeReleaseParams release;
};

// One tensor of per-row state: rows of `row_bytes`, `stride_bytes` apart.
struct RowTensor {
    char* data;
    int64_t row_bytes;
    int64_t stride_bytes;
};

struct GatherRowsParams {
    const RowTensor* tensors;
    int64_t num_tensors;
    const int32_t* source;
    const int32_t* target;
    int64_t num_moves;
    int64_t num_rows;
    int num_threads;
};

struct ScatterRowsParams {
    RowTensor pool;
    RowTensor rows;
    const int32_t* index;
    int64_t num_index;
    int64_t num_pool_rows;
    int num_threads;
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

// Each throws std::runtime_error before it would read or write out of bounds.
void launch_select(const SelectParams& params);
void launch_tree_attention(const TreeAttentionParams& params);
void launch_linear(LinearParams params);
void launch_layer_norm(const LayerNormParams& params);
void launch_glu(const GluParams& params);
void launch_lstm_cell(const LstmCellParams& params);
void launch_mixture(const MixtureParams& params);
void launch_tree_append(const TreeAppendParams& params);
void launch_tree_release(const TreeReleaseParams& params);
void launch_beam_open(const BeamOpenParams& params);
void launch_beam_read(const BeamReadParams& params);
void launch_beam_commit(const BeamCommitParams& params);
void launch_beam_close(const BeamCloseParams& params);
void launch_gather_rows(const GatherRowsParams& params);
void launch_scatter_rows(const ScatterRowsParams& params);
void launch_backtrace(const BacktraceParams& params);

}  // namespace pybeam
