"""Options of other systems, and ours that do the same: for those who try the names that they know."""

from __future__ import annotations

import click

# with hyphens; our option may come with a value
OURS: dict[str, str | tuple[str, ...]] = {
    "--alpha": "--length-penalty",
    "--bad-words-ids": "--suppress",
    "--ban-unk-token": "--no-unk",
    "--batch": "--batch-size",
    "--beam": "--width",
    "--beam-size": "--width",
    "--beam-width": "--width",
    "--block-ngram-repeat": "--no-repeat-ngram",
    "--compute-type": "--dtype",
    "--cpu-threads": "--threads",
    "--disable-unk": "--no-unk",
    "--gpus": "--device",
    "--inter-threads": ("--engines", "--processes"),
    "--intra-threads": "--threads",
    "--len-pen": "--length-penalty",
    "--lenpen": "--length-penalty",
    "--max-batch-size": "--batch-size",
    "--max-decoding-length": "--max-length",
    "--max-len": "--max-length",
    "--max-len-b": "--max-length",
    "--max-new-tokens": "--max-length",
    "--max-sentences": "--batch-size",
    "--max-tokens": "--batch-tokens",
    "--min-decoding-length": "--min-length",
    "--min-len": "--min-length",
    "--min-new-tokens": "--min-length",
    "--mini-batch": "--batch-size",
    "--model-dir": "--model",
    "--models": "--model",
    "--nbest": "--n-best",
    "--no-repeat-ngram-size": "--no-repeat-ngram",
    "--normalize": "--length-penalty",
    "--num-beams": "--width",
    "--num-hypotheses": "--n-best",
    "--num-return-sequences": "--n-best",
    "--num-threads": "--threads",
    "--output-format": "--format",
    "--precision": "--dtype",
    "--sampling-temperature": "--temperature",
    "--softmax-smoothing": "--temperature",
    "--source-language": "--source-lang",
    "--src-lang": "--source-lang",
    "--suppress-sequences": "--suppress",
    "--target-language": "--target-lang",
    "--tgt-lang": "--target-lang",
    "--torch-dtype": "--dtype",
    "--vad-filter": "--vad",
    "--word-timestamps": "--timestamps",
}


def near(name: str, command: click.Command) -> list[str]:
    """Return the command's option for another system's, if it has one."""
    own = {one for parameter in command.params for one in parameter.opts}
    found = OURS.get(name.replace("_", "-"), ())
    return [one for one in ([found] if isinstance(found, str) else found) if one in own]
