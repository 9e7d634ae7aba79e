"""A server of the tests that needs nothing but Python: `shifting.py TOOLS LEDGER [PORT]`; without a port over stdio. It lists what the
file TOOLS says at that moment, and over stdio tells when that changes. Each call is a line of the file LEDGER before it is answered,
and is not answered while there is a file LEDGER.hold; its result is what the file LEDGER.answer says, where there is one. What it is
told without being asked is a line of the file LEDGER.told."""

import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOOLS, LEDGER = sys.argv[1], sys.argv[2]
lock = threading.Lock()


def listed():
    with open(TOOLS) as file:
        return json.load(file)


def called(params):
    line = {"tool": params["name"], "arguments": params.get("arguments"), "meta": params.get("_meta"), "pid": os.getpid()}
    with lock, open(LEDGER, "a") as file:
        file.write(json.dumps(line) + "\n")
    while os.path.exists(LEDGER + ".hold"):
        time.sleep(0.02)
    if os.path.exists(LEDGER + ".answer"):
        with open(LEDGER + ".answer") as file:
            return json.load(file)
    return {"content": [{"type": "text", "text": "noted"}]}


def told(message):
    with lock, open(LEDGER + ".told", "a") as file:
        file.write(json.dumps(message) + "\n")


def answer(message):
    method, params = message.get("method"), message.get("params") or {}
    if method == "initialize":
        result = {
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {"listChanged": True}},
            "serverInfo": {"name": "shifting", "version": "1"},
        }
    elif method == "ping":
        result = {}
    elif method == "tools/list":
        result = {"tools": listed()}
    elif method == "tools/call":
        result = called(params)
    else:
        return {"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": "not known"}}
    return {"jsonrpc": "2.0", "id": message["id"], "result": result}


def say(message):
    with lock:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


def tell_changes():
    known = listed()
    while True:
        time.sleep(0.02)
        if listed() != known:
            known = listed()
            say({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})


class Http(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if "id" not in message:
            told(message)
            self.send_response(202)
            self.send_header("content-length", "0")
            self.end_headers()
            return
        body = json.dumps(answer(message)).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.send_response(405)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


if len(sys.argv) > 3:
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[3])), Http).serve_forever()
else:
    threading.Thread(target=tell_changes, daemon=True).start()
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            threading.Thread(target=lambda m=message: say(answer(m)), daemon=True).start()
        else:
            told(message)
