// Finished hypotheses as a table.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "../params/beams.h"
#include "check.h"

namespace pybeam {

// Writes the first `counts` finished hypotheses of each slot into a table [hypotheses, columns], as
// `FinishedArrays.packed` in Python. room(hypotheses, columns) returns memory for it.
template <class Room>
void write_finished(const Tree& tree, const Beams& beams, const std::vector<int32_t>& slots,
                    const std::vector<int32_t>& counts, int64_t capacity, bool wants_log_probs,
                    const Room& room) {
    PYBEAM_CHECK_VALUE(counts.size() == slots.size(), "there must be a count per slot");
    PYBEAM_CHECK_VALUE(capacity >= 0, "`capacity` must not be negative, but is ", capacity);
    std::vector<int32_t> owner, node;
    std::vector<int64_t> place;
    for (size_t i = 0; i < slots.size(); ++i) {
        PYBEAM_CHECK(slots[i] >= 0 && slots[i] < beams.num_slots, "`slot` is out of range");
        PYBEAM_CHECK(counts[i] >= 0 && counts[i] <= beams.max_finished,
                     "there are more finished hypotheses than there is room for");
        for (int32_t j = 0; j < counts[i]; ++j) {
            owner.push_back(slots[i]);
            place.push_back(slots[i] * beams.max_finished + j);
            node.push_back(
                beams.finished_ints[place.back() * Beams::kNumFinishedInts + Beams::kNode]);
        }
    }
    const auto num = static_cast<int64_t>(owner.size());
    const int64_t num_paths = wants_log_probs ? 2 : 1, of_path = num * capacity;
    std::vector<int32_t> path(num_paths * of_path), length(num);
    BacktraceParams params{};
    params.parent = tree.parent;
    params.slot = owner.data();
    params.node = node.data();
    params.num_slots = tree.num_slots;
    params.max_nodes = tree.max_nodes;
    params.num_hypotheses = num;
    params.capacity = capacity;
    params.length_out = length.data();
    for (int64_t i = 0; i < num_paths; ++i) {
        params.token = i == 0 ? tree.token : reinterpret_cast<int32_t*>(tree.log_prob);
        params.tokens_out = path.data() + i * of_path;
        launch_backtrace(params);
    }
    constexpr int64_t kNumFixed =
        int64_t{Beams::kNumFinishedInts} + int64_t{Beams::kNumFinishedFloats} + 1;
    int32_t* out = room(num, kNumFixed + num_paths * capacity);
    for (int64_t i = 0; i < num; ++i) {
        constexpr int kInts = Beams::kNumFinishedInts, kFloats = Beams::kNumFinishedFloats;
        out = std::copy_n(beams.finished_ints + place[i] * kInts, kInts, out);
        std::memcpy(out, beams.finished_floats + place[i] * kFloats, kFloats * sizeof(float));
        out += kFloats;
        *out++ = length[i];
        for (int64_t k = 0; k < num_paths; ++k) {
            out = std::copy_n(path.data() + k * of_path + i * capacity, capacity, out);
        }
    }
}

}  // namespace pybeam
