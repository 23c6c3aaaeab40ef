"""Look at every page of the built site in Chromium: `make docs-look`.

It saves a screenshot of each page, on a desktop, a tablet and a phone, in the light and in the dark, to
docs/_build/look. It fails if something is wider than its page, if a figure is missing, or if the menu shows
more than nine entries. `PYBEAM_AXE=FILE` gives it the file `axe.min.js` of the npm package `axe-core`, for
which `make docs-look` asks npm: then serious barriers fail, too. Chromium is the one on the path
(`apt-get install chromium`), or that of `playwright install chromium`.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

BUILT = Path(__file__).parent / "_build"
SITE, SHOTS = BUILT / "html", BUILT / "look"
WINDOWS = {"desktop": (1280, 900), "tablet": (820, 1180), "phone": (390, 844)}
SCHEMES = ("light", "dark")
WITHOUT_TEXT = {SITE / f"{name}.html" for name in ("genindex", "search", "py-modindex")}
# elements that reach beyond the window, unless they scroll by themselves
FAULTS = """() => {
    const root = document.documentElement, content = document.querySelector('.content');
    const wide = root.scrollWidth > window.innerWidth || content.scrollWidth > content.clientWidth;
    const scrolls = e => e.tagName !== 'ARTICLE' &&
        (['auto', 'scroll', 'hidden'].includes(getComputedStyle(e).overflowX) || scrolls(e.parentElement));
    const edge = document.querySelector('article').getBoundingClientRect().right;
    const right = e => e.getBoundingClientRect().right;
    const reaches = e => !e.matches('.headerlink') && right(e) > edge + 1;
    const out = [...document.querySelectorAll('article *')].filter(e => reaches(e) && !scrolls(e));
    const broken = [...document.images].filter(e => e.complete && !e.naturalWidth);
    const open = [...document.querySelectorAll('.sidebar-tree a')].filter(e => e.getClientRects().length);
    const first = (wide ? out : []).sort((a, b) => right(b) - right(a)).slice(0, 3);
    return [...(wide ? [`${content.scrollWidth} > ${content.clientWidth}`] : []),
        ...first.map(e => e.tagName + ' ' + e.textContent.slice(0, 60)),
        ...broken.map(e => 'no figure ' + e.getAttribute('src')),
        ...(open.length > 9 ? [`${open.length} entries of the menu are open`] : [])];
}"""


# barriers that keep somebody from reading; Sphinx writes long signatures as lists of meanings without terms
BARRIERS = """async () => (await axe.run({rules: {'definition-list': {enabled: false}}})).violations
    .filter(v => ['serious', 'critical'].includes(v.impact))
    .map(v => v.id + ' ' + v.nodes[0].html.slice(0, 80))"""
AXE = Path(os.environ["PYBEAM_AXE"]).read_text("utf-8") if "PYBEAM_AXE" in os.environ else ""


def look(page: Page, path: Path, window: str, scheme: str) -> list[str]:
    """Save a screenshot of a page and return what is wrong with it."""
    page.goto(path.as_uri())
    name = path.relative_to(SITE).with_suffix("").as_posix()
    shot = SHOTS / f"{window}-{scheme}" / f"{name}.png"
    page.screenshot(path=shot, full_page=True)
    found = page.evaluate(FAULTS)
    if AXE:
        page.evaluate(AXE)
        found += page.evaluate(BARRIERS)
    return [f"{name}, {window}, {scheme}: {fault}" for fault in found]


def main() -> int:
    paths = [path for path in sorted(SITE.rglob("*.html")) if path not in WITHOUT_TEXT]
    faults = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for window, (width, height) in WINDOWS.items():
            for scheme in SCHEMES:
                size = {"width": width, "height": height}
                page = browser.new_page(viewport=size, color_scheme=scheme)
                page.set_default_timeout(300_000)  # where others need the cores
                faults += [fault for path in paths for fault in look(page, path, window, scheme)]
                page.close()
        browser.close()
    done = f"{len(paths)} pages, {len(faults)} faults, {'with' if AXE else 'WITHOUT'} axe"
    print(*faults, f"{done}; screenshots in {SHOTS}", sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
