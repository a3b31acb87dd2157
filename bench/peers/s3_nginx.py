"""An S3 server that costs the processor next to nothing: nginx, which answers path-style GETs of
one bucket from a folder, with or without a signature, and a listing that was written before. Over
TLS it speaks TLS 1.3 with AES-128-GCM alone."""

import pathlib
from xml.sax.saxutils import escape

from nginx import Nginx, openssl

BUCKET = "bench"

# The listing has one page and ignores its arguments; whatever asks for it wants the one checkpoint
# that is there.
_LOCATIONS = """
    location = /{bucket} {{ rewrite ^ /.listing last; }}
    location = /{bucket}/ {{ rewrite ^ /.listing last; }}
    location = /.listing {{ internal; default_type application/xml; alias "{listing}"; }}
    location /{bucket}/ {{ alias "{root}/"; }}
"""


class S3Nginx(Nginx):
    """`with S3Nginx(root, "model") as server:` serves `s3://bench/model` from `root/model` at
    `server.url`."""

    def __init__(self, root: pathlib.Path, prefix: str, *, tls: bool = False):
        super().__init__(root, tls=tls)
        self._prefix = prefix

    def environment(self) -> dict[str, str]:
        """Where S3 is and what to trust, in the words of each contender."""
        return s3_environment(self.url, "anyone", "anything", self.ca_file)

    def _locations(self, folder: pathlib.Path) -> str:
        listing = folder / "listing.xml"
        listing.write_text(self._listing(), encoding="utf-8")
        return _LOCATIONS.format(bucket=BUCKET, listing=listing, root=self._root)

    def _make_certificate(self) -> None:
        """An authority and what it signed: some contenders refuse a certificate that signed
        itself."""
        folder = pathlib.Path(self._folder.name)
        self.ca_file, self._key = str(folder / "authority.pem"), str(folder / "key.pem")
        authority_key, request, extensions = (
            str(folder / name) for name in ("authority.key", "request.pem", "extensions")
        )
        pathlib.Path(extensions).write_text(
            "subjectAltName=IP:127.0.0.1\nbasicConstraints=critical,CA:FALSE\n", encoding="ascii"
        )
        new = ["openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        openssl(
            *new,
            "-x509",
            "-days",
            "2",
            "-subj",
            "/CN=headrace",
            "-keyout",
            authority_key,
            "-out",
            self.ca_file,
        )
        openssl(*new, "-subj", "/CN=127.0.0.1", "-keyout", self._key, "-out", request)
        sign = [
            "openssl",
            "x509",
            "-req",
            "-in",
            request,
            "-CA",
            self.ca_file,
            "-CAkey",
            authority_key,
            "-set_serial",
            "1",
        ]
        self._certificate = str(folder / "certificate.pem")
        openssl(*sign, "-days", "2", "-extfile", extensions, "-out", self._certificate)

    def _listing(self) -> str:
        files = sorted(
            path for path in (self._root / self._prefix).iterdir() if not path.name.startswith(".")
        )
        contents = "".join(
            f"<Contents><Key>{escape(f'{self._prefix}/{path.name}')}</Key><Size>{path.stat().st_size}</Size>"
            f"<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>{escape(_etag(path))}</ETag>"
            "<StorageClass>STANDARD</StorageClass></Contents>"
            for path in files
        )
        return (
            '<?xml version="1.0" encoding="UTF-8"?>'
            '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Name>{BUCKET}</Name><Prefix>{self._prefix}/</Prefix><KeyCount>{len(files)}</KeyCount><MaxKeys>1000</MaxKeys>"
            f"<IsTruncated>false</IsTruncated>{contents}</ListBucketResult>"
        )


def _etag(path: pathlib.Path) -> str:
    """What nginx answers with the file."""
    found = path.stat()
    return f'"{int(found.st_mtime):x}-{found.st_size:x}"'


def s3_environment(
    endpoint: str, access_key: str, secret_key: str, ca_file: str = ""
) -> dict[str, str]:
    found = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": access_key,
        "AWS_SECRET_ACCESS_KEY": secret_key,
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "FLYTE_AWS_ENDPOINT": endpoint,
        "FLYTE_AWS_ACCESS_KEY_ID": access_key,
        "FLYTE_AWS_SECRET_ACCESS_KEY": secret_key,
        "FLYTE_AWS_S3_ADDRESSING_STYLE": "path",
        "RUNAI_STREAMER_S3_ENDPOINT": endpoint,
        "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING": "0",
    }
    if ca_file:
        found |= {"AWS_CA_BUNDLE": ca_file, "SSL_CERT_FILE": ca_file}
    return found
