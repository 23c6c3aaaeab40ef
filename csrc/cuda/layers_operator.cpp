// The operator `decoder_layers`: checks, and the launch. Nothing here waits for the device, so
// nothing here can check values that serve as addresses.
#include <array>

#include "decoder_layers.cuh"
#include "select_call.h"
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

// Numbers of the places of a layer; 0: a launch does not take such layers.
int64_t takes(const Tensor& like, int64_t num_rows, int64_t num_layers, int64_t inner_width,
              int64_t num_heads, int64_t num_logits) {
    check_dim("like", like, 2);
    if (num_rows < 1 || num_rows > kMaxRows || num_layers < 1 || num_layers > kMaxLayers ||
        like.size(1) > INT16_MAX || inner_width > INT16_MAX || num_logits > INT32_MAX) {
        return 0;
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
    if (plan_for(params, like.device().index).num_blocks == 0) return 0;
    return int64_t{params.place_rows} * places_of_row(params.width, params.inner_width);
}

// Checks arguments of a device, and gives their numbers.
class Arguments {
  public:
    Arguments(Device device, ScalarType dtype) : device_(device), dtype_(dtype) {}

    int32_t* ints(const char* name, const Tensor& tensor, IntList shape) const {
        check_tensor(name, tensor, ScalarType::kInt32, shape, device_);
        check_contiguous(name, tensor);
        return data<int32_t>(tensor);
    }

    // Null: there is no tensor.
    const uint16_t* numbers(const char* name, const OptionalTensor& tensor, IntList shape) const {
        if (!tensor.has_value()) return nullptr;
        check_tensor(name, *tensor, dtype_, shape, device_);
        check_contiguous(name, *tensor);
        const auto* begin = data<const uint16_t>(*tensor);
        PYBEAM_CHECK_VALUE(reinterpret_cast<uintptr_t>(begin) % 16 == 0, "`", name,
                           "` must begin at a multiple of 16 bytes");
        return begin;
    }

    EmbeddingAt embedding(TensorList tensors, int64_t skipped_id, double scale) const {
        const Tensor &token = tensors[0], &place = tensors[1], &table = tensors[2];
        const Tensor& positions = tensors[3];
        const int64_t num_rows = token.numel(), width = table.size(1);
        return {ints("token", token, {num_rows}),
                ints("place", place, {num_rows}),
                numbers("table", table, {table.size(0), width}),
                numbers("positions", positions, {positions.size(0), width}),
                static_cast<int>(table.size(0)),
                static_cast<int>(positions.size(0)),
                static_cast<int>(skipped_id),
                static_cast<float>(scale)};
    }

    SeenCells seen(TensorList tensors, int64_t num_rows, int64_t num_pool_cells) const {
        const Tensor &offset = tensors[0], &slot = tensors[1], &cell = tensors[2];
        const Tensor &mask = tensors[4], &source_cell = tensors[7];
        check_dim("cell", cell, 2), check_dim("mask", mask, 3);
        check_dim("source_cell", source_cell, 2);
        const int64_t num_sources = slot.numel(), num_slots = cell.size(0);
        PYBEAM_CHECK_VALUE(num_sources <= kMaxRows, "`slot` must have at most ", kMaxRows,
                           " sources, but has ", num_sources);
        const std::array<int64_t, 3> masks{num_slots, cell.size(1), mask.size(2)};
        check_tensor("mask", mask, ScalarType::kInt64, masks, device_);
        check_contiguous("mask", mask);
        return {ints("offset", offset, {num_sources + 1}),
                ints("slot", slot, {num_sources}),
                ints("cell", cell, {num_slots, cell.size(1)}),
                ints("num_cells", tensors[3], {num_slots}),
                data<const int64_t>(mask),
                ints("entry", tensors[5], {num_rows}),
                ints("new_cell", tensors[6], {num_rows}),
                ints("source_cell", source_cell, source_cell.sizes()),
                ints("source_length", tensors[8], {source_cell.size(0)}),
                static_cast<int>(num_sources),
                static_cast<int>(cell.size(1)),
                static_cast<int>(mask.size(2)),
                static_cast<int>(source_cell.size(1)),
                static_cast<int>(num_pool_cells)};
    }

  private:
    Device device_;
    ScalarType dtype_;
};

// Returns states or logits; or, where there are scores of rows, the survivors of beams.
std::vector<Tensor> decoder_layers(
    const OptionalTensor& states, TensorList embedding, TensorList kept, TensorList seen,
    const OptionalTensor& norm_scale, const OptionalTensor& norm_shift,
    const OptionalTensor& output, const OptionalTensor& output_bias, const OptionalTensor& score,
    const OptionalTensor& offset, const OptionalTensor& width, const OptionalTensor& is_ended,
    const OptionalTensor& max_candidates, const OptionalTensor& margin,
    const OptionalTensor& local_margin, const OptionalTensor& best_finished,
    const OptionalTensor& forced, const OptionalTensor& ban_eos, IntList eos_ids, int64_t finishing,
    int64_t capacity, bool normalise, int64_t num_pool_cells, int64_t inner_width,
    int64_t num_heads, int64_t activation, bool is_pre_norm, int64_t skipped_id,
    double embedding_scale, double epsilon, double scale) {
    check_size("embedding", embedding, 4), check_size("kept", kept, 3);
    check_size("seen", seen, 9);
    const Tensor &table = embedding[2], &layers = kept[0], &places = kept[1];
    const Device device = table.device();
    const DeviceGuard guard(device.index);
    check_dim("table", table, 2), check_dim("positions", embedding[3], 2);
    check_dim("layers", layers, 2);
    const int64_t num_rows = embedding[0].numel(), num_columns = table.size(1);
    const int64_t num_layers = layers.size(0);
    const int64_t num_logits = output.has_value() ? output->size(0) : 0;
    const int64_t num_places =
        takes(table, num_rows, num_layers, inner_width, num_heads, num_logits);
    PYBEAM_CHECK_VALUE(num_places > 0, "`decoder_layers` does not take ", num_rows, " rows of ",
                       num_layers, " layers of ", num_columns, " and ", inner_width, " with ",
                       num_heads, " heads and ", num_logits,
                       " logits on this device; ask `takes_decoder_layers` before");
    PYBEAM_CHECK_VALUE(0 <= activation && activation < kNumActivations,
                       "`activation` must be 0 to ", kNumActivations - 1, ", but is ", activation);
    PYBEAM_CHECK_VALUE(norm_scale.has_value() == norm_shift.has_value(),
                       "`norm_scale` and `norm_shift` must be given together");

    const ScalarType dtype = table.scalar_type();
    const Arguments given(device, dtype);
    LayersParams params{};
    params.is_float16 = dtype == ScalarType::kFloat16;
    PYBEAM_CHECK_VALUE(params.is_float16 || dtype == ScalarType::kBFloat16,
                       "`table` must be bfloat16 or float16, but is ", dtype);
    check_tensor("layers", layers, ScalarType::kInt64, {num_layers, kAddresses}, device);
    check_contiguous("layers", layers);
    params.layers = data<const LayerAt>(layers);
    params.states = given.numbers("states", states, {num_rows, num_columns});
    params.embedding = given.embedding(embedding, skipped_id, embedding_scale);
    params.num_layers = static_cast<int>(num_layers);
    params.place_rows = rounded_rows(num_rows);
    params.width = static_cast<int>(num_columns);
    params.inner_width = static_cast<int>(inner_width);
    params.num_heads = static_cast<int>(num_heads);
    params.activation = static_cast<Activation>(activation);
    params.is_pre_norm = is_pre_norm;
    params.epsilon = static_cast<float>(epsilon), params.scale = static_cast<float>(scale);
    params.num_places = num_places;
    check_tensor("places", places, ScalarType::kInt16, {2, num_layers, params.num_places}, device);
    check_contiguous("places", places);
    params.places = data<uint16_t>(places);
    params.books = reinterpret_cast<uint32_t*>(given.ints("books", kept[2], {kBooks}));
    params.seen = given.seen(seen, num_rows, num_pool_cells);
    params.num_logits = static_cast<int>(num_logits);
    params.logits = {given.numbers("norm_scale", norm_scale, {num_columns}),
                     given.numbers("norm_shift", norm_shift, {num_columns}),
                     given.numbers("output", output, {num_logits, num_columns}),
                     given.numbers("output_bias", output_bias, {num_logits})};
    params.plan = plan_for(params, device.index);
    const cudaStream_t stream = Stream::current(device.index).stream;
    params.out_stride = num_logits > 0 ? num_logits : num_columns;
    // a choice reads logits in vectors
    params.has_choice = score.has_value();
    if (params.has_choice) params.out_stride = (num_logits + kLines - 1) / kLines * kLines;
    const Tensor out = empty({num_rows, params.out_stride}, dtype, device);
    params.out = data<uint16_t>(out);
    if (!params.has_choice) {
        check_cuda(launch_layers(params, stream));
        return {out};
    }
    PYBEAM_CHECK_VALUE(offset.has_value() && width.has_value() && num_logits > 0,
                       "`score` needs `offset`, `width` and `output` beside it");
    const SelectCall call(out, *score, *offset, *width, is_ended, max_candidates, margin,
                          local_margin, best_finished, forced, ban_eos, eos_ids, finishing,
                          capacity, normalise);
    check_sizes(call.params, num_logits);
    const int64_t num_entries = call.num_entries;
    check_entries(num_entries, num_rows, is_ended);
    PYBEAM_CHECK_VALUE(width->numel() == params.seen.num_sources, "`width` must have ",
                       params.seen.num_sources, " numbers, one for each source, but has ",
                       width->numel());
    ChoiceAt& choice = params.choice;
    choice.select = SelectParams{call.params, num_entries};
    choice.select.vocab_size = num_logits;
    choice.num_slices = choice_slices(params.num_logits, params.plan.num_blocks);
    const Tensor peaks =
        empty({num_entries, choice.num_slices * kChoiceGroups}, ScalarType::kFloat32, device);
    const Tensor totals =
        empty({num_entries, params.plan.num_blocks, 2}, ScalarType::kFloat32, device);
    choice.peaks = data<float>(peaks), choice.totals = data<Total>(totals);
    check_cuda(launch_layers(params, stream));
    return std::apply([](const auto&... results) { return std::vector<Tensor>{results...}; },
                      call.results);
}

}  // namespace
}  // namespace pybeam::cuda

STABLE_TORCH_LIBRARY_FRAGMENT(pybeam, m) {
    m.def(
        "takes_decoder_layers(Tensor like, int num_rows, int num_layers, int inner_width, "
        "int num_heads, int num_logits) -> int");
    m.def(
        "decoder_layers(Tensor? states, Tensor[] embedding, Tensor(a!)[] kept, Tensor[] seen, "
        "Tensor? norm_scale, Tensor? norm_shift, Tensor? output, Tensor? output_bias, "
        "Tensor? score, Tensor? offset, Tensor? width, Tensor? is_ended, Tensor? max_candidates, "
        "Tensor? margin, Tensor? local_margin, Tensor? best_finished, Tensor? forced, "
        "Tensor? ban_eos, int[] eos_ids, int finishing, "
        "int capacity, bool normalise, int num_pool_cells, int inner_width, int num_heads, "
        "int activation, bool is_pre_norm, int skipped_id, float embedding_scale, float epsilon, "
        "float scale) -> Tensor[]");
}

STABLE_TORCH_LIBRARY_IMPL(pybeam, CUDA, m) {
    pybeam::implement<&pybeam::cuda::takes>(m, "takes_decoder_layers");
    pybeam::implement<&pybeam::cuda::decoder_layers>(m, "decoder_layers");
}
