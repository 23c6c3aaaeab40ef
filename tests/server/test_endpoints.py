"""Every endpoint answers what the library does."""

import json
import re

import pytest

import pybeam
from support.example_lines import LINES, translations
from support.paths import MODEL, ROOT
from support.server_app import decoder

TOKENIZER = pybeam.load_tokenizer(MODEL)
FIRST = ROOT / "examples" / "speech" / "first.wav"


def answer(response, status=200):
    assert response.status_code == status, response.text
    return response.json()


def events(response) -> list[tuple[str, dict]]:
    """The names and data of server-sent events."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    found = []
    for block in response.text.strip().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.split("\n"))
        data = lines["data"]
        found.append((lines.get("event", ""), data if data == "[DONE]" else json.loads(data)))
    return found


def close(value):
    return pytest.approx(value, abs=1e-5)


def test_translate(http):
    body = {"q": LINES, "source": "es", "target": "en"}
    assert answer(http.post("/translate", json=body)) == {"translatedText": translations()}
    for kind in ({"json": {**body, "q": LINES[0]}}, {"data": {**body, "q": LINES[0]}}):
        assert answer(http.post("/translate", **kind)) == {"translatedText": translations()[0]}


def test_translate_takes_a_form_as_curl_sends_it(http):
    body = f"q={LINES[1]}&source=es&target=en".encode()
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    found = answer(http.post("/translate", content=body, headers=kind))
    assert found == {"translatedText": translations()[1]}


def test_translate_keeps_lines_and_gives_alternatives(http):
    body = {"q": f"{LINES[0]}\n\n{LINES[2]}", "source": "es", "target": "en", "alternatives": 2}
    found = answer(http.post("/translate", json=body))
    first, third = translations()[0], translations()[2]
    assert found["translatedText"] == f"{first}\n\n{third}"
    assert [one.count("\n") for one in found["alternatives"]] == [2, 2]
    assert found["translatedText"] not in found["alternatives"]


def test_sentences_are_those_of_the_translation(http):
    text = f"  {LINES[0]}  {LINES[2]}\n\n— \n{LINES[0]}\n"
    found = answer(http.post("/v1/sentences", json={"text": text, "source_lang": "es"}))
    assert found["model"] == "bible-es-en"
    assert found["texts"] == [LINES[0], LINES[2], LINES[0]]
    assert found["kept"] == ["  ", "  ", "\n\n— \n", "\n"]
    assert answer(http.post("/v1/sentences", json={"text": ""})) == {
        **{"model": "bible-es-en", "kept": [""], "texts": []}
    }
    wrong = http.post("/v1/sentences", json={"text": "a", "source_lang": "fr"})
    assert wrong.status_code == 400


def test_languages(http):
    assert answer(http.get("/languages")) == [{"code": "es", "name": "Spanish", "targets": ["en"]}]


def test_translations(http):
    search = {"width": 7, "n_best": 3, "length_penalty": 0.5, "max_length": 20}
    body = {"text": LINES, "source_lang": "es", "target_lang": "en", **search}
    found = answer(http.post("/v1/translations", json=body))
    requests = [
        pybeam.Request(source, width=7, n_best=3, max_length=20, scoring=pybeam.scoring.power(0.5))
        for source in TOKENIZER.encode(LINES)
    ]
    results = decoder().decode(requests)
    assert found["model"] == "bible-es-en"
    for one, result in zip(found["translations"], results, strict=True):
        for ours, theirs in zip([one, *one["alternatives"]], result.hypotheses, strict=True):
            assert ours["text"] == TOKENIZER.decode(theirs.tokens)
            assert ours["score"] == theirs.score
            assert ours["final_score"] == theirs.final_score
        assert (one["times"]["steps"], one["width"]) == (result.steps, 7)


def test_decode_takes_everything_that_a_request_has(http):
    prefix = TOKENIZER.encode_target("Behold")
    search = {
        "width": 6,
        "n_best": 4,
        "min_length": 2,
        "threshold": None,
        "ended_only": True,
        "max_length": {"ratio": 2, "constant": 3},
        "scoring": {"alpha": 0.6, "offset": 5, "scale": 6},
    }
    body = {"source": LINES[0], "prefix": "Behold", "id": {"mine": 1}, **search}
    found = answer(http.post("/v1/decode", json=body))
    request = pybeam.Request(
        TOKENIZER.encode(LINES[0]),
        prefix,
        width=6,
        n_best=4,
        min_length=2,
        ended_only=True,
        max_length=pybeam.limits.SourceLimit(2, 3),
        scoring=pybeam.scoring.gnmt(0.6),
    )
    [result] = decoder().decode([request])
    assert (found["id"], found["stop_reason"]) == ({"mine": 1}, result.stop_reason)
    for ours, theirs in zip(found["hypotheses"], result.hypotheses, strict=True):
        assert ours["tokens"] == theirs.tokens
        assert ours["score"] == theirs.score
        assert ours["final_score"] == theirs.final_score
        assert ours["log_probs"] == close(theirs.log_probs)
        assert "".join(ours["pieces"]).replace("▁", " ").strip() == ours["text"]
    ids = {**body, "source": request.source, "prefix": prefix}
    again = answer(http.post("/v1/decode", json=ids))
    assert again["hypotheses"] == found["hypotheses"]


def test_decode_takes_features(http):
    from pybeam.speech import load_feature_extractor, read_wav

    extract = load_feature_extractor(ROOT / "examples" / "models" / "spoken-numbers-en")
    features = extract(read_wav(FIRST, extract.sampling_rate))[:20]
    body = {"source": [[round(x, 2) for x in line] for line in features.tolist()]}
    found = answer(http.post("/v1/decode", json=body))
    assert found["model"] == "spoken-numbers-en"
    assert found["hypotheses"]


def test_score(http):
    best = decoder().decode([TOKENIZER.encode(LINES[0])])[0].hypotheses[0]
    body = {"source": LINES[0], "target": best.tokens}
    [found] = answer(http.post("/v1/score", json=body))["hypotheses"]
    assert found["score"] == close(best.score)
    assert found["log_probs"] == close(best.log_probs)
    text = {**body, "target": TOKENIZER.decode(best.tokens), "length_penalty": 0}
    [again] = answer(http.post("/v1/score", json=text))["hypotheses"]
    assert again["final_score"] == close(best.score)


def test_completions(http):
    body = {"prompt": [LINES[0], LINES[2]], "n": 3, "best_of": 6, "logprobs": 1, "max_tokens": 30}
    found = answer(http.post("/v1/completions", json=body))
    requests = [
        pybeam.Request(TOKENIZER.encode(line), width=6, n_best=3, max_length=30)
        for line in body["prompt"]
    ]
    hypotheses = [h for result in decoder().decode(requests) for h in result.hypotheses]
    assert [choice["index"] for choice in found["choices"]] == list(range(6))
    for choice, theirs in zip(found["choices"], hypotheses, strict=True):
        assert choice["text"] == TOKENIZER.decode(theirs.tokens)
        assert choice["finish_reason"] == "stop"
        log_probs = choice["logprobs"]
        assert log_probs["token_logprobs"] == close(theirs.log_probs[:-1])
        starts = log_probs["text_offset"]
        assert len(starts) == len(log_probs["tokens"]) == len(theirs.tokens)
        assert choice["text"][starts[1] :].lstrip().startswith(log_probs["tokens"][1].strip("▁"))
    sources = sum(len(request.source) for request in requests)
    tokens = sum(len(hypothesis.log_probs) for hypothesis in hypotheses)
    assert found["usage"]["prompt_tokens"] == sources
    assert found["usage"]["completion_tokens"] == tokens


@pytest.mark.parametrize(
    "body, request_",
    [
        ({"use_beam_search": False}, {"width": 1}),
        ({"use_beam_search": True, "beam_width": 3}, {"width": 3}),
        ({"n": 7}, {"width": 7, "n_best": 7}),
        ({"length_penalty": 0}, {"scoring": pybeam.scoring.raw()}),
        ({"max_tokens": 3}, {"max_length": 3}),
    ],
    ids=str,
)
def test_how_completions_search(http, body, request_):
    found = answer(http.post("/v1/completions", json={"prompt": LINES[3], **body}))
    [result] = decoder().decode([pybeam.Request(TOKENIZER.encode(LINES[3]), **request_)])
    assert [choice["text"] for choice in found["choices"]] == [
        TOKENIZER.decode(hypothesis.tokens) for hypothesis in result.hypotheses
    ]
    reasons = ["stop" if one.ended else "length" for one in result.hypotheses]
    assert [choice["finish_reason"] for choice in found["choices"]] == reasons


def transcribe(http, **form):
    return http.post(
        "/v1/audio/transcriptions", files={"file": ("a.wav", FIRST.read_bytes())}, data=form
    )


def test_transcriptions(http):
    assert answer(transcribe(http)) == {"text": "four zero seven"}
    assert transcribe(http, response_format="text").text == "four zero seven\n"
    srt = transcribe(http, response_format="srt").text
    assert srt == "1\n00:00:00,000 --> 00:00:01,161\nfour zero seven\n\n"
    vtt = transcribe(http, response_format="vtt", model="whisper-1").text
    assert vtt == "WEBVTT\n\n00:00.000 --> 00:01.161\nfour zero seven\n\n"
    verbose = answer(transcribe(http, response_format="verbose_json"))
    assert verbose["duration"] == pytest.approx(1.1615, abs=1e-3)
    assert verbose["segments"][0]["avg_logprob"] == pytest.approx(-0.09, abs=0.01)


def test_empty_texts(http):
    body = {"q": ["", " "], "source": "es", "target": "en"}
    assert answer(http.post("/translate", json=body)) == {"translatedText": ["", " "]}
    [found] = answer(http.post("/v1/translations", json={"text": ""}))["translations"]
    assert (found["text"], found["alternatives"]) == ("", [])
    [choice] = answer(http.post("/v1/completions", json={"prompt": ""}))["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("", "stop")
    assert (
        events(http.post("/v1/translations", json={"text": "", "stream": True}))[-1][0] == "result"
    )


@pytest.mark.parametrize("line", LINES)
def test_deltas_of_a_stream_are_the_translation(http, line):
    found = events(http.post("/v1/translations", json={"text": line, "stream": True}))
    names = [name for name, _ in found]
    assert names[-1] == "result" and set(names[:-1]) == {"certain"}
    text = "".join(data["delta"] for name, data in found if name == "certain")
    assert text == found[-1][1]["translations"][0]["text"]
    assert text == translations()[LINES.index(line)]


def test_a_greedy_search_streams_every_token(http):
    body = {"source": LINES[3], "width": 1, "stream": True}
    found = events(http.post("/v1/decode", json=body))
    certain = [data for name, data in found if name == "certain"]
    [best] = found[-1][1]["hypotheses"]
    assert len(certain) > len(best["tokens"]) / 2
    assert "".join(data["delta"] for data in certain) == best["text"]
    for data in certain:
        assert best["tokens"][: len(data["tokens"])] == data["tokens"]


def test_the_best_so_far_comes_on_request(http):
    body = {"text": LINES[3], "stream": True, "best_so_far": True}
    found = events(http.post("/v1/translations", json=body))
    assert any(name == "best" and data["text"] for name, data in found)
    text = "".join(data["delta"] for name, data in found if name == "certain")
    assert text == translations()[3]


def test_completions_stream(http):
    body = {"prompt": LINES[0], "stream": True, "stream_options": {"include_usage": True}}
    *chunks, (_, last) = events(http.post("/v1/completions", json=body))
    assert last == "[DONE]"
    chunks = [data for _, data in chunks]
    assert len({chunk["id"] for chunk in chunks}) == 1
    usage = chunks.pop()
    assert usage["choices"] == [] and usage["usage"]["prompt_tokens"] == len(
        TOKENIZER.encode(LINES[0])
    )
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == translations()[0]
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons[-1] == "stop" and set(reasons[:-1]) <= {None}


def test_transcriptions_stream(http):
    found = [data for _, data in events(transcribe(http, stream="true"))]
    assert found[-1] == {"type": "transcript.text.done", "text": "four zero seven"}
    assert "".join(one["delta"] for one in found[:-1]) == "four zero seven"


def test_operations(http):
    assert answer(http.get("/health")) == {"status": "ok"}
    assert answer(http.get("/ready"))["status"] == "ready"
    assert answer(http.get("/version")) == {"version": pybeam.__version__}
    models = answer(http.get("/v1/models"))["data"]
    assert [(one["id"], one["input"], one["source_langs"]) for one in models] == [
        ("bible-es-en", "text", ["es"]),
        ("spoken-numbers-en", "audio", None),
    ]
    for one in models:
        assert answer(http.get(f"/v1/models/{one['id']}")) == one
    assert "pybeam:num_requests_running" in http.get("/metrics").text


def test_the_pages_for_programmers(http):
    pages = {path: http.get(path).text for path in ("/docs", "/redoc")}
    assert "swagger" in pages["/docs"]
    for page in pages.values():
        # they work without a network
        assert not re.search(r"(\w+:)?//[\w-]+\.", page)
        files = re.findall(r'(?:src|href)="([^"]+)"', page)
        assert files and {http.get(file).status_code for file in files} == {200}
    paths = answer(http.get("/openapi.json"))["paths"]
    assert {"/translate", "/v1/decode", "/v1/completions", "/metrics"} <= paths.keys()
