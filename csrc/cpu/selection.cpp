#include "selection.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "../scratch.h"
#include "candidates.h"
#include "select.h"

namespace pybeam {
namespace {

// Keeps a lower bound of the n-th largest of many numbers, in memory for 2 n of them.
class NthLargest {
  public:
    NthLargest(std::vector<float>* buffer, int64_t n) : kept_(*buffer), n_(n) { kept_.clear(); }

    // Whether a number may raise the bound; a NaN does not.
    bool admits(float x) const { return x > bound_; }

    void push(float x) {
        if (!admits(x)) return;
        kept_.push_back(x);
        if (static_cast<int64_t>(kept_.size()) == 2 * n_) shrink();
    }

    float bound() {
        if (static_cast<int64_t>(kept_.size()) >= n_) shrink();
        return bound_;
    }

  private:
    void shrink() {
        std::nth_element(kept_.begin(), kept_.begin() + n_ - 1, kept_.end(), std::greater<>());
        bound_ = kept_[n_ - 1];
        kept_.resize(n_);
    }

    std::vector<float>& kept_;
    int64_t n_;
    float bound_ = -FLT_MAX;  // below every score that is not -inf
};

}  // namespace

// Memory that one thread needs to finish a beam. It is kept from call to call.
struct Selection::BeamScratch {
    std::vector<float> pooled;
    std::vector<float> groups;
    std::vector<float> group_bound;  // per entry of the beam
    std::vector<Key> keys;           // of logits by token
    std::vector<Candidate> candidates;
    std::vector<Key> order;  // of scores by place among the candidates
};

Selection::Selection(const SelectParams& params) : p_(params), k_(kernels()) {
    const int64_t block = kBlockVectors * k_.vector_width;
    num_groups_ = (p_.vocab_size + block - 1) / block * k_.vector_width;
    find_rows();
    rows_.resize(num_rows_);
    static thread_local Scratch<float> groups;
    groups_ = groups.room(num_rows_ * num_groups_);
}

// Checks what will be used as an address, too.
void Selection::find_rows() {
    if (p_.offset[0] != 0) throw std::runtime_error("select: `offset` must start at 0");
    const int64_t num_entries = p_.offset[p_.num_beams];
    row_of_.resize(num_entries);
    beam_of_.resize(p_.num_rows);
    int64_t row = 0;
    for (int64_t s = 0; s < p_.num_beams; ++s) {
        if (p_.offset[s] > p_.offset[s + 1] || p_.offset[s + 1] > num_entries) {
            throw std::runtime_error("select: `offset` must not decrease");
        }
        if (p_.width[s] < 0 || p_.width[s] > kMaxWidth) {
            throw std::runtime_error("select: `width` must be 0 to " + std::to_string(kMaxWidth));
        }
        for (int64_t entry = p_.offset[s]; entry < p_.offset[s + 1]; ++entry) {
            const bool is_held = p_.is_ended != nullptr && p_.is_ended[entry];
            row_of_[entry] = is_held ? -1 : static_cast<int32_t>(row);
            if (is_held) continue;
            if (row < p_.num_rows) beam_of_[row] = static_cast<int32_t>(s);
            ++row;
        }
    }
    if (row > p_.num_rows) {
        throw std::runtime_error("select: `logits` must have one row per entry that has not ended");
    }
    num_rows_ = row;
}

std::vector<BeamTile> Selection::tiles(int64_t most_rows) const {
    std::vector<BeamTile> tiles{{}};
    for (int64_t row = 0, beam = 0; beam < p_.num_beams; ++beam) {
        while (row < num_rows_ && beam_of_[row] == beam) ++row;
        if (row - tiles.back().first_row > most_rows && tiles.back().num_rows() > 0) {
            const BeamTile full = tiles.back();
            tiles.push_back({full.last_beam, full.last_beam, full.last_row, full.last_row});
        }
        tiles.back().last_beam = beam + 1;
        tiles.back().last_row = row;
    }
    return tiles;
}

const EosIds* Selection::banned(int64_t beam) const {
    return p_.ban_eos != nullptr && p_.ban_eos[beam] ? &p_.eos : nullptr;
}

void Selection::read_row(int64_t row, const void* logits) {
    float* const groups = groups_ + row * num_groups_;
    const auto& scans = p_.normalise ? k_.scan_row : k_.scan_log_probs;
    const ScanRow scan = scans[static_cast<int>(p_.dtype)];
    const RowTotal total = scan(logits, p_.vocab_size, banned(beam_of_[row]), groups);
    const float log_sum = p_.normalise ? static_cast<float>(std::log(total.sum)) : 0.0f;
    const float peak = p_.normalise ? total.peak : 0.0f;
    rows_[row] = {peak, log_sum, total.peak, std::isnan(total.sum), logits, groups};
}

void Selection::finish_beam(int64_t beam) const {
    static thread_local BeamScratch scratch;
    bool has_nan = false;
    for (int64_t entry = p_.offset[beam]; entry < p_.offset[beam + 1]; ++entry) {
        has_nan |= row_of_[entry] >= 0 && rows_[row_of_[entry]].has_nan;
    }
    p_.has_nan_out[beam] = has_nan;
    scratch.candidates.clear();
    const int64_t wanted =
        (p_.finishing == Finishing::kRefill ? 1 + p_.eos.count : 1) * p_.width[beam];
    if (!has_nan && wanted > 0) {
        collect(beam, wanted, &scratch);
        rank(wanted, &scratch.order, &scratch.candidates);
    }
    write_survivors(p_, beam, &scratch.candidates);
}

void Selection::check_counts() const {
    for (int64_t s = 0; s < p_.num_beams; ++s) {
        if (p_.count_out[s] > p_.capacity) {
            throw std::runtime_error("select: a beam has more survivors than `capacity`");
        }
    }
}

// Every candidate that may be among the best `wanted` of the beam, by parent and rank.
void Selection::collect(int64_t beam, int64_t wanted, BeamScratch* scratch) const {
    const int64_t begin = p_.offset[beam], end = p_.offset[beam + 1];
    int64_t limit = p_.max_candidates == nullptr ? p_.vocab_size : p_.max_candidates[beam];
    limit = std::max<int64_t>(std::min({limit, wanted, p_.vocab_size}), 0);
    const bool forced = p_.forced != nullptr && p_.forced[beam] >= 0;
    const float min_score = forced ? 0.0f : least_score(begin, end, wanted, limit, scratch);
    for (int64_t entry = begin; entry < end; ++entry) {
        const auto parent = static_cast<int32_t>(entry - begin);
        const float score = p_.score[entry];
        if (row_of_[entry] < 0) {
            scratch->candidates.push_back({score, 0.0f, parent, p_.eos.id[0], true});
        } else if (forced) {
            scratch->candidates.push_back({score, 0.0f, parent, p_.forced[beam], false});
        } else if (limit > 0 && !(best_score(entry) < min_score)) {
            RowFilter filter{};
            filter.score = score;
            filter.min_score = min_score;
            filter.above = scratch->group_bound[entry - begin];
            filter.limit = limit;
            filter.banned = banned(beam);
            collect_row(rows_[row_of_[entry]], parent, filter, scratch);
        }
    }
}

// The most that a candidate of this entry can score.
float Selection::best_score(int64_t entry) const {
    const Row& row = rows_[row_of_[entry]];
    return row.score(p_.score[entry], row.largest);
}

// Finds a lower bound of the scores of the beam's best `wanted` candidates, and for every row
// an exclusive lower bound of its best `limit` logits. The maximum of a group is a candidate
// too, so the n-th largest maximum is at most the n-th largest of all.
float Selection::least_score(int64_t begin, int64_t end, int64_t wanted, int64_t limit,
                             BeamScratch* scratch) const {
    NthLargest pooled(&scratch->pooled, wanted);
    scratch->group_bound.assign(end - begin, -INFINITY);
    for (int64_t entry = begin; entry < end; ++entry) {
        const int64_t row = row_of_[entry];
        if (row < 0) {
            pooled.push(p_.score[entry]);
            continue;
        }
        // most rows of a wide beam have nothing that counts any more
        if (limit == 0 || !pooled.admits(best_score(entry))) continue;
        fold_groups(rows_[row], limit, &scratch->groups);
        auto& groups = scratch->groups;
        std::erase_if(groups, [&](float logit) {
            return !pooled.admits(rows_[row].score(p_.score[entry], logit));
        });
        if (static_cast<int64_t>(groups.size()) > limit) {
            std::nth_element(groups.begin(), groups.begin() + limit, groups.end(),
                             std::greater<>());
            groups.resize(limit);
        }
        if (static_cast<int64_t>(groups.size()) == limit) {
            const float least = *std::min_element(groups.begin(), groups.end());
            // safely below, even if the processor flushes subnormals to zero
            scratch->group_bound[entry - begin] = least - std::fabs(least) * FLT_EPSILON - FLT_MIN;
        }
        for (float logit : groups) {
            pooled.push(rows_[row].score(p_.score[entry], logit));
        }
    }
    return pooled.bound();
}

// Finds at least twice `limit` maxima of groups of the row, if it has so many groups.
void Selection::fold_groups(const Row& row, int64_t limit, std::vector<float>* folded) const {
    const float* groups = row.groups;
    const int64_t size = std::min(num_groups_, (2 * limit + 15) / 16 * 16);
    folded->assign(groups, groups + size);
    for (int64_t begin = size; begin < num_groups_; begin += size) {
        const int64_t count = std::min(size, num_groups_ - begin);
        float* out = folded->data();
        for (int64_t i = 0; i < count; ++i) {
            out[i] = groups[begin + i] > out[i] ? groups[begin + i] : out[i];
        }
    }
}

void Selection::collect_row(const Row& row, int32_t parent, RowFilter filter,
                            BeamScratch* scratch) const {
    filter.peak = row.peak;
    filter.log_sum = row.log_sum;
    auto& keys = scratch->keys;
    keys.resize(2 * filter.limit + kBlockVectors * k_.vector_width);
    poison(keys.data(), keys.size() * sizeof(Key));
    const CollectRow collect = k_.collect_row[static_cast<int>(p_.dtype)];
    int64_t count = collect(row.logits, p_.vocab_size, row.groups, filter, keys.data());
    if (count > filter.limit) {
        keep_largest(keys.data(), count, filter.limit);
        count = filter.limit;
    }
    std::sort(keys.begin(), keys.begin() + count, std::greater<>());
    for (int64_t i = 0; i < count; ++i) {
        const float log_prob = (keys[i].value() - filter.peak) - filter.log_sum;
        scratch->candidates.push_back(
            {filter.score + log_prob, log_prob, parent, keys[i].index(), false});
    }
}

}  // namespace pybeam
