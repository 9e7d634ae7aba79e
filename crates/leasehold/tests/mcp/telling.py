"""A server of the tests, on the official SDK, that tells changes of its tools to who listens. `telling.py PORT`."""

import sys

from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("telling")


@server.tool()
async def learn(ctx: Context, name: str) -> str:
    """Has one more tool from now on, and says so."""
    server.add_tool(lambda: "new", name=name)
    await ctx.notify_tools_changed()
    return "learnt"


server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
