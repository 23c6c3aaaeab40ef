// The operator `decoder_layers`: checks, and the launch. Nothing here waits for the device, so
// nothing here can check values that serve as addresses.
#include "decoder_layers.cuh"
#include "stream.h"

namespace pybeam::cuda {
namespace {

constexpr int64_t kAddresses = sizeof(LayerAt) / sizeof(void*);

LayersPlan plan_for(const LayersParams& params, int device) {
    return plan_layers(params, attribute(cudaDevAttrMultiProcessorCount, device),
                       attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
}

int rounded_rows(int64_t num_rows) {
    return static_cast<int>((num_rows + kLines - 1) / kLines * kLines);
}

bool takes(const Tensor& like, int64_t num_rows, int64_t num_layers, int64_t inner_width,
           int64_t num_heads, int64_t num_logits) {
    check_dim("like", like, 2);
    if (num_rows < 1 || num_rows > kMaxRows || num_layers < 1 || num_layers > kMaxLayers ||
        like.size(1) > INT16_MAX || inner_width > INT16_MAX || num_logits > INT32_MAX) {
        return false;
    }
    const DeviceGuard guard(like.device().index);
    LayersParams params{};
    params.is_float16 = like.scalar_type() == ScalarType::kFloat16;
    params.num_layers = static_cast<int>(num_layers);
    params.place_rows = rounded_rows(num_rows);
    params.width = static_cast<int>(like.size(1));
    params.inner_width = static_cast<int>(inner_width);
    params.num_heads = static_cast<int>(num_heads);
    params.num_logits = static_cast<int>(num_logits);
    return plan_for(params, like.device().index).num_blocks > 0;
}

Tensor decoder_layers(const Tensor& states, const Tensor& layers, const Tensor& places,
                      const Tensor& books, const Tensor& offset, const Tensor& slot,
                      const Tensor& cell, const Tensor& num_cells, const Tensor& mask,
                      const Tensor& entry, const Tensor& new_cell, const Tensor& source_cell,
                      const Tensor& source_length, const OptionalTensor& norm_scale,
                      const OptionalTensor& norm_shift, const OptionalTensor& output,
                      const OptionalTensor& output_bias, int64_t num_pool_cells,
                      int64_t inner_width, int64_t num_heads, int64_t activation, bool is_pre_norm,
                      double epsilon, double scale) {
    const Device device = states.device();
    const DeviceGuard guard(device.index);
    check_dim("states", states, 2), check_dim("layers", layers, 2), check_dim("cell", cell, 2);
    check_dim("source_cell", source_cell, 2), check_dim("mask", mask, 3);
    const int64_t num_rows = states.size(0), num_layers = layers.size(0), num_slots = cell.size(0);
    const int64_t num_sources = slot.numel();
    const int64_t num_logits = output.has_value() ? output->size(0) : 0;
    const bool takes_them = takes(states, num_rows, num_layers, inner_width, num_heads, num_logits);
    PYBEAM_CHECK_VALUE(takes_them, "`decoder_layers` does not take ", num_rows, " rows of ",
                       num_layers, " layers of ", states.size(1), " and ", inner_width, " with ",
                       num_heads, " heads and ", num_logits,
                       " logits on this device; ask `takes_decoder_layers` before");
    PYBEAM_CHECK_VALUE(0 <= activation && activation < kNumActivations,
                       "`activation` must be 0 to ", kNumActivations - 1, ", but is ", activation);
    PYBEAM_CHECK_VALUE(num_sources <= kMaxRows, "`slot` must have at most ", kMaxRows,
                       " sources, but has ", num_sources);
    const auto ints = [&](const char* name, const Tensor& tensor, IntList shape) {
        check_tensor(name, tensor, ScalarType::kInt32, shape, device);
        check_contiguous(name, tensor);
        return data<int32_t>(tensor);
    };

    LayersParams params{};
    params.is_float16 = states.scalar_type() == ScalarType::kFloat16;
    PYBEAM_CHECK_VALUE(params.is_float16 || states.scalar_type() == ScalarType::kBFloat16,
                       "`states` must be bfloat16 or float16, but is ", states.scalar_type());
    check_contiguous("states", states);
    check_tensor("layers", layers, ScalarType::kInt64, {num_layers, kAddresses}, device);
    check_contiguous("layers", layers);
    params.layers = data<const LayerAt>(layers);
    params.states = data<const uint16_t>(states);
    params.num_layers = static_cast<int>(num_layers);
    params.place_rows = rounded_rows(num_rows);
    params.width = static_cast<int>(states.size(1));
    params.inner_width = static_cast<int>(inner_width);
    params.num_heads = static_cast<int>(num_heads);
    params.activation = static_cast<Activation>(activation);
    params.is_pre_norm = is_pre_norm;
    params.epsilon = static_cast<float>(epsilon), params.scale = static_cast<float>(scale);
    params.num_places = params.place_rows * places_of_row(params.width, inner_width);
    check_tensor("places", places, ScalarType::kInt16, {2, num_layers, params.num_places}, device);
    check_contiguous("places", places);
    params.places = data<uint16_t>(places);
    params.books = reinterpret_cast<uint32_t*>(ints("books", books, {2}));
    SeenCells& seen = params.seen;
    seen.num_sources = static_cast<int>(num_sources);
    seen.max_cells = static_cast<int>(cell.size(1));
    seen.mask_words = static_cast<int>(mask.size(2));
    seen.max_source_cells = static_cast<int>(source_cell.size(1));
    seen.num_pool_cells = static_cast<int>(num_pool_cells);
    seen.offset = ints("offset", offset, {num_sources + 1});
    seen.slot = ints("slot", slot, {num_sources});
    seen.cell = ints("cell", cell, {num_slots, cell.size(1)});
    seen.length = ints("num_cells", num_cells, {num_slots});
    check_tensor("mask", mask, ScalarType::kInt64, {num_slots, cell.size(1), mask.size(2)}, device);
    check_contiguous("mask", mask);
    seen.mask = data<const int64_t>(mask);
    seen.entry = ints("entry", entry, {num_rows});
    seen.new_cell = ints("new_cell", new_cell, {num_rows});
    seen.source_cell = ints("source_cell", source_cell, source_cell.sizes());
    seen.source_length = ints("source_length", source_length, {source_cell.size(0)});
    const auto numbers = [&](const char* name, const OptionalTensor& tensor, IntList shape) {
        if (!tensor.has_value()) return static_cast<const uint16_t*>(nullptr);
        check_tensor(name, *tensor, states.scalar_type(), shape, device);
        check_contiguous(name, *tensor);
        const auto* begin = data<const uint16_t>(*tensor);
        PYBEAM_CHECK_VALUE(reinterpret_cast<uintptr_t>(begin) % 16 == 0, "`", name,
                           "` must begin at a multiple of 16 bytes");
        return begin;
    };
    params.num_logits = static_cast<int>(num_logits);
    params.logits = {numbers("norm_scale", norm_scale, {states.size(1)}),
                     numbers("norm_shift", norm_shift, {states.size(1)}),
                     numbers("output", output, {num_logits, states.size(1)}),
                     numbers("output_bias", output_bias, {num_logits})};
    PYBEAM_CHECK_VALUE(norm_scale.has_value() == norm_shift.has_value(),
                       "`norm_scale` and `norm_shift` must be given together");
    params.plan = plan_for(params, device.index);
    const int64_t num_columns = num_logits > 0 ? num_logits : states.size(1);
    const Tensor out = empty({num_rows, num_columns}, states.scalar_type(), device);
    params.out = data<uint16_t>(out);
    check_cuda(launch_layers(params, Stream::current(device.index).stream));
    return out;
}

}  // namespace
}  // namespace pybeam::cuda

STABLE_TORCH_LIBRARY_FRAGMENT(pybeam, m) {
    m.def(
        "takes_decoder_layers(Tensor like, int num_rows, int num_layers, int inner_width, "
        "int num_heads, int num_logits) -> bool");
    m.def(
        "decoder_layers(Tensor states, Tensor layers, Tensor(a!) places, Tensor(b!) books, "
        "Tensor offset, Tensor slot, Tensor cell, Tensor num_cells, Tensor mask, Tensor entry, "
        "Tensor new_cell, Tensor source_cell, Tensor source_length, Tensor? norm_scale, "
        "Tensor? norm_shift, Tensor? output, Tensor? output_bias, int num_pool_cells, "
        "int inner_width, int num_heads, int activation, bool is_pre_norm, float epsilon, "
        "float scale) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(pybeam, CUDA, m) {
    pybeam::implement<&pybeam::cuda::takes>(m, "takes_decoder_layers");
    pybeam::implement<&pybeam::cuda::decoder_layers>(m, "decoder_layers");
}
