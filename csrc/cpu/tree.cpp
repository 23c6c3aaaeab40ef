#include "tree.h"

#include <algorithm>
#include <vector>

#include "parallel.h"

namespace pybeam {
namespace {

Survivors survivors_of(const TreeAppendParams& p, int64_t a) {
    const int64_t first = a * p.capacity + p.first[a];
    return Survivors{p.survivor_parent + first, p.survivor_token + first,
                     p.survivor_log_prob + first, p.count[a] - p.first[a]};
}

int32_t checked_slot(const Tree& tree, int32_t slot) {
    if (slot < 0 || slot >= tree.num_slots) fail_tree("`slot` is out of range");
    return slot;
}

// Whether a slot is empty and has no survivors. Nothing of it is read or written, so a call may
// name it many times.
bool stays_empty(const TreeAppendParams& p, int64_t a) {
    return survivors_of(p, a).count == 0 && p.tree.num_live[p.slot[a]] == 0;
}

// Checks everything that serves as an address. Returns the number of new nodes.
int32_t check_source(const TreeAppendParams& p, int64_t a, int64_t slot) {
    const Tree& tree = p.tree;
    if (p.first[a] < 0 || p.count[a] < p.first[a] || p.count[a] > p.capacity) {
        fail_tree("survivors `first .. count` are out of range");
    }
    const Survivors survivors = survivors_of(p, a);
    if (survivors.count > tree.max_rows)
        fail_tree("there are more survivors than rows; reserve more");
    int32_t num_new = 0;
    for (int32_t j = 0; j < survivors.count; ++j) {
        if (survivors.parent[j] < -1 || survivors.parent[j] >= tree.max_rows) {
            fail_tree("a survivor's parent is out of range");
        }
        num_new += survivors.token[j] != p.eos_id;
    }
    if (tree.num_nodes[slot] < 0 || tree.num_nodes[slot] + num_new > tree.max_nodes) {
        fail_tree("a slot has no room for more nodes; reserve more");
    }
    if (tree.num_live[slot] < 0 || tree.num_live[slot] > tree.max_live || tree.num_free[slot] < 0 ||
        tree.num_live[slot] + tree.num_free[slot] > tree.max_free || tree.num_pages[slot] < 0 ||
        tree.num_pages[slot] > tree.max_pages) {
        fail_tree("the counters of a slot are out of range");
    }
    if (tree.has_paths()) check_paths(tree, slot, survivors, p.eos_id);
    return num_new;
}

// For each old row, a mask of `max_rows` bits: the new rows that continue it.
struct Children {
    uint64_t words[kMaskWidth][2];
};

Children children_of(const Survivors& survivors, int64_t max_rows, int32_t eos_id) {
    Children children;
    for (int64_t row = 0; row < max_rows; ++row)
        children.words[row][0] = children.words[row][1] = 0;
    for (int32_t j = 0; j < survivors.count; ++j) {
        const int32_t parent = survivors.parent[j];
        if (parent < 0 || survivors.token[j] == eos_id) continue;
        children.words[parent][j / 64] |= uint64_t{1} << j % 64;
    }
    return children;
}

// Gives every live node the bits of its rows' children; a node that no row sees frees its cell.
void inherit_masks(const Tree& tree, int64_t slot, const Children& children) {
    int32_t* cell = tree.live_cell + slot * tree.max_live;
    int64_t* mask = tree.live_mask + slot * tree.max_live * tree.mask_words;
    int32_t* free_cell = tree.free_cell + slot * tree.max_free;
    int32_t kept = 0;
    for (int32_t u = 0; u < tree.num_live[slot]; ++u) {
        uint64_t inherited[2] = {0, 0};
        for (int64_t w = 0; w < tree.mask_words; ++w) {
            auto bits = static_cast<uint64_t>(mask[u * tree.mask_words + w]);
            for (; bits != 0; bits &= bits - 1) {
                const int64_t row = 64 * w + __builtin_ctzll(bits);
                if (row >= tree.max_rows) break;
                inherited[0] |= children.words[row][0];
                inherited[1] |= children.words[row][1];
            }
        }
        if ((inherited[0] | inherited[1]) == 0) {
            free_cell[tree.num_free[slot]++] = cell[u];
            continue;
        }
        cell[kept] = cell[u];
        for (int64_t w = 0; w < tree.mask_words; ++w) {
            mask[kept * tree.mask_words + w] = static_cast<int64_t>(inherited[w]);
        }
        ++kept;
    }
    tree.num_live[slot] = kept;
}

// Takes the pages that `num_new` nodes need beyond the free cells; returns how many.
int32_t take_pages(const Tree& tree, int64_t slot, int32_t num_new) {
    if (tree.num_live[slot] + num_new > tree.max_live)
        fail_tree("the live list is full; reserve more");
    const int32_t missing = num_new - tree.num_free[slot];
    if (missing <= 0) return 0;
    const int32_t taken = (missing + kPageCells - 1) / kPageCells;
    if (tree.num_pages[slot] + taken > tree.max_pages || tree.max_free < kPageCells) {
        fail_tree("a slot has no room for more pages; reserve more");
    }
    if (*tree.num_free_pages < taken)
        fail_tree("the page pool is empty; reserve pages before appending");
    int32_t* page = tree.page + slot * tree.max_pages + tree.num_pages[slot];
    for (int32_t i = 0; i < taken; ++i) page[i] = tree.free_page[--*tree.num_free_pages];
    tree.num_pages[slot] += taken;
    return taken;
}

// A stack: the lowest cell of the page is used first.
void free_page_cells(const Tree& tree, int64_t slot, int32_t page) {
    int32_t* free_cell = tree.free_cell + slot * tree.max_free;
    for (int32_t i = 0; i < kPageCells; ++i) {
        free_cell[i] = page * kPageCells + (kPageCells - 1 - i);
    }
    tree.num_free[slot] = kPageCells;
}

void append_nodes(const TreeAppendParams& p, int64_t slot, const Survivors& survivors,
                  int32_t num_taken) {
    const Tree& tree = p.tree;
    const int64_t nodes = slot * tree.max_nodes, rows = slot * tree.max_rows;
    const int64_t lives = slot * tree.max_live;
    if (tree.has_paths()) extend_paths(tree, slot, survivors, p.eos_id);
    const int32_t* next_page = tree.page + slot * tree.max_pages + tree.num_pages[slot] - num_taken;
    static thread_local std::vector<int32_t> old_node;
    old_node.assign(tree.row_node + rows, tree.row_node + rows + tree.max_rows);
    for (int32_t j = 0; j < survivors.count; ++j) {
        const int32_t parent = survivors.parent[j];
        const int32_t node = parent < 0 ? -1 : old_node[parent];
        if (survivors.token[j] == p.eos_id) {
            tree.row_node[rows + j] = node;
            tree.row_cell[rows + j] = -1;
            continue;
        }
        if (tree.num_free[slot] == 0) free_page_cells(tree, slot, *next_page++);
        const int32_t cell = tree.free_cell[slot * tree.max_free + --tree.num_free[slot]];
        const int32_t added = tree.num_nodes[slot]++, live = tree.num_live[slot]++;
        tree.token[nodes + added] = survivors.token[j];
        tree.parent[nodes + added] = node;
        tree.log_prob[nodes + added] = survivors.log_prob[j];
        tree.row_node[rows + j] = added;
        tree.row_cell[rows + j] = cell;
        tree.live_cell[lives + live] = cell;
        if (tree.has_paths()) continue;
        int64_t* mask = tree.live_mask + (lives + live) * tree.mask_words;
        for (int64_t w = 0; w < tree.mask_words; ++w) mask[w] = 0;
        mask[j / 64] = static_cast<int64_t>(uint64_t{1} << j % 64);
    }
}

}  // namespace

void launch_tree_append(const TreeAppendParams& p) {
    const Tree& tree = p.tree;
    if (!tree.has_paths() && tree.max_rows > std::min<int64_t>(kMaskWidth, 64 * tree.mask_words)) {
        fail_tree("there are more rows than bits in a mask");
    }
    std::vector<bool> is_seen(tree.num_slots);
    std::vector<int32_t> num_new(p.num_sources), num_taken(p.num_sources);
    int64_t work = 0;
    for (int64_t a = 0; a < p.num_sources; ++a) {
        const int32_t slot = checked_slot(tree, p.slot[a]);
        num_new[a] = check_source(p, a, slot);
        if (stays_empty(p, a)) continue;
        if (is_seen[slot]) fail_tree("`slot` names a slot twice");
        is_seen[slot] = true;
        work += 8 * tree.num_live[slot];
        if (tree.has_paths()) work += tree.max_rows * tree.path_length[slot];
    }
    const int num_threads = threads_for(work, p.num_sources, p.num_threads);
    parallel_for(num_threads, p.num_sources, [&](int64_t a) {
        if (stays_empty(p, a)) return;
        const Survivors survivors = survivors_of(p, a);
        if (tree.has_paths()) {
            inherit_paths(tree, p.slot[a], survivors, p.eos_id);
        } else {
            inherit_masks(tree, p.slot[a], children_of(survivors, tree.max_rows, p.eos_id));
        }
    });
    // one after another, so that the pages do not depend on the threads
    for (int64_t a = 0; a < p.num_sources; ++a) {
        num_taken[a] = take_pages(tree, p.slot[a], num_new[a]);
    }
    parallel_for(num_threads, p.num_sources,
                 [&](int64_t a) { append_nodes(p, p.slot[a], survivors_of(p, a), num_taken[a]); });
}

void launch_tree_release(const TreeReleaseParams& p) {
    const Tree& tree = p.tree;
    for (int64_t a = 0; a < p.num_sources; ++a) {
        const int64_t slot = p.slot[a];
        if (slot < 0 || slot >= tree.num_slots) fail_tree("`slot` is out of range");
        const int32_t held = tree.num_pages[slot];
        if (held < 0 || held > tree.max_pages ||
            *tree.num_free_pages + held > tree.max_free_pages) {
            fail_tree("more pages come back than were given out");
        }
        for (int32_t i = 0; i < held; ++i) {
            tree.free_page[*tree.num_free_pages + i] = tree.page[slot * tree.max_pages + i];
        }
        *tree.num_free_pages += held;
        tree.num_nodes[slot] = tree.num_live[slot] = 0;
        tree.num_free[slot] = tree.num_pages[slot] = tree.path_length[slot] = 0;
    }
}

}  // namespace pybeam
