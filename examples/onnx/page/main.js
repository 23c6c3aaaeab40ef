/** The page: a sentence box, a file, a microphone. */

import { Recogniser, Translator } from "./decode.js";

const element = (id) => document.getElementById(id);

/** Show what a call finds, or why it failed. */
async function show(list, call) {
  element("problem").textContent = "";
  try {
    const items = (await call()).map(({ text, score }) => {
      const item = document.createElement("li");
      item.textContent = text;
      item.title = `score ${score.toFixed(4)}`;
      return item;
    });
    element(list).replaceChildren(...items);
  } catch (error) {
    element("problem").textContent = error.message;
  }
}

async function load(kind, folder, ...controls) {
  try {
    const model = await kind.load(folder);
    for (const control of controls) control.disabled = false;
    return model;
  } catch (error) {
    element("problem").textContent = error.message;
  }
}

// other folders: index.html?recogniser=models/mine
const folders = new URLSearchParams(location.search);
const folder = (kind) => folders.get(kind) ?? `models/${kind}`;

const [translator, recogniser] = await Promise.all([
  load(Translator, folder("translator"), ...element("translate").elements),
  load(Recogniser, folder("recogniser"), element("recording"), element("microphone")),
]);

element("translate").addEventListener("submit", (event) => {
  event.preventDefault();
  show("translations", () => translator.translate(element("sentence").value));
});

element("recording").addEventListener("change", ({ target }) => {
  if (target.files.length) show("texts", () => recogniser.recognise(target.files[0]));
});

let recorder;

async function record() {
  const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
  recorder = new MediaRecorder(stream);
  recorder.addEventListener("dataavailable", ({ data }) => {
    for (const track of stream.getTracks()) track.stop();
    show("texts", () => recogniser.recognise(data));
  });
  recorder.start();
}

element("microphone").addEventListener("click", async ({ target }) => {
  if (recorder) {
    recorder.stop();
    recorder = undefined;
    target.textContent = "Record";
  } else {
    try {
      await record();
      target.textContent = "Stop";
    } catch (error) {
      element("problem").textContent = error.message;
    }
  }
});
