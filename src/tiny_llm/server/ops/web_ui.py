"""`GET /`: the page, a chat and a live view of the engine. `GET /docs`: the endpoints. See `web/`.

Both come whole from this server and ask no other: the policy that is sent with them forbids it.
"""

from pathlib import Path

from fastapi import APIRouter
from starlette.responses import FileResponse, Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

WEB_ROOT = Path(__file__).parents[1] / "web"

# Nothing from elsewhere, and nothing that stands in the text of the page itself.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # a newer server's page is asked for, and 304 if it is the same
}

router = APIRouter()


@router.get("/", include_in_schema=False)
async def page() -> Response:
    """The page."""
    return FileResponse(WEB_ROOT / "index.html", headers=HEADERS)


@router.get("/docs", include_in_schema=False)
async def docs() -> Response:
    """The endpoints and their fields, which `/openapi.json` tells."""
    return FileResponse(WEB_ROOT / "docs.html", headers=HEADERS)


class _StaticFiles(StaticFiles):
    """The page's files, with its policy."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(HEADERS)
        return response


static_files = Mount("/page", _StaticFiles(directory=WEB_ROOT / "page"), name="page")
