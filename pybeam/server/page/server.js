// Requests to the server. The page uses the endpoints that every client may use.

// one that is busy says when to ask again; nobody likes to wait for longer unasked
const MAX_WAIT_SECONDS = 10;
const MAX_TRIES = 4;

export class Refused extends Error {
    constructor(status, message) {
        super(message);
        this.status = status;
    }
}

let key = "";

export function useKey(given) {
    key = given;
}

// Send a body of JSON or a form, or none; return the response if it is good.
export async function ask(path, body, signal) {
    const isForm = body instanceof FormData;
    const headers = body && !isForm ? { "Content-Type": "application/json" } : {};
    if (key) headers.Authorization = `Bearer ${key}`;
    const options = body ? { method: "POST", body: isForm ? body : JSON.stringify(body) } : {};
    for (let tries = 1; ; tries++) {
        const response = await fetch(path, { ...options, headers, signal });
        if (response.ok) return response;
        const seconds = Number(response.headers.get("Retry-After"));
        const isBusy = [429, 503].includes(response.status) && seconds > 0 && seconds <= MAX_WAIT_SECONDS;
        if (!isBusy || tries === MAX_TRIES) throw await refusal(response);
        await pause(1000 * seconds, signal);
    }
}

export async function askJSON(path, body, signal) {
    return (await ask(path, body, signal)).json();
}

async function refusal(response) {
    const { error } = await response.json().catch(() => ({}));
    return new Refused(response.status, error?.message ?? (typeof error === "string" ? error : ""));
}

function pause(milliseconds, signal) {
    return new Promise((resolve, reject) => {
        const timer = setTimeout(resolve, milliseconds);
        signal?.addEventListener(
            "abort",
            () => {
                clearTimeout(timer);
                reject(signal.reason);
            },
            { once: true },
        );
    });
}

// The server-sent events of a response: each one's name, if it has one, and its data.
export async function* eventsOf(response) {
    let rest = "";
    for await (const chunk of chunksOf(response.body.pipeThrough(new TextDecoderStream()))) {
        const blocks = (rest + chunk).split("\n\n");
        rest = blocks.pop();
        for (const block of blocks) {
            const fields = Object.fromEntries(
                block.split("\n").map(line => {
                    const colon = line.indexOf(": ");
                    return [line.slice(0, colon), line.slice(colon + 2)];
                }),
            );
            const data = JSON.parse(fields.data);
            if (fields.event === "error") throw new Refused(200, data.error.message ?? data.error);
            yield { name: fields.event, data };
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
