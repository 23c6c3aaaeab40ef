"""Say what a release still lacks.

    python -m release.check [NAME ...]        (or `make release-check`, CHECKS="NAME ...")

Every check prints one line: ok, or what is wrong or missing and what to do. Exits with 1 if one failed. Then
it lists what is left to people, and to machines that are elsewhere.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


class Failed(Exception):
    """The fault, and what to do."""


class Skipped(Exception):
    """Why a check cannot be done here, and where it can."""


def version() -> str:
    """The version, which stands in `pybeam/__init__.py` alone."""
    text = (ROOT / "pybeam" / "__init__.py").read_text("utf-8")
    found = re.search(r'^__version__ = "(.+)"$', text, re.M)
    if not found:
        raise Failed("pybeam/__init__.py has no line `__version__ = ...`")
    return found[1]


def run(*command: str | Path, cwd: Path = ROOT, **variables: str) -> str:
    """The output of a command. Raises Failed with the end of it if the command fails."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **variables},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if done.returncode:
        end = "\n".join(done.stdout.splitlines()[-15:])
        raise Failed(f"`{' '.join(map(str, command))}` failed:\n{end}")
    return done.stdout


def made(target: str, cwd: Path = ROOT) -> str:
    """The last line that a target prints; a make within a make would also say where it is."""
    return run("make", "--no-print-directory", target, cwd=cwd).strip().splitlines()[-1]


def check_tree() -> str:
    """Everything is committed."""
    changes = run("git", "status", "--porcelain").strip()
    if changes:
        raise Failed(f"commit or remove these files first:\n{changes}")
    return run("git", "log", "-1", "--format=%h %s").strip()


def check_version() -> str:
    """All places that name the version name the same, and no tag has it yet."""
    number = version()
    if not re.fullmatch(r"\d+\.\d+\.\d+", number):
        raise Failed(f"`__version__` must be of the form 1.2.3, but is {number!r}")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    if project["project"].get("version") or "version" not in project["project"]["dynamic"]:
        raise Failed("pyproject.toml must take the version from pybeam.__version__ (dynamic)")
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text("utf-8"), re.M)
    if not cited or cited[1] != number:
        raise Failed(f"CITATION.cff must have the line `version: {number}`")
    if run("git", "tag", "--list", f"v{number}").strip():
        raise Failed(f"the tag v{number} is there already: raise `__version__`")
    return number


def check_changelog() -> str:
    """The changelog has a dated section of this version, and nothing unreleased."""
    text, number = (ROOT / "CHANGELOG.md").read_text("utf-8"), version()
    dated = re.search(rf"^## \[{re.escape(number)}\] - \d{{4}}-\d\d-\d\d$", text, re.M)
    if not dated:
        raise Failed(
            f"CHANGELOG.md has no section `## [{number}] - YYYY-MM-DD`: rename `## [Unreleased]` to it"
        )
    day = dated[0][-10:]
    if f"\ndate-released: {day}\n" not in (ROOT / "CITATION.cff").read_text("utf-8"):
        raise Failed(f"CITATION.cff must have the line `date-released: {day}`")
    unreleased = re.search(r"^## \[Unreleased\]\n(.*?)(?=^## )", text, re.M | re.S)
    if unreleased and unreleased[1].strip():
        raise Failed(f"what stands under [Unreleased] belongs under [{number}]")
    return dated[0].removeprefix("## ")


def check_tests() -> str:
    """Style, types and all tests."""
    run("make", "lint")
    return made("test-all")


def check_docs() -> str:
    """Examples run, the site builds without warnings, and its own links work."""
    run("make", "docs")
    return "built"


def check_links() -> str:
    """Links to other sites still lead somewhere."""
    try:
        urllib.request.urlopen("https://github.com", timeout=20).close()
    except urllib.error.HTTPError:
        pass  # a refusal is an answer
    except OSError as error:
        raise Skipped(
            f"https://github.com does not answer from here ({error}); run `make release-check "
            "CHECKS=links` on a machine that reaches it"
        ) from error
    run("make", "docs-links")
    return "all of them"


def check_wheel() -> str:
    """All packages are built, and the wheel serves every Python and torch."""
    return made("wheel")


def check_sdist() -> str:
    """The source distribution has its licences and sources, and installs where there is no compiler."""
    found = sorted((ROOT / "dist").glob(f"pybeam_search-{version()}.tar.gz"))
    if not found:
        raise Failed("dist/ has no source distribution of this version: run `make wheel` first")
    names = run("tar", "tzf", found[0]).split()
    wanted = ("LICENSE", "examples/LICENSES.md", "csrc/registration.cpp", "tests/conftest.py")
    missing = [name for name in wanted if not any(each.endswith(f"/{name}") for each in names)]
    if missing:
        raise Failed(f"{found[0].name} lacks {', '.join(missing)}: see MANIFEST.in")
    with tempfile.TemporaryDirectory() as folder:
        # this environment has what builds it, so that nothing is asked of an index
        install = (sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check")
        options = ("--no-index", "--no-deps", "--no-build-isolation", "--target", folder)
        run(*install, *options, found[0], cwd=Path(folder), PYBEAM_NO_EXTENSION="1")
        program = "import pybeam; print(pybeam.__file__, pybeam.__version__, sep='\\n')"
        place, installed = run(
            sys.executable, "-c", program, cwd=Path(folder), PYTHONPATH=folder
        ).splitlines()
        if not Path(place).resolve().is_relative_to(Path(folder).resolve()):
            raise Failed(f"{place} was imported in place of {found[0].name}")
    if installed != version():
        raise Failed(f"{found[0].name} installs version {installed}: run `make wheel` again")
    return found[0].name


def check_audit() -> str:
    """No package in this environment has a known vulnerability (pip-audit asks PyPI)."""
    command = [sys.executable, "-m", "pip_audit", "--progress-spinner", "off", "--format", "json"]
    # it exits with 1 if it finds something
    found = subprocess.run(command, cwd=ROOT, text=True, capture_output=True)
    if not found.stdout:
        raise Failed(
            f"`{' '.join(command[1:])}` failed; `make release-check` installs it:\n{found.stderr[-500:]}"
        )
    return audited(json.loads(found.stdout))


def audited(report: dict[str, Any]) -> str:
    """Sum up a report of pip-audit. Raises Failed if a package is vulnerable, Skipped if none is known."""
    packages = report["dependencies"]
    known = [package for package in packages if "skip_reason" not in package]
    bad = [
        f"{package['name']} {package['version']}: {', '.join(one['id'] for one in package['vulns'])}"
        for package in known
        if package["vulns"]
    ]
    if bad:
        raise Failed(
            "these packages have known vulnerabilities; raise their versions:\n" + "\n".join(bad)
        )
    if not known:
        raise Skipped(
            "pip-audit reaches no index of vulnerabilities from here; run `make release-check CHECKS=audit` "
            "on a machine that reaches https://pypi.org"
        )
    return f"{len(known)} of {len(packages)} packages, none vulnerable"


# in this order: what is quick comes first
CHECKS: dict[str, Callable[[], str]] = {
    "tree": check_tree,
    "version": check_version,
    "changelog": check_changelog,
    "audit": check_audit,
    "wheel": check_wheel,
    "sdist": check_sdist,
    "docs": check_docs,
    "links": check_links,
    "tests": check_tests,
}


# {version} and {today} are put in
BY_HAND = (
    "CHANGELOG.md: the first lines of the section say what a user gains; its date is {today}",
    "`make wheel-test` beside each torch and Python that is supported: gigabytes of downloads",
    "`make test-newcomers` and `make test-arm64`: an index of packages, and 1.5 GB of them",
    "`make docs-look`: Chromium, chromedriver, axe-core",
    "`make gpu-test` and `make edge`: they need a GPU, and Chromium with ONNX Runtime",
    "on GitHub: the workflow `wheels` is green on the commit, for Linux, macOS and Windows; so is `images`",
    "on PyPI: this repository's `wheels.yml`, with its environment `pypi`, may publish pybeam-search, "
    "pybeam-search-client and pybeam-search-examples",
    "`git tag -s v{version} && git push origin v{version}`: three workflows build, attest and publish the "
    "packages (`wheels`), the images for CPUs and GPUs (`images`) and the site of this version (`docs`)",
    "on GitHub: Settings, Pages, branch gh-pages; its address goes into pyproject.toml and CITATION.cff",
    "`pypi-attestations verify pypi` of a wheel on PyPI, `gh attestation verify oci://ghcr.io/…` of an image",
    "a new environment, elsewhere: `pip install 'pybeam-search[examples]'`, and README's first program",
    "a release on GitHub with the section of CHANGELOG.md; `## [Unreleased]` again; the next `__version__`",
)


def left_to_people() -> str:
    """The list of what no check can do here."""
    today = f"{datetime.date.today():%Y-%m-%d}"
    lines = [line.replace("{version}", version()).replace("{today}", today) for line in BY_HAND]
    return "\n".join(f"  {i:>2}. {line}" for i, line in enumerate(lines, 1))


def main() -> int:
    listing = "\n".join(f"  {name:<10} {check.__doc__}" for name, check in CHECKS.items())
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=f"checks:\n{listing}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all checks")
    names = parser.parse_args().names
    unknown = sorted(set(names) - set(CHECKS))
    if unknown:
        parser.error(f"there is no check {', '.join(unknown)}; there are {', '.join(CHECKS)}")
    num_failed = 0
    for name in names or CHECKS:
        try:
            print(f"ok       {name}: {CHECKS[name]()}", flush=True)
        except Skipped as reason:
            print(f"skipped  {name}: {reason}", flush=True)
        except Failed as error:
            num_failed += 1
            print(f"FAILED   {name}: {error}", flush=True)
    if not names:
        print(f"left to you, in this order:\n{left_to_people()}", flush=True)
    return bool(num_failed)


if __name__ == "__main__":
    sys.exit(main())
