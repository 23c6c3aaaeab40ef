"""The parallel corpus and the example model as the benchmarks use them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import sacrebleu.metrics
import sentencepiece

from benchmarks.tools.data import ROOT, folder_with
from pybeam.study.metrics import Bootstrap, Measure, metric_of

MODEL = ROOT / "examples" / "models" / "bible-es-en"
# of the other direction, which is not part of the repository
REVERSE = MODEL.with_name("bible-en-es")
EOS = 2
SAMPLES, SEED = 1000, 12345


@dataclass
class Corpus:
    """Token ids of the sources, EOS at the end, and the reference lines."""

    sources: list[list[int]]
    references: list[str]
    pieces: sentencepiece.SentencePieceProcessor

    def __add__(self, other: Corpus) -> Corpus:
        lines = self.sources + other.sources, self.references + other.references
        return Corpus(*lines, self.pieces)

    def first(self, lines: int | None) -> Corpus:
        return Corpus(self.sources[:lines], self.references[:lines], self.pieces)

    def spread(self, lines: int) -> Corpus:
        """So many lines, from all over the file."""
        step = max(1, len(self.sources) // lines)
        return Corpus(self.sources[::step][:lines], self.references[::step][:lines], self.pieces)

    def of_length(self, least: int, most: int) -> Corpus:
        """The lines whose sources have so many tokens."""
        places = [i for i, source in enumerate(self.sources) if least <= len(source) <= most]
        lists = [[given[i] for i in places] for given in (self.sources, self.references)]
        return Corpus(*lists, self.pieces)

    def bleu(self, outputs: list[list[int]]) -> float:
        return self.bleu_score(outputs).score

    def bleu_score(self, outputs: list[list[int]]) -> sacrebleu.metrics.BLEUScore:
        """BLEU with all that went into it, such as the lengths."""
        lines = [self.pieces.decode(tokens) for tokens in outputs]
        return sacrebleu.corpus_bleu(lines, [self.references])

    def bleu_lost(self, outputs: list[list[int]], baseline: list[list[int]]) -> Measure:
        """BLEU of the baseline less that of the outputs, and the interval of paired samples of lines."""
        bleu = metric_of("bleu")
        texts = [[self.pieces.decode(tokens) for tokens in own] for own in (baseline, outputs)]
        both = np.hstack([bleu.statistics(own, self.references) for own in texts])

        def lost(sums: np.ndarray) -> float:
            theirs, ours = map(bleu.value, np.split(sums, 2))
            return theirs - ours

        [measure] = Bootstrap(len(outputs), SAMPLES, SEED).measures(lost, [both])
        return measure

    @property
    def vocabulary(self) -> list[str]:
        return vocabulary(self.pieces)


def processor() -> sentencepiece.SentencePieceProcessor:
    """That of the example model."""
    return sentencepiece.SentencePieceProcessor(model_file=str(MODEL / "sentencepiece.model"))


def vocabulary(pieces: sentencepiece.SentencePieceProcessor) -> list[str]:
    """Its pieces, by id."""
    return [pieces.id_to_piece(i) for i in range(pieces.get_piece_size())]


def load(
    data: Path | None = None,
    split: str = "dev",
    lines: int | None = None,
    languages: tuple[str, str] = ("es", "en"),
) -> Corpus:
    """Raises FileNotFoundError with the remedy if the data are absent."""
    texts = []
    for language in languages:
        path = f"bible-es-en/{split}.{language}"
        texts.append((folder_with(path, data) / path).read_text("utf-8").splitlines()[:lines])
    pieces = processor()
    return Corpus([[*pieces.encode(line), EOS] for line in texts[0]], texts[1], pieces)
