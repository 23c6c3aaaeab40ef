"""The work around a search: choosing among its outputs, and translating in pieces.

`choice` translates the first lines of test. Does minimum Bayes risk beat beam 5? Its hypotheses are 32-best
lists, independent samples, or those of `stochastic_beam`; the utility is chrF. Lists are reranked
by the same model in int8, with equal weights, or by a model that translates back, with the weight that has
the most chrF on lines of dev. "best of" chooses by the reference, which no system can: it
is the most that could be won. "p" is that of sacrebleu's paired bootstrap on chrF against the first system.

`documents` joins five lines at a time. `tags` puts one word of every line into <b></b>: BLEU and chrF are
those of the output without tags, "kept" is the share of lines that have both tags once, in order.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import sacrebleu
from sacrebleu.metrics import CHRF
from sacrebleu.significance import PairedTest

import pybeam
from benchmarks.corpus import MODEL, load
from benchmarks.networks import trained_reverse
from benchmarks.setup import Setup
from benchmarks.tasks import Task
from benchmarks.tools.data import folder_with
from pybeam.reranking import (
    chrf,
    forward_scores,
    minimum_bayes_risk,
    probability_weights,
    rerank,
    reverse_scores,
    sample_weights,
)
from pybeam.text.units import Template, protected, sentences

LINES = 200
NUM = 32
MAX_LENGTH = 128
# verses are five to a document, all shorter than the model's 256 positions but not much
PER_DOCUMENT = 5
NORMALISED = pybeam.scoring.power(1.0)
BEAM = pybeam.fixed_beam(5, scoring=NORMALISED, max_length=MAX_LENGTH)
# of the scores of a model that translates back
WEIGHTS = [number / 10 for number in range(1, 16)]
TAGS = re.compile(r"</?b>")


@dataclass
class Verses:
    """Lines of test, and what systems make of them; each search runs once."""

    sources: list[str]
    references: list[str]
    tokenizer: pybeam.Tokenizer
    model: pybeam.Model
    # outputs of the case's first system
    baseline: list[str] | None = None
    _found: dict[str, list[pybeam.Result]] = field(default_factory=dict)

    def search(self, name: str, algorithm: pybeam.Algorithm, seeds: int = 0) -> list[pybeam.Result]:
        """Results for every line, or for every line and seed; no two requests share a seed."""
        if name not in self._found:
            sources = self.tokenizer.encode(self.sources)
            if seeds:
                repeated = [source for source in sources for _ in range(seeds)]
                sources = [
                    pybeam.Request(source, processors=[pybeam.processors.gumbel(seed)])
                    for seed, source in enumerate(repeated)
                ]
            self._found[name] = pybeam.Decoder(self.model, algorithm).decode(sources)
        return self._found[name]

    def texts(self, result: pybeam.Result) -> list[str]:
        return [self.tokenizer.decode(hypothesis.tokens) for hypothesis in result.hypotheses]

    def translated(self, texts: list[str]) -> list[str]:
        """By beam 5."""
        results = pybeam.Decoder(self.model, BEAM).decode(self.tokenizer.encode(texts))
        return [self.texts(result)[0] for result in results]

    def in_pieces(self, templates: list[Template]) -> list[str]:
        found = iter(self.translated([text for one in templates for text in one.texts]))
        return [one.fill([next(found) for _ in one.texts]) for one in templates]

    def n_best(self) -> list[pybeam.Result]:
        algorithm = pybeam.fixed_beam(NUM, n_best=NUM, scoring=NORMALISED, max_length=MAX_LENGTH)
        return self.search("n-best", algorithm)

    def samples(self, temperature: float = 1.0) -> list[pybeam.Result]:
        """All different."""
        processors = [] if temperature == 1 else [pybeam.processors.temperature(temperature)]
        algorithm = pybeam.stochastic_beam(NUM, max_length=MAX_LENGTH, processors=processors)
        return self.search(f"samples {temperature}", algorithm, seeds=1)

    def independent(self) -> list[list[str]]:
        """Samples with replacement: beams of one row."""
        search = pybeam.stochastic_beam(1, max_length=MAX_LENGTH)
        results = self.search("independent", search, seeds=NUM)
        texts = [self.texts(result)[0] for result in results]
        return [texts[i : i + NUM] for i in range(0, len(texts), NUM)]

    def measures(self, outputs: list[str]) -> dict:
        row = {"lines": len(outputs), **quality(outputs, self.references)}
        if self.baseline is None:
            self.baseline = outputs
            return row
        pair = [("first", self.baseline), ("this", outputs)]
        test = PairedTest(pair, {"chrF": CHRF()}, [self.references], "bs", 1000, n_jobs=1)
        [scores] = [values for name, values in test()[1].items() if name != "System"]
        return row | {"p": scores[1].p_value}


def quality(outputs: Sequence[str], references: Sequence[str]) -> dict:
    bleu = sacrebleu.corpus_bleu(outputs, [references])
    score = sacrebleu.corpus_chrf(outputs, [references])
    return {
        "BLEU": round(bleu.score, 2),
        "chrF": round(score.score, 2),
        "length ratio": round(bleu.sys_len / bleu.ref_len, 3),
    }


def choices(verses: Verses, dev: Verses) -> dict[str, Callable[[], list[str]]]:
    """By system, what it makes of all lines; weights are chosen on those of `dev`."""
    decode = verses.tokenizer.decode

    def best(results: list[pybeam.Result]) -> list[str]:
        return [decode(result.hypotheses[0].tokens) for result in results]

    def risk(results: list[pybeam.Result], weigh: Callable | None = None) -> list[str]:
        lines = [(verses.texts(r), weigh and weigh(r.hypotheses)) for r in results]
        return [texts[minimum_bayes_risk(texts, weights=w).index] for texts, w in lines]

    def of_samples() -> list[str]:
        return [texts[minimum_bayes_risk(texts).index] for texts in verses.independent()]

    def by_samples() -> list[str]:
        """The n-best list is chosen from, and the samples say what the model means."""
        pairs = zip(map(verses.texts, verses.n_best()), verses.independent(), strict=True)
        return [texts[minimum_bayes_risk(texts, samples).index] for texts, samples in pairs]

    def in_int8() -> list[str]:
        small = pybeam.load_model(MODEL, device="cpu", dtype="int8")
        scorer = pybeam.Decoder(small, pybeam.greedy(scoring=NORMALISED))
        sources = verses.tokenizer.encode(verses.sources)
        scores = forward_scores(scorer, sources, verses.n_best())
        return best(rerank(verses.n_best(), [scores], (0.5, 0.5)))

    def noisy_channel() -> list[str]:
        path = trained_reverse()
        tokenizer = pybeam.load_tokenizer(path)
        scorer = pybeam.Decoder(
            pybeam.load_model(path, device="cpu"), pybeam.greedy(scoring=NORMALISED)
        )

        def reranked(own: Verses, weights: Sequence[float]) -> dict[float, list[str]]:
            texts = [own.texts(result) for result in own.n_best()]
            scores = reverse_scores(scorer, tokenizer, own.sources, texts)
            return {one: best(rerank(own.n_best(), [scores], (1.0, one))) for one in weights}

        found = reranked(dev, WEIGHTS)
        weight = max(found, key=lambda one: quality(found[one], dev.references)["chrF"])
        print(f"weight {weight}: {quality(found[weight], dev.references)} on dev")
        return reranked(verses, [weight])[weight]

    def with_reference() -> list[str]:
        lines = zip(map(verses.texts, verses.n_best()), verses.references, strict=True)
        return [texts[int(chrf(texts, [reference])[:, 0].argmax())] for texts, reference in lines]

    mild = 0.5
    return {
        "beam 5": lambda: best(verses.search("beam 5", BEAM)),
        f"beam {NUM}": lambda: best(verses.n_best()),
        f"rerank, {NUM}-best, int8": in_int8,
        f"rerank, {NUM}-best, noisy channel": noisy_channel,
        f"MBR, {NUM}-best": lambda: risk(verses.n_best()),
        f"MBR, {NUM}-best, probabilities": lambda: risk(verses.n_best(), probability_weights),
        "one sample": lambda: [texts[0] for texts in verses.independent()],
        f"MBR, {NUM} independent samples": of_samples,
        f"MBR, {NUM}-best by {NUM} independent samples": by_samples,
        f"MBR, stochastic_beam({NUM})": lambda: risk(verses.samples()),
        f"MBR, stochastic_beam({NUM}), sample_weights": lambda: risk(
            verses.samples(), sample_weights
        ),
        f"MBR, stochastic_beam({NUM}), temperature {mild}": lambda: risk(verses.samples(mild)),
        f"best of {NUM}-best": with_reference,
    }


def documents(verses: Verses) -> dict[str, Callable[[], dict]]:
    """Documents of five lines: line by line, sentence by sentence, and as one line."""

    def joined(lines: list[str]) -> list[str]:
        starts = range(0, len(lines), PER_DOCUMENT)
        return [" ".join(lines[i : i + PER_DOCUMENT]) for i in starts]

    def of_sentences() -> dict:
        templates = list(map(sentences("es"), joined(verses.sources)))
        num = sum(len(template.texts) for template in templates)
        outputs = verses.in_pieces(templates)
        return {"pieces": num, **quality(outputs, joined(verses.references))}

    def of_lines() -> dict:
        outputs = joined(verses.translated(verses.sources))
        return {"pieces": len(verses.sources), **quality(outputs, joined(verses.references))}

    def whole() -> dict:
        texts = joined(verses.sources)
        limit = verses.model.max_positions
        tokens = [own[: limit - 1] + own[-1:] for own in verses.tokenizer.encode(texts)]
        long = pybeam.fixed_beam(5, scoring=NORMALISED, max_length=limit)
        results = pybeam.Decoder(verses.model, long).decode(tokens)
        outputs = [verses.tokenizer.decode(result.hypotheses[0].tokens) for result in results]
        return {"pieces": len(texts), **quality(outputs, joined(verses.references))}

    return {"lines": of_lines, "documents, by sentences": of_sentences, "documents as lines": whole}


def tags(verses: Verses) -> dict[str, Callable[[], dict]]:
    """One word of every line in tags: without them, protected, and sent through the model."""
    generator = random.Random(1)

    def tagged(line: str) -> str:
        words = line.split()
        place = generator.randrange(len(words))
        words[place] = f"<b>{words[place]}</b>"
        return " ".join(words)

    marked = [tagged(line) for line in verses.sources]

    def measured(outputs: list[str]) -> dict:
        kept = [TAGS.findall(output) == ["<b>", "</b>"] for output in outputs]
        bare = [" ".join(TAGS.sub("", output).split()) for output in outputs]
        return {"kept": sum(kept) / len(kept), **quality(bare, verses.references)}

    return {
        "no tags": lambda: measured(verses.translated(verses.sources)),
        "tags protected": lambda: measured(verses.in_pieces(list(map(protected(TAGS), marked)))),
        "tags through the model": lambda: measured(verses.translated(marked)),
    }


def pipelines(setup: Setup) -> Iterator[list[Task]]:
    """Minimum Bayes risk, reranking, documents and protected tags on verses of test."""
    lines = setup.lines or LINES
    model, tokenizer = pybeam.load_model(MODEL, device="cpu"), pybeam.load_tokenizer(MODEL)

    def verses_of(part: str) -> Verses:
        path = f"bible-es-en/{part}.es"
        sources = (folder_with(path, setup.data) / path).read_text("utf-8").splitlines()[:lines]
        return Verses(sources, load(setup.data, part, lines).references, tokenizer, model)

    made = verses_of("test")
    yield [
        Task("choice", name, lambda run=run: made.measures(run()))
        for name, run in choices(made, verses_of("dev")).items()
    ]
    yield [Task("documents", name, run) for name, run in documents(made).items()]
    yield [Task("tags", name, run) for name, run in tags(made).items()]
