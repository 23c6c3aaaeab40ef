// Files on their way: texts that are translated into a file, recordings that are written down.

import { at, button, make, say } from "./elements.js";
import { hasTranslators, listener } from "./languages.js";
import { calm, complain, Trouble } from "./problems.js";
import { ask, askJSON, eventsOf } from "./server.js";

let kinds = []; // of texts, by the ends of their names
let onWritten; // hears each part of a recording's text, and whether it is the first

export function listen(handler) {
    onWritten = handler;
}

// Ask what files the server takes, and offer these alone.
export async function offerFiles() {
    const { supportedFilesFormat } = await askJSON("frontend/settings");
    kinds = hasTranslators() ? supportedFilesFormat : [];
    const heard = listener() ? ["audio/*", "video/*"] : [];
    at("file").accept = [...kinds, ...heard].join(",");
    at("open-file").hidden = !at("file").accept;
    at("record").hidden = !listener() || !navigator.mediaDevices || !window.MediaRecorder;
}

const isText = file => kinds.some(end => file.name.toLowerCase().endsWith(end));
const isSound = file => /^(audio|video)\//.test(file.type);

export function take(files) {
    calm();
    for (const file of files) {
        if (isText(file)) run(file, "translating …", translate);
        else if (listener() && isSound(file)) run(file, "writing down …", writeDown);
        else
            complain(
                new Trouble(
                    `“${file.name}” cannot be read here. Take a file that ends in ${kinds.join(", ")}${listener() ? ", or a recording" : ""}.`,
                ),
            );
    }
}

// Do the work of a file, with a line that says how far it is and can stop it.
async function run(file, doing, work) {
    const control = new AbortController();
    const state = make("span", { className: "hint" }, doing);
    const bar = make("progress", {});
    const stop = button("Stop", () => control.abort());
    bar.setAttribute("aria-label", file.name);
    stop.setAttribute("aria-label", `Stop ${file.name}`);
    const line = make("li", { className: "actions" }, make("strong", {}, file.name), state, bar, stop);
    const leave = () => {
        const hadFocus = line.contains(document.activeElement);
        line.remove();
        if (hadFocus) at("open-file").focus();
    };
    at("jobs").append(line);
    try {
        const done = await work(file, control.signal);
        bar.remove();
        state.replaceWith(done);
        say(`${file.name} is done.`);
        stop.textContent = "Remove";
        stop.setAttribute("aria-label", `Remove ${file.name} from this list`);
        stop.onclick = leave;
    } catch (error) {
        leave();
        complain(error, () => run(file, doing, work));
    }
}

async function translate(file, signal) {
    const form = new FormData();
    form.append("file", file);
    form.append("source", at("source-lang").value);
    form.append("target", at("target-lang").value);
    if (at("model").value) form.append("model", at("model").value);
    const { translatedFileUrl } = await askJSON("translate_file", form, signal);
    // the server's own idea of its address may be that of a proxy
    const href = `download_file/${translatedFileUrl.split("/").at(-1)}`;
    return make("a", { href, download: file.name }, `Save the translation as ${file.name}`);
}

async function writeDown(file, signal) {
    const form = new FormData();
    form.append("file", file);
    form.append("model", listener().id);
    form.append("stream", "true");
    let isFirst = true;
    for await (const { data } of eventsOf(await ask("v1/audio/transcriptions", form, signal))) {
        if (data.type !== "transcript.text.delta") continue;
        onWritten(data.delta, isFirst);
        isFirst = false;
    }
    return make("span", { className: "hint" }, isFirst ? "has no words" : "is written down above");
}

at("open-file").addEventListener("click", () => at("file").click());
at("file").addEventListener("change", () => {
    take(at("file").files);
    at("file").value = "";
});
addEventListener("dragover", event => {
    if (event.dataTransfer.types.includes("Files")) event.preventDefault();
});
addEventListener("drop", event => {
    if (!event.dataTransfer.files.length) return;
    event.preventDefault();
    take(event.dataTransfer.files);
});
