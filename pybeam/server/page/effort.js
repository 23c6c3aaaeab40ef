// How much the search weighs: its width, and its threshold.

import { at } from "./elements.js";

const NO_THRESHOLD = 10.5; // the slider's last value

export function efforts() {
    const width = Number(at("width").value);
    const threshold = Number(at("threshold").value);
    return { width, n_best: width, ...(threshold < NO_THRESHOLD ? { threshold } : {}) };
}

export function showEffort() {
    const threshold = Number(at("threshold").value);
    // a threshold is in nats
    const factor = Math.round(Math.exp(threshold)).toLocaleString("en");
    at("width-value").textContent = at("width").value;
    at("threshold-value").textContent =
        threshold < NO_THRESHOLD
            ? `${threshold < 2 ? Math.exp(threshold).toFixed(1) : factor} times`
            : "as the server does";
    at("threshold").setAttribute("aria-valuetext", at("threshold-value").textContent);
}

export function useWidthOf(model) {
    if (model) at("width").value = model.width;
    showEffort();
}
