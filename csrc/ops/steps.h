// Steps of a decoder and its beams, one after another, between which nobody has a say.
#pragma once

#include <array>
#include <chrono>
#include <exception>
#include <vector>

#include "beam_program.h"
#include "layers.h"

namespace pybeam {

// The rows of a step, in memory that the next one uses again.
class StepRows {
  public:
    // Reads the rows of these slots, of which there are so many, and gives them to a decoder in
    // place of those that it was given.
    void read(BeamProgram& beams, const Tensor& slot, int64_t num_rows, LayerArguments* given) {
        std::array<int32_t*, BeamProgram::kNumRowArrays> memory;
        for (size_t i = 0; i < memory.size(); ++i) {
            size_[i] = i == BeamProgram::kOffset ? slot.numel() + 1 : num_rows;
            memory[i] = numbers_[i].room(size_[i]);
        }
        beams.read(slot, num_rows, memory);
        StackCells& cells = given->cells;
        const Tensor position = array(BeamProgram::kPosition);
        given->inputs = {array(BeamProgram::kToken), position};
        cells.cell = array(BeamProgram::kCell);
        cells.own[0] = cells.sources[0] = array(BeamProgram::kOffset);
        // masks stand before the entries, paths behind them
        cells.own[cells.own.size() == 6 ? 5 : 4] = array(BeamProgram::kEntry);
        if (cells.position.has_value()) cells.position = position;
    }

  private:
    Tensor array(BeamProgram::Row row) {
        return {numbers_[row].get(),     ScalarType::kInt32,  sizeof(int32_t), Device{},
                IntList(&size_[row], 1), IntList(&kStride, 1)};
    }

    static constexpr int64_t kStride = 1;
    std::array<Scratch<int32_t>, BeamProgram::kNumRowArrays> numbers_;
    std::array<int64_t, BeamProgram::kNumRowArrays> size_{};
};

// Steps that have been done, and the seconds that their phases took.
struct StepsDone {
    int64_t num = 0;
    double read = 0, layers = 0, commit = 0;  // layers and the choice among their logits
};

// Does the step whose rows were read last, which `given` names, and up to `most` steps of all these
// slots, which choose among columns where there are some: until one has stopped, there is no room
// for another step, the caller is called, or enough time has passed for its other threads and
// signals. A step that raises before it commits does not count and has changed nothing: the caller
// does it again, to hear why.
inline StepsDone run_steps(BeamProgram& beams, const LayerProgram& layers, StepRows& rows,
                           const Tensor& slot, LayerArguments& given, StepEdits& edits,
                           StepColumns* columns, int64_t most, const bool* is_called) {
    using Clock = std::chrono::steady_clock;
    constexpr auto kMostTime = std::chrono::milliseconds(20);
    Clock::time_point last = Clock::now();
    const Clock::time_point end = last + kMostTime;
    const auto count = [&last](double* seconds) {
        const Clock::time_point now = Clock::now();
        *seconds += std::chrono::duration<double>(now - last).count();
        last = now;
    };
    StepsDone done;
    for (int64_t num_rows = 0;;) {  // those of the first step have been read
        try {
            if (done.num > 0) rows.read(beams, slot, num_rows, &given);
            const bool may_pack = done.num == 0 && columns != nullptr && edits.empty();
            if (may_pack) columns->pack(layers.output(), slot, given.out->size(0));
            count(&done.read);
            const auto run = [&](SelectParams& select) {
                select.edits = beams.of_rows(edits);
                layers.run(given, &select);
            };
            columns == nullptr ? beams.choose_by(run) : beams.choose_by(*columns, run);
            count(&done.layers);
        } catch (const std::exception&) {
            return done;
        }
        beams.commit();
        count(&done.commit);
        if (++done.num == most || __atomic_load_n(is_called, __ATOMIC_RELAXED)) return done;
        num_rows = beams.next_rows(slot);
        if (num_rows == 0 || num_rows > given.out->size(0) || last > end) return done;
    }
}

}  // namespace pybeam
