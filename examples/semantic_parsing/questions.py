"""Read questions with their logical forms: GEO (US geography), ATIS (flights) and JOBS, as lists of tokens.

Placeholders replace ATIS's constants (argument identification, Dong and Lapata 2016, section 3.6):

    show flights from boston to denver after 5pm on us air flight 281
    show flights from ci0 to ci1 after ti0 on al0 air flight nu0

A form writes constants as `name : type`. Constants of one type are numbered in the order in which the
question names them, and the form then has `( from $0 ci0 )` instead of `( from $0 boston : ci )`.

Identification looks at the question alone, with names learnt in training. The test forms serve only to
score outputs. A constant that is not found stays in the form, and the model must write it.

Placeholders and constants correspond one to one, so an output that is right with placeholders is right
with constants. The converse has one exception: a model that writes out a constant which has a
placeholder counts as wrong.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

# the first ids of every vocabulary: hypotheses start from START and end with EOS
SPECIAL = START, EOS, UNKNOWN = ("<s>", "</s>", "<unk>")
FILES = {
    "geo": ("geo/geography-logic.json",),
    "atis": ("atis/atis-logic.txt",),
    "jobs": ("jobs/train.txt", "jobs/test.txt"),
}

# `airline : e` and `loc : t` are functions, not constants
CONSTANT = re.compile(r"(?<!\S)(\S+) : (?![et] )(\w+)")
TIME = r"(?P<hour>\d{1,2})(?P<minute>\d\d)?(?P<half>[ap]m)"
NUMBER = r"\d{3,}"
# a name neither begins nor ends with one of these words
NOT_AT_ENDS = set(
    "a after and around arriving at before between from in is leaving next of on or the to".split()
)
# how many questions a name must explain; names are accepted in rounds, the most frequent first
SUPPORT = (48, 24, 12, 6, 3)
# share of the questions with a name whose forms must have its constant
PRECISION = 0.8


class Question(NamedTuple):
    text: list[str]
    form: list[str]


class Parts(NamedTuple):
    train: list[Question]
    test: list[Question]
    lexicon: Lexicon | None  # None if the file has placeholders already


class Lexicon:
    """Find the constants in a question: names, times such as 630pm, and numbers.

    A number of three digits or more may be a time, a price or a flight number. Its placeholder stands for
    the digits alone, and the model writes the type: `( flight_number $0 nu0 : fn )`.

    Args:
        names: the constant of each name, as in {"american": "aa : al"}.
    """

    def __init__(self, names: dict[str, str]) -> None:
        self.names = names
        # the longest name first, so that a name inside it is not found instead
        known = sorted(names, key=lambda name: (-len(name), name))
        ways = [*map(re.escape, known), TIME, NUMBER]
        self._pattern = re.compile(rf"(?<!\S)(?:{'|'.join(ways)})(?!\S)")

    def identify(self, text: str) -> tuple[str, dict[str, str]]:
        """Return the question with placeholders, and the placeholder of each constant in it."""
        placeholders: dict[str, str] = {}
        count: Counter[str] = Counter()

        def placeholder(match: re.Match) -> str:
            constant = self._constant(match)
            if constant not in placeholders:
                kind = constant.partition(" : ")[2] or "nu"
                placeholders[constant] = f"{kind}{count[kind]}"
                count[kind] += 1
            return placeholders[constant]

        return self._pattern.sub(placeholder, text), placeholders

    def _constant(self, match: re.Match) -> str:
        if match[0] in self.names:
            return self.names[match[0]]
        if not match["hour"]:
            return match[0]
        hour = int(match["hour"]) % 12 + 12 * (match["half"] == "pm")
        return f"{100 * hour + int(match['minute'] or 0)} : ti"

    @classmethod
    def load(cls, path: Path | str) -> Lexicon:
        """Read what `save` wrote."""
        return cls(json.loads(Path(path).read_text("utf-8")))

    def save(self, path: Path | str) -> None:
        """Write the names as JSON."""
        Path(path).write_text(json.dumps(self.names, indent=0, sort_keys=True) + "\n", "utf-8")


def with_placeholders(form: str, placeholders: dict[str, str]) -> str:
    """Put the placeholders that `Lexicon.identify` gave into a form; other constants stay as they are."""

    def placeholder(match: re.Match) -> str:
        number = f"{placeholders.get(match[1], match[1])} : {match[2]}"
        return placeholders.get(match[0], number)

    return CONSTANT.sub(placeholder, form)


def with_constants(form: str, placeholders: dict[str, str]) -> str:
    """Put constants in place of placeholders: the inverse of `with_placeholders`."""
    constants = {placeholder: constant for constant, placeholder in placeholders.items()}
    return " ".join(constants.get(token, token) for token in form.split())


def load(name: str, data: Path) -> Parts:
    """Read training and test questions of "geo", "atis" or "jobs".

    GEO has the published split: 598 questions for training and development, 279 for the test. The file
    already replaces place names by `var0` and so on.

    ATIS's file has no split, so every tenth line is for the test. Variables are numbered in the order in
    which they appear, because forms name them differently. Brackets that a form leaves open are closed at
    its end. Placeholders replace constants, with a lexicon learnt from the training questions.

    JOBS has the published split: 500 questions for training, 140 for the test. The files have stems of
    words, and placeholders already.

    Raises:
        FileNotFoundError: a file is missing.
    """
    for path in FILES[name]:
        if not (data / path).exists():
            raise FileNotFoundError(f"{data / path} is missing; pass --data DIR with {path}")
    contents = [(data / path).read_text("utf-8") for path in FILES[name]]
    return {"geo": _geo, "atis": _atis, "jobs": _jobs}[name](*contents)


def _geo(content: str) -> Parts:
    train: list[Question] = []
    test: list[Question] = []
    for entry in json.loads(content):
        form = entry["logic"][0].split()
        for sentence in entry["sentences"]:
            part = test if sentence["question-split"] == "test" else train
            part.append(Question(sentence["text"].split(), form))
    return Parts(train, test, None)


def _atis(content: str) -> Parts:
    pairs = []
    for line in content.splitlines():
        text, form = line.split(" ||| ")
        pairs.append((text, _closed(_renumbered(form))))
    lexicon = learn([pair for i, pair in enumerate(pairs, 1) if i % 10])
    questions = []
    for text, form in pairs:
        text, placeholders = lexicon.identify(text)
        questions.append(Question(text.split(), with_placeholders(form, placeholders).split()))
    train = [question for i, question in enumerate(questions, 1) if i % 10]
    return Parts(train, questions[9::10], lexicon)


def _jobs(*parts: str) -> Parts:
    pairs = [[line.split("\t") for line in part.splitlines()] for part in parts]
    train, test = [[Question(text.split(), form.split()) for text, form in part] for part in pairs]
    return Parts(train, test, None)


def _renumbered(form: str) -> str:
    numbers: dict[str, int] = {}
    return re.sub(r"\$\w+", lambda m: f"${numbers.setdefault(m[0], len(numbers))}", form)


def _closed(form: str) -> str:
    return form + " )" * (form.split().count("(") - form.split().count(")"))


def learn(pairs: list[tuple[str, str]]) -> Lexicon:
    """Learn names from questions and their forms.

    A phrase of one or two words names a constant if at least 80 % of the questions with the phrase have the
    constant in their forms, and at least three of them have no other name for it. A phrase inside another
    name does not count.

    A phrase that reads like its constant, such as `new york` for `new_york : ci`, is preferred. It may have
    three words, and one question is enough for it.
    """
    rules = Lexicon({})
    texts, constants = [], []
    where: dict[str, list[int]] = defaultdict(list)
    together: Counter[tuple[str, str]] = Counter()
    alike = set()
    for i, (text, form) in enumerate(pairs):
        text, placeholders = rules.identify(text)
        taken = set(placeholders.values())
        texts.append(" ".join(["", *("_" if w in taken else w for w in text.split()), ""]))
        found = CONSTANT.finditer(with_placeholders(form, placeholders))
        constants.append({match[0] for match in found if match[1] not in taken})
        for phrase in _phrases(texts[i].split()):
            where[phrase].append(i)
            reading = re.sub(r"\W+", "_", phrase) + " : "
            pairs_here = [(phrase, constant) for constant in constants[i]]
            alike.update(pair for pair in pairs_here if pair[1].startswith(reading))
            together.update(pair for pair in pairs_here if _may_name(phrase) or pair in alike)

    def rank(pair: tuple[str, str]) -> tuple:
        length = pair[0].count(" ")
        return pair not in alike, -length * (pair in alike), -together[pair], -length, pair

    # a phrase may become more precise once other names are taken out, but hardly three times as precise
    likely = [pair for pair, n in together.items() if 3 * n > PRECISION * len(where[pair[0]])]
    candidates = [pair for pair in likely if pair in alike or together[pair] >= SUPPORT[-1]]
    return Lexicon(_accepted(sorted(candidates, key=rank), alike, where, texts, constants))


def _phrases(words: list[str]) -> set[str]:
    spans = [words[i : i + n] for n in (1, 2, 3) for i in range(len(words) - n + 1)]
    return {" ".join(span) for span in spans if "_" not in span}


def _may_name(phrase: str) -> bool:
    words = phrase.split()
    return len(words) < 3 and NOT_AT_ENDS.isdisjoint((words[0], words[-1]))


def _accepted(
    candidates: list[tuple[str, str]],
    alike: set[tuple[str, str]],
    where: dict[str, list[int]],
    texts: list[str],
    constants: list[set[str]],
) -> dict[str, str]:
    """Accept names among pairs of a phrase and a constant, which come best first."""
    names: dict[str, str] = {}
    unnamed = [set(of_form) for of_form in constants]
    for support in SUPPORT:
        size = -1
        # a phrase may become precise enough once other names have been taken out
        while size < len(names):
            size = len(names)
            for phrase, constant in candidates:
                inside = [i for i in where[phrase] if f" {phrase} " in texts[i]]
                right = sum(constant in constants[i] for i in inside)
                new = sum(constant in unnamed[i] for i in inside)
                needed = 1 if (phrase, constant) in alike else support
                if new >= needed and right >= PRECISION * len(inside):
                    names[phrase] = constant
                    for i in inside:
                        texts[i] = texts[i].replace(f" {phrase} ", " _ ")
                        unnamed[i].discard(constant)
    return names


def vocabulary(train: list[Question]) -> tuple[list[str], int]:
    """Return tokens by id, and how many of them logical forms use; words of questions alone come last.

    Words that occur once are left out, so that the model learns what an unknown word may be.
    """
    of_forms = sorted({token for question in train for token in question.form})
    target = [*SPECIAL, *of_forms]
    counts = Counter(word for question in train for word in question.text)
    words = sorted(word for word, n in counts.items() if n > 1 and word not in target)
    return target + words, len(target)
