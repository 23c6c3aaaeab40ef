#include <algorithm>
#include <cmath>
#include <vector>

#include "../dispatch.h"
#include "../params.h"
#include "numbers.h"
#include "parallel.h"

namespace pybeam {
namespace {

float logit_at(const void* logits, DType dtype, int64_t i) {
    switch (dtype) {
        case DType::kFloat32:
            return static_cast<const float*>(logits)[i];
        case DType::kBFloat16:
            return to_float(static_cast<const BFloat16*>(logits)[i]);
        case DType::kFloat16:
            break;
    }
    return to_float(static_cast<const Half*>(logits)[i]);
}

class AcceptDraft {
  public:
    AcceptDraft(const AcceptDraftParams& params, const Kernels& kernels)
        : p_(params),
          k_(kernels),
          scan_row_(kernels.scan_row[static_cast<int>(params.dtype)]),
          block_(kBlockVectors * kernels.vector_width),
          is_nan_(params.num_rows * params.num_positions) {}

    void run() {
        const int64_t num = p_.num_rows * p_.num_positions;
        parallel_for(threads_for(num * p_.vocab_size, num, p_.num_threads), num,
                     [this](int64_t i) { read_position(i); });
        for (int64_t row = 0; row < p_.num_rows; ++row) accept(row);
    }

  private:
    // The best token of one position and its log-probability.
    void read_position(int64_t i) {
        static thread_local std::vector<float> block_max;
        block_max.resize((p_.vocab_size + block_ - 1) / block_ * k_.vector_width);
        const int64_t begin =
            i / p_.num_positions * p_.row_stride + i % p_.num_positions * p_.position_stride;
        const int64_t item_bytes = p_.dtype == DType::kFloat32 ? 4 : 2;
        const void* row = static_cast<const char*>(p_.logits) + begin * item_bytes;
        const RowTotal total = scan_row_(row, p_.vocab_size, nullptr, block_max.data());
        is_nan_[i] = std::isnan(total.sum);
        const bool has_token = !is_nan_[i] && total.peak > -INFINITY;
        p_.token_out[i] = has_token ? first_token_at(total.peak, row, block_max) : -1;
        p_.log_prob_out[i] = has_token ? 0.0f - static_cast<float>(std::log(total.sum)) : -INFINITY;
    }

    // The first token with this logit; `block_max` says in which block it is.
    int32_t first_token_at(float peak, const void* row, const std::vector<float>& block_max) const {
        const int64_t lane =
            std::find(block_max.begin(), block_max.end(), peak) - block_max.begin();
        int64_t token = lane / k_.vector_width * block_;
        while (token + 1 < p_.vocab_size && logit_at(row, p_.dtype, token) != peak) ++token;
        return static_cast<int32_t>(token);
    }

    // Outputs are final as long as the next position was fed what this one put out.
    void accept(int64_t row) const {
        const int32_t* token = p_.token_out + row * p_.num_positions;
        const int32_t* draft = p_.draft + row * p_.num_positions;
        int64_t last = 0;
        while (last + 1 < p_.num_positions && token[last] >= 0 && token[last] != p_.eos_id &&
               draft[last + 1] == token[last]) {
            ++last;
        }
        const bool ends = token[last] >= 0 && token[last] == p_.eos_id;
        p_.accepted_out[row] = static_cast<int32_t>(last + 1);
        p_.eos_position_out[row] = ends ? static_cast<int32_t>(last) : -1;
        p_.has_nan_out[row] = is_nan_[row * p_.num_positions + last] != 0;
    }

    const AcceptDraftParams& p_;
    const Kernels& k_;
    ScanRow scan_row_;
    int64_t block_;
    std::vector<char> is_nan_;  // per position; not bool: threads write neighbours
};

}  // namespace

void launch_accept_draft(const AcceptDraftParams& params) { AcceptDraft(params, kernels()).run(); }

}  // namespace pybeam
