// The texts that were translated here before. They are kept in this browser alone, if the reader likes.

import { at, button, make } from "./elements.js";
import { codeOf, nameOf } from "./languages.js";
import { forget, load, save } from "./storage.js";

const MAX_ENTRIES = 200;
const MAX_CHARACTERS = 500_000;
const dialog = at("history");

let onOpened;

export function listen(handler) {
    onOpened = handler;
}

const isKept = () => load("keeps history", true);
const sizeOf = entry => entry.source.length + entry.translation.length;

// Keep a text and its translation, newest first. One that is still being written replaces its beginning.
export function remember(source, translation, { source_lang, target_lang }) {
    if (!isKept()) return;
    const from = codeOf(source_lang ?? "");
    const to = codeOf(target_lang ?? "");
    const others = load("history", []);
    const [last] = others.filter((one, i) => i === 0 && one.from === from && one.to === to);
    // who deletes a text letter by letter does not mean its beginnings
    if (last && last.source.startsWith(source) && last.source !== source) return;
    const isReplaced = one =>
        one.from === from &&
        one.to === to &&
        (one.source === source || (one === last && source.startsWith(one.source)));
    const entry = { source, translation, from, to, when: Date.now() };
    const entries = [entry, ...others.filter(one => !isReplaced(one))].slice(0, MAX_ENTRIES);
    let size = 0;
    const fitting = entries.filter(one => (size += sizeOf(one)) <= MAX_CHARACTERS);
    // a browser that is full keeps half of it
    if (!save("history", fitting)) save("history", fitting.slice(0, fitting.length / 2));
}

function show() {
    const entries = load("history", []);
    at("keep-history").checked = isKept();
    at("delete-history").disabled = !entries.length;
    at("history-list").replaceChildren(
        ...(entries.length
            ? entries.map(item)
            : [make("li", { className: "hint" }, "There is nothing yet.")]),
    );
}

function item(entry) {
    const { source, translation, from, to, when } = entry;
    const pair = from && to ? `${nameOf(from)} – ${nameOf(to)}, ` : "";
    const open = button("", () => {
        dialog.close();
        onOpened(entry);
    });
    open.append(
        make("span", { className: "quoted", lang: from }, source),
        make("span", { lang: to }, translation),
    );
    const away = button("Delete", () => {
        save(
            "history",
            load("history", []).filter(one => one.when !== when),
        );
        show();
        (dialog.querySelector("li button") ?? at("close-history")).focus();
    });
    away.setAttribute("aria-label", `Delete “${source.slice(0, 40)}”`);
    return make(
        "li",
        {},
        open,
        make("div", { className: "actions hint" }, `${pair}${new Date(when).toLocaleString()}`, away),
    );
}

at("open-history").addEventListener("click", () => {
    show();
    dialog.showModal();
});
at("close-history").addEventListener("click", () => dialog.close());
at("delete-history").addEventListener("click", () => {
    forget("history");
    show();
    at("close-history").focus();
});
at("keep-history").addEventListener("change", ({ target }) => save("keeps history", target.checked));
