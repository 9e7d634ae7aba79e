"""A server of the tests, on FastMCP, that wants a token: `protected.py ISSUER LEDGER PORT`. It takes what ISSUER signed for it, and
looks at each as FastMCP does. What was called stands in LEDGER, and each request that came, with a hash of what it showed, in
LEDGER.requests. A file LEDGER.refuse, with a status and a challenge, makes it refuse one tools/call before anything else sees it; with
307 and an address it sends it there."""

import hashlib
import json
import os
import sys

import uvicorn
from fastmcp import FastMCP
from fastmcp.server.auth import RemoteAuthProvider
from fastmcp.server.auth.providers.jwt import JWTVerifier
from fastmcp.server.dependencies import get_http_headers
from pydantic import AnyHttpUrl
from starlette.middleware import Middleware

issuer, ledger, port = sys.argv[1:4]
here = f"http://127.0.0.1:{port}"

verifier = JWTVerifier(jwks_uri=f"{issuer}/jwks", issuer=issuer, audience=f"{here}/mcp", algorithm="RS256", required_scopes=["write"])
auth = RemoteAuthProvider(token_verifier=verifier, authorization_servers=[AnyHttpUrl(issuer)], base_url=here)
server = FastMCP("protected", auth=auth)


@server.tool
def append(text: str) -> str:
    """Appends one line."""
    with open(ledger, "a") as file:
        file.write(text + "\n")
    return "appended"


@server.tool
def token() -> str:
    """Says what it was shown, which it should not."""
    return "shown: " + get_http_headers(include_all=True).get("authorization", "nothing")


class Door:
    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http" or scope["method"] != "POST":
            return await self.app(scope, receive, send)
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        method = json.loads(body or "{}").get("method", "-")
        shown = dict(scope["headers"]).get(b"authorization", b"")
        with open(f"{ledger}.requests", "a") as file:
            file.write(f"{method} {hashlib.sha256(shown).hexdigest()[:16] if shown else '-'}\n")
        refuse = f"{ledger}.refuse"
        if method == "tools/call" and os.path.exists(refuse):
            status, challenge = open(refuse).read().split(" ", 1)
            os.remove(refuse)
            name = b"location" if status.startswith("3") else b"www-authenticate"
            await send({"type": "http.response.start", "status": int(status), "headers": [(name, challenge.encode())]})
            return await send({"type": "http.response.body", "body": b""})
        given = False

        async def again():
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self.app(scope, again, send)


if __name__ == "__main__":
    app = server.http_app(middleware=[Middleware(Door)])
    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="error")
