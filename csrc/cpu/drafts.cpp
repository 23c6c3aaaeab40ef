// Draft and verify: one hypothesis per source, whose rows are its last token and guesses of what
// follows. `pybeam/backends/torch_drafts.py` says the same in torch.
#include "../params/drafts.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "../counters.h"
#include "beams.h"

namespace pybeam {
namespace {

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error("drafts: " + what); }

// In hundredths of a step: how much may be lost in each step, and how much credit can be saved up.
constexpr int32_t kStep = 100, kAllowance = 2, kMostCredit = 2 * kStep;

// The lines of one slot.
struct Source {
    Source(const Tree& tree, const Beams& beams, const Drafts& drafts, int64_t slot)
        : tree(tree),
          beams(beams),
          slot(slot),
          ints(ints_of(beams, slot)),
          draft(drafts.ints + slot * Drafts::kNumInts),
          guess(drafts.guess + slot * drafts.max_guesses),
          max_guesses(drafts.max_guesses),
          token(tree.token + slot * tree.max_nodes) {}

    int32_t depth() const { return ints[Beams::kDepth]; }
    int32_t prefix_length() const { return ints[Beams::kPrefixLength]; }
    int32_t scored_from() const { return ints[Beams::kScoredFrom]; }
    // Tokens that are known beforehand: the prefix and a target.
    int32_t known() const { return scored_from() + ints[Beams::kTargetLength]; }
    // Tokens that have been generated when the hypothesis has reached node n.
    int32_t generated(int32_t node) const { return node - prefix_length(); }

    const Tree& tree;
    const Beams& beams;
    int64_t slot;
    int32_t* ints;
    int32_t* draft;
    const int32_t* guess;
    int64_t max_guesses;
    int32_t* token;  // per node; node n is the n-th token
};

// Finds the latest earlier occurrence of the n tokens before this node, in the output or else in
// the given guesses. Returns the token that followed it, -1 if there is none.
int32_t ngram_guess(const Source& s, int32_t node) {
    const int32_t n = s.draft[Drafts::kNgram];
    const int32_t* last = s.token + node - n;
    if (node < n) return -1;
    for (int32_t at = node - 1; at >= n; --at) {
        if (std::equal(last, last + n, s.token + at - n)) return s.token[at];
    }
    for (int32_t at = s.draft[Drafts::kNumGuesses] - 1; at >= n; --at) {
        if (std::equal(last, last + n, s.guess + at - n)) return s.guess[at];
    }
    return -1;
}

// Guesses the token at this node, after those before it. Returns a negative number where nobody
// guesses.
int32_t guess_of(const Source& s, int32_t node, int32_t carried, int64_t vocab_size) {
    if (node <= s.known()) return s.beams.prefix[s.slot * s.beams.max_prefix + node - 1];
    if (carried >= 0) return carried;
    int32_t guess = -1;
    const int32_t place = s.generated(node) - 1;
    if (s.draft[Drafts::kNgram] > 0) {
        guess = ngram_guess(s, node);
    } else if (place < s.draft[Drafts::kNumGuesses]) {
        guess = s.guess[place];
    }
    if (guess >= 0 && guess < vocab_size) return guess;
    const int32_t fill = s.draft[Drafts::kFill];
    return fill == Drafts::kLast ? s.token[node - 1] : fill;
}

// How many rows the next step has, unless a guess ends the output or nobody guesses.
int32_t next_rows(const Source& s) {
    if (s.ints[Beams::kReason] != static_cast<int32_t>(StopReason::kRunning)) return 0;
    const int32_t done = s.generated(s.depth()), block = s.draft[Drafts::kBlock];
    const int32_t horizon = s.draft[Drafts::kHorizon];
    int32_t rows = block > 0 ? block - done % block : s.draft[Drafts::kWindow];
    rows = done >= horizon ? 1 : std::min(rows, horizon - done);
    const int32_t given = s.known() - s.depth();
    if (given > 0) rows = std::min(s.draft[Drafts::kMaxRows], given);
    return std::min(rows, s.ints[Beams::kMaxLength] - done);
}

// Takes the pages that so many tokens need.
void take_pages(const Source& s, int32_t num_tokens) {
    const Tree& tree = s.tree;
    const int32_t needed = (num_tokens + kPageCells - 1) / kPageCells;
    int32_t& held = tree.num_pages[s.slot];
    if (needed > tree.max_pages) fail("a slot has no room for more pages; reserve more");
    while (held < needed) {
        if (*tree.num_free_pages < 1) fail("the page pool is empty; reserve pages before");
        tree.page[s.slot * tree.max_pages + held++] = tree.free_page[--*tree.num_free_pages];
    }
}

// Writes the next rows: the last token, and guesses of the tokens behind it. `carried` are guesses
// that the model has made for the first of those.
void write_next_rows(const Source& s, const int32_t* carried, int32_t num_carried, int32_t eos_id,
                     int64_t vocab_size) {
    const Tree& tree = s.tree;
    const int32_t depth = s.depth();
    // an output behind a wrong guess is a poor guess where others are good
    if (s.draft[Drafts::kFill] == Drafts::kNone) num_carried = 0;
    int32_t rows = next_rows(s);
    if (rows > tree.max_rows || depth + rows > tree.max_nodes || depth + rows > tree.max_live) {
        fail("a slot has no room for more rows or nodes; reserve more");
    }
    const int64_t nodes = s.slot * tree.max_nodes, entries = s.slot * tree.max_rows;
    for (int32_t q = 1; q < rows; ++q) {
        const int32_t node = depth + q;
        const int32_t guess = guess_of(s, node, q <= num_carried ? carried[q - 1] : -1, vocab_size);
        // nothing follows EOS
        if (guess < 0 || (guess == eos_id && s.draft[Drafts::kFeedsAll] == 0)) {
            rows = q;
            break;
        }
        s.token[node] = guess;
        tree.parent[nodes + node] = node - 1;
    }
    take_pages(s, depth + rows);
    const int32_t* page = tree.page + s.slot * tree.max_pages;
    const int64_t lives = s.slot * tree.max_live, words = tree.mask_words;
    // all rows see everything up to the last token; a guess is seen by its own row and those behind
    // it
    for (int32_t u = std::max(0, depth - static_cast<int32_t>(tree.max_rows)); u < depth + rows;
         ++u) {
        tree.live_cell[lives + u] = page[u / kPageCells] * kPageCells + u % kPageCells;
        const int32_t first = std::max(0, u - depth);
        for (int64_t w = 0; w < words; ++w) {
            const int64_t shift = std::clamp<int64_t>(first - 64 * w, 0, 64);
            const uint64_t mask = shift == 64 ? 0 : ~uint64_t{0} << shift;
            tree.live_mask[(lives + u) * words + w] = static_cast<int64_t>(mask);
        }
    }
    for (int32_t q = 0; q < tree.max_rows; ++q) {
        const bool is_row = q < rows;
        tree.row_node[entries + q] = is_row ? depth + q : 0;
        tree.row_cell[entries + q] = is_row ? tree.live_cell[lives + depth + q] : -1;
        s.beams.is_alive[entries + q] = is_row;
        s.beams.score[entries + q] = s.beams.score[entries];
    }
    s.ints[Beams::kNumRows] = s.ints[Beams::kNumEntries] = rows;
    if (rows > 0) tree.num_nodes[s.slot] = tree.num_live[s.slot] = depth + rows;
}

// Updates the credit and the number of guesses: a guess costs its price, a right one earns a step.
void adapt(int32_t* draft, int32_t num_guesses, int32_t num_hits) {
    const int32_t price = draft[Drafts::kPrice];
    int32_t& credit = draft[Drafts::kCredit];
    credit += kAllowance + kStep * num_hits - price * num_guesses;
    credit = std::min(credit, std::max(kMostCredit, 2 * price));
    const int32_t larger = std::max(2 * num_guesses, draft[Drafts::kWindow] - 1);
    int32_t wanted = std::max(num_hits == num_guesses ? larger : num_hits, 1);
    // after a pause, wait until two guesses can be paid: the initialiser makes the first, and only
    // the second, which the model makes, shows whether guessing pays
    if (num_guesses == 0 && credit < 2 * price) wanted = 0;
    const int32_t affordable = std::max(credit, 0) / std::max(price, 1);
    draft[Drafts::kWindow] = 1 + std::min({wanted, affordable, draft[Drafts::kMaxRows] - 1});
}

// The model's outputs for the rows of one source.
struct Outputs {
    const int32_t* token;      // an EOS is the first EOS
    const int32_t* eos_token;  // an EOS is itself
    const float* log_prob;
    const bool* has_nan;
    int32_t count;
};

// Counts the outputs that are final. An output is final if all outputs before it were guessed
// right.
int32_t accepted_of(const Source& s, const Outputs& out, int32_t eos_id) {
    const int32_t depth = s.depth(), *guess = s.token + depth + 1;
    const auto ends = [&](int32_t q) {
        return out.token[q] < 0 || out.token[q] == eos_id ||
               s.generated(depth + q + 1) >= s.ints[Beams::kMaxLength];
    };
    int32_t q = 0;
    while (q + 1 < out.count && !ends(q) && guess[q] == out.token[q]) ++q;
    return q + 1;
}

void finish(const Source& s, int32_t node, int32_t length, int32_t eos_token, float log_prob) {
    const int64_t at = s.slot * s.beams.max_finished;
    int32_t* ints = s.beams.finished_ints + at * Beams::kNumFinishedInts;
    float* floats = s.beams.finished_floats + at * Beams::kNumFinishedFloats;
    ints[Beams::kNode] = node;
    ints[Beams::kLength] = length;
    ints[Beams::kEos] = eos_token;
    const float score = s.beams.score[s.slot * s.beams.max_entries];
    floats[Beams::kScore] = score;
    floats[Beams::kLogProb] = log_prob;
    floats[Beams::kFinal] = final_score(floats_of(s.beams, s.slot), score, length, eos_token >= 0);
    s.ints[Beams::kNumFinished] = s.ints[Beams::kNumFound] = 1;
}

// Appends the accepted outputs to the hypothesis. Returns why the source stops, if it does.
StopReason append(const Source& s, const Outputs& out, int32_t accepted, int32_t eos_id) {
    float& score = s.beams.score[s.slot * s.beams.max_entries];
    float* log_prob = s.tree.log_prob + s.slot * s.tree.max_nodes;
    int32_t* parent = s.tree.parent + s.slot * s.tree.max_nodes;
    for (int32_t q = 0; q < accepted; ++q) {
        const int32_t node = s.depth() + q, length = node + 1 - s.scored_from();
        if (out.token[q] < 0) return out.has_nan[q] ? StopReason::kNaN : StopReason::kEmptyBeam;
        score += out.log_prob[q];
        if (out.token[q] == eos_id) {
            finish(s, node, length, out.eos_token[q], out.log_prob[q]);
            return StopReason::kWidth;
        }
        s.token[node + 1] = out.token[q];
        log_prob[node + 1] = out.log_prob[q];
        parent[node + 1] = node;
        if (s.generated(node + 1) >= s.ints[Beams::kMaxLength]) {
            if (!s.ints[Beams::kEndedOnly]) finish(s, node + 1, length, -1, 0.0f);
            return StopReason::kMaxLength;
        }
    }
    return StopReason::kRunning;
}

void commit(const DraftCommitParams& p, const Source& s, const Outputs& out) {
    const int32_t accepted = accepted_of(s, out, p.eos_id);
    const bool is_given = s.depth() < s.known();
    const StopReason reason = append(s, out, accepted, p.eos_id);
    s.ints[Beams::kReason] = static_cast<int32_t>(reason);
    s.ints[Beams::kExpansions] += out.count;
    ++s.ints[Beams::kSteps];
    s.ints[Beams::kDepth] += accepted;
    if (!is_given && s.draft[Drafts::kBlock] == 0) adapt(s.draft, out.count - 1, accepted - 1);
    write_next_rows(s, out.token + accepted, out.count - accepted, p.eos_id, p.vocab_size);
}

// Checks everything that serves as an address.
void check_source(const Source& s) {
    const Tree& tree = s.tree;
    const int32_t rows = s.ints[Beams::kNumRows];
    if (rows < 0 || rows > tree.max_rows || s.depth() < 0 || s.depth() + rows >= tree.max_nodes) {
        fail("the rows of a slot are out of range");
    }
    if (s.prefix_length() < 0 || s.scored_from() < 0 || s.known() > s.beams.max_prefix ||
        s.beams.max_finished < 1) {
        fail("the prefix or the finished hypotheses of a slot are out of range");
    }
    if (s.draft[Drafts::kNumGuesses] < 0 || s.draft[Drafts::kNumGuesses] > s.max_guesses ||
        s.draft[Drafts::kNgram] < 0) {
        fail("the guesses of a slot are out of range");
    }
    if (tree.num_pages[s.slot] < 0 || tree.num_pages[s.slot] > tree.max_pages ||
        *tree.num_free_pages > tree.max_free_pages) {
        fail("the pages of a slot are out of range");
    }
}

}  // namespace

void launch_draft_open(const DraftOpenParams& p) {
    launch_beam_open(p.open);  // checks the slots
    for (int64_t a = 0; a < p.open.num_sources; ++a) {
        const Source source(p.open.tree, p.open.beams, p.drafts, p.open.slot[a]);
        check_source(source);
        write_next_rows(source, nullptr, 0, p.eos_id, p.vocab_size);
    }
}

void launch_draft_commit(const DraftCommitParams& p) {
    const EndOfStep end;
    const Counted counted(Kernel::kCommit, unknown_work);
    std::vector<bool> is_seen(p.tree.num_slots);
    int64_t num_rows = 0;
    for (int64_t a = 0; a < p.num_sources; ++a) {
        const int64_t slot = checked_slot(p.beams, p.slot[a]);
        const Source source(p.tree, p.beams, p.drafts, slot);
        check_source(source);
        const int32_t rows = source.ints[Beams::kNumRows];
        if (rows > 0 && is_seen[slot]) fail("`slot` names a slot twice");
        is_seen[slot] = true;
        num_rows += rows;
    }
    if (num_rows > p.num_rows) fail("there are fewer outputs than rows");
    int64_t first = 0;
    for (int64_t a = 0; a < p.num_sources; ++a) {
        const Source source(p.tree, p.beams, p.drafts, p.slot[a]);
        const int32_t rows = source.ints[Beams::kNumRows];
        if (rows == 0) continue;  // an empty slot, which a call may name many times
        const int32_t* eos_token = p.eos_token ? p.eos_token : p.token;
        commit(p, source,
               {p.token + first, eos_token + first, p.log_prob + first, p.has_nan + first, rows});
        first += rows;
    }
}

}  // namespace pybeam
