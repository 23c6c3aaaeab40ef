// Runs `decoder_layers` as threads, launches that share places, and compares them with launches
// that have places of their own, bit by bit.
#include <cstdio>

#include "layers.cpp"

namespace {

using pybeam::cuda::kNumProducts;
using pybeam::cuda::LayerAt;

// pairs of blocks share the last product, and one has no part of it
constexpr int kWidth = 64, kInner = 288, kLayers = 2, kRows = 3, kNodes = 6, kTokens = 4,
              kCells = 12, kLogits = 40, kCapacity = 6;
constexpr int kBlocks = 5, kLaunches = 3, kPlaceRows = 8;

std::mt19937 generator(1);

std::vector<uint16_t> numbers(int number, float factor) {
    std::normal_distribution<float> normal;
    std::vector<uint16_t> found(number);
    for (uint16_t& x : found) {
        pybeam::BFloat16 rounded;
        pybeam::from_float(factor * normal(generator), &rounded);
        x = rounded.bits;
    }
    return found;
}

struct Layers {
    std::vector<std::unique_ptr<uint4[]>> kept;
    std::vector<LayerAt> at{kLayers};
    pybeam::cuda::LinearAt output;

    uint16_t* keep(const std::vector<uint16_t>& numbers) {
        kept.push_back(std::make_unique<uint4[]>(numbers.size() / 8));
        std::memcpy(kept.back().get(), numbers.data(), numbers.size() * 2);
        return reinterpret_cast<uint16_t*>(kept.back().get());
    }

    Layers() {
        output = {keep(numbers(kWidth, 1)), keep(numbers(kWidth, 1)),
                  keep(numbers(kLogits * kWidth, 0.125f)), keep(numbers(kLogits, 1))};
        for (LayerAt& layer : at) {
            for (int i = 0; i < kNumProducts; ++i) {
                const int columns = i == 0 ? 3 * kWidth : i == 4 ? kInner : kWidth;
                const int depth = i == 5 ? kInner : kWidth;
                auto& linear = layer.linear[i];
                if (i % 2 == 0) {
                    linear.scale = keep(numbers(kWidth, 1)),
                    linear.shift = keep(numbers(kWidth, 1));
                }
                linear.weight = keep(numbers(columns * depth, 0.125f));
                linear.bias = keep(numbers(columns, 1));
            }
            layer.own_pool = keep(numbers(kCells * 2 * kWidth, 1));
            layer.source_pool = keep(numbers(kCells * 2 * kWidth, 1));
        }
    }
};

struct Places {
    std::unique_ptr<uint4[]> place;
    uint32_t books[pybeam::cuda::kBooks] = {};

    explicit Places(int64_t number) : place(std::make_unique<uint4[]>(number / 8)) {
        std::memset(place.get(), 0xff, number * 2);
    }
};

// The logits as bits, and behind them the tokens and parents of survivors.
std::vector<uint16_t> run(Layers& layers, const uint16_t* states, Places& places, unsigned seed) {
    static const int32_t offset[] = {0, kRows}, slot[] = {1}, length[] = {0, kNodes};
    static const int32_t cell[2 * kNodes] = {0, 0, 0, 0, 0, 0, 7, 3, 9, 1, 11, 4};
    static const int32_t entry[kRows] = {0, 1, 2}, new_cell[kRows] = {1, 11, 4};
    static const int32_t tokens[2 * kTokens] = {0, 0, 0, 0, 5, 2, 8, 0},
                                    token_length[] = {0, kTokens};
    // each row sees the first three nodes and its own
    static const int64_t mask[2 * kNodes] = {0, 0, 0, 0, 0, 0, 7, 7, 7, 1, 2, 4};
    auto out = std::make_unique<uint4[]>(kRows * kLogits / 8);
    LayersParams p{};
    p.layers = layers.at.data(), p.states = states;
    p.out = reinterpret_cast<uint16_t*>(out.get()), p.out_stride = kLogits;
    p.places = reinterpret_cast<uint16_t*>(places.place.get()), p.books = places.books;
    p.logits = layers.output, p.num_logits = kLogits;
    p.num_layers = kLayers, p.place_rows = kPlaceRows, p.width = kWidth, p.inner_width = kInner;
    p.num_places = kPlaceRows * pybeam::cuda::places_of_row(kWidth, kInner);
    p.num_heads = 1, p.activation = pybeam::Activation::kRelu, p.is_pre_norm = true;
    p.epsilon = 1e-5f, p.scale = 0.125f;
    p.seen = {offset, slot,         cell, length, mask, entry,   new_cell,
              tokens, token_length, 1,    kNodes, 1,    kTokens, kCells};
    if (!plan_on_cpu(&p, kBlocks, 232448)) std::puts("no plan"), std::exit(1);
    p.has_choice = true;
    int32_t token[kCapacity], parent[kCapacity], count, num_finished;
    float score[kCapacity], log_prob[kCapacity];
    bool has_nan;
    static const float row_score[kRows] = {-0.5f, -0.25f, -1.0f};
    static const int32_t width = kRows;
    const auto at = [](const auto& x) { return reinterpret_cast<int64_t>(&x); };
    const int64_t bfloat16 = static_cast<int64_t>(pybeam::DType::kBFloat16), eos = 2;
    const int64_t refill = static_cast<int64_t>(pybeam::Finishing::kRefill);
    const int64_t arguments[] = {reinterpret_cast<int64_t>(p.out),
                                 bfloat16,
                                 kLogits,
                                 kLogits,
                                 at(row_score),
                                 at(offset),
                                 at(width),
                                 0,
                                 0,
                                 0,
                                 0,
                                 0,
                                 0,
                                 0,
                                 1,
                                 eos,
                                 refill,
                                 true,
                                 kRows,
                                 1,
                                 kCapacity,
                                 1,
                                 at(token),
                                 at(parent),
                                 at(score),
                                 at(log_prob),
                                 at(count),
                                 at(num_finished),
                                 at(has_nan),
                                 kRows};
    choice_on_cpu(&p, arguments, seed);
    std::vector<uint16_t> found(p.out, p.out + kRows * kLogits);
    found.insert(found.end(), token, token + kCapacity);
    found.insert(found.end(), parent, parent + kCapacity);
    found.push_back(static_cast<uint16_t>(count));
    return found;
}

}  // namespace

int main() {
    Layers layers;
    const int64_t number = 2 * kLayers * kPlaceRows * pybeam::cuda::places_of_row(kWidth, kInner);
    Places shared(number);
    int num_different = 0;
    for (int i = 0; i < kLaunches; ++i) {
        const uint16_t* states = layers.keep(numbers(kRows * kWidth, 1));
        Places own(number);
        const bool same = run(layers, states, shared, i) == run(layers, states, own, i + 7);
        std::printf("launch %d: %s\n", i, same ? "the same" : "DIFFERENT");
        num_different += !same;
    }
    return num_different;
}
