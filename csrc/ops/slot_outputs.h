// Output layers of slots, each with the columns alone that its rows choose among.
#pragma once

#include <algorithm>
#include <vector>

#include "../params/automata.h"
#include "../params/panels.h"
#include "../scratch.h"
#include "check.h"

namespace pybeam {

// They are kept until a slot has other columns, because packing them takes as long as a few rows of
// a product with all columns.
class SlotOutputs {
  public:
    // The layer of a slot that has been packed: the column of EOS, then those of its tokens.
    const LinearWeights* of(int64_t slot) const { return &layers_[slot].weights; }

    // Packs the layers of these slots whose columns are not there. The tokens of a slot are those
    // of the edges of its node. Returns false, and packs nothing, where so many rows have less work
    // with all columns.
    bool pack(const LinearWeights& output, const Automata& tree, const int32_t* node,
              int64_t num_slots, int32_t eos_id, const Tensor& slot, int64_t num_rows) {
        const Argument<int32_t> given("slot", slot, ScalarType::kInt32, {slot.numel()});
        int64_t num_tokens = 0;
        for (int64_t a = 0; a < slot.numel(); ++a) {
            PYBEAM_CHECK(given[a] >= 0 && given[a] < num_slots, "`slot` is out of range");
            const Edges edges = edges_of(tree, node[given[a]]);
            num_tokens += edges.end - edges.begin;
        }
        // every layer reads its columns alone, but all rows share what reads all columns
        const int64_t most_tokens =
            output.num_columns * std::max(num_rows, kReading / 2) / kReading;
        if (num_tokens > most_tokens) return false;
        if (std::ssize(layers_) < num_slots) layers_.resize(num_slots);
        copies_.clear();
        for (int64_t a = 0; a < slot.numel(); ++a) {
            const Edges edges = edges_of(tree, node[given[a]]);
            columns_.assign(tree.token + edges.begin, tree.token + edges.end);
            columns_.insert(columns_.begin(), eos_id);
            Layer& layer = layers_[given[a]];
            if (layer.source == output.weight && layer.columns == columns_) continue;
            check(output);
            layer.source = nullptr;  // until all are there, for memory may run out
            layer.columns = columns_;
            copies_.push_back(layer.copy_of(output));
        }
        launch_copy_columns(copies_.data(), std::ssize(copies_), num_threads());
        for (int64_t a = 0; a < slot.numel(); ++a) layers_[given[a]].source = output.weight;
        return true;
    }

  private:
    // A column is read in the time in which so many rows are multiplied with it.
    static constexpr int64_t kReading = 10;

    struct alignas(64) CacheLine {
        char bytes[64];
    };

    struct Layer {
        // This makes it a layer of its columns.
        ColumnCopyParams copy_of(const LinearWeights& output) {
            const auto size = static_cast<int64_t>(columns.size());
            const int64_t num_panels = (size + kPanel - 1) / kPanel;
            const int64_t bytes = num_panels * panel_bytes(output.type, output.depth);
            char* const room = panels.room(bytes / int64_t{sizeof(CacheLine)})->bytes;
            weights = output;
            weights.weight = room;
            weights.num_columns = size;
            if (output.scale != nullptr) weights.scale = scale.room(size);
            if (output.bias != nullptr) weights.bias = bias.room(size);
            return {output, columns.data(), size, room, scale.get(), bias.get()};
        }

        const void* source = nullptr;  // the weights of which they are columns
        std::vector<int32_t> columns;
        LinearWeights weights{};
        Scratch<CacheLine> panels;
        Scratch<float> scale, bias;
    };

    void check(const LinearWeights& output) const {
        const bool is_sound = std::all_of(columns_.begin(), columns_.end(), [&](int32_t column) {
            return column >= 0 && column < output.num_columns;
        });
        PYBEAM_CHECK(is_sound && std::ssize(columns_) <= output.num_columns,
                     "`token` must hold columns of the logits");
    }

    std::vector<Layer> layers_;
    // of one call
    std::vector<int32_t> columns_;
    std::vector<ColumnCopyParams> copies_;
};

}  // namespace pybeam
