"""LibreTranslate's endpoints: sentences, HTML, files, languages that are detected."""

from __future__ import annotations

import pytest

from pybeam.server.files import Files
from pybeam.server.languages import code_of, name_of
from pybeam.server.models import Languages, ServedModel, own_name
from pybeam.serving import Service
from support.example_lines import LINES, translations
from support.paths import MODEL
from support.server_app import run

ES_EN = {"source": "es", "target": "en"}
SRT = f"""1
00:00:01,000 --> 00:00:02,500
<i>{LINES[0]}</i>

2
00:00:03,000 --> 00:00:04,000
...

3
00:00:05,000 --> 00:00:06,000
{LINES[2]}
"""


def asked(*bodies: dict, path: str = "/translate", **settings) -> list:
    """The answers to these bodies."""

    async def ask(http):
        answers = [await http.post(path, json={**ES_EN, **body}) for body in bodies]
        assert all(one.status_code == 200 for one in answers), [one.text for one in answers]
        return [one.json() for one in answers]

    return run(ask, **settings)


def test_a_text_is_translated_sentence_by_sentence():
    one, two = translations()[0], translations()[2]
    text = f" {LINES[0]} {LINES[2]}\n\n{LINES[0]}\n-- 1.\n"
    [found, several] = asked({"q": text}, {"q": [text, "...", LINES[2]]}, max_sources=3)
    [last] = asked({"q": "-- 1."})
    expected = f" {one} {two}\n\n{one}\n{last['translatedText']}\n"
    assert found["translatedText"] == expected
    assert several["translatedText"] == [expected, "...", two]


@pytest.mark.parametrize("max_sources", [1, 2])
def test_no_sentence_is_cut_at_the_deadline(monkeypatch, max_sources):
    """Nothing in the answer would say so, so that it would be taken for a whole one."""
    submit, found = Service.submit, []

    def heard(service, request, **options):
        found.append(options["on_deadline"])
        return submit(service, request, **options)

    monkeypatch.setattr(Service, "submit", heard)
    asked({"q": f"{LINES[0]} {LINES[2]}"}, on_deadline="best", max_sources=max_sources)
    assert found == ["raise"] * 2


def test_a_text_that_is_longer_than_sources_may_be_is_split():
    text = ", ".join([LINES[0].rstrip(".")] * 6) + "."
    [found] = asked({"q": text}, max_source_tokens=24)
    assert found["translatedText"].count(",") >= 3


@pytest.mark.slow
def test_tags_of_html_stay():
    [one, two] = translations()[0], translations()[2]
    text = f'<p class="a&amp;b">{LINES[0]}</p><!-- no -->\n<b>{LINES[2]}</b> <script>x</script>'
    [found] = asked({"q": text, "format": "html"})
    assert found["translatedText"] == text.replace(LINES[0], one).replace(LINES[2], two)
    plain, entities = asked({"q": "Él & yo"}, {"q": "&Eacute;l &amp; yo", "format": "html"})
    assert entities["translatedText"] == plain["translatedText"].replace("&", "&amp;")


def test_alternatives_differ():
    [found] = asked({"q": LINES[0], "alternatives": 3})
    texts = [found["translatedText"], *found["alternatives"]]
    assert len(set(texts)) == len(texts) == 4


@pytest.mark.slow
def test_the_language_is_detected():
    pytest.importorskip("py3langid", reason="the package py3langid is in the extra `serve`")
    one, several, none = asked(
        {"q": LINES[0], "source": "auto"},
        {"q": LINES[:2], "source": "auto"},
        {"q": "...", "source": "auto"},
    )
    assert one["translatedText"] == translations()[0]
    assert one["detectedLanguage"]["language"] == "es"
    assert one["detectedLanguage"]["confidence"] > 50
    assert several["detectedLanguage"] == [several["detectedLanguage"][0]] * 2
    assert none == {
        "translatedText": "...",
        "detectedLanguage": {"language": "en", "confidence": 0.0},
    }
    [spanish], [german] = asked({"q": LINES[0]}, {"q": "Das ist ein Haus."}, path="/detect")
    assert spanish["language"] == german["language"] == "es"
    assert german["confidence"] < 10 < spanish["confidence"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a b.TXT", f"{LINES[0]}\n{LINES[2]}\n"),
        ("a.html", f"<html><p>{LINES[0]}</p><p>{LINES[2]}</p></html>"),
        ("a.srt", SRT),
    ],
)
def test_files(name, content):
    async def send(http):
        files = {"file": (name, ("\ufeff" + content).encode())}
        answer = await http.post("/translate_file", files=files, data=ES_EN)
        found = await http.get(answer.json()["translatedFileUrl"])
        assert f"''{name.replace(' ', '%20')}" in found.headers["content-disposition"]
        return found.content.decode()

    expected = content.replace(LINES[0], translations()[0]).replace(LINES[2], translations()[2])
    assert run(send) == expected


@pytest.mark.slow
def test_a_model_may_be_named():
    """By its name alone: two that translate the same pair differ."""

    async def ask(http):
        calls = http.app.state.calls
        other = ServedModel("other", str(MODEL), calls.models.pick("es-en").decoder, None)
        calls.models.put(other)

        async def status(path, **options):
            return (await http.post(path, **options)).status_code

        def file(**form):
            return dict(files={"file": ("a.txt", b"a")}, data={**ES_EN, **form})

        # the other has no tokenizer, and so translates no text
        expected = {"es-en": 200, "other": 422, "none": 404}
        for name, code in expected.items():
            assert await status("/translate_file", **file(model=name)) == code
            assert await status("/translate", json={"q": "a", **ES_EN, "model": name}) == code
            body = {"q": LINES[0], **ES_EN, "source": "auto", "model": name}
            # and names no languages
            assert await status("/translate", json=body) == (400 if code == 422 else code)
        assert await status("/translate_file", **file()) == 200

    run(ask)


def test_what_is_refused():
    async def ask(http):
        async def status(path, **options):
            answer = await http.post(path, **options)
            assert isinstance(answer.json()["error"], str)
            return answer.status_code

        def file(name, content=b"a"):
            return dict(files={"file": (name, content)}, data=ES_EN)

        assert await status("/suggest", json={"q": "a", "s": "b", **ES_EN}) == 403
        assert await status("/translate_file", **file("a.exe")) == 400
        assert await status("/translate_file", **file("a.txt", b"\xff")) == 400
        assert await status("/translate_file", data=ES_EN) == 400
        assert await status("/translate", json={"q": "a", "source": "auto", "target": "xx"}) == 400
        assert await status("/translate", json={"q": "a", "format": "pdf", **ES_EN}) == 400
        assert await status("/detect", json={}) == 400
        assert (await http.get("/download_file/a")).json() == {
            "error": "there is no such file, or it was translated too long ago"
        }

    run(ask)


def test_a_key_comes_in_the_body():
    async def ask(http):
        async def status(path, **options):
            return (await http.post(path, **options)).status_code

        file = {"file": ("a.txt", b"a")}
        wrong = [
            await status("/detect", json={"q": "...", "api_key": "no"}),
            await status("/translate_file", files=file, data=ES_EN),
            await status("/translate", json={"q": "...", "source": "auto", "target": "en"}),
        ]
        right = [
            await status("/detect", data={"q": "...", "api_key": "good"}),
            await status("/translate_file", files=file, data={**ES_EN, "api_key": "good"}),
        ]
        return wrong, right

    assert run(ask, keys=("good",)) == ([401] * 3, [200] * 2)


def test_settings_and_languages():
    async def ask(http):
        return (await http.get("/frontend/settings")).json(), (await http.get("/languages")).json()

    settings, [language] = run(ask, keys=("a",))
    assert language == {"code": "es", "name": "Spanish", "targets": ["en"]}
    assert settings["keyRequired"] and settings["apiKeys"] and not settings["suggestions"]
    assert settings["language"] == {
        "source": {"code": "es", "name": "Spanish"},
        "target": {"code": "en", "name": "English"},
    }
    assert ".srt" in settings["supportedFilesFormat"]


def test_codes_of_languages():
    known = ("spa_Latn", "zho_Hans", "arb_Arab", "es_XX", "qqq_Latn")
    codes = ["es", "zh-Hans", "ar", "es", "qqq_Latn"]
    assert [code_of(one) for one in known] == codes
    assert own_name("es", known) == "spa_Latn" and own_name("es_XX", known) == "es_XX"
    assert own_name("de", known) is None
    assert Languages(known, None).has("zh-Hans", "en") and not Languages(known, known).has(
        "zh", None
    )
    assert (name_of("zh-Hans"), name_of("nb"), name_of("q")) == (
        "Chinese (simplified)",
        "Norwegian Bokmål",
        "q",
    )


def test_files_are_kept_for_a_while():
    now = 0.0
    files = Files(max_bytes=10, seconds=5, clock=lambda: now)
    first = files.keep("a", b"12345")
    assert files.get(first) == ("a", b"12345")
    second = files.keep("b", b"123456")
    assert files.get(first) is None and files.get(second) is not None
    now = 5.0
    assert files.get(second) is None
    assert files.get(files.keep("c", b"1" * 11)) is None
