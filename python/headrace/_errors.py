"""The exceptions of headrace: one class for each kind of error, each also a built-in that a Python user would catch."""

from __future__ import annotations


class Error(Exception):
    """What went wrong, and where: the base of all of them.

    `str(error)` is one line that says what to do next and never holds a secret. The attributes hold what is known of the
    place: None or 0 where it is not.

        try:
            ...
        except headrace.NotFoundError as error:  # or FileNotFoundError
            print(error.kind, error.uri)
    """

    kind = "internal"
    """The kind, as the command line prints it: `not_found`, `access_denied`, ..."""

    def __init__(
        self,
        message: str = "",
        *,
        uri: str | None = None,
        byte_range: tuple[int, int] | None = None,
        attempt: int = 0,
        peer: str | None = None,
        status: int = 0,
        server_code: str | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.uri = uri
        """The object, without query and user information."""
        self.byte_range = byte_range
        """The bytes that were asked for: from the first up to and without the second."""
        self.attempt = attempt
        """Which attempt failed, from 1 on; 0 where attempts do not apply."""
        self.peer = peer
        """The address that was talked to."""
        self.status = status
        """The HTTP status; 0 where there was none."""
        self.server_code = server_code
        """The store's own code, such as `NoSuchKey`."""
        self.request_id = request_id
        """The store's own request id, which its support asks for."""


class NotFoundError(Error, FileNotFoundError, ValueError):
    """No such object, bucket, file or prefix, no safetensors files in it, or no such tensor."""

    kind = "not_found"


class AccessDeniedError(Error, PermissionError):
    """The store or the file system refused: wrong credentials, or too few rights."""

    kind = "access_denied"


class InvalidRequestError(Error, ValueError):
    """Something that cannot be was asked for: an option, a URI, a slice."""

    kind = "invalid_request"


class ThrottledError(Error, ConnectionError):
    """The store asks for a longer pause than the limits allow."""

    kind = "throttled"


class TimedOutError(Error, TimeoutError):
    """A stall limit, a connect limit or a deadline passed."""

    kind = "timeout"


class ObjectChangedError(Error, OSError):
    """An object is no longer the version of which the first bytes came."""

    kind = "object_changed"


class TruncatedError(Error, ConnectionError):
    """A body was cut short, after all retries."""

    kind = "truncated"


class ProtocolError(Error, ConnectionError):
    """The other side broke HTTP."""

    kind = "protocol_error"


class TLSError(Error, ConnectionError):
    """A certificate or a handshake that is wrong."""

    kind = "tls_error"


class ConnectError(Error, ConnectionError):
    """A name that cannot be resolved, a connection that does not come about or that broke."""

    kind = "connect_error"


class UnavailableError(Error, ConnectionError):
    """The store answered with an error of its own, after all retries."""

    kind = "unavailable"


class InvalidSafetensorsError(Error, ValueError):
    """The file or the index is not what the format demands."""

    kind = "invalid_safetensors"


class UnsupportedError(Error, ValueError, NotImplementedError):
    """Right, but not something that this build, this machine or the other library can do."""

    kind = "unsupported"


class CancelledError(Error):
    """The stream was closed before its end, by another thread or by a cancelled task."""

    kind = "cancelled"


class OutOfMemoryError(Error, MemoryError):
    """Memory for a tensor could not be had."""

    kind = "out_of_memory"


class InternalError(Error, RuntimeError):
    """A mistake of headrace's own."""

    kind = "internal"


_CLASSES: dict[str, type[Error]] = {
    made.kind: made
    for made in (
        NotFoundError, AccessDeniedError, InvalidRequestError, ThrottledError, TimedOutError, ObjectChangedError,
        TruncatedError, ProtocolError, TLSError, ConnectError, UnavailableError, InvalidSafetensorsError,
        UnsupportedError, CancelledError, OutOfMemoryError, InternalError,
    )
}  # fmt: skip


def from_engine(
    kind: str,
    message: str,
    uri: str,
    byte_range: tuple[int, int] | None,
    attempt: int,
    peer: str,
    status: int,
    server_code: str,
    request_id: str,
) -> Error:
    """The exception for an error of the engine."""
    return _CLASSES.get(kind, InternalError)(
        message,
        uri=uri or None,
        byte_range=byte_range,
        attempt=attempt,
        peer=peer or None,
        status=status,
        server_code=server_code or None,
        request_id=request_id or None,
    )
