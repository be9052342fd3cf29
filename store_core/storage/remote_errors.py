"""Translate errors of object store clients: the cause, what to do about it, and whether it may pass."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from store_core.errors import FailedError, NotAStoreError, StoreError
from store_core.storage.remote_path import RemotePath

AZURE: Final = ("abfs", "abfss")  # schemes of its addresses
WENT_AWAY: Final = "a file went away while it was read"
BRIEFLY_SECONDS: Final = (0.1, 0.3)
# Azure's client takes a lease of this length to remove a file, and a killed process leaves the lease.
_LEASE_SECONDS: Final = 15


@dataclass(frozen=True, slots=True)
class _Trouble:
    """A kind of error, recognized by words of the client's message.

    An empty ``to_do`` stands for the advice about credentials. ``pauses_seconds``: the error may have passed after each.
    """

    words: str
    what: str
    to_do: str = ""
    pauses_seconds: tuple[float, ...] = ()


_TROUBLE: Final = (
    _Trouble(
        r"NO_SUCH_BUCKET|ContainerNotFound|bucket does not exist", "no such bucket", "name a bucket that is there"
    ),
    _Trouble(
        r"NO_SUCH_KEY|RESOURCE_NOT_FOUND during GetObject|BlobNotFound|No such object",
        WENT_AWAY,
        "run the command again",
    ),
    _Trouble(
        r"INVALID_ACCESS_KEY_ID|SIGNATURE_DOES_NOT_MATCH|InvalidAuthenticationInfo|[Cc]redentials|UNAUTHENTICATED"
        r"|AuthenticationFailed|failed to authenticate|EXPIRED_TOKEN|ExpiredToken|HTTP status 401|OAuth|DefaultAzureCredential|Bearer token",
        "the credentials are missing or wrong",
    ),
    _Trouble(r"ACCESS_DENIED|AccessDenied|PERMISSION_DENIED|HTTP status 403|Forbidden", "access is denied"),
    _Trouble(
        r"Azure Error: \[Lease",
        "another process is at work on the file, or was killed meanwhile",
        "run the command again in half a minute",
        pauses_seconds=(1.0,) * (_LEASE_SECONDS + 1),
    ),
    _Trouble(
        r'SLOW_DOWN|SERVICE_UNAVAILABLE|(HTTP status|Azure Error: \[\w*\]|"code":) ?(429|50[0234])',
        "the object store is busy, or fails",
        "run the command again later",
        pauses_seconds=BRIEFLY_SECONDS,
    ),
    # Azure's own answers have a word in the brackets; its client takes some chunked answers for broken ones, and Google's closes a
    # file whose first read failed.
    _Trouble(
        r"Azure Error: \[\] (404|Error when reading body|Unexpected format)|XML_ERROR_PARSING|JSON object|json input is not an object"
        r"|I/O operation on closed file",
        "the object store does not answer as it should",
        "check the endpoint, and run the command again",
        pauses_seconds=BRIEFLY_SECONDS,
    ),
    _Trouble(
        r"NETWORK_CONNECTION|curlCode|[Tt]imed? ?out|[Cc]ould ?n.t (connect|resolve)|UNAVAILABLE|[Cc]onnection"
        r"|Azure Error: \[\] Error while",
        "the object store does not answer",
        "check the network and the endpoint, and run the command again",
        pauses_seconds=BRIEFLY_SECONDS,
    ),
)
_DETAIL: Final = re.compile(
    r"(?<=operation: )(?:(?! \(Request ID)[^;]){1,120}|(?<=Azure Error: )\[\w+\] \d+|(?<=Azure Error: \[\] )[^.\n]{1,120}"
    r"|expected payload to be a JSON object|json input is not an object"
)
_CREDENTIALS: Final = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or AWS_NO_SIGN_REQUEST=yes for a public bucket",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS, or run gcloud auth application-default login",
    **dict.fromkeys(AZURE, "set AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN, or run az login"),
}


@contextmanager
def told(path: RemotePath) -> Iterator[None]:
    """Turn errors of the client into StoreErrors; FileNotFoundError is left as it is."""
    try:
        yield
    except (FileNotFoundError, StoreError):
        raise
    except Exception as error:  # pyarrow raises OSError mostly, but also ValueError and errors of its own
        raise _failure(path, str(error)) from error


def _failure(path: RemotePath, text: str) -> StoreError:
    trouble = _trouble_of(text)
    if trouble is None:
        what = " ".join(text.split())[:300] or "the object store refuses"
        return FailedError(what, path=str(path), to_do="see what it says")
    if trouble.what == "no such bucket":
        return NotAStoreError(trouble.what, path=str(path), to_do=trouble.to_do)
    detail = _DETAIL.search(text)
    what = f"{trouble.what}{f' ({detail[0]})' if detail else ''}"
    return FailedError(what, path=str(path), to_do=trouble.to_do or _CREDENTIALS[path.scheme])


def _trouble_of(text: str) -> _Trouble | None:
    return next((trouble for trouble in _TROUBLE if re.search(trouble.words, text)), None)


def pauses_of(error: Exception) -> tuple[float, ...]:
    """Return the pauses (seconds) before further attempts after an error of a client; none if it will not pass."""
    trouble = _trouble_of(str(error))
    return trouble.pauses_seconds if trouble is not None else ()
