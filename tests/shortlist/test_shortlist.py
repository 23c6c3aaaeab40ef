"""`Shortlist`: which tokens a list holds, and files of Marian and CTranslate2."""

import gzip
import pickle
import time

import pytest
import torch

import pybeam
from pybeam.shortlist import files

SOURCE = {"<s>": 0, "</s>": 2, "uno": 3, "dos": 4, "tres": 5}
TARGET = {"</s>": 0, "<unk>": 1, "one": 2, "two": 3, "three": 4, "dos": 5}
TABLE = """one uno 0.75
two uno 0.125
three uno 0.125
two dos 0.5
NULL dos 0.25
two NULL 0.5
"""


def table(folder, text=TABLE, name="lex.s2t"):
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def test_a_list_is_all_that_its_rules_say():
    rules = {(3,): [9, 7], (3, 4): [8], (4, 4, 3): [6], (5,): []}
    shortlist = pybeam.Shortlist(rules, [5, 2], without=[2, 9])
    assert shortlist.tokens_of([]) == [5]
    assert shortlist.tokens_of([3]) == [5, 7]
    assert shortlist.tokens_of([4, 3, 5]) == [5, 7]
    assert shortlist.tokens_of(torch.tensor([3, 4])) == [5, 7, 8]
    assert shortlist.tokens_of([3, 4, 4, 3]) == [5, 6, 7, 8]
    again = pickle.loads(pickle.dumps(shortlist))
    assert again.tokens_of([3, 4]) == [5, 7, 8] and repr(again) == "Shortlist(4 rules, 1 always)"


@pytest.mark.parametrize("name", ["lex.s2t", "lex.s2t.gz"])
@pytest.mark.parametrize("folded", [3, 1 << 22])
def test_a_lexical_table(tmp_path, name, folded, monkeypatch):
    monkeypatch.setattr("pybeam.shortlist.shortlist.FOLDED_LINES", folded)
    read = pybeam.Shortlist.from_lexical_table
    path = table(tmp_path, name=name)
    every = read(path, (SOURCE, TARGET), 0)
    assert every.tokens_of([3]) == [2, 3, 4] and every.tokens_of([4]) == [3]
    assert every.tokens_of([5]) == []
    # of equally probable ones the larger id is kept
    assert read(path, (SOURCE, TARGET), 0, 2).tokens_of([3]) == [2, 4]
    assert read(path, (SOURCE, TARGET), 0, least=0.125).tokens_of([3]) == [2]
    assert read(path, (SOURCE, TARGET), 2, 1, without=[0]).tokens_of([3]) == [1, 2]
    assert read(path, (SOURCE, TARGET), 1, 0, always=[5]).tokens_of([3]) == [0, 5]
    # what no list holds takes no place among the best
    assert read(path, (SOURCE, TARGET), 0, 1, without=[2]).tokens_of([3]) == [4]
    copying = read(path, (SOURCE, TARGET), 0, 1, without=[0], copies=True)
    assert copying.tokens_of([2, 4, 5]) == [3, 5]


def test_the_last_line_of_a_pair_counts(tmp_path):
    path = table(tmp_path, TABLE + "one uno 0.0\n")
    shortlist = pybeam.Shortlist.from_lexical_table(path, (SOURCE, TARGET), 0)
    assert shortlist.tokens_of([3]) == [3, 4]


def test_a_vocabulary_map(tmp_path):
    path = tmp_path / "vmap.txt"
    path.write_text("\tone <unk>\nuno dos\tthree four\nuno\ttwo\nfour\tdos\n", "utf-8")
    shortlist = pybeam.Shortlist.from_vmap(path, (SOURCE, TARGET), without=[1])
    assert shortlist.tokens_of([4]) == [2]
    assert shortlist.tokens_of([3]) == [2, 3]
    assert shortlist.tokens_of([3, 4]) == [2, 3, 4]


def test_a_folder_names_its_tokens(tmp_path):
    folder = "examples/models/bible-es-en"
    tokenizer = pybeam.load_tokenizer(folder)
    path = table(tmp_path, "▁heaven ▁cielo 0.9\n▁the ▁cielo 0.1\n")
    shortlist = pybeam.Shortlist.from_lexical_table(path, folder, 0, 1)
    assert shortlist.tokens_of(tokenizer.encode("cielo")) == tokenizer.encode_target("heaven")


def test_what_a_file_is(tmp_path):
    """A folder says what no output holds."""
    vocabularies = SOURCE, TARGET
    mapped = tmp_path / "any.txt"
    mapped.write_text("\nuno\ttwo three\n", "utf-8")
    assert pybeam.Shortlist.load(mapped, vocabularies).tokens_of([3]) == [3, 4]
    # the first 100 tokens
    assert pybeam.Shortlist.load(table(tmp_path), vocabularies).tokens_of([9]) == [0, 1, 2, 3, 4, 5]
    folder = "examples/models/bible-es-en"
    path = table(tmp_path, "▁heaven ▁cielo 0.9\n")
    assert pybeam.Shortlist.load(path, folder).tokens_of([5]) == [*range(3, 100)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("one uno\n", "line 1: must be a target token, a source token and a probability"),
        (TABLE + "one uno much\n", "line 7: must be"),
        ("one uno nan\n", "line 1: must be"),
        ("one uno -0.5\n", "line 1: must be"),
        ("", "must have lines with tokens of the vocabularies"),
        ("uno one 0.5\n", "and of this direction"),
        ("one uno 0.5 " + "x" * 200, "line 1: lines must have at most 100 bytes"),
        (TABLE * 20, "all of them 1,000; is it the right file"),
    ],
)
def test_a_table_that_is_not_sound(tmp_path, monkeypatch, text, message):
    monkeypatch.setattr(files, "MAX_LINE_BYTES", 100)
    monkeypatch.setattr(files, "MAX_TABLE_BYTES", 1000)
    for name in ("lex.s2t", "lex.s2t.gz"):
        path = table(tmp_path, text, name)
        with pytest.raises(ValueError, match=message):
            pybeam.Shortlist.from_lexical_table(path, (SOURCE, TARGET))


def test_other_files(tmp_path):
    vocabularies = SOURCE, TARGET
    cut = table(tmp_path, name="cut.gz")
    cut.write_bytes(cut.read_bytes()[:-9])
    plain = tmp_path / "plain.gz"
    plain.write_text(TABLE)
    for path in (cut, plain):
        with pytest.raises(ValueError, match="is no sound gzip file"):
            pybeam.Shortlist.from_lexical_table(path, vocabularies)
    with pytest.raises(ValueError, match="must be a regular file"):
        pybeam.Shortlist.from_lexical_table(tmp_path, vocabularies)
    with pytest.raises(FileNotFoundError):
        pybeam.Shortlist.from_vmap(tmp_path / "vmap.txt", vocabularies)
    with pytest.raises(ValueError, match="line 1: must be source tokens, a tab and target tokens"):
        pybeam.Shortlist.from_vmap(table(tmp_path), vocabularies)
    with pytest.raises(ValueError, match="a folder with the files of a tokenizer"):
        pybeam.Shortlist.from_lexical_table(table(tmp_path), tmp_path)
    with pytest.raises(TypeError, match="but is dict"):
        pybeam.Shortlist.from_lexical_table(table(tmp_path), SOURCE)


def test_a_rule_that_is_too_long_is_named(tmp_path):
    path = tmp_path / "vmap.txt"
    path.write_text("uno\tone\n" + "dos " * 17 + "\ttwo\n", "utf-8")
    with pytest.raises(ValueError, match=r"vmap.txt, line 2: must have at most 16 .* but has 17"):
        pybeam.Shortlist.from_vmap(path, (SOURCE, TARGET))


def test_a_token_may_be_half_a_character(tmp_path):
    path = table(tmp_path, "one uno 0.5\n")
    vocabularies = SOURCE | {"\ud800": 6}, TARGET
    assert pybeam.Shortlist.from_lexical_table(path, vocabularies, 0).tokens_of([3]) == [2]


def test_a_check_does_not_look_at_each_rule():
    """Each request that brings a shortlist has it checked on the thread of the engine."""
    begun = time.thread_time()
    shortlist = pybeam.Shortlist({(i,): [i] for i in range(10_000)})
    built = time.thread_time()
    shortlist.check(10_000, [10_001])
    assert time.thread_time() - built < (built - begun) / 20


def test_what_is_no_rule():
    with pytest.raises(ValueError, match="1 to 16 source tokens, but one is of 0"):
        pybeam.Shortlist({(): [3]})
    with pytest.raises(ValueError, match="1 to 16 source tokens, but one is of 17"):
        pybeam.Shortlist({(3,): [3], (3,) * 17: [3]})
    with pytest.raises(ValueError, match="`rules` must hold token ids"):
        pybeam.Shortlist({(3,): [-1]})
    with pytest.raises(TypeError, match="`always` must be a list of token ids"):
        pybeam.Shortlist({}, "3")
