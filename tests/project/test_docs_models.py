"""Every example of docs/models.md runs, with tiny random models in place of those it would download."""

import re
from types import SimpleNamespace

import pytest
import torch

from support.paths import ROOT

EXAMPLES = dict(
    re.findall(
        r"^## ([^\n]+)\n+```python\n(.*?)```",
        (ROOT / "docs" / "models.md").read_text("utf-8"),
        re.M | re.S,
    )
)


class Tokenizer:
    """Of letters; also a processor of sound."""

    eos_token_id = 2

    def __call__(self, texts, padding=False, return_tensors=None, sampling_rate=None):
        if sampling_rate is not None:
            return SimpleNamespace(input_features=torch.randn(1, 6, 24))
        lines = [[3 + ord(letter) % 40 for letter in text] for text in texts]
        if not padding:
            return SimpleNamespace(input_ids=lines)
        longest = max(map(len, lines))
        ids = torch.tensor([line + [1] * (longest - len(line)) for line in lines])
        return dict(input_ids=ids, attention_mask=(ids != 1).long())

    def decode(self, tokens, **_):
        return " ".join(map(str, tokens))

    def batch_decode(self, lines, **_):
        return [self.decode(line) for line in lines.tolist()]

    def get_decoder_prompt_ids(self, language, task):
        return [(1, 7), (2, 8)]


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_runs(name, monkeypatch, capsys):
    transformers = pytest.importorskip("transformers")
    from support.huggingface_models import tiny_network

    for kind, stem in (("marian", "Seq2SeqLM"), ("qwen", "CausalLM"), ("whisper", "SpeechSeq2Seq")):
        network = tiny_network(kind)
        monkeypatch.setattr(
            getattr(transformers, f"AutoModelFor{stem}"), "from_pretrained", lambda _, n=network: n
        )
    for stem in ("AutoTokenizer", "AutoProcessor"):
        monkeypatch.setattr(getattr(transformers, stem), "from_pretrained", lambda _: Tokenizer())
    monkeypatch.chdir(ROOT)
    code = EXAMPLES[name]
    # Whisper's real outputs are longer than a tiny model has room for
    exec(code.replace("max_length=200", "max_length=20"), {})
    assert capsys.readouterr().out.strip()


def test_there_is_an_example_of_every_front_end():
    assert len(EXAMPLES) == 7
