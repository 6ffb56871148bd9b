"""A small server with the API of OpenAI for embeddings, by the standard library alone.

The model counts the letter triples of a text by a hash into as many numbers as model.json says. It stands for any
server: what matters is that it listens at 127.0.0.1, at the port of $BACKEND_SERVICE_PORT.
"""

import hashlib
import json
import math
import os
import pathlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FOLDER = pathlib.Path(os.environ.get("BACKEND_MODEL_PATH", pathlib.Path(__file__).parent))
NAME = os.environ.get("BACKEND_MODEL_NAME", "tiny-embedding")
DIMENSIONS = json.loads((FOLDER / "model.json").read_text())["dimensions"]


def embed(text):
    """Returns the embedding of a text: a vector of length one."""
    vector = [0.0] * DIMENSIONS
    padded = f"  {text.lower()} "
    for start in range(len(padded) - 2):
        digest = hashlib.blake2b(padded[start : start + 3].encode(), digest_size=4).digest()
        vector[int.from_bytes(digest, "big") % DIMENSIONS] += 1.0
    length = math.sqrt(sum(value * value for value in vector)) or 1.0
    return [value / length for value in vector]


def embeddings(request):
    """Returns the answer to POST /v1/embeddings. Raises ValueError for a request that it does not understand."""
    texts = request.get("input")
    texts = [texts] if isinstance(texts, str) else texts
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError("input is a text or a list of texts")
    tokens = sum(len(text.split()) for text in texts)
    return {
        "object": "list",
        "model": NAME,
        "data": [{"object": "embedding", "index": i, "embedding": embed(text)} for i, text in enumerate(texts)],
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        "served_by": os.environ.get("BACKENDAI_SESSION_ID"),
    }


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.path == "/health":
            self.reply(200, {"status": "ok"})
        elif self.path == "/v1/models":
            model = {"id": NAME, "object": "model", "created": 0, "owned_by": "me"}
            self.reply(200, {"object": "list", "data": [model], "release": os.environ.get("RELEASE", "1")})
        else:
            self.reply(404, {"error": {"message": "there is no such path", "type": "invalid_request_error"}})

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            if self.path != "/v1/embeddings":
                raise ValueError("there is only /v1/embeddings")
            self.reply(200, embeddings(json.loads(body)))
        except (ValueError, AttributeError) as error:
            self.reply(400, {"error": {"message": str(error), "type": "invalid_request_error"}})

    def reply(self, status, document):
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(os.environ["BACKEND_SERVICE_PORT"])), Handler).serve_forever()
