"""llama-cpp-python as a server with the OpenAI completions interface that takes token ids; run by its own environment.

    python llama_cpp_server.py MODEL.gguf --port 8000 --threads 2 --length 1024

The package's own server takes text only, which it would split in its own way.  One request at a time, nothing kept from
one prompt to the next.
"""

from __future__ import annotations

import argparse
import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from llama_cpp import Llama


def complete(model: Llama, body: dict[str, Any]) -> dict[str, Any]:
    """The answer to one request; the end token counts as generated."""
    ends, found, reason = set(body["stop_token_ids"]), [], "length"
    model.reset()
    for token in model.generate(
        body["prompt"], temp=body["temperature"], top_k=0, top_p=1.0, min_p=0.0, repeat_penalty=1.0
    ):
        found.append(token)
        if token in ends:
            reason = "stop"
        if token in ends or len(found) == body["max_tokens"]:
            break
    text = model.detokenize([token for token in found if token not in ends]).decode("utf-8", errors="replace")
    return {
        "object": "text_completion",
        "choices": [{"index": 0, "text": text, "token_ids": found, "finish_reason": reason}],
        "usage": {"prompt_tokens": len(body["prompt"]), "completion_tokens": len(found)},
    }


def handler(model: Llama) -> type[BaseHTTPRequestHandler]:
    """What answers the requests."""

    class Handler(BaseHTTPRequestHandler):
        def reply(self, content: dict[str, Any]) -> None:
            data = json.dumps(content).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self) -> None:
            self.reply({"object": "list", "data": [{"id": model.model_path, "object": "model"}]})

        def do_POST(self) -> None:
            self.reply(complete(model, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))

    return Handler


def main() -> None:
    """Load, then answer until stopped."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--length", type=int, required=True)
    options = parser.parse_args()
    model = Llama(
        options.model, n_ctx=options.length, n_threads=options.threads, n_threads_batch=options.threads, verbose=False
    )
    HTTPServer(("127.0.0.1", options.port), handler(model)).serve_forever()


if __name__ == "__main__":
    main()
