"""Word error rates of the example recogniser, by searches of the FireRedASR family beside each other.

On spoken numbers that espeak-ng synthesises, in voices that were not heard in training and in noise.

python -m benchmarks.bench_speech [--recordings 300]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import jiwer

import pybeam
from benchmarks import corpus, report
from examples.speech.spoken_numbers import recordings
from pybeam.speech import load_feature_extractor

MODEL = corpus.ROOT / "examples" / "models" / "spoken-numbers-en"
SMOOTHED = [pybeam.processors.temperature(1.25), pybeam.processors.eos_penalty(0.9)]
GNMT = pybeam.scoring.gnmt(0.6)
N_BEST = 3
SEARCHES = {
    "greedy": (pybeam.greedy(), pybeam.Batch(32)),
    "FIXED": (pybeam.fixed_beam(5, n_best=N_BEST), pybeam.Batch(32)),
    "FIXED, smoothed, EOS penalty, GNMT": (
        pybeam.fixed_beam(5, n_best=N_BEST, scoring=GNMT, processors=SMOOTHED),
        pybeam.Batch(32),
    ),
    "FireRedASR's, the same options": (
        pybeam.compat.fireredasr.beam_search(
            5, nbest=N_BEST, softmax_smoothing=1.25, eos_penalty=0.9, length_penalty=0.6
        ),
        pybeam.Streaming(32),
    ),
    "VAR-STREAM, the same options": (
        pybeam.variable_beam(
            10,
            threshold=2.5,
            max_candidates=3,
            n_best=N_BEST,
            scoring=GNMT,
            processors=SMOOTHED,
        ),
        pybeam.Streaming(32),
    ),
}


def word_errors(texts: list[str], found: list[list[str]]) -> tuple[float, float]:
    """Word error rates in percent: of the best outputs, and of the best among all (the oracle)."""
    closest = [
        min(own, key=lambda text, spoken=spoken: jiwer.wer(spoken, text))
        for spoken, own in zip(texts, found, strict=True)
    ]
    return tuple(100 * jiwer.wer(texts, out) for out in ([own[0] for own in found], closest))


def measure(num: int) -> dict:
    model, tokenizer = pybeam.load_model(MODEL), pybeam.load_tokenizer(MODEL)
    extract = load_feature_extractor(MODEL)
    pairs = list(recordings("test", num, seed=2, noise_db=(0.0, 20.0)))
    sources, texts = [extract(samples) for samples, _ in pairs], [text for _, text in pairs]
    rows = []
    for name, (search, schedule) in SEARCHES.items():
        decoder = pybeam.Decoder(model, search, schedule=schedule)
        results = decoder.decode(sources)
        found = [[tokenizer.decode(one.tokens) for one in r.hypotheses] for r in results]
        best, oracle = word_errors(texts, found)
        stats = decoder.stats
        rows.append(
            {
                "search": name,
                "WER": best,
                f"oracle WER of {N_BEST}": oracle,
                "expansions": stats.expansions,
                "expansions per step": stats.expansions_per_step,
            }
        )
    words = sum(len(text.split()) for text in texts)
    return {"recordings": num, "words": words, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recordings", type=int, default=300)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    found = measure(options.recordings)
    report.write("speech-cpu", options.output, found)
    print(f"{found['recordings']} recordings, {found['words']} words")
    print(report.table(found["rows"]))


if __name__ == "__main__":
    main()
