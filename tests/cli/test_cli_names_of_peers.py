"""Options that users of other systems try are answered with ours, and folders come before their options."""

import json
import shutil

import click
import pytest

from pybeam.cli import main, pybeam
from pybeam.cli.options.peers import THEIRS, near
from support.paths import MODEL


@pytest.mark.parametrize(
    ("command", "theirs", "ours"),
    [
        ("translate", "--beam-size", "--width"),
        ("translate", "--beam_size", "--width"),
        ("translate", "--num-beams", "--width"),
        ("translate", "--beam", "--width"),
        ("translate", "--compute-type", "--dtype"),
        ("translate", "--lenpen", "--length-penalty"),
        ("translate", "--max-new-tokens", "--max-length"),
        ("translate", "--widht", "--width"),
        ("transcribe", "--vad_filter", "--vad"),
        ("serve", "--inter-threads", "--engines"),
    ],
)
def test_our_name_is_told(capsys, command, theirs, ours):
    assert main([command, "--model", "DIR", theirs, "5"]) == 2
    said = capsys.readouterr().err
    assert f"No such option {theirs!r}" in said or f"No such option: {theirs}" in said
    assert "Did you mean" in said and ours in said.split("Did you mean")[1]


def test_every_name_is_an_option_of_ours_and_none_of_theirs_is():
    own = {
        name for command in pybeam.commands.values() for one in command.params for name in one.opts
    }
    theirs = {name for names in THEIRS.values() for name in names.split()}
    assert THEIRS.keys() <= own and not theirs & own
    assert near("--beam-size", click.Command("other")) == []


def test_a_missing_folder_comes_before_its_options(capsys):
    assert main(["transcribe", "--model", "./nowhere", "--format", "srt", "a.wav"]) == 1
    assert "--model ./nowhere: there is no such folder" in capsys.readouterr().err


def test_settings_of_the_folder_and_without_them(tmp_path, capfd):
    """The command line bans what `load_model` does, and once."""
    for file in MODEL.iterdir():
        if file.is_file():
            shutil.copy(file, tmp_path)
    (tmp_path / "in").write_text("Y dijo Dios: Sea la luz: y fué la luz.\n")

    def records(*options: str) -> dict:
        code = main(
            [
                "translate",
                "--model",
                str(tmp_path),
                "--input",
                str(tmp_path / "in"),
                "--json",
                *options,
            ]
        )
        output = capfd.readouterr()
        assert code == 0, output.err
        return json.loads(output.out)["hypotheses"][0]

    plain = records()
    path = tmp_path / "generation_config.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps(settings | {"min_length": 40}))
    for options in ((), ("--recipe", "huggingface", "--max-length", "60")):
        assert len(records(*options)["text"].split()) > len(plain["text"].split())
    assert records("--without", "min_length") == plain
    assert main(["translate", "--model", str(tmp_path), "--without", "width"]) == 1
    assert "--without must hold settings" in capfd.readouterr().err
