// The inner kernels, compiled once per instruction set and chosen at run time.
#pragma once

#include <cstdint>

#include "params/types.h"

// Tiles need Linux, which grants them to a process, and a compiler that knows them.
#if defined(__x86_64__) && defined(__linux__) && __has_include(<amxint8intrin.h>)
#define PYBEAM_HAS_TILES
#endif
// Linux says what an ARM64 CPU has, and GCC compiles a file for more than all of them have.
#if defined(__aarch64__) && defined(__linux__) && !defined(__clang__)
#define PYBEAM_HAS_NEON_EXTENSIONS
#endif

namespace pybeam {

struct TreeAttentionParams;
struct LinearParams;
struct LayerNormParams;
struct GluParams;
struct LstmCellParams;
struct MixtureParams;
struct Int8Rows;
struct BFloat16;
enum class Activation : int32_t;
struct Pair;
class Key;

// Largest logit of a row and the sum of exp(logit - peak), NaN if the row holds NaN or +inf.
struct RowTotal {
    float peak;
    double sum;
};

// How to turn a logit into a score, and which candidates of a row may still survive.
struct RowFilter {
    float score;
    float peak;
    float log_sum;
    float min_score;       // lower scores cannot survive in this beam
    float above;           // logits up to this one cannot survive
    int64_t limit;         // most candidates that can survive
    const EosIds* banned;  // tokens that are no candidates, or null
};

// Reads one row. A block is 16 vectors. `block_max` gets the largest logit of every block and lane,
// without those of `banned`, which may be null.
using ScanRow = RowTotal (*)(const void* row, int64_t vocab_size, const EosIds* banned,
                             float* block_max);

// Appends a key of logit and token for every candidate that passes, in token order. Returns their
// number. `keys` has room for `2 * limit` keys and one block.
using CollectRow = int64_t (*)(const void* row, int64_t vocab_size, const float* block_max,
                               RowFilter filter, Key* keys);

// Attention of the query rows `first .. last` of one source over some of its key heads. A query row
// is a pair of a row and a head that reads the key head, heads innermost.
struct AttendTask {
    int64_t source;
    int64_t next_source;  // of the thread, which may fetch its cells
    int64_t first_head, last_head;
    int64_t first, last;
};

using Attend = void (*)(const TreeAttentionParams& params, const AttendTask& task, float* scratch);

// Rounds x [size] to nearest, ties to even.
using RoundCell = void (*)(const float* x, int64_t size, BFloat16* cell);

// Rows `first .. last` of the product, in the columns of one panel.
using MultiplyRows = void (*)(const LinearParams& params, int64_t panel, int64_t first,
                              int64_t last);

// Rounds x [depth] to bfloat16, to nearest and ties to even; a zero follows an odd depth. The
// result is float32, or pairs of bfloat16 where an instruction multiplies them.
using RoundRow = void (*)(const float* x, int64_t depth, void* out);

// Quantises x [depth] to int8, the first row of `out`.
using QuantiseRow = void (*)(const float* x, int64_t depth, const Int8Rows& out);

using NormaliseRow = void (*)(const LayerNormParams& params, int64_t row);

// y = x / sqrt(mean(x^2) + epsilon) * weight; y may be x.
using RmsNormRow = void (*)(const float* x, const float* weight, float epsilon, int64_t size,
                            float* y);

// Turns the pairs (x[i], x[i + half]) of a head; y may be x.
using RotateHead = void (*)(const float* x, const float* cos, const float* sin, int64_t half,
                            float* y);

// y = f(gate) value; y may be one of them.
using GateRow = void (*)(Activation activation, const float* gate, const float* value, int64_t size,
                         float* y);
// x becomes cap * tanh(x / cap).
using SoftCap = void (*)(float cap, int64_t size, float* x);

using GluRow = void (*)(const GluParams& params, int64_t row);
using LstmRow = void (*)(const LstmCellParams& params, int64_t row);

// One member's row of a mixture: log_prob = (logit - peak) - log_sum.
struct MixedRow {
    const float* logits;
    float peak;
    float log_sum;
};

using MixRow = void (*)(const MixtureParams& params, const MixedRow* members, float* out);

struct Kernels {
    const char* name;
    int64_t vector_width;
    ScanRow scan_row[3];        // by DType
    ScanRow scan_log_probs[3];  // the same for rows whose sum nobody needs: 1, or NaN
    CollectRow collect_row[3];
    Attend attend[3];        // by DType of queries and cells
    Attend attend_rounded;   // float32 queries over bfloat16 cells
    Attend attend_paths[3];  // the same for rows that have paths
    Attend attend_paths_rounded;
    Attend attend_pairs;  // in products of bfloat16 pairs, where rows see all cells
    RoundCell round_cell;
    MultiplyRows multiply_rows[6];  // by WeightType
    RoundRow round_row;
    int64_t rounded_pair_bytes;  // of two inputs that `round_row` has rounded
    QuantiseRow quantise_row;
    int64_t int8_input_bytes;  // of an input that `quantise_row` has quantised
    NormaliseRow normalise_row;
    RmsNormRow rms_norm_row;
    RotateHead rotate_head;
    GateRow gate_row;
    SoftCap soft_cap;
    GluRow glu_row;
    LstmRow lstm_row;
    MixRow mix_row;
};

constexpr int64_t kBlockVectors = 16;

// Cells whose keys or values stay in the cache while all rows of a task read them.
constexpr int64_t kTileCells = 16;
// Most cells whose keys or values are copied, to lie side by side.
constexpr int64_t kCopiedCells = 256;
// Most rows that are multiplied by pairs at once.
constexpr int64_t kPairRows = 6;

extern const Kernels kGenericKernels;
#ifdef __x86_64__
extern const Kernels kAvx2Kernels;
extern const Kernels kAvxVnniKernels;
extern const Kernels kAvx512Kernels;
extern const Kernels kAvx512VnniKernels;
extern const Kernels kAvx512Bf16Kernels;
#endif
#ifdef PYBEAM_HAS_TILES
extern const Kernels kAmxInt8Kernels;
#endif
#ifdef __aarch64__
extern const Kernels kNeonKernels;
#endif
#ifdef PYBEAM_HAS_NEON_EXTENSIONS
extern const Kernels kNeonDotprodKernels;
extern const Kernels kNeonBf16Kernels;
#endif

// The best instruction set of this CPU, or the one in the environment variable PYBEAM_ISA.
const Kernels& kernels();

// Choose "generic"; "avx2", "avx_vnni", "avx512", "avx512_vnni", "avx512_bf16" or "amx_int8"; or
// "neon", "neon_dotprod" or "neon_bf16". Throws std::runtime_error if the CPU lacks it.
void set_isa(const char* name);

}  // namespace pybeam
