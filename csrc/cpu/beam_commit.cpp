#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "../counters.h"
#include "../params/beams.h"
#include "beams.h"

namespace pybeam {
namespace {

// The survivors of one source.
struct Survivors {
    const int32_t* parent;
    const int32_t* token;      // an EOS is the first EOS
    const int32_t* eos_token;  // an EOS is itself
    const float* log_prob;
    const float* score;
    int32_t first;  // survivors before it have finished
    int32_t count;
};

Survivors survivors_of(const BeamCommitParams& p, int64_t a) {
    const int64_t at = a * p.append.capacity;
    return Survivors{p.append.survivor_parent + at,
                     p.append.survivor_token + at,
                     (p.eos_token ? p.eos_token : p.append.survivor_token) + at,
                     p.append.survivor_log_prob + at,
                     p.survivor_score + at,
                     p.append.first[a],
                     p.append.count[a]};
}

int32_t num_rows_of(const BeamCommitParams& p, const Survivors& survivors) {
    int32_t num_rows = 0;
    for (int32_t j = survivors.first; j < survivors.count; ++j) {
        num_rows += survivors.token[j] != p.append.eos_id;
    }
    return num_rows;
}

// How a survivor's hypothesis would end now. It is read before the beam is replaced.
struct Ending {
    int32_t node;
    int32_t length;
    float eos_log_prob;
    int32_t eos_token;
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
        endings[j].eos_token = was_alive ? survivors.eos_token[j] : beams.eos_token[entry];
    }
}

// Whether survivor `rank` finishes now.
bool finishes(const BeamCommitParams& p, const int32_t* ints, int32_t num_before, int32_t rank) {
    return p.finishing != Finishing::kRefill || p.stop.keeps_best ||
           num_before + rank < ints[Beams::kWidth];
}

struct Finished {
    int32_t ints[Beams::kNumFinishedInts];
    float floats[Beams::kNumFinishedFloats];
};

// The finished hypotheses of a slot.
class FinishedTable {
  public:
    FinishedTable(const Beams& beams, int64_t slot)
        : ints_(beams.finished_ints + slot * beams.max_finished * Beams::kNumFinishedInts),
          floats_(beams.finished_floats + slot * beams.max_finished * Beams::kNumFinishedFloats) {}

    Finished at(int64_t place) const {
        Finished finished;
        std::copy_n(ints_ + place * Beams::kNumFinishedInts, +Beams::kNumFinishedInts,
                    finished.ints);
        std::copy_n(floats_ + place * Beams::kNumFinishedFloats, +Beams::kNumFinishedFloats,
                    finished.floats);
        return finished;
    }

    void put(int64_t place, const Finished& finished) const {
        std::copy_n(finished.ints, +Beams::kNumFinishedInts,
                    ints_ + place * Beams::kNumFinishedInts);
        std::copy_n(finished.floats, +Beams::kNumFinishedFloats,
                    floats_ + place * Beams::kNumFinishedFloats);
    }

  private:
    int32_t* ints_;
    float* floats_;
};

// Adds finished hypotheses behind all others, or, if the best are kept, where they rank: the worst
// ones then make room.
void add(const BeamCommitParams& p, int64_t slot, std::vector<Finished> added) {
    if (added.empty()) return;
    const FinishedTable table(p.beams, slot);
    int32_t& count = ints_of(p.beams, slot)[Beams::kNumFinished];
    if (!p.stop.keeps_best) {
        for (const Finished& finished : added) table.put(count++, finished);
        return;
    }
    const auto is_better = [](const Finished& a, const Finished& b) {
        return a.floats[Beams::kFinal] > b.floats[Beams::kFinal];
    };
    // stable, so that equal hypotheses stay in the order of finishing
    std::stable_sort(added.begin(), added.end(), is_better);
    std::vector<Finished> all(count);
    for (int32_t i = 0; i < count; ++i) all[i] = table.at(i);
    all.insert(all.end(), added.begin(), added.end());
    std::inplace_merge(all.begin(), all.begin() + count, all.end(), is_better);
    count = std::min(static_cast<int32_t>(all.size()), ints_of(p.beams, slot)[Beams::kWidth]);
    for (int32_t i = 0; i < count; ++i) table.put(i, all[i]);
}

void finish(const BeamCommitParams& p, int64_t a, int32_t begin, int32_t end,
            const Ending* endings) {
    const Survivors survivors = survivors_of(p, a);
    const int64_t slot = p.append.slot[a];
    int32_t* ints = ints_of(p.beams, slot);
    float* floats = floats_of(p.beams, slot);
    const int32_t num_before = ints[Beams::kNumFinished];
    const int32_t* row_node = p.append.tree.row_node + slot * p.beams.max_entries;
    std::vector<Finished> added;
    for (int32_t j = begin; j < end; ++j) {
        if (j < survivors.first && !finishes(p, ints, num_before, j)) continue;
        const bool is_ended = survivors.token[j] == p.append.eos_id;
        if (!is_ended && ints[Beams::kEndedOnly]) continue;
        Finished finished;
        finished.ints[Beams::kNode] = is_ended ? endings[j].node : row_node[j - survivors.first];
        finished.ints[Beams::kLength] = is_ended ? endings[j].length : next_length(ints);
        finished.ints[Beams::kEos] = is_ended ? endings[j].eos_token : -1;
        finished.floats[Beams::kScore] = survivors.score[j];
        finished.floats[Beams::kLogProb] = endings[j].eos_log_prob;
        finished.floats[Beams::kFinal] =
            final_score(floats, survivors.score[j], finished.ints[Beams::kLength], is_ended);
        added.push_back(finished);
        ++ints[Beams::kNumFound];
        floats[Beams::kBestFinished] = std::max(floats[Beams::kBestFinished], survivors.score[j]);
    }
    add(p, slot, std::move(added));
}

// Whether the best candidate of this step has finished.
bool top_finishes(const Survivors& survivors) {
    const int32_t first = survivors.first;
    if (first == 0) return false;
    if (first == survivors.count || survivors.score[0] > survivors.score[first]) return true;
    if (survivors.score[0] < survivors.score[first]) return false;
    return std::pair(survivors.parent[0], survivors.eos_token[0]) <
           std::pair(survivors.parent[first], survivors.eos_token[first]);
}

// Whether the best candidate of a step (see `Top`) has finished, and enough have.
bool is_topped(const BeamCommitParams& p, const Survivors& survivors, int32_t* ints) {
    bool top_has_ended = top_finishes(survivors);
    if (p.stop.top == Top::kEver) {
        top_has_ended |= ints[Beams::kTopHasEnded] > 0;
        ints[Beams::kTopHasEnded] = top_has_ended;
    }
    return top_has_ended && ints[Beams::kNumFound] >= ints[Beams::kCertified];
}

// Whether nothing in the new beam can beat the finished hypotheses; see `Certificate`.
bool is_certified(const BeamCommitParams& p, int64_t slot, const Survivors& survivors,
                  const Ending* endings) {
    const int32_t* ints = ints_of(p.beams, slot);
    const float* floats = floats_of(p.beams, slot);
    const int32_t certified = ints[Beams::kCertified];
    if (ints[Beams::kNumFinished] < certified) return false;
    float best = -std::numeric_limits<float>::infinity();
    float bound = best;
    for (int32_t j = survivors.first; j < survivors.count; ++j) {
        if (survivors.token[j] == p.append.eos_id) {
            bound =
                std::max(bound, final_score(floats, survivors.score[j], endings[j].length, true));
        } else {
            best = std::max(best, survivors.score[j]);
        }
    }
    const double now = next_length(ints);
    const bool is_current = p.stop.certificate == Certificate::kCurrent;
    const int32_t limit =
        ints[Beams::kPrefixLength] + ints[Beams::kMaxLength] - ints[Beams::kScoredFrom];
    const double longest = limit + static_cast<double>(floats[Beams::kCutLengthOffset]);
    const double most = is_current ? now : longest;
    const double least = is_current ? now : std::min(now + 1, most);
    const double reachable = std::max(normed(floats, best, least), normed(floats, best, most)) +
                             std::max(rewarded(floats, least), rewarded(floats, most));
    bound = std::max(bound, static_cast<float>(reachable));
    const int64_t place = slot * p.beams.max_finished + certified - 1;
    return p.beams.finished_floats[place * Beams::kNumFinishedFloats + Beams::kFinal] >= bound;
}

StopReason stop_reason(const BeamCommitParams& p, int64_t a, int32_t num_rows,
                       const Ending* endings) {
    const Survivors survivors = survivors_of(p, a);
    const int64_t slot = p.append.slot[a];
    int32_t* ints = ints_of(p.beams, slot);
    const bool tops = p.stop.top != Top::kIgnored && is_topped(p, survivors, ints);
    if (p.has_nan[a]) return StopReason::kNaN;
    if (ints[Beams::kNumFound] >= ints[Beams::kStopAt]) {
        const bool is_n_best = ints[Beams::kStopAt] < ints[Beams::kWidth];
        return is_n_best ? StopReason::kNBest : StopReason::kWidth;
    }
    if (tops) return StopReason::kTopFinished;
    if (p.stop.certificate != Certificate::kNone && is_certified(p, slot, survivors, endings)) {
        const bool is_proof = p.stop.certificate == Certificate::kBound;
        return is_proof ? StopReason::kOptimal : StopReason::kHeuristic;
    }
    if (num_rows == 0) return StopReason::kEmptyBeam;
    if (is_cut(ints)) return StopReason::kMaxLength;
    return StopReason::kRunning;
}

void replace_beam(const BeamCommitParams& p, int64_t a, StopReason reason, int32_t num_rows,
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
            beams.eos_token[entry] = endings[j].eos_token;
        }
        if (survivors.token[j] == p.append.eos_id) continue;
        beams.is_alive[entry] = true;
        source[j - survivors.first] = static_cast<int32_t>(entries + survivors.parent[j]);
        target[j - survivors.first] = static_cast<int32_t>(entry);
    }
    ints[Beams::kReason] = static_cast<int32_t>(reason);
    ints[Beams::kExpansions] += ints[Beams::kNumRows];
    ints[Beams::kNumRows] = num_rows;
    ints[Beams::kNumEntries] = survivors.count - survivors.first;
    ++ints[Beams::kSteps];
    ++ints[Beams::kDepth];
}

// Whether a slot has no entries. It then stays as it is.
bool is_empty(const BeamCommitParams& p, int64_t a) {
    return ints_of(p.beams, p.append.slot[a])[Beams::kNumEntries] == 0;
}

// How many hypotheses will have finished after this step, at most.
int64_t most_finished(const BeamCommitParams& p, const Survivors& survivors, const int32_t* ints) {
    const int32_t num_before = ints[Beams::kNumFinished];
    int64_t count = num_before;
    for (int32_t j = 0; j < survivors.first; ++j) count += finishes(p, ints, num_before, j);
    const bool ends = num_rows_of(p, survivors) == 0 || is_cut(ints);
    return ends ? count + survivors.count - survivors.first : count;
}

// Checks everything that serves as an address.
void check_beam_commit(const BeamCommitParams& p) {
    const Beams& beams = p.beams;
    for (int64_t a = 0; a < p.append.num_sources; ++a) {
        const int64_t slot = checked_slot(beams, p.append.slot[a]);
        const int32_t num_entries = checked_entries(beams, slot);
        const Survivors survivors = survivors_of(p, a);
        if (survivors.first < 0 || survivors.count < survivors.first ||
            survivors.count > p.append.capacity) {
            fail_beams("survivors `first .. count` are out of range");
        }
        if (survivors.count - survivors.first > beams.max_entries) {
            fail_beams("there are more survivors than entries; reserve more");
        }
        for (int32_t j = 0; j < survivors.count; ++j) {
            if (survivors.parent[j] < 0 || survivors.parent[j] >= num_entries) {
                fail_beams("a survivor's parent is out of range");
            }
        }
        if (num_entries == 0) continue;
        const int32_t* ints = ints_of(beams, slot);
        if (ints[Beams::kNumFinished] < 0 || ints[Beams::kNumFinished] >= beams.max_finished ||
            ints[Beams::kCertified] < 1 || ints[Beams::kCertified] >= beams.max_finished ||
            ints[Beams::kWidth] < 0 || ints[Beams::kWidth] >= beams.max_finished) {
            fail_beams("the finished hypotheses of a slot are out of range");
        }
        if (!p.stop.keeps_best && most_finished(p, survivors, ints) >= beams.max_finished) {
            fail_beams("more hypotheses have finished than there is room for");
        }
    }
}

}  // namespace

void launch_beam_commit(const BeamCommitParams& p) {
    const EndOfStep end;
    const Counted counted(Kernel::kCommit, unknown_work);
    check_beam_commit(p);
    const int64_t num_sources = p.append.num_sources, capacity = p.append.capacity;
    std::vector<Ending> endings(num_sources * capacity);
    for (int64_t a = 0; a < num_sources; ++a) read_endings(p, a, &endings[a * capacity]);
    // all checks are done: from here on arrays are written
    launch_tree_append(p.append);
    std::fill_n(p.source_out, num_sources * p.beams.max_entries, -1);
    std::fill_n(p.target_out, num_sources * p.beams.max_entries, -1);
    for (int64_t a = 0; a < num_sources; ++a) {
        if (is_empty(p, a)) continue;
        const Ending* ending = &endings[a * capacity];
        const Survivors survivors = survivors_of(p, a);
        finish(p, a, 0, survivors.first, ending);
        const int32_t num_rows = num_rows_of(p, survivors);
        const StopReason reason = stop_reason(p, a, num_rows, ending);
        // rows that are left finish as they are; if the best are kept, they may be among those
        if (reason == StopReason::kEmptyBeam || reason == StopReason::kMaxLength ||
            (p.stop.keeps_best && is_cut(ints_of(p.beams, p.append.slot[a])) &&
             reason != StopReason::kNaN)) {
            finish(p, a, survivors.first, survivors.count, ending);
        }
        replace_beam(p, a, reason, num_rows, ending);
    }
}

}  // namespace pybeam
