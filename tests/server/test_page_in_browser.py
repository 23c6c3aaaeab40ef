"""The page at `/` in headless Chromium, with a real server: texts, their translations and other wordings."""

import json

import pytest

import pybeam
from support.example_lines import LINES
from support.paths import MODEL
from support.server_app import decoder
from support.server_process import wait_until

pytest.importorskip("selenium.webdriver")
from support.browser import BACKSPACE, DOWN, END, ENTER, ESCAPE, HOME, RIGHT, TAB, UP

pytestmark = pytest.mark.slow

TEXT = "Mirad las aves del cielo, que no siembran, ni siegan."
NOT_CUT = """
const svg = document.querySelector("#tree svg"), {width, height} = svg.viewBox.baseVal;
return [...svg.querySelectorAll("text")].every(text => {
    const box = text.getBBox();
    return box.x >= 0 && box.y >= 0 && box.x + box.width <= width && box.y + box.height <= height;
});
"""


@pytest.fixture(scope="module")
def best():
    tokenizer = pybeam.load_tokenizer(MODEL)
    [result] = decoder().decode([pybeam.Request(tokenizer.encode(TEXT), n_best=5)])
    return [tokenizer.decode(one.tokens) for one in result.hypotheses]


def test_certain_and_uncertain_parts_come_before_the_result_of_the_decoder(browser, best):
    browser.run("document.getElementById('source').focus()")
    browser.press(TEXT)
    browser.wait_for_result()
    assert browser.text("translation") == best[0]
    assert browser.texts("#best button") == best
    seen = [pair for pair in browser.run("return window.seen") if all(pair)]
    assert seen and all(best[0].startswith(certain) for certain, _ in seen[-1:])
    assert browser.run(
        "const colour = name => getComputedStyle(document.querySelector(name)).color;"
        "return colour('#translation .word') !== colour('#hint .open')"
    )


def test_words_that_the_search_was_not_sure_of_are_marked(browser):
    browser.translate(TEXT)
    unsure = browser.texts("#translation .unsure")
    assert 0 < len(unsure) < len(browser.texts("#translation .word"))
    # the beginning of a sentence may be many words
    assert unsure[0] == "Behold"


def test_sentences_stand_as_in_the_text_and_are_looked_at_one_by_one(browser):
    browser.translate(f"{TEXT}  Jesús lloró.\n\n{LINES[0]}")
    assert browser.texts(".sentence")[1] == "Jesus wept."
    assert "reap.  Jesus wept.\n\nAnd God said, " in browser.text("translation")
    assert browser.text("progress-text") == "3 of 3 sentences"
    assert browser.text("closer-name") == "Sentence 1 of 3"
    browser.click(".sentence:nth-child(2) .word")
    assert browser.text("closer-source") == "Jesús lloró."
    assert browser.text("closer-name") == "Sentence 2 of 3"


def test_a_text_that_grows_keeps_its_sentences_and_their_chosen_wordings(browser, best):
    browser.translate(f"{TEXT} Jesús")
    browser.click("#best button", 1)
    browser.translate(f"{TEXT} Jesús lloró.")
    assert browser.texts(".sentence") == [best[1], "Jesus wept."]


def test_a_long_text_can_be_stopped_and_goes_on(browser):
    text = "\n".join(f"{line} Y fueron {i} días." for i in range(80) for line in LINES)
    browser.write(text)
    wait_until(lambda: len(browser.texts("#translation .sentence:has(.word)")) > 4, 60)
    assert browser.shows("progress") and browser.shows("stop")
    browser.click("#stop")
    wait_until(lambda: not browser.has("[aria-busy]"))
    num = len(browser.texts("#translation .sentence:has(.word)"))
    total = int(browser.text("progress-text").split()[2])
    assert browser.text("progress-text") == f"{num} of {total} sentences" and num < total
    assert browser.text("spoken") == f"Stopped after {num} of {total} sentences."
    assert browser.focused() == "again" and not browser.shows("stop")
    browser.press(ENTER)
    wait_until(lambda: browser.text("progress-text").startswith(f"{total} of"), 300)
    wait_until(lambda: not browser.shows("again") and not browser.has("[aria-busy]"))


def test_other_wordings_go_on_from_a_word_again_and_again(browser, best):
    browser.translate(TEXT)
    wordings = browser.open_alternatives(2)
    assert wordings[0] == best[0].removeprefix("Behold the ")
    assert browser.text("alternatives-name") == "Instead of “fowls”"
    assert len(set(wordings)) == len(wordings) > 2
    browser.click("#alternatives-list button", 1)
    first = browser.text("translation")
    assert first == f"Behold the {wordings[1]}" != best[0]
    assert browser.focused() == first.split()[2] and browser.text("spoken") == first
    # all that the search found behind what was chosen
    found = browser.texts("#best button")
    assert found[0] == first and all(one.startswith("Behold the birds") for one in found)
    wordings = browser.open_alternatives(4)
    browser.click("#alternatives-list button", 1)
    second = browser.text("translation")
    assert second.startswith("Behold the birds of ") and second != first
    assert second.endswith(wordings[1])
    # nothing stands before the first word
    firsts = {text.split()[0] for text in browser.open_alternatives(0)}
    assert "Behold" in firsts and len(firsts) > 3
    browser.press(ESCAPE)
    browser.click("#first-wording")
    assert browser.text("translation") == best[0] and not browser.shows("first-wording")


def test_what_an_alternative_says_is_what_the_decoder_finds_behind_the_prefix(browser):
    browser.translate(TEXT)
    browser.open_alternatives(2)
    browser.click("#alternatives-list button", 1)
    tokenizer = pybeam.load_tokenizer(MODEL)
    source, prefix = tokenizer.encode(TEXT), tokenizer.encode_target("Behold the")
    options = {"width": 6, "n_best": 6, "max_length": 1}
    [[_, second, *_]] = [
        one.hypotheses for one in decoder().decode([pybeam.Request(source, prefix, **options)])
    ]
    [result] = decoder().decode([pybeam.Request(source, second.tokens, n_best=5)])
    assert browser.texts("#best button") == [
        tokenizer.decode(one.tokens) for one in result.hypotheses
    ]


def test_the_keyboard_is_enough(browser, best):
    browser.run("document.getElementById('source').focus()")
    browser.press(f"{TEXT} Jesús lloró.")
    browser.wait_for_result()
    for _ in range(20):
        if browser.focused() == "Behold":
            break
        browser.press(TAB)
    browser.press(RIGHT, RIGHT)
    assert browser.focused() == "fowls"
    assert browser.run("return getComputedStyle(document.activeElement).outlineStyle") == "solid"
    browser.press(DOWN)
    assert browser.focused() == "Jesus"
    browser.press(END)
    assert browser.focused() == "wept"
    browser.press(UP, RIGHT, RIGHT, ENTER)
    wait_until(lambda: browser.has("#alternatives-list button"), 30)
    assert browser.focused().startswith("fowls")
    browser.press(ESCAPE)
    assert browser.focused() == "fowls" and not browser.shows("alternatives")
    browser.press(" ")
    wait_until(
        lambda: browser.shows("alternatives") and browser.has("#alternatives-list .whole"), 30
    )
    browser.press(DOWN)
    text = browser.run("return document.activeElement.querySelector('.whole').textContent")
    browser.press(ENTER)
    assert (
        browser.texts(".sentence")[0] == f"Behold the {text}" == browser.text("spoken") != best[0]
    )


def test_a_screen_reader_hears_the_translation_once(browser, best):
    browser.translate(TEXT)
    wait_until(lambda: browser.text("spoken") == best[0])


def test_the_tree_is_not_cut_and_zooms(browser, best):
    browser.translate(f"{LINES[3]}")
    assert browser.run(NOT_CUT)
    width = "return document.querySelector('#tree svg').getBoundingClientRect().width"
    before = browser.run(width)
    browser.click("#zoom-in")
    assert browser.run(width) == pytest.approx(1.25 * before, abs=1)
    browser.open(360)
    browser.choose("source-lang", "es")
    browser.translate(LINES[3])
    assert browser.run("return document.getElementById('tree').scrollWidth > 320")
    browser.click("#zoom-fit")
    assert browser.run(
        "const t = document.getElementById('tree'); return t.scrollWidth <= t.clientWidth"
    )
    drawn = browser.texts("#tree text")
    assert sum(text[:1] == "-" and "." in text for text in drawn) == len(browser.texts("#best li"))


def test_the_cost_follows_the_sliders(browser):
    browser.translate(TEXT)
    browser.click("#effort summary")
    wide = int(browser.text("expansions"))
    browser.run("document.getElementById('width').focus()")
    browser.press(HOME)  # the narrowest
    wait_until(lambda: browser.text("rows") == "1.0")
    assert browser.text("width-value") == "1" and int(browser.text("expansions")) < wide
    browser.press(END, TAB, HOME)  # the widest; then the smallest threshold
    wait_until(lambda: browser.text("threshold-value") == "1.6 times")
    wait_until(lambda: browser.text("width-value") == "16" and browser.text("rows") != "1.0")
    browser.wait_for_result()
    assert 1 < float(browser.text("rows")) < 16 and float(browser.text("milliseconds")) > 0


def test_languages_are_found_and_swapped(browser):
    browser.choose("source-lang", "auto")
    browser.choose("target-lang", "en")
    browser.translate(f"{TEXT} Jesús lloró.")
    assert browser.text("detected") == "It seems to be Spanish."
    translated = browser.text("translation")
    browser.click("#swap")
    browser.wait_for_result()
    assert browser.source() == translated
    assert browser.run("return document.getElementById('source-lang').value") == "en"
    assert browser.run("return document.getElementById('target-lang').value") == "es"
    assert browser.run("return document.getElementById('translation').lang") == "es"


def test_an_empty_text_clears_the_page(browser):
    browser.translate("Jesús lloró.")
    browser.run("document.getElementById('source').select()")
    browser.press(BACKSPACE)
    wait_until(lambda: not browser.text("translation"))
    assert browser.text("expansions") == "–" and not browser.shows("closer")
    browser.translate("Jesús lloró.")
    browser.click("#clear")
    assert browser.focused() == "source" and not browser.source()
    wait_until(lambda: not browser.text("translation"))


MODELS = """
const model = (id, source_langs, target_langs) => ({id, input: "text", width: 5, source_langs, target_langs});
const data = [
    model("many", ["spa_Latn", "eng_Latn", "zho_Hans"], ["spa_Latn", "eng_Latn", "zho_Hans"]),
    model("to", null, ["de_DE", "fr"]), model("any", null, null), model("writer", [], []),
];
const real = window.fetch;
window.fetch = (path, ...more) =>
    path === "v1/models" ? Promise.resolve(Response.json({data})) : real(path, ...more);
"""


def test_models_are_offered_by_their_languages(browser):
    def offered(name: str) -> list[str]:
        return browser.texts(f"#{name} option")

    def asked() -> dict:
        found = browser.module("languages", "it.choice('Y el rey dijo.')")
        return {name: value for name, value in found.items() if value is not None}

    browser.run(MODELS)
    browser.module("languages", "it.loadModels()")
    assert offered("model") == ["whichever fits", "many", "to", "any", "writer"]
    assert offered("source-lang") == ["detect", "English", "Simplified Chinese", "Spanish"]
    browser.choose("source-lang", "es")
    assert offered("target-lang") == ["English", "French", "German", "Simplified Chinese"]
    browser.choose("target-lang", "zh-Hans")
    assert asked() == {"model": "many", "source_lang": "spa_Latn", "target_lang": "zho_Hans"}
    browser.choose("target-lang", "de")
    assert asked() == {"model": "to", "target_lang": "de_DE"}
    browser.choose("model", "to")
    assert offered("source-lang") == [] and offered("target-lang") == ["French", "German"]
    # the choice stays
    assert asked() == {"model": "to", "target_lang": "de_DE"}
    for name, is_whole in (("any", False), ("writer", True)):
        browser.choose("model", name)
        assert not browser.shows("source-lang") and not browser.shows("target-lang")
        assert asked() == {"model": name, "isWhole": is_whole}


def test_names_of_languages_and_pieces_of_words(browser):
    names = ["es", "spa_Latn", "es_XX", "zho_Hans", "zh_CN", "arb_Arab", "what is this"]
    codes = browser.module("languages", f"{names}.map(it.codeOf)")
    assert codes == ["es", "es", "es", "zh-Hans", "zh", "ar", "what is this"]
    assert browser.module("languages", "it.nameOf('es')") == "Spanish"
    for pieces, start, text in (
        (["▁the", "▁f", "owl"], 0, "the fowl"),
        (["▁the", "▁f", "owl"], 2, "…owl"),
        (["▁the", "▁f", "."], 2, "."),
        (["the", "fo@@", "wl", "s"], 0, "the fowl s"),
        (["Ġa", "b"], 0, "ab"),
    ):
        given = json.dumps([{"pieces": pieces}]), json.dumps(pieces[start:])
        assert browser.module("words", "it.speller({})({})".format(*given)) == text
    hypothesis = {
        "text": "the fowl.",
        "tokens": [9, 1, 2, 3, 4, 5],
        "ended": True,
        "pieces": ["__en__", "▁the", "▁f", "owl", "<unk>", "."],
        "log_probs": [0.0, -1.0, None, 0.0, -2.0, 0.0],
    }
    found = browser.module("words", f"it.placesOf({json.dumps(hypothesis)})")
    assert [(one["start"], one["end"]) for one in found] == [(0, 3), (4, 5), (5, 8), (8, 9)]
    assert [one["probability"] for one in found] == pytest.approx([1, 0.3679, 0, 0.1353], abs=1e-3)
