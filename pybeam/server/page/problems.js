// Problems in plain words, each with what to do.

import { at } from "./elements.js";

const WORDS = {
    // a stream that has begun
    200: "The server broke off. Try again.",
    400: "The server does not take this as it is.",
    401: "This server wants a key. Type yours into the field “Key” above the text, or ask whoever runs the server for one.",
    403: "The server does not answer to this page. Open the page at the server's own address.",
    404: "The server does not have this any more. Try again, and the page asks what there is.",
    413: "This is too large for the server. Send it in smaller parts.",
    422: "The server cannot work with this.",
    429: "The server takes no more for now: others use it, or you have used up your share. Wait a while, then try again.",
    500: "The server made a mistake. Try again; if it stays, tell whoever runs the server.",
    501: "The server lacks a part for this. Tell whoever runs the server.",
    503: "The server has too much to do. Wait a few seconds, then try again.",
    504: "This took too long. Try again, translate less at a time, or choose less effort below.",
};

// A problem that this page finds itself, with what to do.
export class Trouble extends Error {}

let retry = null;

// Show a problem and offer to try again, if that may help.
export function complain(error, again = null) {
    if (error.name === "AbortError") return;
    const [text, detail] = explain(error);
    retry = again;
    at("problem-text").textContent = text;
    at("problem-detail").textContent = detail && `The server says: ${detail}`;
    at("try-again").hidden = !again;
    at("problem").hidden = false;
    if (error.status === 401) at("key-field").hidden = false;
}

function explain(error) {
    if (error instanceof Trouble) return [error.message, ""];
    if (error.status !== undefined) return [WORDS[error.status] ?? WORDS[500], error.message];
    // what fetch throws when nobody answers
    if (error instanceof TypeError)
        return [
            "The server does not answer. Look whether it runs and whether you are connected, then try again.",
            "",
        ];
    return ["The page made a mistake. Load it again.", error.message];
}

export function calm() {
    at("problem").hidden = true;
    retry = null;
}

at("close-problem").addEventListener("click", () => {
    calm();
    at("source").focus();
});
at("try-again").addEventListener("click", () => {
    const again = retry;
    calm();
    again();
});
