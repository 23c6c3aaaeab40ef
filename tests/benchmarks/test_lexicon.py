"""Lexical tables of the benchmark `marian`."""

import numpy as np
import pytest

from benchmarks.lexicon import lexical_table, write_lexicon

# "la" 0, "casa" 1, "flor" 2; "the" 3, "house" 4, "flower" 5
PAIRS = [([0, 1], [3, 4]), ([0, 2], [3, 5]), ([1], [4])]


def expected(rounds: int) -> dict[tuple[int, int], float]:
    """The same in plain Python."""
    chances = {(s, t): 1.0 for source, target in PAIRS for s in source for t in target}
    for _ in range(rounds):
        counts = dict.fromkeys(chances, 0.0)
        for source, target in PAIRS:
            for t in target:
                total = sum(chances[s, t] for s in source)
                for s in source:
                    counts[s, t] += chances[s, t] / total
        sums = {s: sum(c for (one, _), c in counts.items() if one == s) for s, _ in counts}
        chances = {(s, t): c / sums[s] for (s, t), c in counts.items()}
    return chances


def test_a_table_is_that_of_plain_python():
    table = lexical_table(PAIRS, 6, rounds=3)
    found = {(s, t): table[s, t] for s, t in np.argwhere(table).tolist()}
    assert found == pytest.approx(expected(3), rel=1e-5)
    assert table[:3].argmax(1).tolist() == [3, 4, 5]


def test_marian_reads_a_target_its_source_and_the_probability(tmp_path):
    table = lexical_table(PAIRS, 6, rounds=3)
    write_lexicon(tmp_path / "lexicon", table, ["la", "casa", "flor", "the", "house", "flower"], 1)
    lines = [line.split() for line in (tmp_path / "lexicon").read_text().splitlines()]
    assert [line[:2] for line in lines] == [["the", "la"], ["house", "casa"], ["flower", "flor"]]
    assert float(lines[2][2]) == pytest.approx(table[2, 5], abs=1e-7)
