#include "beams.h"

#include <algorithm>
#include <vector>

#include "../counters.h"
#include "../params/beams.h"

namespace pybeam {
namespace {

int32_t forced_token(const Beams& beams, int64_t slot) {
    const int32_t* ints = ints_of(beams, slot);
    if (ints[Beams::kDepth] >= ints[Beams::kScoredFrom]) return -1;
    return beams.prefix[slot * beams.max_prefix + ints[Beams::kDepth]];
}

// Places of the beam after the step that begins now.
int32_t step_width(const Beams& beams, int64_t slot) {
    const int32_t* ints = ints_of(beams, slot);
    const int32_t step = std::max(ints[Beams::kDepth] - ints[Beams::kPrefixLength], 0);
    if (step >= ints[Beams::kNumEarlyWidths]) return ints[Beams::kWidth];
    return beams.early_width[slot * beams.max_early_widths + step];
}

}  // namespace

void launch_beam_open(const BeamOpenParams& p) {
    const Beams& beams = p.beams;
    const std::vector<int32_t> none(p.num_sources, 0), one(p.num_sources, 1);
    const std::vector<int32_t> parent(p.num_sources, -1), token(p.num_sources, p.start_id);
    const std::vector<float> log_prob(p.num_sources, 0.0f);
    TreeAppendParams append{};
    append.tree = p.tree;
    append.slot = p.slot;
    append.first = none.data();
    append.count = one.data();
    append.survivor_parent = parent.data();
    append.survivor_token = token.data();
    append.survivor_log_prob = log_prob.data();
    append.num_sources = p.num_sources;
    append.capacity = 1;
    append.eos_id = -1;
    append.num_threads = 1;
    launch_tree_append(append);  // checks the slots
    for (int64_t a = 0; a < p.num_sources; ++a) {
        const int64_t slot = p.slot[a], entries = slot * beams.max_entries;
        std::copy_n(p.ints + a * Beams::kNumInts, +Beams::kNumInts, ints_of(beams, slot));
        std::copy_n(p.floats + a * Beams::kNumFloats, +Beams::kNumFloats, floats_of(beams, slot));
        beams.is_alive[entries] = true;
        beams.score[entries] = 0.0f;
    }
}

namespace {

// Checks everything that serves as an address.
void check_beam_read(const BeamReadParams& p) {
    const Beams& beams = p.beams;
    int64_t num_all_rows = 0, num_all_entries = 0;
    for (int64_t a = 0; a < p.num_sources; ++a) {
        const int64_t slot = checked_slot(beams, p.slot[a]);
        const int32_t* ints = ints_of(beams, slot);
        const int32_t num_entries = checked_entries(beams, slot);
        int32_t num_rows = 0;
        for (int64_t entry = slot * beams.max_entries; entry < (slot + 1) * beams.max_entries;
             ++entry) {
            if (!beams.is_alive[entry]) continue;
            ++num_rows;
            if (p.row_node[entry] < 0 || p.row_node[entry] >= p.max_nodes) {
                fail_beams("a row's node is out of range");
            }
        }
        if (num_rows != ints[Beams::kNumRows]) fail_beams("a slot counts its rows wrongly");
        if (ints[Beams::kDepth] < 0 ||
            std::min(ints[Beams::kScoredFrom], ints[Beams::kDepth] + 1) > beams.max_prefix) {
            fail_beams("a slot's depth or prefix is out of range");
        }
        if (ints[Beams::kNumEarlyWidths] > beams.max_early_widths) {
            fail_beams("a slot has more early widths than there is room for");
        }
        num_all_rows += num_rows;
        num_all_entries += num_entries;
    }
    if (num_all_rows > p.num_rows || num_all_entries > p.num_entries) {
        fail_beams("there are more rows or entries than there is room for");
    }
}

// Fills rows without a source. They read places that exist, and nobody reads their results.
void pad(const BeamReadParams& p, int64_t num_rows, int64_t num_entries) {
    for (int32_t* out : {p.token_out, p.position_out, p.row_slot_out, p.entry_out, p.node_out}) {
        std::fill(out + num_rows, out + p.num_rows, 0);
    }
    std::fill(p.cell_out + num_rows, p.cell_out + p.num_rows, -1);
    std::fill(p.score_out + num_entries, p.score_out + p.num_entries, 0.0f);
    std::fill(p.is_ended_out + num_entries, p.is_ended_out + p.num_entries, false);
}

}  // namespace

void launch_beam_read(const BeamReadParams& p) {
    begin_step();
    const Counted counted(Kernel::kRead, unknown_work);
    check_beam_read(p);
    const Beams& beams = p.beams;
    int32_t row = 0, place = 0;
    for (int64_t a = 0; a < p.num_sources; ++a) {
        const int64_t slot = p.slot[a], entries = slot * beams.max_entries;
        const int32_t* ints = ints_of(beams, slot);
        const float* floats = floats_of(beams, slot);
        p.row_offset_out[a] = row;
        p.entry_offset_out[a] = place;
        for (int64_t entry = 0; entry < beams.max_entries; ++entry) {
            const bool is_alive = beams.is_alive[entries + entry];
            if (entry < ints[Beams::kNumEntries]) {
                p.score_out[place] = beams.score[entries + entry];
                p.is_ended_out[place++] = !is_alive;
            }
            if (!is_alive) continue;
            const int32_t node = p.row_node[entries + entry];
            p.token_out[row] = p.token[slot * p.max_nodes + node];
            p.position_out[row] = ints[Beams::kDepth];
            p.row_slot_out[row] = static_cast<int32_t>(slot);
            p.entry_out[row] = static_cast<int32_t>(entry);
            p.node_out[row] = node;
            p.cell_out[row++] = p.row_cell[entries + entry];
        }
        const int32_t taken = p.refills ? 0 : ints[Beams::kNumFound];
        p.width_out[a] = std::max(step_width(beams, slot) - taken, 0);
        p.max_candidates_out[a] = ints[Beams::kMaxCandidates];
        p.margin_out[a] = floats[Beams::kMargin];
        p.local_margin_out[a] = floats[Beams::kLocalMargin];
        p.best_finished_out[a] = floats[Beams::kBestFinished];
        p.forced_out[a] = forced_token(beams, slot);
        p.ban_eos_out[a] =
            ints[Beams::kDepth] - ints[Beams::kPrefixLength] < ints[Beams::kMinLength];
    }
    p.row_offset_out[p.num_sources] = row;
    p.entry_offset_out[p.num_sources] = place;
    pad(p, row, place);
}

void launch_beam_close(const BeamCloseParams& p) {
    const Beams& beams = p.beams;
    launch_tree_release(p.release);  // checks the slots
    for (int64_t a = 0; a < p.release.num_sources; ++a) {
        const int64_t slot = p.release.slot[a];
        std::fill_n(ints_of(beams, slot), +Beams::kNumInts, 0);
        std::fill_n(beams.is_alive + slot * beams.max_entries, beams.max_entries, false);
    }
}

}  // namespace pybeam
