"""The columns of beams and drafts, and the reasons to stop, as numbers that kernels can name.

`pybeam.backends.arrays` says what each is; `tests/project/test_columns.py` compares the two.
"""

import triton.language as tl

(
    INT_REASON,
    INT_NUM_ROWS,
    INT_DEPTH,
    INT_NUM_FINISHED,
    INT_STEPS,
    INT_EXPANSIONS,
    INT_WAITED,
    INT_NUM_ENTRIES,
    INT_WIDTH,
    INT_NUM_EARLY_WIDTHS,
    INT_STOP_AT,
    INT_MAX_CANDIDATES,
    INT_MIN_LENGTH,
    INT_MAX_LENGTH,
    INT_PREFIX_LENGTH,
    INT_CERTIFIED,
    INT_NUM_FOUND,
    INT_TOP_HAS_ENDED,
    INT_SCORED_FROM,
    INT_TARGET_LENGTH,
    INT_ENDED_ONLY,
    NUM_INTS,
) = map(tl.constexpr, range(22))
(
    FLOAT_MARGIN,
    FLOAT_LOCAL_MARGIN,
    FLOAT_BEST_FINISHED,
    FLOAT_ALPHA,
    FLOAT_OFFSET,
    FLOAT_SCALE,
    FLOAT_REWARD,
    FLOAT_CAP,
    FLOAT_CUT_LENGTH_OFFSET,
    NUM_FLOATS,
) = map(tl.constexpr, range(10))
# finished hypotheses have as many ints as floats
FINISHED_NODE, FINISHED_LENGTH, FINISHED_EOS, NUM_FINISHED = map(tl.constexpr, range(4))
FINISHED_SCORE, FINISHED_LOG_PROB, FINISHED_FINAL = map(tl.constexpr, range(3))
(
    STOP_RUNNING,
    STOP_WIDTH,
    STOP_N_BEST,
    STOP_TOP_FINISHED,
    STOP_OPTIMAL,
    STOP_HEURISTIC,
    STOP_EMPTY_BEAM,
    STOP_MAX_LENGTH,
    STOP_ERROR,
) = map(tl.constexpr, range(9))
(
    DRAFT_MAX_ROWS,
    DRAFT_BLOCK,
    DRAFT_HORIZON,
    DRAFT_WINDOW,
    DRAFT_CREDIT,
    DRAFT_PRICE,
    DRAFT_FILL,
    DRAFT_NGRAM,
    DRAFT_NUM_GUESSES,
    DRAFT_FEEDS_ALL,
    NUM_DRAFT_INTS,
) = map(tl.constexpr, range(11))
