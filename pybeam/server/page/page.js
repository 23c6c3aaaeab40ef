// The page of `pybeam serve`. It uses the endpoints that every client may use, /v1/models and /v1/decode.

const TYPING_MS = 150;
// a screen reader hears a translation when the typing has paused
const SPEAKING_MS = 800;
const NUM_ALTERNATIVES = 6;
const OFF = 10.5;  // the threshold slider's last value: no threshold
const LINE = 26, LETTER = 7.9, GAP = 34;  // of the tree, in pixels

const at = id => document.getElementById(id);
let models = [];
let running = null;  // the AbortController of the search that runs
let chosen = null;  // its alternatives', as soon as a word is clicked
let shown = null;  // the last answer of /v1/decode, and the request that it answers
let typing, speaking;

// Requests

class Refused extends Error {
    constructor(status, message) {
        super(message);
        this.status = status;
    }
}

async function ask(path, body, signal) {
    const headers = { "Content-Type": "application/json" };
    if (at("key").value) headers.Authorization = `Bearer ${at("key").value}`;
    const options = body ? { method: "POST", body: JSON.stringify(body) } : {};
    const response = await fetch(path, { ...options, headers, signal });
    if (response.ok) return response;
    const { error } = await response.json().catch(() => ({}));
    throw new Refused(response.status, error?.message ?? `The server answered ${response.status}.`);
}

async function* eventsOf(response) {
    let rest = "";
    for await (const chunk of chunksOf(response.body.pipeThrough(new TextDecoderStream()))) {
        const blocks = (rest + chunk).split("\n\n");
        rest = blocks.pop();
        for (const block of blocks) {
            const fields = Object.fromEntries(block.split("\n").map(line => {
                const colon = line.indexOf(": ");
                return [line.slice(0, colon), line.slice(colon + 2)];
            }));
            yield { name: fields.event, data: JSON.parse(fields.data) };
        }
    }
}

// streams are iterable themselves only in newer browsers
async function* chunksOf(stream) {
    const reader = stream.getReader();
    for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        yield value;
    }
}

// an event is painted before the next one is; a page that nobody sees gets no frames
const painted = () => document.hidden || new Promise(resolve => requestAnimationFrame(resolve));

// A search

function bodyOf(text) {
    const width = Number(at("width").value), threshold = Number(at("threshold").value);
    const body = { model: at("model").value, source: text, width, n_best: width };
    if (threshold < OFF) body.threshold = threshold;
    if (at("source-lang").value) body.source_lang = at("source-lang").value;
    if (at("target-lang").value) body.target_lang = at("target-lang").value;
    return body;
}

async function search() {
    clearTimeout(typing);
    running?.abort();
    closeAlternatives();
    const text = at("source").value.trim();
    if (!text || !at("model").value) return clear();
    const control = running = new AbortController();
    const body = bodyOf(text);
    at("translation").setAttribute("aria-busy", "true");
    try {
        const answer = await follow(await ask("v1/decode", { ...body, stream: true, best_so_far: true }, control.signal));
        shown = { ...answer, body };
        showAnswer();
        complain(null);
    } catch (error) {
        if (error.name !== "AbortError") complain(error);
    } finally {
        if (running === control) at("translation").removeAttribute("aria-busy");
    }
}

// Show what is certain while it becomes so; returns the answer.
async function follow(response) {
    let certain = "", best = "";
    for await (const { name, data } of eventsOf(response)) {
        if (name === "result") return data;
        if (name === "error") throw new Refused(200, data.error.message);
        if (name === "certain") certain += data.delta;
        else if (name === "best") best = data.text;
        showProgress(certain, best.startsWith(certain) ? best.slice(certain.length) : "");
        await painted();
    }
    throw new Refused(200, "The server closed the connection before the end.");
}

function clear() {
    shown = null;
    for (const id of ["translation", "best", "tree"]) at(id).replaceChildren();
    for (const id of ["rows", "expansions", "steps", "milliseconds"]) at(id).textContent = "–";
    at("translation").removeAttribute("aria-busy");
    at("back").hidden = true;
}

function complain(error) {
    at("problem").hidden = !error;
    at("problem").textContent = error?.message ?? "";
    if (error?.status === 401) at("key-field").hidden = false;
}

// Show

function make(tag, className, text) {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
}

function showProgress(certain, open) {
    at("translation").replaceChildren(make("span", "certain", certain), make("span", "open", open));
}

function showAnswer() {
    const [best] = shown.hypotheses;
    showTranslation(best?.text ?? "");
    at("back").hidden = true;
    const { times } = shown;
    at("rows").textContent = times.rows.toFixed(1);
    at("expansions").textContent = times.expansions;
    at("steps").textContent = times.steps;
    at("milliseconds").textContent = (1000 * (times.queued + times.encoding + times.decoding)).toFixed(1);
    at("best").replaceChildren(...shown.hypotheses.map(one => {
        const item = make("li");
        const text = make("span", "", one.text);
        text.lang = shown.body.target_lang ?? "";
        item.append(text, " ", make("span", "score", one.final_score.toFixed(3)));
        return item;
    }));
    at("tree").replaceChildren(drawTree(shown.hypotheses));
    clearTimeout(speaking);
    speaking = setTimeout(() => { at("spoken").textContent = at("translation").textContent; }, SPEAKING_MS);
}

// Words of a text and what stands between them.
function partsOf(text, language) {
    if (!Intl.Segmenter) return text.split(/(\s+)/).map(part => ({ segment: part, isWordLike: /\S/.test(part) }));
    return [...new Intl.Segmenter(language || undefined, { granularity: "word" }).segment(text)];
}

// Tab reaches one word, arrows the others.
function showTranslation(text) {
    const field = at("translation");
    field.lang = shown.body.target_lang ?? "";
    let start = 0;
    field.replaceChildren(...partsOf(text, field.lang).map(({ segment, isWordLike }) => {
        const before = text.slice(0, start);
        start += segment.length;
        if (!isWordLike) return document.createTextNode(segment);
        const word = make("button", "certain", segment);
        word.type = "button";
        word.tabIndex = -1;
        word.setAttribute("aria-expanded", "false");
        word.setAttribute("aria-controls", "alternatives");
        word.addEventListener("click", () => showAlternatives(word, before));
        return word;
    }));
    const first = field.querySelector("button");
    if (first) first.tabIndex = 0;
}

function moveFocus(event) {
    const words = [...at("translation").querySelectorAll("button")], now = words.indexOf(document.activeElement);
    const to = { ArrowRight: now + 1, ArrowLeft: now - 1, Home: 0, End: words.length - 1 }[event.key];
    if (to === undefined || !words[to]) return;
    event.preventDefault();
    words[now].tabIndex = -1;
    words[to].tabIndex = 0;
    words[to].focus();
}

// Alternatives: the likeliest next tokens behind what stands before a word, and the best output behind each

async function showAlternatives(word, before) {
    closeAlternatives();
    const control = chosen = new AbortController();
    word.setAttribute("aria-expanded", "true");
    at("alternatives-name").textContent = `Instead of “${word.textContent}”`;
    at("alternatives-list").replaceChildren(make("li", "", "Searching …"));
    at("alternatives").hidden = false;
    try {
        const found = await alternatives(before, control.signal);
        const index = [...at("translation").querySelectorAll("button")].indexOf(word);
        at("alternatives-list").replaceChildren(...found.map(one => alternativeItem(one, before, index)));
        (at("alternatives-list").querySelector("button") ?? at("close-alternatives")).focus();
    } catch (error) {
        if (error.name === "AbortError") return;
        closeAlternatives();
        complain(error);
    }
}

async function alternatives(before, signal) {
    const { width, threshold, n_best, ...body } = shown.body;
    const next = await decode({ ...body, prefix: before.trimEnd(), width: NUM_ALTERNATIVES, n_best: NUM_ALTERNATIVES, max_length: 1 }, signal);
    const own = prefixLength(shown.hypotheses[0]);
    const found = await Promise.all(next.hypotheses.map(async one => {
        const share = Math.exp(one.score);
        if (one.ended) return { text: one.text, share };
        const answer = await decode({ ...shown.body, n_best: 1, prefix: one.tokens.slice(own) }, signal);
        return { text: answer.hypotheses[0]?.text ?? one.text, share };
    }));
    const different = new Map(found.reverse().map(one => [one.text, one]));
    return [...different.values()].reverse();
}

async function decode(body, signal) {
    return (await ask("v1/decode", body, signal)).json();
}

// How many tokens the model's tokenizer puts before every output; a prefix is sent without them.
function prefixLength(hypothesis) {
    const { tokens, log_probs, ended } = hypothesis;
    return log_probs ? tokens.length + ended - log_probs.length : 0;
}

function alternativeItem({ text, share }, before, index) {
    const rest = text.slice(before.trimEnd().length);
    const word = partsOf(rest, at("translation").lang).find(part => part.isWordLike)?.segment ?? (rest.trim() || "(end)");
    const item = make("li"), button = make("button");
    button.type = "button";
    button.append(make("span", "word", word), make("span", "share", `${(100 * share).toFixed(1)} %`), make("span", "whole", text));
    button.addEventListener("click", () => {
        closeAlternatives();
        showTranslation(text);
        at("back").hidden = text === shown.hypotheses[0].text;
        at("spoken").textContent = text;
        focusWord(index);
    });
    item.append(button);
    return item;
}

function focusWord(index) {
    const words = at("translation").querySelectorAll("button"), word = words[Math.min(index, words.length - 1)];
    if (!word) return at("source").focus();
    words[0].tabIndex = -1;
    word.tabIndex = 0;
    word.focus();
}

function closeAlternatives() {
    chosen?.abort();
    chosen = null;
    at("alternatives").hidden = true;
    const word = at("translation").querySelector('[aria-expanded="true"]');
    word?.setAttribute("aria-expanded", "false");
    return word;
}

// The tree of the n-best outputs: what they share is drawn once

function treeOf(hypotheses) {
    const root = { pieces: [], children: new Map() };
    for (const one of hypotheses) {
        let node = root;
        for (const piece of [...one.pieces.slice(prefixLength(one)), ...(one.ended ? [null] : [])]) {
            if (!node.children.has(piece)) node.children.set(piece, { pieces: [piece], children: new Map() });
            node = node.children.get(piece);
        }
        node.score = one.final_score;
    }
    return merged(root);
}

// Join nodes that have one child with it.
function merged(node) {
    let children = [...node.children.values()].map(merged);
    if (children.length === 1 && node.score === undefined) {
        const [only] = children;
        return { ...only, pieces: [...node.pieces, ...only.pieces] };
    }
    return { ...node, children };
}

// Pieces as their vocabularies write them: a mark before a word, or behind a piece that goes on.
function spell(pieces) {
    const text = pieces.filter(piece => piece !== null).join("\0");
    return text.replace(/@@\0/g, "").replace(/\0(?=[^\0]*@@)/g, " ").replace(/\0/g, "").replace(/[▁Ġ]/g, " ").trim();
}

function drawTree(hypotheses) {
    const svg = draw("svg", { role: "img" });
    let lines = 0, widest = 0;
    const place = (node, x, isFirst, depth) => {
        const label = spell(node.pieces) || (depth ? "∎" : "");
        const end = x + LETTER * label.length + (label ? 8 : 0);
        const children = node.children.map((child, i) => place(child, end + GAP, isFirst && i === 0, depth + 1));
        const y = children[0]?.y ?? (lines++ + 0.5) * LINE;
        for (const child of children) {
            const middle = end + GAP / 2;
            svg.append(draw("path", { d: `M${end} ${y}C${middle} ${y} ${middle} ${child.y} ${end + GAP - 6} ${child.y}` }));
        }
        const text = draw("text", { x, y: y + 4, class: isFirst ? "first" : "" });
        text.textContent = label;
        svg.append(text);
        if (node.score !== undefined && !children.length) {
            const score = draw("text", { x: end + 6, y: y + 4 });
            score.textContent = node.score.toFixed(3);
            svg.append(score);
        }
        widest = Math.max(widest, end + 70);
        return { y };
    };
    place(treeOf(hypotheses), 4, true, 0);
    const names = { width: widest, height: Math.max(1, lines) * LINE, viewBox: `0 0 ${widest} ${Math.max(1, lines) * LINE}` };
    for (const [name, value] of Object.entries(names)) svg.setAttribute(name, value);
    svg.setAttribute("aria-label", `Tree of ${hypotheses.length} outputs; the list above has their texts.`);
    return svg;
}

function draw(tag, attributes) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
}

// The form

function fill(select, values) {
    select.replaceChildren(...values.map(value => new Option(value, value)));
    select.parentElement.hidden = values.length < 2;
}

function showModel() {
    const model = models.find(one => one.id === at("model").value);
    fill(at("source-lang"), model?.source_langs ?? []);
    fill(at("target-lang"), model?.target_langs ?? []);
    at("source").lang = at("source-lang").value;
    if (model) at("width").value = model.width;
    showSliders();
}

function showSliders() {
    at("width-value").textContent = at("width").value;
    const threshold = Number(at("threshold").value);
    at("threshold-value").textContent = threshold < OFF ? `${threshold.toFixed(1)} nats` : "the server's";
    at("threshold").setAttribute("aria-valuetext", at("threshold-value").textContent);
}

function searchSoon() {
    clearTimeout(typing);
    typing = setTimeout(search, TYPING_MS);
}

async function loadModels() {
    try {
        const { data } = await (await ask("v1/models")).json();
        models = data.filter(one => one.input === "text");
        fill(at("model"), models.map(one => one.id));
        showModel();
        complain(models.length ? null : new Error("No model of this server takes texts."));
        search();
    } catch (error) {
        complain(error);
    }
}

at("search").addEventListener("submit", event => event.preventDefault());
at("source").addEventListener("input", searchSoon);
at("key").addEventListener("change", loadModels);
at("model").addEventListener("change", () => { showModel(); search(); });
for (const id of ["source-lang", "target-lang"]) at(id).addEventListener("change", search);
for (const id of ["width", "threshold"]) at(id).addEventListener("input", () => { showSliders(); searchSoon(); });
at("translation").addEventListener("keydown", moveFocus);
at("close-alternatives").addEventListener("click", () => closeAlternatives()?.focus());
at("alternatives").addEventListener("keydown", event => { if (event.key === "Escape") closeAlternatives()?.focus(); });
at("back").addEventListener("click", () => { showTranslation(shown.hypotheses[0].text); at("back").hidden = true; focusWord(0); });
loadModels();
