"""A small client of Azure Blob Storage for tests: signs with Shared Key, needs nothing but the standard library."""

import base64
import datetime
import email.utils
import hashlib
import hmac
import http.client
from email.message import Message
from pathlib import Path
from urllib.parse import quote, urlencode, urlsplit

_VERSION = "2021-12-02"
_SIGNED = (
    "content-encoding", "content-language", "content-length", "content-md5", "content-type", "date",
    "if-modified-since", "if-match", "if-none-match", "if-unmodified-since", "range",
)  # fmt: skip


class AzureError(RuntimeError):
    """An answer that was not a success; holds its status and body."""

    def __init__(self, what: str, status: int, body: bytes):
        super().__init__(f"{what}: HTTP {status}: {body[:500].decode(errors='replace')}")
        self.status = status
        self.body = body


class AzureClient:
    """Requests to one account, whose endpoint has the account in its path, as the emulator's has.

    client = AzureClient(server.endpoint, server.account, server.key)
    client.create_container("models")
    client.put_blob("models", "tiny/model.safetensors", Path("model.safetensors"))
    """

    def __init__(self, endpoint: str, account: str, key: str):
        self._address = urlsplit(endpoint)
        self._account = account
        self._key = base64.b64decode(key)

    def create_container(self, container: str, *, public: bool = False) -> None:
        """Does nothing if the container is there already. `public`: anyone may read and list it."""
        headers = {"x-ms-blob-public-access": "container"} if public else {}
        try:
            self.request("PUT", container, query={"restype": "container"}, headers=headers)
        except AzureError as error:
            if error.status != 409:
                raise

    def put_blob(self, container: str, name: str, body: bytes | Path, metadata: dict[str, str] | None = None) -> str:
        """Uploads bytes or a file in one request. Returns the blob's ETag, quotes included."""
        content = body.read_bytes() if isinstance(body, Path) else body
        headers = {"x-ms-blob-type": "BlockBlob", "content-type": "application/octet-stream"}
        headers |= {f"x-ms-meta-{key}": value for key, value in (metadata or {}).items()}
        return self.request("PUT", container, name, headers=headers, body=content)[1].get("ETag", "")

    def put_folder(self, container: str, prefix: str, folder: Path) -> int:
        """Uploads every file below `folder` to `prefix/<relative path>`. Returns the number of bytes."""
        total = 0
        for path in sorted(path for path in Path(folder).rglob("*") if path.is_file()):
            self.put_blob(container, f"{prefix}/{path.relative_to(folder).as_posix()}", path)
            total += path.stat().st_size
        return total

    def get_blob(self, container: str, name: str) -> bytes:
        return self.request("GET", container, name)[2]

    def sas_token(self, *, permissions: str = "rl", lifetime: float = 3600) -> str:
        """A shared access signature for the account's blobs, for `lifetime` seconds from now; negative: it has run out."""
        expiry = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=lifetime)
        fields = {
            "sv": _VERSION, "ss": "b", "srt": "sco", "sp": permissions, "se": expiry.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }  # fmt: skip
        # account, permissions, services, resource types, start, expiry, addresses, protocol, version, encryption scope
        lines = [self._account, permissions, "b", "sco", "", fields["se"], "", "", _VERSION, "", ""]
        return urlencode({**fields, "sig": self._sign("\n".join(lines))})

    def request(
        self,
        method: str,
        container: str = "",
        name: str = "",
        *,
        query: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,
        body: bytes = b"",
        timeout: float = 60,
    ) -> tuple[int, Message, bytes]:
        """One signed request. Returns status, headers and body; raises AzureError unless the status is 2xx."""
        path = self._address.path + "".join(f"/{quote(part, safe='/~')}" for part in (container, name) if part)
        sent = {
            "x-ms-date": email.utils.formatdate(usegmt=True),
            "x-ms-version": _VERSION,
            **{key.lower(): value for key, value in (headers or {}).items()},
        }
        if body or method == "PUT":
            sent["content-length"] = str(len(body))
        text = string_to_sign(method, path, query or {}, sent, self._account)
        sent["authorization"] = f"SharedKey {self._account}:{self._sign(text)}"
        connection = http.client.HTTPConnection(self._address.hostname, self._address.port, timeout=timeout)
        try:
            target = f"{path}?{urlencode(query, quote_via=quote)}" if query else path
            connection.request(method, target, body or None, sent)
            response = connection.getresponse()
            answer = response.read()
        finally:
            connection.close()
        if not 200 <= response.status < 300:
            raise AzureError(f"{method} {path}", response.status, answer)
        return response.status, response.headers, answer

    def _sign(self, text: str) -> str:
        return base64.b64encode(hmac.digest(self._key, text.encode(), hashlib.sha256)).decode()


def string_to_sign(method: str, path: str, query: dict[str, str], headers: dict[str, str], account: str) -> str:
    """What Shared Key signs of a request with exactly these lower-case headers."""
    # A length of zero is signed as none.
    placed = ["" if (name, headers.get(name)) == ("content-length", "0") else headers.get(name, "") for name in _SIGNED]
    own = [f"{name}:{headers[name]}" for name in sorted(headers) if name.startswith("x-ms-")]
    parameters = [f"{name}:{query[name]}" for name in sorted(query)]
    return "\n".join([method, *placed, *own, f"/{account}{path}", *parameters])
