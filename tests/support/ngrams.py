"""A tiny language model in each of its forms, and back-off as its definition has it."""

from __future__ import annotations

import base64
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path

from pybeam.automata.arpa import read_arpa
from pybeam.automata.ngrams import NGrams

# the trigram "reads the é" has an end, "the é", that is no bigram
ARPA = """\\data\\
ngram 1=8
ngram 2=9
ngram 3=4

\\1-grams:
-1.2	<unk>	0
-99	<s>	-0.4
-0.9	</s>
-0.7	the	-0.3
-1.1	old	-0.25
-1.4	king	-0.125
-1.6	reads	0
-1.9	é	-0.5

\\2-grams:
-0.3	<s> the	-0.2
-0.6	the king	-0.15
-0.8	the old	-0.4
-0.2	old king	0
-0.5	king reads	-0.1
-0.4	king </s>
-1.0	reads the	-0.05
-0.65	é é	-0.35
-0.9	old é	0

\\3-grams:
-0.1	<s> the old
-0.05	the old king
-0.45	the king </s>
-0.35	reads the é

\\end\\
"""

# KenLM's build_binary has written these of ARPA, and Base85 packs them
_PACKED = {
    "probing": (
        "c-qU&O)OBz$yLZGDJihh*U!#KO-"
        "##7%}LQq&d=3P&QD2INXswEO)OC;OD!tS%+FIW<zhg9274f}pAks>2Lg}?BUFYNOdhaD7UO`@oKTvD0TqDc3+fd2TDFyf^_X"
        "P-Vr0|S?q)+%r@iQ@)Eaf`B_KQg_X>9{-~Pe^-"
        "7I8~%(yzFytnBOJDPaqvWR@9hmo6Efo!gv?;mT6A7nG3shKr%=6;Yz85oWoI(z2KzO=M7ke?cijg9Sra{JDn=>hT^_8A**28"
        "jdtXTW|oHvS9_8wN5#>-)O393tU;vt~-}2jYFR|1F%do$>dov^2H-K)d!e-1fGt`Tlhy&^=)H?Vn^OmFFqbdG-"
        "vC1Bl;P^!7t-bxkY8jXwMK$<K{eKe};0NGXuNch@rJKB-mvwgK68AoV8YENkvdt+NEV8R&<-"
        "3b9l6bxp9*2C~8O9G{pnS~eOB1J&Du!a?mzJKrDMiFqKk`&!;f2g)6o4l<YPyIe`F%0DiU8<G99M^*CK^GAICX=%?;#BECRv"
        "h5gbih)=kNR(uxGUVr^Fl1-ur85+zCZ-fK9A3!)0Pr@u00"
    ),
    "trie": (
        "c-qU&O)OBz$yLZGDJihh*U!#KO-"
        "##7%}LQq&d=3P&QD2INXswEO)OC;OD!tS%+FIW<zhg9274f}pAks>2Lg}?BUFYNOdhajf{KAK2UHGb0t=E!>`=O(PI0egTPe"
        "f;Ug56g+h164<$V8GTl^r~B=Z*|o3?hh_M)d!Yt*fmR4$9iXL=a9Ihk>FNO^D5ADB6_X3pFXau~woV~5V3IkOMOJA0-"
        "FDBl3*r=_KV)ic87&w%(0Oi;eDvGIPOnfsXG{LLWweXMZ)XAplsI|C}<V!#fro;mX+J1y;7tEsW^Z;(JTNOxM=v$)o@v}NmO"
        "&O8|o43-"
        "~2C9kHM7#sftDG8l5Q_}wI8J_!{GiTo92L%$)6maO>nK^UjAD|a%Ibr6*+|6+D%$Ymd#>U0*K#RU+q@`U$aiL9VUbY>BO|cz"
        "AeohL5jXsc3l$w}Q%ute%%8;Fzm(Fl_B?ABfoQ0?"
    ),
}

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, "own.arpa")
    path.write_text(ARPA, "utf-8")
    MODEL = read_arpa(path)
BINARY = {kind: zlib.decompress(base64.b85decode(text)) for kind, text in _PACKED.items()}


def backed_off(model: NGrams, sentence: Sequence[str]) -> float:
    """log10 of a sentence's probability between its marks."""
    found = {
        tuple(model.words[i] for i in gram): (log_prob, back_off)
        for order in model.orders
        for gram, log_prob, back_off in zip(
            order.gram.tolist(), order.log_prob.tolist(), order.back_off.tolist(), strict=True
        )
    }

    def log_prob(context: tuple[str, ...], word: str) -> float:
        if (*context, word) in found:
            return found[*context, word][0]
        if not context:
            return found[("<unk>",)][0]
        return found.get(context, (0.0, 0.0))[1] + log_prob(context[1:], word)

    known = [word if word in model.words else "<unk>" for word in sentence]
    words = ["<s>", *known, "</s>"]
    order = len(model.orders)
    return sum(
        log_prob(tuple(words[max(0, i - order + 1) : i]), words[i]) for i in range(1, len(words))
    )
