// The tree of the best outputs: what they share is drawn once. It scrolls, and it zooms.

import { numGiven, speller } from "./words.js";

// in pixels
const LINE = 20;
const BELOW = 8; // one output, before the next
const GAP = 34; // between a text and those behind it
const MARGIN = 8;
const MOST_WIDTH = 220; // of a text
const SCORE = 60;
const LEAST_ZOOM = 0.25;
const MOST_ZOOM = 4;

function treeOf(hypotheses) {
    const root = { pieces: [], children: new Map() };
    for (const one of hypotheses) {
        let node = root;
        for (const piece of [...one.pieces.slice(numGiven(one)), ...(one.ended ? [null] : [])]) {
            if (!node.children.has(piece)) node.children.set(piece, { pieces: [piece], children: new Map() });
            node = node.children.get(piece);
        }
        node.score ??= one.final_score;
    }
    return merged(root);
}

// Join nodes that have one child with it.
function merged(node) {
    const children = [...node.children.values()].map(merged);
    if (children.length === 1 && node.score === undefined) {
        const [only] = children;
        return { ...only, pieces: [...node.pieces, ...only.pieces] };
    }
    return { ...node, children };
}

// Lines of a text that are at most so wide, if no word is wider.
function linesOf(text, widthOf) {
    const lines = [];
    for (const word of text.split(" ")) {
        const longer = `${lines.at(-1)} ${word}`;
        if (lines.length && widthOf(longer) <= MOST_WIDTH) lines[lines.length - 1] = longer;
        else lines.push(word);
    }
    return lines;
}

export function drawTree(scene, hypotheses) {
    const measure = document.createElement("canvas").getContext("2d");
    const { fontFamily, fontSize } = getComputedStyle(scene);
    // that of the best output, which is the widest
    measure.font = `600 ${fontSize} ${fontFamily}`;
    const widthOf = text => measure.measureText(text).width;
    const svg = draw("svg", {
        role: "img",
        "aria-label": `Tree of ${hypotheses.length} wordings; the list above has their texts.`,
    });
    const spell = speller(hypotheses);
    const labelOf = ({ pieces }, depth) =>
        spell(pieces.filter(piece => piece !== null)) || (depth ? "∎" : "");
    let widest = 0;
    // draw a node and what is behind it, from `top` on; return where it ends
    const place = (node, x, top, isFirst, depth) => {
        const lines = linesOf(labelOf(node, depth), widthOf);
        const own = Math.max(...lines.map(widthOf));
        const end = x + (own ? own + MARGIN : 0);
        const y = top + LINE / 2;
        const middle = end + GAP / 2;
        lines.forEach((line, i) =>
            svg.append(draw("text", { x, y: y + 5 + i * LINE, class: isFirst ? "first" : "" }, line)),
        );
        let bottom = top;
        node.children.forEach((child, i) => {
            const beside = bottom + LINE / 2;
            svg.append(
                draw("path", {
                    d: `M${end} ${y}C${middle} ${y} ${middle} ${beside} ${end + GAP - MARGIN} ${beside}`,
                }),
            );
            bottom = place(child, end + GAP, bottom, isFirst && i === 0, depth + 1);
        });
        if (node.score !== undefined && !node.children.length)
            svg.append(draw("text", { x: end, y: y + 5 }, node.score.toFixed(2)));
        widest = Math.max(widest, end + SCORE);
        return Math.max(bottom, top + lines.length * LINE + BELOW);
    };
    const height = place(treeOf(hypotheses), MARGIN, 0, true, 0);
    svg.setAttribute("viewBox", `0 0 ${Math.ceil(widest)} ${height}`);
    scene.replaceChildren(svg);
    resize(svg, zoomOf.get(scene) ?? 1);
}

function draw(tag, attributes, textContent = "") {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.textContent = textContent;
    return element;
}

// Zoom

const zoomOf = new WeakMap(); // of each scene

function resize(svg, zoom) {
    const { width, height } = svg.viewBox.baseVal;
    svg.setAttribute("width", width * zoom);
    svg.setAttribute("height", height * zoom);
}

function setZoom(scene, zoom) {
    const bounded = Math.min(MOST_ZOOM, Math.max(LEAST_ZOOM, zoom));
    const svg = scene.querySelector("svg");
    zoomOf.set(scene, bounded);
    if (svg) resize(svg, bounded);
}

export function zoomTree(scene, factor) {
    setZoom(scene, (zoomOf.get(scene) ?? 1) * factor);
}

// As large as it is whole, but not larger than it is drawn.
export function fitTree(scene) {
    const { paddingLeft, paddingRight } = getComputedStyle(scene);
    const room = scene.clientWidth - parseFloat(paddingLeft) - parseFloat(paddingRight);
    setZoom(scene, Math.min(1, room / scene.querySelector("svg").viewBox.baseVal.width));
}
