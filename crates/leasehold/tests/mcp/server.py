"""A server of the tests, on FastMCP: tools that misbehave when they are asked to. `server.py [PORT]`; without a port over stdio,
where another argument only names the process."""

import base64
import os
import sys
import time

from fastmcp import Context, FastMCP
from mcp.types import ImageContent

server = FastMCP("tests")


@server.tool
def echo(text: str) -> str:
    """Says it again."""
    return text


@server.tool
def length(text: str) -> int:
    """How long it is."""
    return len(text)


@server.tool
def long(bytes: int) -> str:
    """A text of that length."""
    return "x" * bytes


@server.tool
def meta(ctx: Context, key: str = "") -> dict:
    """What came with the call."""
    came = ctx.request_context.meta
    came = came if isinstance(came, dict) else came.model_dump(by_alias=True)
    return {"meta": {k: v for k, v in came.items() if k.startswith("leasehold/")}, "key": key}


@server.tool
def environment(name: str) -> str:
    """A variable."""
    return os.environ.get(name, "(none)")


@server.tool
def append(path: str, text: str) -> str:
    """Appends one line."""
    with open(path, "a") as file:
        file.write(text + "\n")
    return "appended"


@server.tool
def append_and_hang(path: str, text: str) -> str:
    """Appends one line and does not come back."""
    append(path, text)
    time.sleep(600)
    return "too late"


@server.tool
def append_and_die(path: str, text: str) -> str:
    """Appends one line and ends the server."""
    append(path, text)
    os._exit(7)


@server.tool
def append_and_fail(path: str, text: str) -> str:
    """Appends one line and says that it failed."""
    append(path, text)
    raise ValueError("appended, and failed after it")


@server.tool
def noise(bytes: int) -> str:
    """Writes a lot to the standard error."""
    sys.stderr.write("e" * bytes + "\nlast words\n")
    sys.stderr.flush()
    return "noisy"


@server.tool
def say_secret(name: str) -> str:
    """Tells a variable to everybody."""
    print(os.environ.get(name), file=sys.stderr, flush=True)
    raise ValueError(f"the secret is {os.environ.get(name)}")


@server.tool
def picture(bytes: int):
    """An image of that many bytes, each time another."""
    content = (b"\x89PNG\r\n\x1a\n" + os.urandom(bytes))[:bytes]
    return ImageContent(type="image", data=base64.b64encode(content).decode(), mimeType="image/png")


@server.tool
async def flood(ctx: Context, count: int) -> str:
    """Says that often how far it is."""
    for n in range(count):
        await ctx.report_progress(n + 1, count, f"step {n + 1}")
    return "flooded"


@server.tool
async def shout(ctx: Context, bytes: int, times: int, name: str) -> str:
    """Writes lines of that length to its log, each with a variable in it."""
    for _ in range(times):
        await ctx.info(f"{os.environ.get(name)} " + "x" * bytes)
    return "shouted"


if len(sys.argv) > 1 and sys.argv[1].isdigit():
    server.run(transport="http", host="127.0.0.1", port=int(sys.argv[1]), show_banner=False)
else:
    server.run(show_banner=False)
