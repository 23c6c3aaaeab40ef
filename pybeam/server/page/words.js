// Words of a text, and how sure the search was of each.

// how vocabularies mark the begin of a word, or a piece that goes on
const MARKS = /[▁Ġ]|@@$/g;
const BEGIN = /^[▁Ġ]/;
// characters between two pieces, such as spaces, that a text may have and its pieces lack
const MAX_BETWEEN = 4;

export function partsOf(text, language) {
    if (!Intl.Segmenter)
        return text.split(/(\s+)/).map(part => ({ segment: part, isWordLike: /\S/.test(part) }));
    return [...new Intl.Segmenter(language || undefined, { granularity: "word" }).segment(text)];
}

// How many tokens stand before those that the search has chosen: the tokenizer's own, and a prefix.
export function numGiven({ tokens, log_probs, ended }) {
    return log_probs ? tokens.length + ended - log_probs.length : 0;
}

// The pieces of a hypothesis that the search has chosen: where each stands in the text, and its probability.
export function placesOf(hypothesis) {
    const { text, pieces, log_probs } = hypothesis;
    const given = numGiven(hypothesis);
    const found = [];
    let end = 0;
    pieces.forEach((piece, i) => {
        const letters = piece.replace(MARKS, "");
        const start = letters ? text.indexOf(letters, end) : -1;
        if (start < 0 || start > end + MAX_BETWEEN) return;
        end = start + letters.length;
        if (log_probs && i >= given)
            found.push({ start, end, probability: Math.exp(log_probs[i - given] ?? -Infinity) });
    });
    return found;
}

// Return what writes pieces of these hypotheses as a text. One that begins within a word has dots before it.
export function speller(hypotheses) {
    const isMarked = hypotheses.some(one => one.pieces.some(piece => BEGIN.test(piece)));
    // without such marks, pieces are words, or say that the word goes on
    if (!isMarked) return pieces => pieces.join(" ").replaceAll("@@ ", "").trim();
    const isWithin = piece => piece && !BEGIN.test(piece) && /^\p{L}/u.test(piece);
    return pieces => (isWithin(pieces[0]) ? "…" : "") + pieces.join("").replace(/[▁Ġ]/g, " ").trim();
}
