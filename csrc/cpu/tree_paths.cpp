// Paths: for each row of a beam the places, in the live list, of the nodes from the root to its
// own.
#include <algorithm>
#include <vector>

#include "tree.h"

namespace pybeam {
namespace {

constexpr int32_t kNowhere = -1;

// Drops the nodes that no row sees from the live list. `place` marks those that are seen, and
// becomes the new place of each.
void keep_seen(const Tree& tree, int64_t slot, int32_t* place) {
    int32_t* cell = tree.live_cell + slot * tree.max_live;
    int32_t* free_cell = tree.free_cell + slot * tree.max_free;
    int32_t kept = 0;
    for (int32_t u = 0; u < tree.num_live[slot]; ++u) {
        if (place[u] == kNowhere) {
            free_cell[tree.num_free[slot]++] = cell[u];
            continue;
        }
        cell[kept] = cell[u];
        place[u] = kept++;
    }
    tree.num_live[slot] = kept;
}

}  // namespace

void check_paths(const Tree& tree, int64_t slot, const Survivors& survivors, int32_t eos_id) {
    const int32_t length = tree.path_length[slot];
    if (length < 0 || length > tree.max_path) fail_tree("the path of a slot is out of range");
    for (int32_t j = 0; j < survivors.count; ++j) {
        if (survivors.token[j] == eos_id) continue;
        if (length == tree.max_path) fail_tree("a path has no room for more nodes; reserve more");
        if (survivors.parent[j] < 0) continue;
        const int32_t* path =
            tree.path + (slot * tree.max_rows + survivors.parent[j]) * tree.max_path;
        for (int32_t t = 0; t < length; ++t) {
            if (path[t] < kNowhere || path[t] >= tree.num_live[slot]) {
                fail_tree("a node of a path is out of range");
            }
        }
    }
}

void inherit_paths(const Tree& tree, int64_t slot, const Survivors& survivors, int32_t eos_id) {
    static thread_local std::vector<int32_t> old, place;
    const int32_t length = tree.path_length[slot];
    int32_t* path = tree.path + slot * tree.max_rows * tree.max_path;
    old.resize(tree.max_rows * length);
    for (int64_t row = 0; row < tree.max_rows; ++row) {
        std::copy_n(path + row * tree.max_path, length, old.data() + row * length);
    }
    const auto parent_path = [&](int64_t row) -> const int32_t* {
        if (row >= survivors.count || survivors.token[row] == eos_id) return nullptr;
        const int32_t parent = survivors.parent[row];
        return parent < 0 ? nullptr : old.data() + parent * length;
    };
    place.assign(tree.num_live[slot], kNowhere);
    for (int32_t row = 0; row < survivors.count; ++row) {
        const int32_t* from = parent_path(row);
        for (int32_t t = 0; from != nullptr && t < length; ++t) {
            if (from[t] != kNowhere) place[from[t]] = 0;
        }
    }
    keep_seen(tree, slot, place.data());
    for (int64_t row = 0; row < tree.max_rows; ++row) {
        const int32_t* from = parent_path(row);
        int32_t* to = path + row * tree.max_path;
        for (int32_t t = 0; t < length; ++t) {
            to[t] = from == nullptr || from[t] == kNowhere ? kNowhere : place[from[t]];
        }
    }
}

void extend_paths(const Tree& tree, int64_t slot, const Survivors& survivors, int32_t eos_id) {
    int32_t& length = tree.path_length[slot];
    // without room no row goes on, as has been checked
    if (survivors.count == 0 || length == tree.max_path) return;
    int32_t next = tree.num_live[slot];
    int32_t* end = tree.path + slot * tree.max_rows * tree.max_path + length;
    for (int64_t row = 0; row < tree.max_rows; ++row, end += tree.max_path) {
        const bool goes_on = row < survivors.count && survivors.token[row] != eos_id;
        *end = goes_on ? next++ : kNowhere;
    }
    if (next > tree.num_live[slot]) ++length;
}

}  // namespace pybeam
