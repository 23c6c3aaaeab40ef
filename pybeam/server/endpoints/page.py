"""The page at `/`, on which people translate."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse, Response

from pybeam.server.errors import APIError

router = APIRouter(include_in_schema=False)

FILES = Path(__file__).parents[1] / "page"
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
# of each file, by its name
TYPES = {path.name: KINDS[path.suffix] for path in FILES.iterdir()}
# the page loads its own files, asks its own server, and stands in no other page
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cache-Control": "no-cache",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@router.get("/")
async def page() -> Response:
    """Return the page."""
    return _file("index.html")


@router.get("/page/{name}")
async def file(name: str) -> Response:
    """Return a file of the page."""
    if name not in TYPES:
        raise APIError(404, "Not Found")
    return _file(name)


def _file(name: str) -> Response:
    return FileResponse(FILES / name, media_type=f"{TYPES[name]}; charset=utf-8", headers=HEADERS)
