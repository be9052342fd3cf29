"""Convert host fields: an address in network order and its port as four bytes (store format, section 2.2)."""

from __future__ import annotations

from store_core.layout import record


def host_text(raw: bytes) -> str:
    """Return ``a.b.c.d:port`` for 8 bytes or ``[v6]:port`` for 20. Raises ValueError for any other length."""
    address, port = raw[: -record.HOST_PORT_SIZE_BYTES], raw[-record.HOST_PORT_SIZE_BYTES :]
    number = int.from_bytes(port, "big")
    if len(raw) == record.HOST_V4_SIZE_BYTES:
        return f"{address[0]}.{address[1]}.{address[2]}.{address[3]}:{number}"
    if len(raw) == record.HOST_V6_SIZE_BYTES:
        from socket import (
            AF_INET6,
            inet_ntop,
        )  # imported here, because few stores have such a host and light commands need no socket

        return f"[{inet_ntop(AF_INET6, address)}]:{number}"
    raise ValueError(f"a host of {len(raw)} bytes")


def host_bytes(text: str) -> bytes:
    """Return the stored form of ``a.b.c.d:port`` or ``[v6]:port``. Raises ValueError for any other text."""
    from socket import AF_INET, AF_INET6, inet_pton

    address, colon, port = text.rpartition(":")
    is_v6 = address.startswith("[") and address.endswith("]")
    if not colon or not (port.isascii() and port.isdigit()):
        raise ValueError(f"{text!r} is no host and port")
    try:
        raw = inet_pton(AF_INET6, address[1:-1]) if is_v6 else inet_pton(AF_INET, address)
        return raw + int(port).to_bytes(record.HOST_PORT_SIZE_BYTES, "big")
    except (OSError, OverflowError) as error:
        raise ValueError(f"{text!r} is no host and port") from error


def is_v6_host(raw: bytes) -> bool:
    """Return True if a stored host has the long form."""
    return len(raw) == record.HOST_V6_SIZE_BYTES
