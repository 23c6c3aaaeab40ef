// The page of `pybeam serve`: a text, its translation, and what can be done with both.

import { closeAlternatives, showAlternatives, takeAnswer } from "./alternatives.js";
import { showCloser } from "./closer.js";
import { efforts, showEffort, useWidthOf } from "./effort.js";
import { at, say } from "./elements.js";
import * as history from "./history.js";
import * as jobs from "./jobs.js";
import {
    choice,
    choosePair,
    hasTranslators,
    loadModels,
    presentModel,
    showLanguages,
    showTargets,
    swapLanguages,
} from "./languages.js";
import "./microphone.js";
import { NOTHING, Passage } from "./passage.js";
import { calm, complain, Trouble } from "./problems.js";
import "./scrolling.js";
import { useKey } from "./server.js";
import * as translation from "./translation.js";

const TYPING_MS = 150;
// when the typing has paused, a screen reader hears the translation, and the history gets it
const PAUSE_MS = 1200;
// more would make the page slow, and is better kept as a file anyway
const MAX_CHARACTERS = 100_000;
// a longer translation is not read out unasked
const MAX_SPOKEN = 1000;

let running = null; // the AbortController of the translation that runs
let passage = NOTHING; // what is shown
let current = null; // the sentence that is looked at
let typing = 0; // the timers of what is typed, and of its pauses
let pause = 0;

async function translate() {
    clearTimeout(typing);
    clearTimeout(pause);
    typing = 0;
    running?.abort();
    closeAlternatives();
    const text = at("source").value.trim();
    showSize();
    if (!text || !hasTranslators()) return clear();
    if (text.length > MAX_CHARACTERS) return refuse();
    const control = (running = new AbortController());
    const { signal } = control;
    showBusy(true);
    try {
        const options = { ...(await choice(text, signal)), ...efforts() };
        const next = await Passage.of(text, options, passage, signal);
        at("translation-name").textContent = options.isWhole ? "Continuation" : "Translation";
        showPassage(next);
        await next.translate(signal, heard);
        calm();
        finish(text, options);
    } catch (error) {
        if (control !== running) return;
        // the models may be others than this morning
        complain(error, error.status === 404 ? start : translate);
    } finally {
        control.abort();
        if (running === control) {
            running = null;
            showBusy(typing !== 0);
            showProgress();
        }
    }
}

function showPassage(next) {
    const place = Math.max(0, passage.sentences.indexOf(current));
    passage = next;
    translation.showPassage(passage);
    look(passage.sentences[place] ?? passage.sentences[0]);
    showProgress();
}

function heard(sentence) {
    translation.showSentence(sentence);
    if (!sentence.answer) return;
    if (sentence === current) look(sentence);
    showProgress();
}

function look(sentence) {
    current = sentence ?? null;
    translation.markSentence(passage.sentences.length > 1 ? current : null);
    // what is shown stays until there is something else to show
    if (!current || current.answer) showCloser(current, passage, taken);
    at("first-wording").hidden = !current?.answer || current.isFirstWording;
}

// Another wording has been taken.
function taken(sentence) {
    // the text may have changed meanwhile
    if (!passage.sentences.includes(sentence)) return;
    look(sentence);
    saveSoon();
}

function finish(text, options) {
    pause = setTimeout(() => {
        say(
            passage.text.length <= MAX_SPOKEN
                ? passage.text
                : `Translated: ${passage.sentences.length} sentences.`,
        );
        history.remember(text, passage.text, options);
    }, PAUSE_MS);
}

function saveSoon() {
    clearTimeout(pause);
    const text = at("source").value.trim();
    const [{ options }] = passage.sentences;
    pause = setTimeout(() => history.remember(text, passage.text, options), PAUSE_MS);
}

function clear() {
    running = null;
    showPassage(NOTHING);
    showBusy(false);
    calm();
}

function refuse() {
    clear();
    complain(
        new Trouble(
            `This text has more than ${MAX_CHARACTERS.toLocaleString("en")} characters. Save it as a .txt file and choose “Open a file”.`,
        ),
    );
}

const showBusy = isBusy => {
    at("translation").ariaBusy = isBusy ? "true" : null;
};

function showProgress() {
    const {
        numDone,
        sentences: { length },
    } = passage;
    const isLong = length > 1;
    Object.assign(at("progress"), { max: Math.max(1, length), value: numDone, hidden: !running || !isLong });
    at("progress-text").textContent = isLong ? `${numDone} of ${length} sentences` : "";
    at("stop").hidden = !running || passage.isDone;
    at("again").hidden = Boolean(running) || passage.isDone;
    at("copy").disabled = !numDone;
}

function showSize() {
    const num = [...at("source").value].length;
    at("size").textContent = num
        ? `${num.toLocaleString("en")} ${num === 1 ? "character" : "characters"}`
        : "";
    at("clear").disabled = !num;
}

function translateSoon() {
    clearTimeout(typing);
    showBusy(true);
    typing = setTimeout(translate, TYPING_MS);
}

function stop() {
    running?.abort();
    say(`Stopped after ${passage.numDone} of ${passage.sentences.length} sentences.`);
    at("again").hidden = false;
    at("again").focus();
}

async function copy() {
    const { text } = passage;
    try {
        await navigator.clipboard.writeText(text);
    } catch {
        // addresses other than this machine's need https for that
        const range = document.createRange();
        range.selectNodeContents(at("translation"));
        getSelection().removeAllRanges();
        getSelection().addRange(range);
        document.execCommand("copy");
    }
    at("copy").textContent = "Copied";
    say("Copied.");
    setTimeout(() => {
        at("copy").textContent = "Copy";
    }, 2000);
}

function swap() {
    const { text } = passage;
    swapLanguages();
    if (text) at("source").value = text;
    useWidthOf(presentModel());
    translate();
}

// The words of a recording go on below the text, part by part.
function write(part, isFirst) {
    const field = at("source");
    const isBehind = isFirst && field.value && !field.value.endsWith("\n");
    field.value += (isBehind ? "\n" : "") + part;
    translateSoon();
}

async function start() {
    try {
        await loadModels();
        await jobs.offerFiles();
        at("translation-part").hidden = at("effort").hidden = at("hint").hidden = !hasTranslators();
        useWidthOf(presentModel());
        await translate();
    } catch (error) {
        complain(error, start);
    }
}

translation.listen({ onWord: picked => showAlternatives(picked, taken), onSentence: look });
jobs.listen(write);
history.listen(({ source, from, to }) => {
    choosePair(from, to);
    at("source").value = source;
    at("source").focus();
    translate();
});
at("search").addEventListener("submit", event => event.preventDefault());
at("source").addEventListener("input", translateSoon);
at("key").addEventListener("change", () => {
    useKey(at("key").value);
    calm();
    start();
});
at("model").addEventListener("change", () => {
    showLanguages();
    useWidthOf(presentModel());
    translate();
});
at("source-lang").addEventListener("change", () => {
    showTargets();
    useWidthOf(presentModel());
    translate();
});
at("target-lang").addEventListener("change", () => {
    showTargets();
    useWidthOf(presentModel());
    translate();
});
for (const id of ["width", "threshold"])
    at(id).addEventListener("input", () => {
        showEffort();
        translateSoon();
    });
at("clear").addEventListener("click", () => {
    at("source").value = "";
    at("source").focus();
    translate();
});
at("copy").addEventListener("click", copy);
at("stop").addEventListener("click", stop);
at("again").addEventListener("click", translate);
at("swap").addEventListener("click", swap);
at("first-wording").addEventListener("click", () => {
    takeAnswer(current, current.first);
    taken(current);
    at("copy").focus();
});
at("search").addEventListener("keydown", event => {
    if (event.key === "Escape" && running && !event.defaultPrevented) stop();
});
start();
