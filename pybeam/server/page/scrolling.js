// A text and its translation scroll together: whichever is used leads.

import { at } from "./elements.js";

const panes = [at("source"), at("translation")];
let leader = null;

for (const [i, pane] of panes.entries()) {
    const other = panes[1 - i];
    for (const sign of ["pointerenter", "focusin", "wheel", "touchstart"])
        pane.addEventListener(
            sign,
            () => {
                leader = pane;
            },
            { passive: true },
        );
    pane.addEventListener("scroll", () => {
        if (leader !== pane) return;
        const share = pane.scrollTop / Math.max(1, pane.scrollHeight - pane.clientHeight);
        other.scrollTop = share * (other.scrollHeight - other.clientHeight);
    });
}
