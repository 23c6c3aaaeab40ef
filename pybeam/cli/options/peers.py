"""Options of other systems, and ours that do the same: for those who try the names that they know."""

from __future__ import annotations

import click

# each of our options, and the names that other systems have for it
THEIRS = {
    "--algorithm": "--do-sample --sample --sampling",
    "--batch-size": "--batch --max-batch-size --max-sentences --mini-batch",
    "--batch-tokens": "--max-tokens",
    "--device": "--gpus",
    "--dtype": "--compute-type --precision --torch-dtype",
    "--engines": "--inter-threads",
    "--format": "--output-format",
    "--length-penalty": "--alpha --len-pen --lenpen --normalize",
    "--max-length": "--max-decoding-length --max-len --max-len-b --max-new-tokens",
    "--min-length": "--min-decoding-length --min-len --min-new-tokens",
    "--model": "--model-dir --models",
    "--n-best": "--nbest --num-hypotheses --num-return-sequences",
    "--no-repeat-ngram": "--block-ngram-repeat --no-repeat-ngram-size",
    "--no-unk": "--ban-unk-token --disable-unk",
    "--processes": "--inter-threads",
    "--source-lang": "--source-language --src-lang",
    "--suppress": "--bad-words-ids --suppress-sequences",
    "--target-lang": "--target-language --tgt-lang",
    "--temperature": "--sampling-temperature --softmax-smoothing",
    "--threads": "--cpu-threads --intra-threads --num-threads",
    "--timestamps": "--word-timestamps",
    "--top-k": "--sampling-topk",
    "--top-p": "--sampling-topp",
    "--vad": "--vad-filter",
    "--width": "--beam --beam-size --beam-width --num-beams",
}


def near(name: str, command: click.Command) -> list[str]:
    """Return the command's options for another system's, if it has any."""
    said = name.replace("_", "-")
    own = {one for parameter in command.params for one in parameter.opts}
    return [ours for ours, names in THEIRS.items() if said in names.split() and ours in own]
