"""A client that times out and sends again, over HTTP: the exchange is stored exactly once."""

import json
import sys
import tempfile
import threading
import uuid
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from turnkeeper import (
    AssistantMessage,
    Message,
    Receipt,
    SyncChatMemory,
    SyncRuntime,
    TurnAlreadyCommittedError,
    Unbounded,
    UserMessage,
    open_sync_runtime,
)


class Server(ThreadingHTTPServer):
    """Answers `POST /<conversation>`, each request in a thread of its own. What it does is slow once, where told."""

    daemon_threads = False  # closing waits for the requests under way

    def __init__(self, runtime: SyncRuntime, slow: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.runtime = runtime
        self.slow = slow
        self.received = 0
        self.asked = 0
        self.sent_again = threading.Event()

    def dawdle(self, where: str) -> None:
        """Take until the client has lost patience and sent its request again."""
        if where == self.slow:
            self.sent_again.wait()

    def ask_model(self, question: str) -> str:
        """Stand for a model that costs money."""
        self.asked += 1
        self.dawdle("model")
        return f"{question} Yes."


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Server

    def do_POST(self) -> None:
        """Answer a question, or repeat the answer to one that was sent before."""
        self.server.received += 1
        if self.server.received > 1:
            self.server.sent_again.set()
        question = self.rfile.read(int(self.headers["Content-Length"])).decode()
        memory = self.server.runtime.memory(self.path.strip("/"))
        try:
            with memory.turn(idempotency_key=self.headers["Idempotency-Key"]) as turn:
                turn.add(UserMessage(question))
                turn.add(AssistantMessage(self.server.ask_model(turn.messages()[-1].text)))
            receipt = turn.receipt
        except TurnAlreadyCommittedError as error:
            receipt = error.receipt
        assert receipt is not None
        said = exchange(memory, receipt)
        self.server.dawdle("answer")
        if not said:
            self.answer(410, "answered, and cleared since")
        elif said[0].text != question:
            self.answer(422, "this key stands for another question")
        else:
            self.answer(200, said[-1].text)

    def answer(self, status: int, text: str) -> None:
        """Send the answer, though the client may be gone."""
        body = json.dumps({"text": text}).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except OSError:
            pass

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def exchange(memory: SyncChatMemory, receipt: Receipt) -> list[Message]:
    """Return what a turn said: an id that turnkeeper gives is the number of the entry, a dot, and a place in it."""
    messages = memory.messages(window=Unbounded())
    if messages.version.mid != receipt.version.mid:
        return []  # deleted, and made anew
    return [message for message in messages if (message.id or "").partition(".")[0] == str(receipt.version.n)]


def ask(port: int, conversation: str, question: str, *, timeout: float) -> tuple[str, int]:
    """Send a question until there is an answer; return it, and the number of attempts."""
    key = str(uuid.uuid4())  # one for the question, not one for each attempt
    for attempt in range(1, 100):
        connection = HTTPConnection("127.0.0.1", port, timeout=timeout)
        try:
            connection.request("POST", f"/{conversation}", question, {"Idempotency-Key": key})
            response = connection.getresponse()
            text: str = json.loads(response.read())["text"]
            if response.status != 200:
                raise RuntimeError(text)
            return text, attempt
        except (OSError, HTTPException):
            continue  # too late, or cut off: was it stored or not? Send it again
        finally:
            connection.close()
    raise RuntimeError("no answer")


def main() -> None:
    """Let the model be slow, then the answer; each time the client gives up once, and each time nothing is doubled."""
    with tempfile.TemporaryDirectory() as directory, open_sync_runtime(f"sqlite:///{directory}/chats.db") as runtime:
        for slow in ("model", "answer"):
            with Server(runtime, slow) as server:
                thread = threading.Thread(target=server.serve_forever, args=(0.01,))
                thread.start()
                try:
                    text, attempts = ask(server.server_port, slow, "Is it stored once?", timeout=1.0)
                finally:
                    server.shutdown()
                    thread.join()
            stored = [message.text for message in runtime.memory(slow).messages()]
            assert attempts >= 2
            assert server.asked == 1
            assert stored == ["Is it stored once?", text]
            sys.stdout.write(f"slow {slow}: sent more than once, asked the model once, stored {stored}\n")


if __name__ == "__main__":
    main()
