// The states before the first layer: embeddings of tokens and of their positions.
#pragma once

#include "layers_block.cuh"

namespace pybeam::cuda {

// A row's `scale * W[token] + P[place]`, rounded once.
template <class Number>
class EmbeddedRow {
  public:
    __device__ EmbeddedRow() : token_(nullptr), place_(nullptr), scale_(0) {}

    __device__ EmbeddedRow(const LayersParams& p, int row) : scale_(p.embedding.scale) {
        const EmbeddingAt& at = p.embedding;
        const int token = __ldg(at.token + row);
        int place = __ldg(at.place + row);
        // a skipped token's positions are the second half of the table
        if (token >= 0 && token == at.skipped_token) place += at.num_positions / 2;
        token_ = line_of(at.table, token, at.num_tokens, p.width);
        place_ = line_of(at.positions, place, at.num_positions, p.width);
    }

    // Two numbers of a row, from a column on.
    __device__ uint32_t pair(int column) const {
        uint32_t token = 0, place = 0;
        if (token_ != nullptr) token = *reinterpret_cast<const uint32_t*>(token_ + column);
        if (place_ != nullptr) place = *reinterpret_cast<const uint32_t*>(place_ + column);
        return sum(token, place);
    }

    // Eight of them.
    __device__ Vector eight(int column) const {
        Vector token{}, place{}, numbers;
        if (token_ != nullptr) token = vector_at(token_ + column);
        if (place_ != nullptr) place = vector_at(place_ + column);
#pragma unroll
        for (int i = 0; i < 4; ++i) numbers.word[i] = sum(token.word[i], place.word[i]);
        return numbers;
    }

  private:
    // Null: there is no such line, and its numbers are 0.
    __device__ static const uint16_t* line_of(const uint16_t* table, int line, int num_lines,
                                              int width) {
        return 0 <= line && line < num_lines ? table + int64_t{line} * width : nullptr;
    }

    __device__ uint32_t sum(uint32_t token, uint32_t place) const {
        const float2 x = floats_of<Number>(token), y = floats_of<Number>(place);
        return Number::pair(scale_ * x.x + y.x, scale_ * x.y + y.y);
    }

    const uint16_t *token_, *place_;
    float scale_;
};

}  // namespace pybeam::cuda
