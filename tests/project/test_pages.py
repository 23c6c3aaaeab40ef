"""Every example of README and of the documentation runs, and prints what the page says."""

from __future__ import annotations

import pytest

from support import pages
from support.pages import PAGES, ROOT, blocks_of

# those that take more than half a second. Commands take that too, since each loads torch
SLOW = {
    "docs/coming-from/ctranslate2.md",
    "docs/coming-from/faster-whisper.md",
    "docs/coming-from/transformers.md",
    "docs/howto/beam.md",
    "docs/howto/ctc.md",
    "docs/howto/schedule.md",
    "docs/howto/stream.md",
    "docs/reference/models.md",
    "docs/reference/onnx.md",
    "docs/reference/transcription.md",
}


def examples() -> list:
    found = []
    for page in PAGES:
        blocks = [block for block in blocks_of(page) if not block.not_run]
        name = page.relative_to(ROOT).as_posix()
        is_slow = name in SLOW or any(block.language == "sh" for block in blocks)
        marks = [pytest.mark.slow] if is_slow else []
        if blocks:
            found.append(pytest.param(page, id=name, marks=marks))
    return found


def test_readme_is_read_in_three_minutes():
    assert len((ROOT / "README.md").read_text("utf-8").split()) <= 900


@pytest.mark.parametrize("page", examples())
def test_the_examples_of_a_page(page, tmp_path, monkeypatch):
    text = page.read_text("utf-8")
    pages.fill(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT)  # `examples` is a package there
    if "from_pretrained" in text:
        pytest.importorskip("transformers")
        pages.replace_hub(monkeypatch)
    if "whisper-tiny" in text:
        pytest.importorskip("transformers")
        pages.fill_with_whisper(tmp_path)
    if "FireRedASR-AED-L" in text:
        pages.fill_with_fireredasr(tmp_path)
    with pages.serving(page) as replaced:
        replaced = {**replaced, "openai/whisper-tiny": "whisper-tiny"}
        assert pages.run(page, tmp_path, replaced) > 0


PAGE = """\
<!-- before
one = 1
-->
```python
print(one + 1)
```

```output
...2
```

<!-- not run: it fails -->
```sh
false
```
"""


def test_an_example_has_hidden_lines_and_an_output(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    assert [block.not_run for block in blocks_of(page)] == ["", "it fails"]
    assert pages.run(page, tmp_path) == 1


@pytest.mark.parametrize(
    "right, wrong, message",
    [
        ("...2", "3", r":4 prints\n2\n"),
        ("not run: it fails", "seen to run", "returned|:13"),
        ("not run:", "not run", "neither"),
        ("```sh", "```shell", "'shell' is none of"),
        ("\n```output", "so\n```output", "right behind"),
        ("```sh\nfalse", "```\npip install x", "looks like a shell's"),
    ],
)
def test_a_page_that_is_wrong_is_found(right, wrong, message, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE.replace(right, wrong))
    with pytest.raises((AssertionError, ValueError), match=message):
        pages.run(page, tmp_path)
