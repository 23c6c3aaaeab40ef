// Models and languages: what there is, and what is chosen.

import { at } from "./elements.js";
import { Trouble } from "./problems.js";
import { askJSON } from "./server.js";

const DETECT = "auto";
// characters that say in which language a text is
const NUM_DETECTED = 2000;

let translators = [];
let listeners = [];
let detected = null; // the language that the text seems to be in

const names = new Intl.DisplayNames(["en"], { type: "language", fallback: "code" });

// Models call a language by names of their own, such as es, spa_Latn and es_XX.
export function codeOf(name) {
    try {
        const { language, script } = new Intl.Locale(name.replaceAll("_", "-"));
        return language === "zh" && script ? `${language}-${script}` : language;
    } catch {
        return name;
    }
}

export function nameOf(code) {
    try {
        return names.of(code);
    } catch {
        return code;
    }
}

// A model that names no languages on a side takes any there; a language model's list is empty.
const codesOf = languages => (languages ?? []).map(codeOf);
const allows = (languages, code) => languages === null || codesOf(languages).includes(code);
const ownName = (languages, code) => languages?.find(one => codeOf(one) === code);
const chosenModel = () => translators.find(one => one.id === at("model").value);
const hasLanguages = model => Boolean(model.source_langs?.length || model.target_langs?.length);

const offered = () => [chosenModel() ?? translators].flat().filter(hasLanguages);
const fitting = (from, to) =>
    offered().find(one => allows(one.source_langs, from) && allows(one.target_langs, to));

function sourcesOf(target) {
    const found = offered().filter(one => !target || allows(one.target_langs, target));
    return sorted(found.flatMap(one => codesOf(one.source_langs)).filter(code => code !== target));
}

function targetsOf(source) {
    const found = offered().filter(one => source === DETECT || allows(one.source_langs, source));
    return sorted(found.flatMap(one => codesOf(one.target_langs)).filter(code => code !== source));
}

function sorted(codes) {
    return [...new Set(codes)].sort((a, b) => nameOf(a).localeCompare(nameOf(b)));
}

// Offer these values with their names, and hide the field if there are fewer than `least`.
function fill(select, options, least) {
    const kept = select.value;
    select.replaceChildren(...options.map(([value, name]) => new Option(name, value)));
    if (options.some(([value]) => value === kept)) select.value = kept;
    select.parentElement.hidden = options.length < least;
}

export async function loadModels() {
    const { data } = await askJSON("v1/models");
    translators = data.filter(one => one.input === "text");
    listeners = data.filter(one => one.input === "audio");
    if (!data.length)
        throw new Trouble("This server has no models. Ask whoever runs the server to load one.");
    const any = translators.some(hasLanguages) ? [["", "whichever fits"]] : [];
    const own = translators.map(one => [one.id, one.id]);
    fill(at("model"), own.length > 1 ? [...any, ...own] : own, 2);
    fill(
        at("listener"),
        listeners.map(one => [one.id, one.id]),
        2,
    );
    showLanguages();
}

export function showLanguages() {
    const sources = sourcesOf().map(code => [code, nameOf(code)]);
    fill(at("source-lang"), sources.length > 1 ? [[DETECT, "detect"], ...sources] : sources, 1);
    showTargets();
}

export function showTargets() {
    const from = at("source-lang").value;
    fill(
        at("target-lang"),
        targetsOf(from).map(code => [code, nameOf(code)]),
        1,
    );
    at("source").lang = from === DETECT ? "" : from;
    at("swap").hidden = !offered().length;
    showDetected(null);
}

function showDetected(code) {
    detected = code;
    at("detected").textContent = code ? `It seems to be ${nameOf(code)}.` : "";
    at("swap").disabled = !fitting(at("target-lang").value, presentSource());
}

const presentSource = () => detected ?? at("source-lang").value;

export const swapLanguages = () => choosePair(at("target-lang").value, presentSource());

export function choosePair(from, to) {
    if (!fitting(from, to)) return;
    at("source-lang").value = from;
    showTargets();
    at("target-lang").value = to;
    showTargets();
}

// The model that will translate, whose usual effort is offered.
export const presentModel = () =>
    chosenModel() ?? fitting(presentSource(), at("target-lang").value) ?? offered()[0] ?? translators[0];

// Return what requests for this text must say of the model and the languages; null: nobody here translates.
export async function choice(text, signal) {
    if (!translators.length) return null;
    const to = at("target-lang").value;
    let from = at("source-lang").value;
    if (from === DETECT) {
        from = await detect(text, to, signal);
        showDetected(from);
    }
    const model = fitting(from, to) ?? presentModel();
    // a language model goes on with the text, which is no sentence to translate
    if (!hasLanguages(model)) return { model: model.id, isWhole: model.source_langs?.length === 0 };
    return {
        model: model.id,
        source_lang: ownName(model.source_langs, from),
        target_lang: ownName(model.target_langs, to),
    };
}

async function detect(text, to, signal) {
    const able = sourcesOf(to);
    const found = await askJSON("detect", { q: text.slice(0, NUM_DETECTED) }, signal);
    return found.map(one => codeOf(one.language)).find(code => able.includes(code)) ?? able[0];
}

export const hasTranslators = () => translators.length > 0;
export const listener = () => listeners.find(one => one.id === at("listener").value);
