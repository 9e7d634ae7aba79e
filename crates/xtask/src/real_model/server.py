"""Serves a GGUF model in this process until its standard input ends: MODEL TEMPLATE."""

import sys

from xllamacpp import CommonParams, Server

params = CommonParams()
params.model.path = sys.argv[1]
with open(sys.argv[2]) as template:
    params.chat_template = template.read()
params.use_jinja = True
params.hostnames = ["127.0.0.1"]
params.port = 0
params.n_parallel = 1
params.n_ctx = 2048
# An answer that does not come to its end is cut here.
params.n_predict = 200
# The same words each time.
params.sampling.temp = 0.0
server = Server(params)
print("listening on", server.listening_address, flush=True)
sys.stdin.read()
