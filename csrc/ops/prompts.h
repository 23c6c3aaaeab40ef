// Prompts that the rows of a step continue.
#pragma once

#include <algorithm>
#include <vector>

#include "../params/embed.h"
#include "../params/tree_attention.h"
#include "../scratch.h"
#include "check.h"

namespace pybeam {

// The prompts of all slots. Their cells are counted from the end of the pool in which those of the
// rows are, too.
struct Prompts {
    const int32_t* cell;    // [slots, max_cells], those of all tokens but the last
    const int32_t* length;  // how many these are
    const int32_t* last;    // the last token, which stands for the start token
    const int32_t* place;   // of its first token in tables of positions
    int64_t num_slots, max_cells;
};

// `given` are offsets and slots of rows, and the arrays of `Prompts`.
inline Prompts prompts_of(const std::vector<Tensor>& given) {
    PYBEAM_CHECK_VALUE(given.size() == 6, "prompts must be 6 tensors, but are ", given.size());
    check_dim("the cells of prompts", given[2], 2);
    const int64_t num_slots = given[2].size(0), max_cells = given[2].size(1);
    const auto ints = [&](size_t i, IntList shape) {
        return state<int32_t>("an array of prompts", given[i], ScalarType::kInt32, shape);
    };
    return {ints(2, {num_slots, max_cells}),
            ints(3, {num_slots}),
            ints(4, {num_slots}),
            ints(5, {num_slots}),
            num_slots,
            max_cells};
}

// Rows behind their prompts, in memory that the next call uses again. Large memory is given back
// when a call needs less than a quarter of it.
class PromptRows {
  public:
    // Puts prompts before rows, which know nothing of them yet: tokens and positions, and `own`
    // cells of rows that have masks or paths.
    void put_before(const Prompts& prompts, EmbedParams* embed, TreeAttentionParams* own) {
        const int64_t num_rows = embed->num_rows;
        // a size that seldom changes, because there is fresh memory where it grows
        const int64_t columns = prompts.max_cells + own->max_cells, words = own->mask_words;
        const int64_t num_cells = own->num_slots * columns;
        if (most_cells_ > kMostKeptCells && 4 * num_cells < most_cells_) *this = {};
        most_cells_ = std::max(most_cells_, num_cells);
        cell_.room(num_cells);
        mask_.room(num_cells * words);
        num_cells_.room(own->num_slots);
        std::copy_n(embed->token, num_rows, token_.room(num_rows));
        std::copy_n(embed->position, num_rows, position_.room(num_rows));
        std::copy_n(embed->position, num_rows, place_.room(num_rows));
        for (int64_t a = 0; a < own->num_sources; ++a) {
            const int64_t p = own->slot[a];
            check(prompts, *own, a, num_rows);
            join_cells(prompts, *own, p, columns);
            for (int32_t row = own->offset[a]; row < own->offset[a + 1]; ++row) {
                if (embed->position[row] == 0) token_.get()[row] = prompts.last[p];
                position_.get()[row] += prompts.length[p];
                place_.get()[row] += prompts.length[p] + prompts.place[p];
            }
        }
        embed->token = token_.get();
        embed->position = place_.get();
        if (own->position != nullptr) own->position = position_.get();
        own->cell = cell_.get();
        own->num_cells = num_cells_.get();
        own->max_cells = columns;
        if (own->mask != nullptr) own->mask = mask_.get();
        if (own->path != nullptr) own->num_shared = prompts.length;
    }

  private:
    // Checks what serves as an address for source a.
    static void check(const Prompts& prompts, const TreeAttentionParams& own, int64_t a,
                      int64_t num_rows) {
        const int64_t p = own.slot[a];
        PYBEAM_CHECK(0 <= own.offset[a] && own.offset[a] <= own.offset[a + 1] &&
                         own.offset[a + 1] <= num_rows,
                     "`offset` is out of range");
        PYBEAM_CHECK(p >= 0 && p < std::min(own.num_slots, prompts.num_slots),
                     "`slot` is out of range");
        PYBEAM_CHECK(prompts.length[p] >= 0 && prompts.length[p] <= prompts.max_cells &&
                         own.num_cells[p] >= 0 && own.num_cells[p] <= own.max_cells,
                     "there are more cells than there is room for");
    }

    // The cells of a slot, which all rows see where they are those of its prompt.
    void join_cells(const Prompts& prompts, const TreeAttentionParams& own, int64_t slot,
                    int64_t columns) {
        const int64_t length = prompts.length[slot], num_own = own.num_cells[slot];
        const int32_t* from_end = prompts.cell + slot * prompts.max_cells;
        int32_t* cell = std::transform(
            from_end, from_end + length, cell_.get() + slot * columns,
            [&](int32_t c) { return static_cast<int32_t>(own.num_pool_cells - 1 - c); });
        std::copy_n(own.cell + slot * own.max_cells, num_own, cell);
        num_cells_.get()[slot] = static_cast<int32_t>(length + num_own);
        if (own.mask == nullptr) return;
        const int64_t words = own.mask_words;
        int64_t* mask = std::fill_n(mask_.get() + slot * columns * words, length * words, -1);
        std::copy_n(own.mask + slot * own.max_cells * words, num_own * words, mask);
    }

    // of 64 MB
    static constexpr int64_t kMostKeptCells =
        (int64_t{64} << 20) / (sizeof(int32_t) + sizeof(int64_t));
    int64_t most_cells_ = 0;
    Scratch<int32_t> token_, position_, place_, cell_, num_cells_;
    Scratch<int64_t> mask_;
};

}  // namespace pybeam
