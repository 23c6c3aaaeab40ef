"""Processors in plain Python, one row at a time, written from their rules and not from our code.

Each takes the numbers of a row, its tokens (start token first), and how many of these are forced.
"""

from __future__ import annotations

import math

from support.processor_rows import EOS, MAX_LENGTH

INF = math.inf


def log_softmax(x: list[float]) -> list[float]:
    peak = max(x)
    if peak == -INF:
        return x
    log_sum = peak + math.log(sum(math.exp(v - peak) for v in x))
    return [v - log_sum for v in x]


def temperature(x, tokens, forced, t):
    return [v / t for v in x]


def eos_penalty(x, tokens, forced, penalty):
    return [v * penalty if i == EOS else v for i, v in enumerate(x)]


def repetition_penalty(x, tokens, forced, penalty, counts_start=False):
    seen = set(tokens if counts_start else tokens[1:])
    return [(v * penalty if v < 0 else v / penalty) if i in seen else v for i, v in enumerate(x)]


def count_penalty(x, tokens, forced, frequency, presence):
    counts = [tokens[1:].count(i) for i in range(len(x))]
    return [
        v - frequency * count - presence * (count > 0) for v, count in zip(x, counts, strict=True)
    ]


def no_repeat_ngram(x, tokens, forced, n, counts_start=False):
    tokens = tokens if counts_start else tokens[1:]
    ngrams = {tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)}
    context = tokens[len(tokens) - n + 1 :] if n > 1 else []
    if len(context) < n - 1:
        return x
    return [-INF if (*context, i) in ngrams else v for i, v in enumerate(x)]


def suppress_tokens(x, tokens, forced, banned):
    return [-INF if i in banned else v for i, v in enumerate(x)]


def suppress_tokens_at_start(x, tokens, forced, banned, skips=0):
    is_start = len(tokens) == 1 + max(forced, skips)
    return suppress_tokens(x, tokens, forced, banned) if is_start else x


def suppress_sequences(x, tokens, forced, sequences, counts_start=False, spares_eos=False):
    tokens = tokens if counts_start else tokens[1:]
    banned = {
        line[-1]
        for line in sequences
        if len(line) == 1 or tokens[-(len(line) - 1) :] == list(line[:-1])
        if not (spares_eos and list(line) == [EOS])
    }
    return suppress_tokens(x, tokens, forced, banned)


def sequence_bias(x, tokens, forced, biases, counts_start=False):
    tokens = tokens if counts_start else tokens[1:]
    found = list(x)
    for line, bias in biases:
        if len(line) == 1 or tokens[-(len(line) - 1) :] == list(line[:-1]):
            found[line[-1]] += bias
    return found


def encoder_repetition_penalty(x, tokens, forced, penalty, source):
    return [(v / penalty if v < 0 else v * penalty) if i in source else v for i, v in enumerate(x)]


def encoder_no_repeat_ngram(x, tokens, forced, n, source, counts_start=False):
    ngrams = [source[i : i + n] for i in range(len(source) - n + 1)]
    return suppress_sequences(x, tokens, forced, ngrams, counts_start)


def min_length(x, tokens, forced, length, counts_prefix=False):
    done = len(tokens) - 1 - (0 if counts_prefix else forced)
    return suppress_tokens(x, tokens, forced, [EOS] if done < length else [])


def first_token(x, tokens, forced, token):
    if token is None or len(tokens) > 1 or forced:
        return x
    return [0.0 if i == token else -INF for i in range(len(x))]


def force_eos(x, tokens, forced, is_scored, max_length=MAX_LENGTH):
    if len(tokens) - forced != max_length:
        return x
    return [(v if is_scored else 0.0) if i == EOS else -INF for i, v in enumerate(x)]


def eos_growth(x, tokens, forced, start, factor):
    late = max(len(tokens) - 1 - forced - start, 0)
    grown = x[EOS] + abs(x[EOS]) * (factor**late - 1) if x[EOS] > -INF else -INF
    return [grown if i == EOS else v for i, v in enumerate(x)]


def token_penalty(x, tokens, forced, token, penalty):
    return [v - penalty if i == token else v for i, v in enumerate(x)]


def top_k(x, tokens, forced, k):
    least = sorted(x, reverse=True)[k - 1] if 0 < k <= len(x) else -INF
    return [v if v >= least else -INF for v in x]


def top_p(x, tokens, forced, p):
    share = [math.exp(v) for v in log_softmax(x)]

    def before(v):
        return sum(own for own, other in zip(share, x, strict=True) if other > v)

    return [v if before(v) < p or p == 1 or v == max(x) else -INF for v in x]


def min_p(x, tokens, forced, p):
    least = max(x) + math.log(p) if p else -INF
    return [v if v >= least else -INF for v in x]


def biased_prefix(x, tokens, forced, beta, prefix):
    made = tokens[1 + forced :]
    if len(tokens) <= forced or len(made) >= len(prefix) or made != list(prefix[: len(made)]):
        return x
    wanted = prefix[len(made)]
    p = [(1 - beta) * math.exp(v) + beta * (i == wanted) for i, v in enumerate(x)]
    return [math.log(v) if v > 0 else -INF for v in p]


def allowed_sequences(x, tokens, forced, sequences):
    if len(tokens) - 1 < forced:
        return x
    made = tokens[1 + forced :]
    allowed = {line[len(made)] for line in sequences if list(line[: len(made)]) == made != [*line]}
    if made in [list(line) for line in sequences]:
        allowed.add(EOS)
    return [v if i in allowed else -INF for i, v in enumerate(x)]


def constraint(x, tokens, forced, automaton, max_length=MAX_LENGTH):
    if len(tokens) - 1 < forced:
        return x
    made = tokens[1 + forced :]
    state, out = automaton.walk(made).state, [-INF] * len(x)
    if state < 0:
        return out
    for token, v in enumerate(x):
        target, weight = automaton.step(state, token)
        # the tokens made, this one, those that are needed, and EOS
        num = len(made) + 1 + automaton.needed[target] + (not automaton.allows_cuts)
        if target >= 0 and num <= max_length:
            out[token] = v + weight
    out[EOS] = x[EOS] + float(automaton.final[state])
    return out


def grammar(x, tokens, forced, sequences, max_length):
    x = allowed_sequences(x, tokens, forced, sequences)
    return force_eos(x, tokens, forced, True, max_length)


def words_of_model(x, tokens, forced, automaton, numbers, vocabulary):
    if len(tokens) - 1 < forced:
        return x
    written = set(vocabulary.written)
    made = [t for t in tokens[1 + forced :] if t in written]

    def walk(output, ended):
        text = vocabulary.text(output).decode()
        words = text.split()
        if words and not (ended or text[-1].isspace()):
            words.pop()
        return automaton.walk([numbers.get(word, len(numbers)) for word in words])

    before, out = walk(made, ended=False).weight, []
    for token, v in enumerate(x):
        longer = walk([*made, token], ended=False).weight if token in written else before
        out.append(v + longer - before)
    last = walk(made, ended=True)
    out[EOS] = x[EOS] + last.weight + float(automaton.final[last.state]) - before
    return out


def allowed_translations(x, tokens, forced, rules, always, source):
    if len(tokens) - 1 < forced:
        return x
    allowed = {EOS, *always}
    for words, own in rules.items():
        places = range(len(source) - len(words) + 1)
        if any(tuple(source[i : i + len(words)]) == words for i in places):
            allowed.update(own)
    return log_softmax([v if i in allowed else -INF for i, v in enumerate(x)])


def whisper_timestamps(x, tokens, forced, no_timestamps, max_initial=None):
    made = tokens[1 + forced :]
    if len(tokens) - 1 < forced:
        return x
    begin = no_timestamps + 1
    banned = {no_timestamps}
    if not made:
        banned.update(range(begin))
        if max_initial is not None:
            banned.update(range(begin + max_initial + 1, len(x)))
    stamps = [token for token in made if token >= begin]
    if stamps:
        ends = made[-1] >= begin
        begins = ends and (len(made) < 2 or made[-2] >= begin)
        if begins:
            banned.update(range(begin, len(x)))
        elif ends:
            banned.update(range(EOS))
        banned.update(range(begin, stamps[-1] + (0 if ends and not begins else 1)))
    x = suppress_tokens(x, tokens, forced, banned)
    mass = sum(math.exp(v) for v in x[begin:])
    if mass > 0 and math.log(mass) > max(x[:begin]):
        x = suppress_tokens(x, tokens, forced, range(begin))
    return x
