"""A server of the tests, on the official SDK, that asks people before it does something: since 2026-07-28 such a call ends in its
questions and is made again with the answers. `asking.py [--forgetful] [PORT]`; without a port over stdio. A forgetful one seals the
state of such a call with a key of its own process, which is the SDK's default."""

import json
import os
import sys

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.request_state import RequestStateSecurity
from mcp_types import ElicitRequest, ElicitRequestFormParams, ElicitRequestURLParams, InputRequiredResult, ListRootsRequest

forgetful = "--forgetful" in sys.argv
ports = [arg for arg in sys.argv[1:] if arg.isdigit()]
sealed = RequestStateSecurity.ephemeral() if forgetful else RequestStateSecurity(keys=["k" * 32])
server = MCPServer("asking", request_state_security=sealed)

SIZE = {
    "type": "object",
    "properties": {
        "size": {"type": "integer", "title": "Size", "minimum": 1, "maximum": 9, "default": 4},
        "colour": {"type": "string", "enum": ["r", "g"], "enumNames": ["Red", "Green"], "default": "g"},
        "pier": {"type": "string", "oneOf": [{"const": "p1", "title": "Pier 1"}, {"const": "p2", "title": "Pier 2"}]},
        "mail": {"type": "string", "format": "email", "minLength": 3},
        "by_crane": {"type": "boolean", "default": True},
        "weight": {"type": "number", "maximum": 1.5},
    },
    "required": ["size"],
}


def form(message: str, schema: dict = SIZE) -> ElicitRequest:
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


def entered(ctx: Context, path: str) -> dict | None:
    """Notes that the tool was entered and with what; the answers, if there are any."""
    meta = ctx.request_context.meta
    meta = meta if isinstance(meta, dict) else meta.model_dump(by_alias=True)
    answers = ctx.input_responses
    if answers is not None:
        answers = {id: a if isinstance(a, dict) else a.model_dump(exclude_none=True) for id, a in answers.items()}
    line = {
        "meta": {k: v for k, v in meta.items() if k.startswith("leasehold/")},
        "answers": answers,
        "state": ctx.request_state,
    }
    with open(path + ".entered", "a") as file:
        file.write(json.dumps(line) + "\n")
    return answers


@server.tool()
async def send(ctx: Context, path: str, text: str) -> str | InputRequiredResult:
    """Appends a line with what a person says."""
    answers = entered(ctx, path)
    if answers is None:
        return InputRequiredResult(input_requests={"a": form("Which size?")}, request_state=f"of {text}")
    if answers["a"]["action"] != "accept":
        return f"not sent: {answers['a']['action']}"
    with open(path, "a") as file:
        file.write(f"{text} {answers['a']['content']['size']}\n")
    return f"sent {json.dumps(answers['a']['content'])}"


@server.tool()
async def twice(ctx: Context, path: str, text: str) -> str | InputRequiredResult:
    """Asks for one thing after the other."""
    answers = entered(ctx, path)
    if answers is None:
        return InputRequiredResult(input_requests={"a": form("Which size?")}, request_state="first")
    if ctx.request_state == "first":
        return InputRequiredResult(input_requests={"b": form("Really?")}, request_state="second")
    with open(path, "a") as file:
        file.write(f"{text} {answers['b']['content']['size']}\n")
    return "sent"


@server.tool()
async def send_and_die(ctx: Context, path: str, text: str) -> str | InputRequiredResult:
    """Ends the server once a person has said something."""
    if entered(ctx, path) is None:
        return InputRequiredResult(input_requests={"a": form("Which size?")}, request_state=f"of {text}")
    os._exit(7)


@server.tool()
async def insist(ctx: Context, path: str, text: str) -> str | InputRequiredResult:
    """Is never content."""
    entered(ctx, path)
    return InputRequiredResult(input_requests={"a": form("Again?")}, request_state=f"of {text}")


@server.tool()
async def strange(ctx: Context, path: str, text: str) -> str | InputRequiredResult:
    """Asks what cannot be answered here, after something that can."""
    entered(ctx, path)
    nested = {"type": "object", "properties": {"a": {"type": "object", "properties": {}}}}
    requests = {
        "url": ElicitRequest(params=ElicitRequestURLParams(message="Go there", url="https://example.com/", elicitation_id="1")),
        "roots": ListRootsRequest(),
        "nested": form("Which?", nested),
        "nothing": None,
    }
    if requests[text] is None:
        return InputRequiredResult(request_state="later")
    return InputRequiredResult(input_requests={"b": requests[text]}, request_state="s")


if ports:
    server.run("streamable-http", host="127.0.0.1", port=int(ports[0]))
else:
    server.run("stdio")
