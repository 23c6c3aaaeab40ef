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
    // Those of the slots of the next step that have not stopped, and their rows, of which there are
    // none if pages are missing.
    int64_t next(const BeamProgram& beams, const Tensor& slot) {
        return beams.next_rows(slot, &running_);
    }

    bool some_stopped(const Tensor& slot) const { return num_running() < slot.numel(); }

    // Reads the rows of the running slots, of which there are so many, and gives them to a decoder
    // in place of those that it was given.
    void read(BeamProgram& beams, int64_t num_rows, LayerArguments* given) {
        std::array<int32_t*, BeamProgram::kNumRowArrays> memory;
        for (size_t i = 0; i < memory.size(); ++i) {
            size_[i] = i == BeamProgram::kOffset ? num_running() + 1 : num_rows;
            memory[i] = numbers_[i].room(size_[i]);
        }
        num_running_ = num_running();
        const Tensor running = array(running_.data(), &num_running_);
        beams.read(running, num_rows, memory);
        StackCells& cells = given->cells;
        const Tensor position = array(BeamProgram::kPosition);
        given->inputs = {array(BeamProgram::kToken), position};
        cells.cell = array(BeamProgram::kCell);
        cells.own[0] = cells.sources[0] = array(BeamProgram::kOffset);
        cells.own[1] = cells.sources[1] = running;
        // masks stand before the entries, paths behind them
        cells.own[cells.own.size() == 6 ? 5 : 4] = array(BeamProgram::kEntry);
        if (cells.position.has_value()) cells.position = position;
    }

  private:
    int64_t num_running() const { return static_cast<int64_t>(running_.size()); }

    static Tensor array(int32_t* numbers, const int64_t* size) {
        return {numbers,  ScalarType::kInt32, sizeof(int32_t),
                Device{}, IntList(size, 1),   IntList(&kStride, 1)};
    }

    Tensor array(BeamProgram::Row row) { return array(numbers_[row].get(), &size_[row]); }

    static constexpr int64_t kStride = 1;
    std::vector<int32_t> running_;
    int64_t num_running_ = 0;
    std::array<Scratch<int32_t>, BeamProgram::kNumRowArrays> numbers_;
    std::array<int64_t, BeamProgram::kNumRowArrays> size_{};
};

// Steps that have been done, and the seconds that their phases took.
struct StepsDone {
    int64_t num = 0;
    double read = 0, layers = 0, commit = 0;  // layers and the choice among their logits
};

// The flags of other threads that end a call of many steps: `now` at once, and `soon`, as a slot
// that has stopped does, from so many seconds on.
struct StepEnds {
    const bool *now, *soon;
    double patience;
};

// Does the step whose rows were read last, which `given` names, and up to `most` steps of those of
// these slots that have not stopped, which choose among columns where there are some: until
// something ends the call, there is no room for another step, or enough time has passed for the
// caller's other threads and signals. A step that raises before it commits does not count and has
// changed nothing: the caller does it again, to hear why.
inline StepsDone run_steps(BeamProgram& beams, const LayerProgram& layers, StepRows& rows,
                           const Tensor& slot, LayerArguments& given, StepEdits& edits,
                           StepColumns* columns, int64_t most, const StepEnds& ends) {
    using Clock = std::chrono::steady_clock;
    constexpr double kMostSeconds = 0.05;
    Clock::time_point last = Clock::now();
    const Clock::time_point begin = last;
    const auto has_passed = [&](double seconds) {
        return std::chrono::duration<double>(last - begin).count() > seconds;
    };
    const auto is_set = [](const bool* flag) { return __atomic_load_n(flag, __ATOMIC_RELAXED); };
    const auto count = [&last](double* seconds) {
        const Clock::time_point now = Clock::now();
        *seconds += std::chrono::duration<double>(now - last).count();
        last = now;
    };
    StepsDone done;
    for (int64_t num_rows = 0;;) {  // those of the first step have been read
        try {
            if (done.num > 0) rows.read(beams, num_rows, &given);
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
        if (++done.num == most || is_set(ends.now) || has_passed(kMostSeconds)) return done;
        num_rows = rows.next(beams, slot);
        if (num_rows == 0 || num_rows > given.out->size(0)) return done;
        const bool is_news = rows.some_stopped(slot) || is_set(ends.soon);
        if (is_news && (ends.patience <= 0 || has_passed(ends.patience))) return done;
    }
}

}  // namespace pybeam
