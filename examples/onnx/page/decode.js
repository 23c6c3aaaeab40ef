/** Decode sentences and recordings in a browser with the graphs of `pybeam export-onnx`. */

import * as ort from "onnxruntime-web/wasm";
import wasm from "onnxruntime-web/ort-wasm-simd-threaded.wasm";
import { SentencePieceProcessor } from "@sctg/sentencepiece-js";

// more threads need a server that isolates the page from other sites
ort.env.wasm.numThreads = 1;
ort.env.wasm.wasmPaths = { wasm: new URL(wasm, import.meta.url).href };

const SEARCH = { width: 5, maxLength: 200, lengthPenalty: 1 };

const int64 = (numbers, shape) =>
  new ort.Tensor("int64", BigInt64Array.from(numbers, BigInt), shape);

async function get(folder, name) {
  const answer = await fetch(`${folder}/${name}`);
  if (!answer.ok) throw new Error(`${folder}/${name} is not there (${answer.status})`);
  return answer;
}

const readJson = async (folder, name) => (await get(folder, name)).json();
const readBytes = async (folder, name) =>
  new Uint8Array(await (await get(folder, name)).arrayBuffer());
const readGraph = async (folder, name) =>
  ort.InferenceSession.create(await readBytes(folder, name));

/** Run search.onnx on a batch of one. Returns hypotheses, best first: tokens and score. */
async function search(graph, source) {
  const outputs = await graph.run({
    ...source,
    width: int64([SEARCH.width], []),
    max_length: int64([SEARCH.maxLength], []),
    length_penalty: new ort.Tensor("float32", [SEARCH.lengthPenalty], []),
  });
  const [, count, size] = outputs.tokens.dims; // [1, K, T]
  const found = [];
  for (let k = 0; k < count; k++) {
    const end = k * size + Number(outputs.lengths.data[k]);
    const tokens = Array.from(outputs.tokens.data.subarray(k * size, end), Number);
    found.push({ tokens, score: outputs.final_scores.data[k] });
  }
  return found.filter(({ score }) => score > -Infinity); // there may be fewer than K
}

/** A translator, and its SentencePiece model. */
export class Translator {
  static async load(folder) {
    const translator = new Translator();
    translator.eos = (await readJson(folder, "config.json")).eos_token_id;
    translator.graph = await readGraph(folder, "search.onnx");
    translator.pieces = new SentencePieceProcessor();
    const model = await readBytes(folder, "sentencepiece.model");
    const letters = Array.from(model, (byte) => String.fromCharCode(byte));
    await translator.pieces.loadFromB64StringModel(btoa(letters.join("")));
    return translator;
  }

  /** Returns translations, best first: text and score. */
  async translate(sentence) {
    const ids = [...this.pieces.encodeIds(sentence), this.eos];
    const source = int64(ids, [1, ids.length]);
    const found = await search(this.graph, { source, source_length: int64([ids.length], [1]) });
    return found.map(({ tokens, score }) => ({ text: this.pieces.decodeIds(tokens), score }));
  }
}

/**
 * Turns tokens into text with `tokenizer.json`: whole words, or pieces in which every letter stands
 * for a byte, as in Whisper.
 */
class Vocabulary {
  constructor({ model, decoder, added_tokens: commands }) {
    this.hasWords = model.type === "WordLevel";
    if (!this.hasWords && decoder?.type !== "ByteLevel") {
      throw new Error("tokenizer.json must hold words or byte-level pieces");
    }
    this.pieces = new Map(Object.entries(model.vocab).map(([piece, id]) => [id, piece]));
    for (const { id } of commands) this.pieces.delete(id);
    this.bytes = new Map();
    let other = 256;
    for (let byte = 0; byte < 256; byte++) {
      const isVisible = (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
      this.bytes.set(String.fromCharCode(isVisible ? byte : other++), byte);
    }
  }

  text(tokens) {
    const pieces = tokens.filter((id) => this.pieces.has(id)).map((id) => this.pieces.get(id));
    if (this.hasWords) return pieces.join(" ");
    const bytes = Uint8Array.from(pieces.join(""), (letter) => this.bytes.get(letter));
    return new TextDecoder().decode(bytes).trim();
  }
}

/** The tokens with which Whisper's outputs begin; none for other models. */
function prefixOf(config, language) {
  const last = config.no_timestamps_token_id;
  if (last === undefined) return [];
  if (!(config.is_multilingual ?? "lang_to_id" in config)) return [last];
  const id = config.lang_to_id[`<|${language}|>`];
  if (id === undefined) throw new Error(`the model does not know the language ${language}`);
  return [id, config.task_to_id.transcribe, last];
}

/** A recogniser: Speech2Text, or Whisper. */
export class Recogniser {
  static async load(folder) {
    const recogniser = new Recogniser();
    recogniser.rate = (await readJson(folder, "preprocessor_config.json")).sampling_rate;
    recogniser.vocabulary = new Vocabulary(await readJson(folder, "tokenizer.json"));
    const isWhisper = (await readJson(folder, "config.json")).model_type === "whisper";
    recogniser.generation = isWhisper ? await readJson(folder, "generation_config.json") : {};
    recogniser.features = await readGraph(folder, "features.onnx");
    recogniser.graph = await readGraph(folder, "search.onnx");
    return recogniser;
  }

  /**
   * Returns texts, best first: text and score.
   *
   * `recording` is a file of any kind that the browser plays. Whisper is told its language.
   */
  async recognise(recording, language = "en") {
    const samples = await samplesOf(recording, this.rate);
    const { features } = await this.features.run({
      samples: new ort.Tensor("float32", samples, [samples.length]),
    });
    const [length, size] = features.dims;
    const source = {
      features: features.reshape([1, length, size]),
      feature_length: int64([length], [1]),
    };
    const prefix = prefixOf(this.generation, language);
    if (prefix.length) source.prefix = int64(prefix, [1, prefix.length]);
    const found = await search(this.graph, source);
    return found.map(({ tokens, score }) => ({ text: this.vocabulary.text(tokens), score }));
  }
}

/** The samples of a recording's first channel, at this rate. */
async function samplesOf(recording, rate) {
  const context = new OfflineAudioContext(1, 1, rate);
  const sound = await context.decodeAudioData(await recording.arrayBuffer());
  return sound.getChannelData(0);
}
