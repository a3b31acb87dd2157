"""A small S3 client for tests: signs with Signature Version 4, needs nothing but the standard library."""

import datetime
import hashlib
import hmac
import http.client
from email.message import Message
from pathlib import Path
from urllib.parse import quote, urlsplit


class S3Error(RuntimeError):
    """An answer that was not a success; holds its status and body."""

    def __init__(self, what: str, status: int, body: bytes):
        super().__init__(f"{what}: HTTP {status}: {body[:500].decode(errors='replace')}")
        self.status = status
        self.body = body


class S3Client:
    """Path-style requests to one endpoint.

    client = S3Client(server.endpoint, server.access_key, server.secret_key)
    client.create_bucket("models")
    client.put_object("models", "tiny/model.safetensors", Path("model.safetensors"))
    """

    def __init__(self, endpoint: str, access_key: str, secret_key: str, region: str = "us-east-1"):
        self._address = urlsplit(endpoint)
        self._access_key = access_key
        self._secret_key = secret_key
        self._region = region

    def create_bucket(self, bucket: str) -> None:
        """Does nothing if the bucket is there already."""
        try:
            self.request("PUT", bucket)
        except S3Error as error:
            if error.status != 409:
                raise

    def put_object(self, bucket: str, key: str, body: bytes | Path) -> str:
        """Uploads bytes or a file in one request. Returns the object's ETag, quotes included."""
        return self.request("PUT", bucket, key, body=body)[1].get("ETag", "")

    def put_folder(self, bucket: str, prefix: str, folder: Path) -> int:
        """Uploads every file below `folder` to `prefix/<relative path>`. Returns the number of bytes."""
        total = 0
        for path in sorted(path for path in Path(folder).rglob("*") if path.is_file()):
            self.put_object(bucket, f"{prefix}/{path.relative_to(folder).as_posix()}", path)
            total += path.stat().st_size
        return total

    def get_object(self, bucket: str, key: str, byte_range: tuple[int, int] | None = None) -> bytes:
        """The object, or the bytes from `byte_range[0]` up to and including `byte_range[1]`."""
        headers = {"Range": f"bytes={byte_range[0]}-{byte_range[1]}"} if byte_range else {}
        return self.request("GET", bucket, key, headers=headers)[2]

    def delete_object(self, bucket: str, key: str) -> None:
        self.request("DELETE", bucket, key)

    def request(
        self,
        method: str,
        bucket: str = "",
        key: str = "",
        *,
        query: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,
        body: bytes | Path = b"",
        timeout: float = 60,
    ) -> tuple[int, Message, bytes]:
        """One signed request. Returns status, headers and body; raises S3Error unless the status is 2xx."""
        path = "/" + "/".join(part for part in (bucket, quote(key, safe="/~")) if part)
        query_text = canonical_query(query or {})
        is_file = isinstance(body, Path)
        length = body.stat().st_size if is_file else len(body)
        signed = self._sign(method, path, query_text, _sha256(body), datetime.datetime.now(datetime.timezone.utc))
        connection = http.client.HTTPConnection(self._address.hostname, self._address.port, timeout=timeout)
        try:
            target = f"{path}?{query_text}" if query_text else path
            content = open(body, "rb") if is_file else body
            try:
                connection.request(method, target, content, {"Content-Length": str(length), **signed, **(headers or {})})
            finally:
                if is_file:
                    content.close()
            response = connection.getresponse()
            answer = response.read()
        finally:
            connection.close()
        if not 200 <= response.status < 300:
            raise S3Error(f"{method} {path}", response.status, answer)
        return response.status, response.headers, answer

    def _sign(self, method: str, path: str, query: str, payload_hash: str, now: datetime.datetime) -> dict[str, str]:
        headers = {
            "host": self._address.netloc,
            "x-amz-content-sha256": payload_hash,
            "x-amz-date": now.strftime("%Y%m%dT%H%M%SZ"),
        }
        authorization = authorize(method, path, query, headers, payload_hash, self._access_key, self._secret_key, self._region)
        return {**headers, "Authorization": authorization}


def canonical_query(query: dict[str, str]) -> str:
    return "&".join(f"{quote(name, safe='~')}={quote(value, safe='~')}" for name, value in sorted(query.items()))


def authorize(
    method: str,
    path: str,
    query: str,
    headers: dict[str, str],
    payload_hash: str,
    access_key: str,
    secret_key: str,
    region: str,
) -> str:
    """The Authorization header for a request with exactly these lower-case headers, `x-amz-date` among them."""
    names = ";".join(sorted(headers))
    canonical_headers = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    canonical = "\n".join([method, path, query, canonical_headers, names, payload_hash])
    time = headers["x-amz-date"]
    scope = f"{time[:8]}/{region}/s3/aws4_request"
    to_sign = "\n".join(["AWS4-HMAC-SHA256", time, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = f"AWS4{secret_key}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, to_sign.encode(), "sha256").hex()
    return f"AWS4-HMAC-SHA256 Credential={access_key}/{scope}, SignedHeaders={names}, Signature={signature}"


def _sha256(body: bytes | Path) -> str:
    if isinstance(body, Path):
        with open(body, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    return hashlib.sha256(body).hexdigest()
