// Other wordings from a word on: the likeliest next tokens there, and the best outputs behind each.

import { at, button, make, say } from "./elements.js";
import { codeOf } from "./languages.js";
import { complain } from "./problems.js";
import { focusWord, showSentence, wordAt } from "./translation.js";
import { numGiven, partsOf } from "./words.js";

const NUM = 6;
const panel = at("alternatives");
const list = at("alternatives-list");

let control = null; // the AbortController of the searches
let opened = null; // the word, its sentence, and what stands before it

export async function showAlternatives(picked, onTaken) {
    closeAlternatives();
    const { word, sentence, before } = (opened = picked);
    const { signal } = (control = new AbortController());
    word.setAttribute("aria-expanded", "true");
    at("alternatives-name").textContent = `Instead of “${word.textContent}”`;
    list.replaceChildren(make("li", {}, "Looking …"));
    panel.hidden = false;
    place(word);
    at("close-alternatives").focus();
    try {
        const found = await alternatives(sentence, before, signal);
        list.replaceChildren(...found.map(one => item(one, picked, onTaken)));
        place(word);
        list.querySelector("button")?.focus();
    } catch (error) {
        if (error.name === "AbortError") return;
        closeAlternatives();
        complain(error, () => showAlternatives(picked, onTaken));
    }
}

async function alternatives(sentence, before, signal) {
    const next = await sentence.decode(
        { prefix: before.trimEnd(), width: NUM, n_best: NUM, max_length: 1, threshold: null },
        signal,
    );
    const own = numGiven(sentence.first.hypotheses[0]);
    const found = await Promise.all(
        next.hypotheses.map(async one => {
            const answer = one.ended
                ? { ...next, hypotheses: [one] }
                : await sentence.decode({ prefix: one.tokens.slice(own) }, signal);
            return { answer, share: Math.exp(one.score) };
        }),
    );
    const texts = found.map(one => one.answer.hypotheses[0]?.text);
    return found.filter((one, i) => texts[i] !== undefined && texts.indexOf(texts[i]) === i);
}

function item({ answer, share }, { sentence, before }, onTaken) {
    const [{ text }] = answer.hypotheses;
    const start = before.trimEnd().length;
    const language = codeOf(sentence.options.target_lang ?? "");
    const rest = text.slice(start);
    const word = partsOf(rest, language).find(part => part.isWordLike)?.segment ?? (rest.trim() || "(end)");
    const part = (className, textContent, lang = "") => make("span", { className, textContent, lang });
    const choose = button("", () => {
        takeAnswer(sentence, answer);
        closeAlternatives();
        onTaken(sentence);
        focusWord(wordAt(sentence, before.length));
    });
    choose.append(
        part("word", word, language),
        " ",
        part("share", `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`, "en"),
        " ",
        part("whole", rest.trim(), language),
    );
    if (text === sentence.text) choose.setAttribute("aria-current", "true");
    return make("li", {}, choose);
}

export function takeAnswer(sentence, answer) {
    sentence.answer = answer;
    showSentence(sentence);
    say(sentence.text);
}

// Below the word, within the window; narrow windows have it at their lower edge (see translation.css).
function place(word) {
    const { left, bottom } = word.getBoundingClientRect();
    const frame = at("search").getBoundingClientRect();
    const right = frame.width - panel.offsetWidth;
    panel.style.left = `${Math.max(0, Math.min(left - frame.left, right))}px`;
    panel.style.top = `${bottom - frame.top + 6}px`;
}

// Close, and return the word.
export function closeAlternatives() {
    control?.abort();
    panel.hidden = true;
    const word = opened?.word;
    word?.removeAttribute("aria-expanded");
    control = opened = null;
    return word;
}

const leave = () => focusWord(closeAlternatives());

at("close-alternatives").addEventListener("click", leave);
panel.addEventListener("keydown", event => {
    const buttons = [...panel.querySelectorAll("button")];
    const now = buttons.indexOf(document.activeElement);
    const to = buttons[now + ({ ArrowDown: 1, ArrowUp: -1 }[event.key] ?? NaN)];
    to?.focus();
    if (event.key === "Escape") leave();
    if (to || event.key === "Escape") event.preventDefault();
});
// who clicks elsewhere has done with it
document.addEventListener("pointerdown", ({ target }) => {
    if (!panel.hidden && !panel.contains(target) && !target.closest(".word")) closeAlternatives();
});
