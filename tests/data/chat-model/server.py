"""Serves a chat whose answers are full of script and end only when their reader leaves, by the standard library alone.

``GET /open`` tells how many answers are being written.
"""

import json
import os
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOKENS = ["<img src=x ", "onerror=window.__hacked=1>", " and on"]
PAUSE_S = 0.05
open_answers: set["Handler"] = set()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/health":
            self.reply(200, {"status": "ok"})
        elif self.path == "/v1/models":
            self.reply(200, {"object": "list", "data": [{"id": "endless-chat", "object": "model"}]})
        elif self.path == "/open":
            self.reply(200, {"open": len(open_answers)})
        else:
            self.reply(404, {"error": {"message": "there is no such path"}})

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        if self.path != "/v1/chat/completions" or not request.get("stream"):
            self.reply(400, {"error": {"message": "there are only streamed chats"}})
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        open_answers.add(self)
        try:
            count = 0
            while True:
                chunk = {"choices": [{"index": 0, "delta": {"content": TOKENS[min(count, 2)]}}]}
                self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
                self.wfile.flush()
                time.sleep(PAUSE_S)
                count += 1
        except OSError:
            pass  # the reader has left
        finally:
            open_answers.discard(self)
            self.close_connection = True

    def reply(self, status: int, document: object) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(os.environ["BACKEND_SERVICE_PORT"])), Handler).serve_forever()
