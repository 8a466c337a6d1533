"""Web UI: `GET /` (chat, live engine view), `GET /docs` (API reference).

The content security policy forbids requests to other hosts, inline scripts and inline styles.
"""

from pathlib import Path

from fastapi import APIRouter
from starlette.responses import FileResponse, Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

WEB_ROOT = Path(__file__).parents[1] / "web"

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # revalidated on each load, so that upgrades take effect
}

router = APIRouter()


@router.get("/", include_in_schema=False)
async def page() -> Response:
    return FileResponse(WEB_ROOT / "index.html", headers=HEADERS)


@router.get("/docs", include_in_schema=False)
async def docs() -> Response:
    return FileResponse(WEB_ROOT / "docs.html", headers=HEADERS)


class _StaticFiles(StaticFiles):
    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(HEADERS)
        return response


static_files = Mount("/page", _StaticFiles(directory=WEB_ROOT / "page"), name="page")
