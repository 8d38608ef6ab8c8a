#!/usr/bin/env python3
"""A tiny OpenAI-compatible chat server for tests (standard library only).

    python chat_server.py --port 0        # prints the chosen port as its first line
    POST /v1/chat/completions   {"model": ..., "messages": [...], "stream": true | false}

It replies with the text of --reply, as a stream where one is asked for.  It
listens on the loopback address only.  See --help for the ways to make it
misbehave.
"""
from __future__ import annotations

import argparse
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LOG_LOCK = threading.Lock()
MAX_BODY = 64 * 1024 * 1024
SECRET_WORDS = "Server's own words: sk-leaked"


def cut(text: str, length: int = 5) -> list[str]:
    """A text in pieces, as a model gives it."""
    return [text[at : at + length] for at in range(0, len(text), length)]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "chat-test-server/1"
    options: argparse.Namespace

    # -- plumbing ---------------------------------------------------------
    def log_message(self, format: str, *args) -> None:  # keep stderr quiet
        pass

    def write_log(self, body) -> None:
        if not self.options.log:
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        line = json.dumps({"path": self.path, "headers": headers, "body": body}, ensure_ascii=False)
        with LOG_LOCK, open(self.options.log, "a", encoding="utf-8", errors="backslashreplace") as handle:
            handle.write(line + "\n")

    def send(self, status: int, data: bytes, kind: str = "application/json", **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def fail(self, status: int, **headers: str) -> None:
        self.send(status, json.dumps({"error": {"message": SECRET_WORDS, "type": "test"}}).encode(), **headers)

    def begin_stream(self) -> None:
        """Headers of a stream whose end is the end of the connection."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True

    # -- replies ----------------------------------------------------------
    def plain(self, model: str) -> None:
        message = {"role": "assistant", "content": self.options.reply}
        choice = {"index": 0, "message": message, "finish_reason": self.options.finish or None}
        data = {"id": "chat-1", "object": "chat.completion", "model": model, "choices": [choice]}
        self.send(200, json.dumps(data).encode())

    def event(self, model: str, delta: dict, finish: str | None = None) -> None:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        data = {"id": "chat-1", "object": "chat.completion.chunk", "model": model, "choices": [choice]}
        self.write_line("data: " + json.dumps(data, ensure_ascii=False))

    def write_line(self, line: str) -> None:
        self.wfile.write((line + "\n\n").encode())
        self.wfile.flush()

    def stream(self, model: str) -> None:
        self.begin_stream()
        self.write_line(": a comment, as some servers send to keep a connection")
        self.event(model, {"role": "assistant", "content": ""})
        pieces = cut(self.options.reply)
        for number, piece in enumerate(pieces):
            if self.options.stream_error and number == len(pieces) // 2:
                self.write_line("data: " + json.dumps({"error": {"message": SECRET_WORDS}}))
                return
            if self.options.break_off and number == len(pieces) // 2:
                return
            self.event(model, {"content": piece})
            time.sleep(self.options.pause)
        if self.options.finish:
            self.event(model, {}, self.options.finish)
        self.write_line('data: {"choices": [], "usage": {"total_tokens": 1}}')
        self.write_line("data: [DONE]")
        if self.options.stay_open:
            time.sleep(60)

    def trickle(self) -> None:
        self.begin_stream()
        while True:
            self.wfile.write(b": still thinking\n")
            self.wfile.flush()
            time.sleep(0.05)

    # -- the route --------------------------------------------------------
    def do_POST(self) -> None:
        try:
            self.answer()
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the client gave up waiting

    def answer(self) -> None:
        options = self.options
        body = json.loads(self.rfile.read(min(int(self.headers["Content-Length"]), MAX_BODY)))
        self.write_log(body)
        if options.delay:
            time.sleep(options.delay)
        if options.redirect:
            self.fail(307, Location=options.redirect)
        elif options.require_key is not None and self.headers["Authorization"] != f"Bearer {options.require_key}":
            self.fail(401)
        elif options.fail_with:
            self.fail(options.fail_with)
        elif self.path != "/v1/chat/completions":
            self.fail(404)
        elif options.garbage is not None:
            self.send(200, options.garbage.encode(), "text/html")
        elif options.trickle:
            self.trickle()
        elif body.get("stream") and not options.never_stream:
            self.stream(body["model"])
        else:
            self.plain(body["model"])


def main() -> None:
    parser = argparse.ArgumentParser(description="OpenAI-compatible chat server for tests.")
    parser.add_argument("--port", type=int, default=0, help="0 (default) takes a free port")
    parser.add_argument("--reply", default="It is so [1].", help="what the model says to anything")
    parser.add_argument("--finish", default="stop", help="the finish_reason; empty for none")
    parser.add_argument("--never-stream", action="store_true", help="reply in one JSON object whatever is asked for")
    parser.add_argument("--stay-open", action="store_true", help="keep the connection after the end of a stream")
    parser.add_argument("--fail-with", type=int, metavar="STATUS", help="answer every request with this status")
    parser.add_argument("--redirect", metavar="ADDRESS", help="send the client to this address")
    parser.add_argument("--delay", type=float, default=0.0, metavar="SECONDS", help="wait before each answer")
    parser.add_argument("--pause", type=float, default=0.0, metavar="SECONDS", help="wait after each piece of a stream")
    parser.add_argument("--require-key", metavar="KEY", help="401 unless 'Authorization: Bearer KEY'")
    parser.add_argument("--garbage", metavar="TEXT", help="answer with this body, which is no chat reply")
    parser.add_argument("--stream-error", action="store_true", help="send an error in the middle of a stream")
    parser.add_argument("--break-off", action="store_true", help="end in the middle of a stream")
    parser.add_argument("--trickle", action="store_true", help="send a comment now and then, and never an answer")
    parser.add_argument("--log", metavar="FILE", help="append one JSON line per request (headers included)")
    Handler.options = parser.parse_args()
    server = ThreadingHTTPServer(("127.0.0.1", Handler.options.port), Handler)
    server.daemon_threads = True
    print(server.server_address[1], flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
