"""Whatever a body holds, the answer names what is wrong with it, and the server goes on."""

import json
import random

import httpx
import pytest

from support.example_lines import LINES, translations
from support.paths import ROOT

WAV = (ROOT / "examples" / "speech" / "first.wav").read_bytes()
BODIES = {
    "/translate": {"q": "Y el rey dijo.", "source": "es", "target": "en", "alternatives": 1},
    "/v1/translations": {"text": ["a", "b"], "width": 2, "n_best": 1, "timeout": 9.0},
    "/v1/decode": {
        "source": [5, 6, 2],
        "prefix": [7],
        "max_length": {"ratio": 1, "constant": 4},
        "scoring": {"alpha": 1},
        "processors": [{"name": "temperature", "temperature": 2}],
        "priority": 1,
        "temperature": 0,
        "min_p": 0,
    },
    "/v1/sentences": {"text": "Y el rey.", "source_lang": "es"},
    "/v1/score": {"source": "Y el rey", "target": [5, 6], "length_penalty": 1},
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
        "stop": ["b"],
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "logprobs": True,
        "response_format": {"type": "text"},
    },
    "/v1/completions": {
        "prompt": "Y",
        "n": 1,
        "best_of": 2,
        "max_tokens": 5,
        "logprobs": 1,
        "seed": 1,
        "top_p": 1,
    },
}
ODD = [
    None, True, 0, -1, 1, 3, 127, 128, 2**31, 2**63, 2**64, -(2**70), 10**400, 0.5, -0.0, 1e308, -1e308,
    "NaN", "inf", "", "a", "\0", "\ud800", "é" * 50, "best", [], [[]], [[], []], [None], [0], [[0]], [[0.5]],
    [[1e300, 1.0]], ["a", 1], {}, {"a": {}}, {"name": "suppress_tokens", "tokens": [2**40]},
    {"name": "allowed_sequences", "sequences": [[]]}, {"name": "temperature", "temperature": float("nan")},
]  # fmt: skip
# neither 500 nor silence
EXPECTED = {200, 400, 404, 413, 422}


def spoiled(value, chance: random.Random):
    """Return a value with something odd in it."""
    if chance.random() < 0.3 or not isinstance(value, dict | list) or not value:
        return chance.choice(ODD)
    if isinstance(value, list):
        return [spoiled(one, chance) if chance.random() < 0.5 else one for one in value]
    key = chance.choice(list(value))
    spoilt = {**value, key: spoiled(value[key], chance)}
    if chance.random() < 0.2:
        del spoilt[key]
    if chance.random() < 0.1:
        spoilt[chance.choice(["stream", "processors", "model", "id"])] = chance.choice(ODD)
    return spoilt


def with_other_bytes(content: bytes, chance: random.Random) -> bytes:
    found = bytearray(content)
    for _ in range(chance.randint(1, 5)):
        at = chance.randrange(len(found) + 1)
        match chance.randint(0, 2):
            case 0:
                found[at : at + 1] = chance.randbytes(1)
            case 1:
                found[at:at] = chance.randbytes(chance.randint(1, 9))
            case _:
                del found[at : at + chance.randint(1, 9)]
    return bytes(found)


def ask(http: httpx.Client, chance: random.Random) -> httpx.Response:
    kind = chance.randint(0, 3)
    if kind == 0:
        head = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        tail = b'\r\n--b\r\nContent-Disposition: form-data; name="response_format"\r\n\r\ntext\r\n--b--\r\n'
        # the sound itself is long; what stands around it is not
        head, tail, wav = (
            with_other_bytes(part, chance) if chance.random() < 0.5 else part
            for part in (head, tail, WAV[: chance.choice([10, 60, 2000, 4000])])
        )
        headers = {"Content-Type": "multipart/form-data; boundary=b"}
        return http.post("/v1/audio/transcriptions", content=head + wav + tail, headers=headers)
    path = chance.choice(list(BODIES))
    body = BODIES[path]
    for _ in range(chance.randint(1, 2)):
        body = spoiled(body, chance)
        if not isinstance(body, dict):
            break
    content = json.dumps(body).encode()
    if kind == 1:
        content = with_other_bytes(content, chance)
    return http.post(path, content=content, headers={"Content-Type": "application/json"})


@pytest.mark.parametrize(
    "part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, 12))]
)
def test_no_body_is_a_mistake_of_ours(http, part):
    for seed in range(170 * part, 170 * (part + 1)):
        response = ask(http, random.Random(seed))
        assert response.status_code in EXPECTED, (seed, response.status_code, response.text[:500])
        if response.status_code != 200:
            assert response.json()["error"], seed
    body = {"text": LINES[0]}
    found = http.post("/v1/translations", json=body).json()["translations"][0]["text"]
    assert found == translations()[0]
