"""An API server on loopback that follows a script: each request takes the next answer."""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


class Request:
    def __init__(self, method, path, query, headers, body):
        self.method = method
        self.path = path
        self.query = query
        self.headers = headers
        self.body = body

    @property
    def is_watch(self):
        return self.query.get("watch") == "true"


class Watch:
    """What a handler returns to answer with a stream of events; `silent` keeps it open after."""

    def __init__(self, *events, silent=False):
        self.events = events
        self.silent = silent


class FakeApi:
    """Serves `handler(request) -> (status, object) | Watch`; keeps every request."""

    def __init__(self, handler: Callable):
        self.requests = []
        self.handler = handler
        self.closing = threading.Event()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def _serve(self):
                url = urlsplit(self.path)
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                query = {key: values[0] for key, values in parse_qs(url.query).items()}
                request = Request(self.command, url.path, query, dict(self.headers), body)
                fake.requests.append(request)
                answer = fake.handler(request)
                if isinstance(answer, Watch):
                    self._stream(answer)
                    return
                status, value = answer
                content = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def _stream(self, watch):
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                self.wfile.flush()
                for event in watch.events:
                    line = json.dumps(event).encode() + b"\n"
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                    self.wfile.flush()
                if watch.silent:
                    fake.closing.wait()
                self.wfile.write(b"0\r\n\r\n")
                self.close_connection = True

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815 - their names

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(
            target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )
        self.thread.start()
        self.host = f"http://127.0.0.1:{self.server.server_port}"

    def close(self):
        self.closing.set()
        self.server.shutdown()
        self.server.server_close()


def status(code, reason="", **details):
    return code, {
        "kind": "Status",
        "code": code,
        "reason": reason,
        "message": f"scripted {code}",
        "details": details,
    }


def pod(name, version, uid="", **extra):
    return {
        "metadata": {
            "namespace": "ns",
            "name": name,
            "uid": uid or f"uid-{name}",
            "resourceVersion": str(version),
            "managedFields": [{"manager": "kubectl"}],
        },
        **extra,
    }


def pod_list(version, *pods, continue_token=""):
    metadata = {"resourceVersion": str(version)}
    if continue_token:
        metadata["continue"] = continue_token
    return 200, {"kind": "PodList", "metadata": metadata, "items": list(pods)}


def event(kind, item):
    return {"type": kind, "object": item}


def bookmark(version):
    return event("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": str(version)}})
