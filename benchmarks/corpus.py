"""The parallel corpus and the example model as the benchmarks use them."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import sacrebleu.metrics
import sentencepiece

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "examples" / "models" / "bible-es-en"
DATA = ROOT.parent / "shared" / "data" / "bible-es-en"
EOS = 2


@dataclass
class Corpus:
    """Token ids of the sources, EOS at the end, and the reference lines."""

    sources: list[list[int]]
    references: list[str]
    pieces: sentencepiece.SentencePieceProcessor

    def first(self, lines: int) -> Corpus:
        return Corpus(self.sources[:lines], self.references[:lines], self.pieces)

    def bleu(self, outputs: list[list[int]]) -> float:
        return self.bleu_score(outputs).score

    def bleu_score(self, outputs: list[list[int]]) -> sacrebleu.metrics.BLEUScore:
        """BLEU with all that went into it, such as the lengths."""
        lines = [self.pieces.decode(tokens) for tokens in outputs]
        return sacrebleu.corpus_bleu(lines, [self.references])

    @property
    def vocabulary(self) -> list[str]:
        return [self.pieces.id_to_piece(i) for i in range(self.pieces.get_piece_size())]


def add_options(parser: argparse.ArgumentParser) -> None:
    """What every benchmark of translation asks: which lines, and how many threads."""
    parser.add_argument("--data", type=Path, default=DATA, help="folder with dev.es and dev.en")
    parser.add_argument("--split", default="dev", help="dev, or test for test.es and test.en")
    parser.add_argument("--threads", type=int, default=2)


def load(data: Path = DATA, split: str = "dev", lines: int | None = None) -> Corpus:
    """Raises FileNotFoundError with the remedy if the data folder is absent."""
    for suffix in (".es", ".en"):
        if not (data / f"{split}{suffix}").exists():
            raise FileNotFoundError(
                f"{data / (split + suffix)} is missing; pass --data DIR with {split}.es and {split}.en"
            )
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(MODEL / "sentencepiece.model"))
    read = lambda suffix: (data / f"{split}{suffix}").read_text("utf-8").splitlines()[:lines]  # noqa: E731
    sources = [[*pieces.encode(line), EOS] for line in read(".es")]
    return Corpus(sources, read(".en"), pieces)
