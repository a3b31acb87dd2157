"""From what Python's users write to what the engine takes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from headrace import _core
from headrace._errors import InvalidRequestError

_CREDENTIALS = ("access_key_id", "secret_access_key", "session_token")
_STORAGE = (
    "endpoint", "region", "path_style", "anonymous", "profile", "requester_pays", "token", "account", "ca_file",
    "certificate_file", "key_file", "verify_tls", "headers",
)  # fmt: skip

# Where distributions keep the certificate authorities that they trust.
_AUTHORITIES = (
    "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/cacert.pem", "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/ssl/cert.pem",
)  # fmt: skip


def size(given: int | str | None, name: str, default: int) -> int:
    """A number of bytes: as it is, as `16MiB` reads, from HEADRACE_<NAME>, or the default."""
    if given is None:
        given = os.environ.get(f"HEADRACE_{name.upper()}") or default
    if isinstance(given, str):
        return _core.parse_size(given)
    if isinstance(given, bool) or not isinstance(given, int):
        raise TypeError(f"{name} must be a number of bytes or a text such as '16MiB', not {type(given).__name__}")
    if given < 0:
        raise InvalidRequestError(f"{name} must not be negative")
    return given


def count(given: int | None, name: str, default: int) -> int:
    """A number of things, from HEADRACE_<NAME> where none is given."""
    if given is None:
        text = os.environ.get(f"HEADRACE_{name.upper()}")
        if not text:
            return default
        try:
            given = int(text)
        except ValueError:
            raise InvalidRequestError(f"HEADRACE_{name.upper()} must be a whole number") from None
    if isinstance(given, bool) or not isinstance(given, int):
        raise TypeError(f"{name} must be a whole number, not {type(given).__name__}")
    if not 0 <= given < 1 << 31:
        raise InvalidRequestError(f"{name} must be a whole number that is not negative")
    return given


def location(path: str | os.PathLike[str], revision: str | None) -> str:
    """The URI: without a trailing slash, with the revision where it belongs."""
    uri = os.fspath(path)
    if not isinstance(uri, str):
        raise TypeError(f"path must be a text or a path, not {type(path).__name__}")
    stripped = uri.rstrip("/")
    uri = stripped if stripped and not stripped.endswith(":") else uri
    if revision is None:
        return uri
    if not uri.startswith("hf://"):
        raise InvalidRequestError("revision is for locations on the Hugging Face Hub (hf://org/repo)")
    parts = uri.removeprefix("hf://").split("/")
    if len(parts) < 2 or "@" in parts[1]:
        raise InvalidRequestError("revision needs a location of the form hf://org/repo without an @revision of its own")
    from urllib.parse import quote

    parts[1] += "@" + quote(revision, safe="")
    return "hf://" + "/".join(parts)


def storage(given: Mapping[str, Any] | None) -> _core.StorageOptions:
    """How the store is reached. Values are never repeated in errors: they may be secrets."""
    made = _core.StorageOptions()
    keys: dict[str, Any] = {}
    for name, value in (given or {}).items():
        if name not in _STORAGE and name not in _CREDENTIALS:
            known = ", ".join(_CREDENTIALS + _STORAGE)
            raise InvalidRequestError(f"storage_options has no option {name!r}; it has: {known}")
        if value is None:
            continue
        if name in _CREDENTIALS:
            keys[name] = value
            continue
        if name == "headers":
            value = list(value.items()) if isinstance(value, Mapping) else list(value)
        elif name.endswith("_file"):
            value = os.fspath(value)
        _assign(made, name, value)
    if keys:
        credentials = _core.AwsCredentials()
        for name, value in keys.items():
            _assign(credentials, name, value)
        made.credentials = credentials
    if not made.ca_file:
        made.ca_file = _fallback_authorities()
    return made


def _assign(options: object, name: str, value: object) -> None:
    try:
        setattr(options, name, value)
    except TypeError:
        raise TypeError(f"storage_options[{name!r}] cannot be a {type(value).__name__}") from None


def _fallback_authorities() -> str:
    """certifi's authorities where the system has none; otherwise nothing: the engine finds the system's."""
    if any(os.environ.get(name) for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "AWS_CA_BUNDLE")):
        return ""
    if any(os.path.exists(path) for path in _AUTHORITIES):
        return ""
    try:
        import certifi
    except ImportError:
        return ""
    return str(certifi.where())
