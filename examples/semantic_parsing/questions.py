"""Questions with their logical forms: GEO (US geography) and ATIS (flights), as lists of tokens."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

# the first ids of every vocabulary; hypotheses start from the first and end with the second
SPECIAL = START, EOS, UNKNOWN = ("<s>", "</s>", "<unk>")
NAMES = ("geo", "atis")


class Question(NamedTuple):
    text: list[str]
    form: list[str]


def load(name: str, data: Path) -> tuple[list[Question], list[Question]]:
    """Training and test questions of "geo" or "atis".

    GEO: the published split into 598 (training and development) and 279, place names replaced by `var0`
    and so on, as in the file. ATIS: every tenth line is for the test, as the file has no split, and
    variables are numbered in the order in which they appear, since some forms name them otherwise.

    Raises FileNotFoundError, with the remedy, where the data are not.
    """
    path = data / {"geo": "geo/geography-logic.json", "atis": "atis/atis-logic.txt"}[name]
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing; pass --data DIR with {path.relative_to(data)}")
    return (_geo if name == "geo" else _atis)(path.read_text("utf-8"))


def _geo(content: str) -> tuple[list[Question], list[Question]]:
    train: list[Question] = []
    test: list[Question] = []
    for entry in json.loads(content):
        form = entry["logic"][0].split()
        for sentence in entry["sentences"]:
            part = test if sentence["question-split"] == "test" else train
            part.append(Question(sentence["text"].split(), form))
    return train, test


def _atis(content: str) -> tuple[list[Question], list[Question]]:
    questions = []
    for line in content.splitlines():
        text, form = line.split(" ||| ")
        questions.append(Question(text.split(), _renumbered(form).split()))
    train = [question for i, question in enumerate(questions, 1) if i % 10]
    return train, questions[9::10]


def _renumbered(form: str) -> str:
    numbers: dict[str, int] = {}
    return re.sub(r"\$\w+", lambda m: f"${numbers.setdefault(m[0], len(numbers))}", form)


def vocabulary(train: list[Question]) -> tuple[list[str], int]:
    """Tokens by id, and how many of them logical forms use; words of questions alone come last.

    Words that occur once are left out: they teach the model what an unknown word may be.
    """
    of_forms = sorted({token for question in train for token in question.form})
    target = [*SPECIAL, *of_forms]
    counts = Counter(word for question in train for word in question.text)
    words = sorted(word for word, n in counts.items() if n > 1 and word not in target)
    return target + words, len(target)
