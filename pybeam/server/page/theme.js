// Light or dark: as the device has it, or as the reader chooses. It runs before the page is painted.

import { load, save } from "./storage.js";

const root = document.documentElement;

function show(theme) {
    if (theme) root.dataset.theme = theme;
    else delete root.dataset.theme;
}

show(load("theme", ""));
document.addEventListener("DOMContentLoaded", () => {
    const choice = document.getElementById("theme");
    choice.value = load("theme", "");
    choice.addEventListener("change", () => {
        show(choice.value);
        save("theme", choice.value);
    });
});
