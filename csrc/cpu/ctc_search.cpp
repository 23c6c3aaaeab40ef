// Prefix beam search over the frames of CTC (Graves et al. 2006, Hannun et al. 2014).
#include <algorithm>
#include <vector>

#include "../params/ctc.h"
#include "ctc.h"
#include "parallel.h"

namespace pybeam {
namespace {

constexpr int32_t kNone = -1;
constexpr int32_t kRoot = 0;
// Tokens that are looked at together: few of a large vocabulary may follow.
constexpr int64_t kBlock = 64;

// Whether one of so many numbers is at least `bound`.
bool has_any(const float* x, int64_t size, float bound) {
    int any = 0;
    for (int64_t i = 0; i < size; ++i) any |= x[i] >= bound;
    return any != 0;
}

// All prefixes that a beam has held. Each is a node, and its last token leads there from its
// parent.
class Prefixes {
  public:
    Prefixes() : nodes_{{kNone, kNone}}, places_(64, kNone) {}

    int32_t parent(int32_t node) const { return nodes_[node].parent; }
    int32_t token(int32_t node) const { return nodes_[node].token; }
    int64_t size() const { return static_cast<int64_t>(nodes_.size()); }

    // Returns the node that a token leads to, or kNone.
    int32_t child(int32_t node, int32_t token) const { return places_[place(node, token)]; }

    int32_t add(int32_t node, int32_t token) {
        if (2 * nodes_.size() > places_.size()) widen();
        const auto added = static_cast<int32_t>(nodes_.size());
        places_[place(node, token)] = added;
        nodes_.push_back({node, token});
        return added;
    }

  private:
    struct Node {
        int32_t parent, token;
    };

    // Where the child is, or would be.
    size_t place(int32_t node, int32_t token) const {
        const uint64_t key = uint64_t(uint32_t(node)) << 32 | uint32_t(token);
        const size_t mask = places_.size() - 1;
        size_t i = static_cast<size_t>(key * 0x9E3779B97F4A7C15u >> 32) & mask;
        while (places_[i] != kNone &&
               (nodes_[places_[i]].parent != node || nodes_[places_[i]].token != token)) {
            i = (i + 1) & mask;
        }
        return i;
    }

    void widen() {
        places_.assign(2 * places_.size(), kNone);
        for (int32_t i = 1; i < size(); ++i) places_[place(nodes_[i].parent, nodes_[i].token)] = i;
    }

    std::vector<Node> nodes_;
    std::vector<int32_t> places_;  // nodes by their parents and tokens; a power of two
};

// A prefix of the beam: log-probabilities of its paths that end in a blank, that end in its last
// token, and of both together.
struct Entry {
    int32_t node;
    double blank, token, total;
};

// A prefix that may be in the next beam: an entry as it stays, or with one token more.
struct Move {
    double score;
    int64_t order;  // of those with the same score
    int32_t entry;
    int32_t token;  // kNone: it stays
};

bool is_better(const Move& a, const Move& b) {
    return a.score > b.score || (a.score == b.score && a.order < b.order);
}

// The beam of one source.
class PrefixBeam {
  public:
    explicit PrefixBeam(const CtcBeamSearchParams& params)
        : params_(params),
          tokens_at_most_(std::min(params.max_tokens, params.width + 1)),
          entries_{{kRoot, 0.0, -INFINITY, 0.0}},
          entry_of_{0} {}

    void read(const float* frame) {
        stay(frame);
        extend(frame);
        take();
    }

    int32_t write(int64_t source) const {
        const int64_t num = std::min(params_.n_best, static_cast<int64_t>(entries_.size()));
        for (int64_t i = 0; i < num; ++i) {
            const int64_t line = source * params_.n_best + i;
            int32_t* tokens = params_.tokens + line * params_.frames.num_frames;
            int32_t length = 0;
            for (int32_t n = entries_[i].node; n != kRoot; n = prefixes_.parent(n)) {
                tokens[length++] = prefixes_.token(n);
            }
            std::reverse(tokens, tokens + length);
            params_.length[line] = length;
            params_.log_prob[line] = entries_[i].total;
        }
        return static_cast<int32_t>(num);
    }

  private:
    // Each entry as it becomes if nothing new is said. Its paths are those that had said it, and
    // those of its parent that say its last token in this frame.
    void stay(const float* frame) {
        staying_.clear();
        moves_.clear();
        num_moves_ = 0;
        double best = -INFINITY;
        for (const Entry& own : entries_) {
            Entry next{own.node, own.total + frame[params_.frames.blank], -INFINITY, 0.0};
            if (own.node != kRoot) {
                const int32_t token = prefixes_.token(own.node);
                next.token = own.token + frame[token];
                const int32_t parent = entry_of_[prefixes_.parent(own.node)];
                if (parent != kNone) {
                    next.token =
                        log_add(next.token, extended(entries_[parent], token) + frame[token]);
                }
            }
            next.total = log_add(next.blank, next.token);
            best = std::max(best, next.total);
            staying_.push_back(next);
        }
        // whatever is not above it would be dropped
        cut_ = best - params_.threshold;
        for (size_t i = 0; i < staying_.size(); ++i) {
            offer(staying_[i].total, static_cast<int32_t>(i), kNone);
        }
    }

    // The log-probability of the paths of an entry that another token may follow.
    double extended(const Entry& entry, int32_t token) const {
        return token == prefixes_.token(entry.node) ? entry.blank : entry.total;
    }

    void extend(const float* frame) {
        choose_tokens(frame);
        for (size_t i = 0; i < entries_.size() && !chosen_.empty(); ++i) {
            const Entry& own = entries_[i];
            if (!(own.total + frame[chosen_[0]] > floor())) break;
            for (const int32_t token : chosen_) {
                if (!(own.total + frame[token] > floor())) break;
                const int32_t child = prefixes_.child(own.node, token);
                if (child != kNone && entry_of_[child] != kNone) continue;  // it stays
                offer(extended(own, token) + frame[token], static_cast<int32_t>(i), token);
            }
        }
    }

    // The tokens that may follow, the most probable first. An entry with a token of a lower rank
    // comes behind as many others as there are places: itself with the tokens before it, but for
    // its own last token.
    void choose_tokens(const float* frame) {
        chosen_.clear();
        const double best = entries_.empty() ? -INFINITY : entries_[0].total;
        const double least = floor();
        const auto before = [frame](int32_t a, int32_t b) {
            return frame[a] > frame[b] || (frame[a] == frame[b] && a < b);
        };
        // float32 leaves out nothing that is above; and when there are as many as may follow, one
        // more must be better than the last of these, which is the first of a heap
        float bound = std::nextafter(static_cast<float>(least - best), -INFINITY);
        const auto take = [&](int32_t v) {
            if (!(best + frame[v] > least) || v == params_.frames.blank) return;
            const bool is_full = static_cast<int64_t>(chosen_.size()) == tokens_at_most_;
            if (is_full && !before(v, chosen_[0])) return;
            if (is_full) {
                std::pop_heap(chosen_.begin(), chosen_.end(), before);
                chosen_.pop_back();
            }
            chosen_.push_back(v);
            std::push_heap(chosen_.begin(), chosen_.end(), before);
            if (is_full) bound = std::max(bound, frame[chosen_[0]]);
        };
        const int64_t size = tokens_at_most_ > 0 ? params_.frames.vocab_size : 0;
        for (int64_t begin = 0; begin < size; begin += kBlock) {
            const int64_t end = std::min(begin + kBlock, size);
            if (!has_any(frame + begin, end - begin, bound)) continue;
            for (int64_t v = begin; v < end; ++v) take(static_cast<int32_t>(v));
        }
        std::sort(chosen_.begin(), chosen_.end(), before);
    }

    bool is_full() const { return static_cast<int64_t>(moves_.size()) == params_.width; }

    // A score must be above it.
    double floor() const { return is_full() ? std::max(moves_[0].score, cut_) : cut_; }

    void offer(double score, int32_t entry, int32_t token) {
        if (!(score > floor())) return;
        if (is_full()) {
            std::pop_heap(moves_.begin(), moves_.end(), is_better);
            moves_.pop_back();
        }
        moves_.push_back({score, num_moves_++, entry, token});
        std::push_heap(moves_.begin(), moves_.end(), is_better);
    }

    // Makes a beam of the best.
    void take() {
        std::sort(moves_.begin(), moves_.end(), is_better);
        const double least = moves_.empty() ? 0.0 : moves_[0].score - params_.threshold;
        for (const Entry& own : entries_) entry_of_[own.node] = kNone;
        next_.clear();
        for (const Move& move : moves_) {
            if (!(move.score > least)) break;
            Entry next{};
            if (move.token == kNone) {
                next = staying_[move.entry];
            } else {
                const int32_t parent = entries_[move.entry].node;
                int32_t node = prefixes_.child(parent, move.token);
                if (node == kNone) node = prefixes_.add(parent, move.token);
                next = {node, -INFINITY, move.score, move.score};
            }
            next_.push_back(next);
        }
        entry_of_.resize(prefixes_.size(), kNone);
        for (size_t i = 0; i < next_.size(); ++i) {
            entry_of_[next_[i].node] = static_cast<int32_t>(i);
        }
        entries_.swap(next_);
    }

    const CtcBeamSearchParams& params_;
    int64_t tokens_at_most_;
    Prefixes prefixes_;
    std::vector<Entry> entries_;     // the best first
    std::vector<int32_t> entry_of_;  // by node; kNone: it is not in the beam
    std::vector<Entry> staying_, next_;
    std::vector<Move> moves_;  // a heap, the worst first
    int64_t num_moves_ = 0;
    double cut_ = -INFINITY;
    std::vector<int32_t> chosen_;
};

int32_t search(const CtcBeamSearchParams& p, int64_t source) {
    PrefixBeam beam(p);
    for (int64_t t = 0; t < p.frames.length[source]; ++t) {
        const float* frame = p.frames.frame(source, t);
        if (!are_log_probs(frame, p.frames.vocab_size)) return kCtcNotANumber;
        beam.read(frame);
    }
    return beam.write(source);
}

}  // namespace

void launch_ctc_beam_search(const CtcBeamSearchParams& p) {
    const CtcFrames& frames = p.frames;
    const int64_t work = frames.num_sources * frames.num_frames * frames.vocab_size;
    parallel_for(threads_for(work, frames.num_sources, p.num_threads), frames.num_sources,
                 [&](int64_t source) { p.count[source] = search(p, source); });
}

}  // namespace pybeam
