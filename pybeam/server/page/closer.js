// A closer look at one sentence: its best wordings, where they part, and what they took.

import { takeAnswer } from "./alternatives.js";
import { at, button, make } from "./elements.js";
import { codeOf } from "./languages.js";
import { drawTree, fitTree, zoomTree } from "./tree.js";

let shown = null;

// The sentence must have an answer; null: there is none.
export function showCloser(sentence, passage, onTaken) {
    shown = sentence;
    at("closer").hidden = !shown;
    showCost(shown?.answer.times);
    if (!shown) return;
    const { answer, source, options } = shown;
    const place = passage.sentences.indexOf(shown) + 1;
    const num = passage.sentences.length;
    at("closer-name").textContent = num > 1 ? `Sentence ${place} of ${num}` : "The sentence";
    at("closer-source").textContent = source;
    at("closer-source").lang = codeOf(options.source_lang ?? "");
    const language = codeOf(options.target_lang ?? "");
    at("best").replaceChildren(
        ...answer.hypotheses.map(one => {
            const take = button(one.text, () => {
                const others = answer.hypotheses.filter(other => other !== one);
                takeAnswer(shown, { ...answer, hypotheses: [one, ...others] });
                onTaken(shown);
                at("best").querySelector("button").focus();
            });
            take.lang = language;
            if (one === answer.hypotheses[0]) take.setAttribute("aria-current", "true");
            return make(
                "li",
                {},
                take,
                " ",
                make("span", {
                    className: "score",
                    textContent: one.final_score.toFixed(2),
                    title: "The sum of the log-probabilities, as it ranks",
                }),
            );
        }),
    );
    drawTree(at("tree"), answer.hypotheses);
}

function showCost(times) {
    at("rows").textContent = times ? times.rows.toFixed(1) : "–";
    at("expansions").textContent = times?.expansions ?? "–";
    at("steps").textContent = times?.steps ?? "–";
    at("milliseconds").textContent = times
        ? (1000 * (times.queued + times.encoding + times.decoding)).toFixed(0)
        : "–";
}

at("zoom-in").addEventListener("click", () => zoomTree(at("tree"), 1.25));
at("zoom-out").addEventListener("click", () => zoomTree(at("tree"), 0.8));
at("zoom-fit").addEventListener("click", () => fitTree(at("tree")));
