// Recordings by the microphone, which are written down as files are.

import { at, say } from "./elements.js";
import { take } from "./jobs.js";
import { complain, Trouble } from "./problems.js";

const WORDS = {
    NotAllowedError:
        "The browser may not use the microphone. Allow it beside the address of this page, then press “Speak” again.",
    NotFoundError: "There is no microphone. Connect one, then press “Speak” again.",
    NotReadableError: "Another program uses the microphone. Close it, then press “Speak” again.",
};

let recorder = null;
let timer;

async function begin() {
    const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
    const parts = [];
    const start = Date.now();
    recorder = new MediaRecorder(stream);
    recorder.addEventListener("dataavailable", ({ data }) => parts.push(data));
    recorder.addEventListener("stop", () => {
        for (const track of stream.getTracks()) track.stop();
        const type = recorder.mimeType || parts[0].type;
        const end = type.includes("mp4") ? "mp4" : "webm";
        recorder = null;
        show();
        take([new File(parts, `recording.${end}`, { type })]);
    });
    recorder.start();
    timer = setInterval(() => show(Math.round((Date.now() - start) / 1000)), 1000);
    show(0);
    say("Recording.");
}

function show(seconds) {
    const isOn = seconds !== undefined;
    at("record").setAttribute("aria-pressed", isOn);
    at("record").textContent = isOn
        ? `Stop and write down, ${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")}`
        : "Speak";
    if (!isOn) clearInterval(timer);
}

at("record").addEventListener("click", async () => {
    if (recorder) return recorder.stop();
    try {
        await begin();
    } catch (error) {
        complain(WORDS[error.name] ? new Trouble(WORDS[error.name]) : error);
    }
});
