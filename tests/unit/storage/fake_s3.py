"""A bucket that speaks as much of S3 as obstore needs, in this process's memory.

It knows objects, ranges, listings and multipart uploads; signatures are not looked at. `broken`
makes every answer a 403, as a bucket does for credentials that have run out.
"""

import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


class FakeS3:
    """Started with `with`; `endpoint` is its URL, `objects` what it holds by key."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.broken = False
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "FakeS3":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _handler(bucket: FakeS3) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._get()

        def do_GET(self) -> None:
            if "list-type" in self._query():
                self._list()
            else:
                self._get()

        def do_PUT(self) -> None:
            body, query = self._body(), self._query()
            if "uploadId" in query:
                bucket.uploads[query["uploadId"]][int(query["partNumber"])] = body
            else:
                bucket.objects[self._key()] = body
            self._answer(200, headers={"ETag": f'"{len(body)}"'})

        def do_POST(self) -> None:
            body, query = self._body(), self._query()
            if "uploadId" in query:
                parts = bucket.uploads.pop(query["uploadId"])
                bucket.objects[self._key()] = b"".join(parts[n] for n in sorted(parts))
                self._xml("<CompleteMultipartUploadResult><ETag>x</ETag>")
            elif "delete" in query:
                keys = [key.decode() for key in re.findall(rb"<Key>(.*?)</Key>", body)]
                for key in keys:
                    bucket.objects.pop(key, None)
                # S3 says of a key that was not there, too, that it is deleted.
                gone = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
                self._xml(f"<DeleteResult>{gone}")
            else:
                upload = f"u{len(bucket.uploads)}"
                bucket.uploads[upload] = {}
                self._xml(f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId>")

        def do_DELETE(self) -> None:
            bucket.objects.pop(self._key(), None)
            self._answer(204)

        def _get(self) -> None:
            data = bucket.objects.get(self._key())
            if data is None:
                self._answer(404)
                return
            headers = {"ETag": '"x"', "Last-Modified": "Tue, 01 Dec 2026 12:00:00 GMT"}
            asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            if asked is None:
                self._answer(200, data, headers)
                return
            start, end = int(asked[1]), int(asked[2] or len(data) - 1) + 1
            if start >= len(data):
                self._answer(416)
                return
            piece = data[start:end]
            where = f"bytes {start}-{start + len(piece) - 1}/{len(data)}"
            self._answer(206, piece, headers | {"Content-Range": where})

        def _list(self) -> None:
            prefix = self._query().get("prefix", "")
            found = "".join(
                f"<Contents><Key>{escape(key)}</Key><Size>{len(data)}</Size><ETag>x</ETag>"
                "<LastModified>2026-12-01T12:00:00.000Z</LastModified></Contents>"
                for key, data in sorted(bucket.objects.items())
                if key.startswith(prefix)
            )
            self._xml(f"<ListBucketResult><IsTruncated>false</IsTruncated>{found}")

        def _key(self) -> str:
            return unquote(urlsplit(self.path).path).split("/", 2)[2]

        def _query(self) -> dict[str, str]:
            found = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
            return {name: values[0] for name, values in found.items()}

        def _body(self) -> bytes:
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))

        def _xml(self, opened: str) -> None:
            root = opened[1 : opened.index(">")]
            self._answer(200, f"{opened}</{root}>".encode(), {"Content-Type": "application/xml"})

        def _answer(
            self, status: int, body: bytes = b"", headers: dict[str, str] | None = None
        ) -> None:
            if bucket.broken:
                status, body, headers = 403, b"", None
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_request(self, *_: object) -> None:
            return

    return Handler
