// The translation as a text whose words can be reached, by pointer and by keyboard.

import { at, make } from "./elements.js";
import { codeOf } from "./languages.js";
import { partsOf, placesOf } from "./words.js";

// a word with a piece less probable than this is marked
const UNSURE = 0.4;
// pixels of a letter, about
const LETTER = 11;

const field = at("translation");
const sentences = new WeakMap(); // by their elements
const wordsOf = element => [...element.querySelectorAll(".word")];
const hasWords = element => element.querySelector(".word") !== null;

let tabStop = null; // the word that Tab reaches

// what happens when a word is picked, and when a sentence gets the focus
let onWord, onSentence;

export function listen(handlers) {
    ({ onWord, onSentence } = handlers);
}

export function showPassage(passage) {
    for (const one of passage.sentences.filter(one => !one.element)) {
        one.element = make("span", { className: "sentence" });
        sentences.set(one.element, one);
        fillSentence(one);
    }
    const language = passage.sentences[0]?.options.target_lang;
    field.lang = language ? codeOf(language) : "";
    // a browser lays out a line that changes alone, and none that nobody sees
    field.replaceChildren(...linesOf(passage).map(lineOf));
    letTabIn();
}

// A line that is taken to be as high as its source would be, until it is seen.
function lineOf(parts) {
    const line = make("div", { className: "line" }, ...parts);
    const sources = parts.map(part => sentences.get(part)?.source ?? part);
    const rows = Math.ceil(sources.join("").length / (field.clientWidth / LETTER));
    line.style.containIntrinsicHeight = `auto ${rows}lh`;
    return line;
}

// Sentences and what stands between them, line by line.
function linesOf({ kept, sentences }) {
    const lines = [[]];
    kept.forEach((text, i) => {
        for (const part of text.split(/(?<=\n)/)) {
            lines.at(-1).push(part);
            if (part.endsWith("\n")) lines.push([]);
        }
        if (sentences[i]) lines.at(-1).push(sentences[i].element);
    });
    return lines.filter(parts => parts.length);
}

export function showSentence(sentence) {
    fillSentence(sentence);
    letTabIn();
}

function fillSentence(sentence) {
    const { element, answer, certain, open, text } = sentence;
    const part = (className, text) => make("span", { className }, text);
    if (!answer)
        element.replaceChildren(part("certain", certain), part("open", certain || open ? open : "…"));
    else if (text) element.replaceChildren(...words(sentence));
    else element.replaceChildren(part("hint", "(no words)"));
}

function words({ text, best, options }) {
    const unsure = best ? placesOf(best).filter(one => one.probability < UNSURE) : [];
    let start = 0;
    return partsOf(text, codeOf(options.target_lang ?? "")).map(({ segment, isWordLike }) => {
        const begin = start;
        const end = (start += segment.length);
        if (!isWordLike) return segment;
        const word = make("span", { className: "word", role: "button", tabIndex: -1, textContent: segment });
        word.dataset.start = begin;
        if (unsure.some(one => one.start < end && one.end > begin)) word.classList.add("unsure");
        return word;
    });
}

// Tab reaches one word, arrows the others. Until there is a focus it is the first one that is there.
function letTabIn() {
    if (!field.contains(document.activeElement)) setTabStop(field.querySelector(".word"));
}

function setTabStop(word) {
    if (tabStop) tabStop.tabIndex = -1;
    if (word) word.tabIndex = 0;
    tabStop = word;
}

export function focusWord(word) {
    setTabStop(word);
    (word ?? at("source")).focus();
}

// The word of a sentence which begins at a place of its text, or the last one before that.
export function wordAt(sentence, start) {
    return (
        wordsOf(sentence.element).findLast(word => Number(word.dataset.start) <= start) ??
        wordsOf(sentence.element)[0]
    );
}

export function markSentence(sentence) {
    field.querySelector(".current")?.classList.remove("current");
    sentence?.element.classList.add("current");
}

// Left and right go by words, up and down by sentences.
function neighbour(word, key) {
    const elements = [...field.querySelectorAll(".sentence")];
    const here = elements.indexOf(word.parentElement);
    const own = wordsOf(word.parentElement);
    const place = own.indexOf(word);
    // a translation may have no words
    const firstOf = others => others.find(hasWords)?.querySelector(".word");
    const lastOf = others => others.findLast(hasWords) && wordsOf(others.findLast(hasWords)).at(-1);
    switch (key) {
        case "ArrowRight":
            return own[place + 1] ?? firstOf(elements.slice(here + 1));
        case "ArrowLeft":
            return own[place - 1] ?? lastOf(elements.slice(0, here));
        case "ArrowDown":
            return firstOf(elements.slice(here + 1));
        case "ArrowUp":
            return firstOf(elements.slice(0, here).reverse());
        case "Home":
            return firstOf(elements);
        case "End":
            return lastOf(elements);
    }
}

function pick(word) {
    const sentence = sentences.get(word.closest(".sentence"));
    onWord({ word, sentence, before: sentence.text.slice(0, Number(word.dataset.start)) });
}

field.addEventListener("click", ({ target }) => {
    // who marks a part of the text picks no word
    if (target.matches(".word") && getSelection().isCollapsed) pick(target);
});
field.addEventListener("focusin", ({ target }) => {
    if (target.matches(".word")) onSentence(sentences.get(target.closest(".sentence")));
});
field.addEventListener("keydown", event => {
    if (!event.target.matches(".word")) return;
    const isPick = event.key === "Enter" || event.key === " ";
    const to = isPick ? null : neighbour(event.target, event.key);
    if (isPick) pick(event.target);
    else if (to) focusWord(to);
    if (isPick || to) event.preventDefault();
});
