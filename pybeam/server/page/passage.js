// A text in sentences, each translated by itself.

import { ask, askJSON, eventsOf, Refused } from "./server.js";

// a browser opens six connections to a server, and other wordings need some
const AT_ONCE = 4;
// of more sentences than these none is shown while it grows: that would take longer than to translate them
const FEW = 4;

// an event is painted before the next one is; a page that nobody sees gets no frames
const painted = () => document.hidden || new Promise(resolve => requestAnimationFrame(resolve));

export class Sentence {
    // options: of requests, which decide about its translation; open: what is shown until there is one
    constructor(source, options, open = "") {
        Object.assign(this, { source, options, open, certain: "", answer: null, first: null });
    }

    get best() {
        return this.answer?.hypotheses[0];
    }

    get text() {
        return this.best?.text ?? "";
    }

    get isFirstWording() {
        return this.answer === this.first;
    }

    async translate(signal, isWatched, onNews) {
        this.first = this.answer = await (isWatched ? this.#follow(signal, onNews) : this.decode({}, signal));
        onNews(this);
    }

    // Search with other options than those of the sentence.
    decode(others, signal) {
        return askJSON("v1/decode", { ...this.options, source: this.source, ...others }, signal);
    }

    // Tell of what is certain while it becomes so; returns the answer.
    async #follow(signal, onNews) {
        const body = { ...this.options, source: this.source, stream: true, best_so_far: true };
        let certain = "";
        let best = "";
        for await (const { name, data } of eventsOf(await ask("v1/decode", body, signal))) {
            if (name === "result") return data;
            if (name === "certain") certain += data.delta;
            else best = data.text;
            this.certain = certain;
            this.open = best.startsWith(certain) ? best.slice(certain.length) : "";
            onNews(this);
            await painted();
        }
        throw new Refused(500, "the connection was closed before the end");
    }
}

export class Passage {
    constructor(kept, sentences) {
        Object.assign(this, { kept, sentences });
    }

    // Split a text. Sentences that `before` has, too, keep their translations, with the wordings that were chosen.
    static async of(text, { isWhole, ...options }, before, signal) {
        const { model, source_lang, target_lang } = options;
        const { kept, texts } = isWhole
            ? { kept: ["", ""], texts: [text] }
            : await askJSON("v1/sentences", { text, model, source_lang, target_lang }, signal);
        const nameOf = (source, own) => JSON.stringify([source, own]);
        const done = Map.groupBy(
            before.sentences.filter(one => one.answer),
            one => nameOf(one.source, one.options),
        );
        return new Passage(
            kept,
            texts.map(
                (source, i) =>
                    done.get(nameOf(source, options))?.shift() ??
                    new Sentence(source, options, before.sentences[i]?.text),
            ),
        );
    }

    get numDone() {
        return this.sentences.filter(one => one.answer).length;
    }

    get isDone() {
        return this.sentences.every(one => one.answer);
    }

    // The translation as far as it is there.
    get text() {
        return this.kept.map((kept, i) => kept + (this.sentences[i]?.text ?? "")).join("");
    }

    // Translate the sentences that have no translation, in their order; `onNews` hears of each change.
    async translate(signal, onNews) {
        const waiting = this.sentences.filter(one => !one.answer);
        const isWatched = waiting.length <= FEW;
        const work = async () => {
            for (let one = waiting.shift(); one; one = waiting.shift())
                await one.translate(signal, isWatched, onNews);
        };
        await Promise.all(Array.from({ length: AT_ONCE }, work));
    }
}

export const NOTHING = new Passage([""], []);
