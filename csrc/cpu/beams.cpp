#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "../params.h"

namespace pybeam {
namespace {

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error("beams: " + what); }

int32_t* ints_of(const Beams& beams, int64_t slot) { return beams.ints + slot * Beams::kNumInts; }

float* floats_of(const Beams& beams, int64_t slot) {
    return beams.floats + slot * Beams::kNumFloats;
}

int64_t checked_slot(const Beams& beams, int32_t slot) {
    if (slot < 0 || slot >= beams.num_slots) fail("`slot` is out of range");
    return slot;
}

int32_t checked_entries(const Beams& beams, int64_t slot) {
    const int32_t num_entries = ints_of(beams, slot)[Beams::kNumEntries];
    if (num_entries < 0 || num_entries > beams.max_entries) {
        fail("a slot has more entries than there is room for");
    }
    return num_entries;
}

// Tokens that a source will have generated when this step is done.
int32_t next_length(const int32_t* ints) {
    return ints[Beams::kDepth] + 1 - ints[Beams::kPrefixLength];
}

int32_t forced_token(const Beams& beams, int64_t slot) {
    const int32_t* ints = ints_of(beams, slot);
    if (ints[Beams::kDepth] >= ints[Beams::kPrefixLength]) return -1;
    return beams.prefix[slot * beams.max_prefix + ints[Beams::kDepth]];
}

// The survivors of one source.
struct Survivors {
    const int32_t* parent;
    const int32_t* token;
    const float* log_prob;
    const float* score;
    int32_t first;  // those before it have finished
    int32_t count;
};

Survivors survivors_of(const BeamCommitParams& p, int64_t a) {
    const int64_t at = a * p.append.capacity;
    return Survivors{p.append.survivor_parent + at,
                     p.append.survivor_token + at,
                     p.append.survivor_log_prob + at,
                     p.survivor_score + at,
                     p.append.first[a],
                     p.append.count[a]};
}

// What becomes of one source.
struct Outcome {
    StopReason reason;
    int32_t num_rows;
    bool ends;  // what is left in its beam finishes as it is

    // Whether survivor `rank` joins the finished hypotheses.
    bool finishes(const BeamCommitParams& p, const int32_t* ints, int32_t first,
                  int32_t rank) const {
        if (rank >= first) return ends;
        return p.finishing != Finishing::kRefill ||
               ints[Beams::kNumFinished] + rank < ints[Beams::kWidth];
    }
};

Outcome outcome_of(const BeamCommitParams& p, int64_t a) {
    const Survivors survivors = survivors_of(p, a);
    const int32_t* ints = ints_of(p.beams, p.append.slot[a]);
    Outcome outcome{StopReason::kRunning, 0, false};
    for (int32_t j = survivors.first; j < survivors.count; ++j) {
        outcome.num_rows += survivors.token[j] != p.append.eos_id;
    }
    int32_t num_finished = ints[Beams::kNumFinished];
    for (int32_t j = 0; j < survivors.first; ++j) {
        num_finished += outcome.finishes(p, ints, survivors.first, j);
    }
    if (p.has_nan[a]) {
        outcome.reason = StopReason::kNaN;
    } else if (num_finished >= ints[Beams::kStopAt]) {
        outcome.reason =
            ints[Beams::kStopAt] < ints[Beams::kWidth] ? StopReason::kNBest : StopReason::kWidth;
    } else if (outcome.num_rows == 0) {
        outcome.reason = StopReason::kEmptyBeam;
    } else if (next_length(ints) >= ints[Beams::kMaxLength]) {
        outcome.reason = StopReason::kMaxLength;
    }
    outcome.ends =
        outcome.reason == StopReason::kEmptyBeam || outcome.reason == StopReason::kMaxLength;
    return outcome;
}

// How a survivor's hypothesis has ended, if it has; read before its beam is replaced.
struct Ending {
    int32_t node;
    int32_t length;
    float eos_log_prob;
};

void read_endings(const BeamCommitParams& p, int64_t a, Ending* endings) {
    const Beams& beams = p.beams;
    const Survivors survivors = survivors_of(p, a);
    const int64_t slot = p.append.slot[a];
    const int32_t length = next_length(ints_of(beams, slot));
    for (int32_t j = 0; j < survivors.count; ++j) {
        const int64_t entry = slot * beams.max_entries + survivors.parent[j];
        const bool was_alive = beams.is_alive[entry];
        endings[j].node = p.append.tree.row_node[entry];
        endings[j].length = was_alive ? length : beams.ended_length[entry];
        endings[j].eos_log_prob = was_alive ? survivors.log_prob[j] : beams.eos_log_prob[entry];
    }
}

void finish(const BeamCommitParams& p, int64_t a, const Outcome& outcome, const Ending* endings) {
    const Beams& beams = p.beams;
    const Survivors survivors = survivors_of(p, a);
    const int64_t slot = p.append.slot[a];
    int32_t* ints = ints_of(beams, slot);
    float& best = floats_of(beams, slot)[Beams::kBestFinished];
    const int32_t* row_node = p.append.tree.row_node + slot * beams.max_entries;
    int32_t num_added = 0;
    for (int32_t j = 0; j < survivors.count; ++j) {
        if (!outcome.finishes(p, ints, survivors.first, j)) continue;
        const int64_t place = slot * beams.max_finished + ints[Beams::kNumFinished] + num_added++;
        const bool is_ended = survivors.token[j] == p.append.eos_id;
        int32_t* found = beams.finished_ints + Beams::kNumFinishedInts * place;
        float* scores = beams.finished_floats + Beams::kNumFinishedFloats * place;
        found[Beams::kNode] = is_ended ? endings[j].node : row_node[j - survivors.first];
        found[Beams::kLength] = is_ended ? endings[j].length : next_length(ints);
        found[Beams::kEnded] = is_ended;
        scores[Beams::kScore] = survivors.score[j];
        scores[Beams::kLogProb] = endings[j].eos_log_prob;
        best = std::max(best, survivors.score[j]);
    }
    ints[Beams::kNumFinished] += num_added;
}

void replace_beam(const BeamCommitParams& p, int64_t a, const Outcome& outcome,
                  const Ending* endings) {
    const Beams& beams = p.beams;
    const Survivors survivors = survivors_of(p, a);
    const int64_t slot = p.append.slot[a], entries = slot * beams.max_entries;
    int32_t* ints = ints_of(beams, slot);
    int32_t* source = p.source_out + a * beams.max_entries;
    int32_t* target = p.target_out + a * beams.max_entries;
    std::fill_n(beams.is_alive + entries, beams.max_entries, false);
    for (int32_t j = survivors.first; j < survivors.count; ++j) {
        const int64_t entry = entries + j - survivors.first;
        beams.score[entry] = survivors.score[j];
        if (p.finishing == Finishing::kHeld) {
            beams.ended_length[entry] = endings[j].length;
            beams.eos_log_prob[entry] = endings[j].eos_log_prob;
        }
        if (survivors.token[j] == p.append.eos_id) continue;
        beams.is_alive[entry] = true;
        source[j - survivors.first] = static_cast<int32_t>(entries + survivors.parent[j]);
        target[j - survivors.first] = static_cast<int32_t>(entry);
    }
    ints[Beams::kReason] = static_cast<int32_t>(outcome.reason);
    ints[Beams::kExpansions] += ints[Beams::kNumRows];
    ints[Beams::kNumRows] = outcome.num_rows;
    ints[Beams::kNumEntries] = survivors.count - survivors.first;
    ++ints[Beams::kSteps];
    ++ints[Beams::kDepth];
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

// Looks at everything that will be used as an address.
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
                fail("a row's node is out of range");
            }
        }
        if (num_rows != ints[Beams::kNumRows]) fail("a slot counts its rows wrongly");
        if (ints[Beams::kDepth] < 0 ||
            std::min(ints[Beams::kPrefixLength], ints[Beams::kDepth] + 1) > beams.max_prefix) {
            fail("a slot's depth or prefix is out of range");
        }
        num_all_rows += num_rows;
        num_all_entries += num_entries;
    }
    if (num_all_rows > p.num_rows || num_all_entries > p.num_entries) {
        fail("there are more rows or entries than there is room for");
    }
}

// Rows without a source: what is computed for them stands nowhere and reads places that exist.
void pad(const BeamReadParams& p, int64_t num_rows, int64_t num_entries) {
    for (int32_t* out : {p.token_out, p.position_out, p.row_slot_out, p.bit_out, p.node_out}) {
        std::fill(out + num_rows, out + p.num_rows, 0);
    }
    std::fill(p.cell_out + num_rows, p.cell_out + p.num_rows, -1);
    std::fill(p.score_out + num_entries, p.score_out + p.num_entries, 0.0f);
    std::fill(p.is_ended_out + num_entries, p.is_ended_out + p.num_entries, false);
}

}  // namespace

void launch_beam_read(const BeamReadParams& p) {
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
            p.bit_out[row] = static_cast<int32_t>(entry);
            p.node_out[row] = node;
            p.cell_out[row++] = p.row_cell[entries + entry];
        }
        const int32_t taken = p.finishing == Finishing::kRefill ? 0 : ints[Beams::kNumFinished];
        p.width_out[a] = ints[Beams::kWidth] - taken;
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

namespace {

// A slot without entries: it stays as it is.
bool is_empty(const BeamCommitParams& p, int64_t a) {
    return ints_of(p.beams, p.append.slot[a])[Beams::kNumEntries] == 0;
}

// Looks at everything that will be used as an address.
void check_beam_commit(const BeamCommitParams& p) {
    const Beams& beams = p.beams;
    for (int64_t a = 0; a < p.append.num_sources; ++a) {
        const int64_t slot = checked_slot(beams, p.append.slot[a]);
        const int32_t num_entries = checked_entries(beams, slot);
        const Survivors survivors = survivors_of(p, a);
        if (survivors.first < 0 || survivors.count < survivors.first ||
            survivors.count > p.append.capacity) {
            fail("survivors `first .. count` are out of range");
        }
        if (survivors.count - survivors.first > beams.max_entries) {
            fail("there are more survivors than entries; reserve more");
        }
        for (int32_t j = 0; j < survivors.count; ++j) {
            if (survivors.parent[j] < 0 || survivors.parent[j] >= num_entries) {
                fail("a survivor's parent is out of range");
            }
        }
        const int32_t* ints = ints_of(beams, slot);
        int64_t num_finished = ints[Beams::kNumFinished];
        if (num_finished < 0 || num_finished >= beams.max_finished) {
            fail("the finished hypotheses of a slot are out of range");
        }
        if (num_entries == 0) continue;
        const Outcome outcome = outcome_of(p, a);
        for (int32_t j = 0; j < survivors.count; ++j) {
            num_finished += outcome.finishes(p, ints, survivors.first, j);
        }
        if (num_finished >= beams.max_finished) {
            fail("more hypotheses have finished than there is room for");
        }
    }
}

}  // namespace

void launch_beam_commit(const BeamCommitParams& p) {
    check_beam_commit(p);
    const int64_t num_sources = p.append.num_sources, capacity = p.append.capacity;
    std::vector<Ending> endings(num_sources * capacity);
    for (int64_t a = 0; a < num_sources; ++a) read_endings(p, a, &endings[a * capacity]);
    launch_tree_append(p.append);  // the first that writes
    std::fill_n(p.source_out, num_sources * p.beams.max_entries, -1);
    std::fill_n(p.target_out, num_sources * p.beams.max_entries, -1);
    for (int64_t a = 0; a < num_sources; ++a) {
        if (is_empty(p, a)) continue;
        const Outcome outcome = outcome_of(p, a);
        finish(p, a, outcome, &endings[a * capacity]);
        replace_beam(p, a, outcome, &endings[a * capacity]);
    }
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
