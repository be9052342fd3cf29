"""`rmqctl put`: store a message."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from rmqctl import exit_codes
from rmqctl.context import Context
from rmqctl.mending import report_finished
from rmqctl.options import TopicArgument
from rmqctl.output.streams import say, standard_input
from store_core.errors import FailedError, UsageError

if TYPE_CHECKING:
    from store_core.engine.live_store import LiveStore
    from store_core.engine.message import NewMessage, PutResult

_STANDARD_INPUT: Final = "-"
_MESSAGE_OPTIONS: Final = ("--queue-id", "--keys", "--tags", "--property", "--delay-level")


def put(
    ctx: Context,
    topic: TopicArgument,
    body: Annotated[
        str | None, typer.Argument(metavar="[BODY]", help="Body; - is standard input. Or give --file.")
    ] = None,
    queue_id: Annotated[
        int | None, typer.Option("--queue-id", metavar="N", min=0, help="Queue; one at random without it.")
    ] = None,
    keys: Annotated[
        list[str] | None, typer.Option("--keys", metavar="KEYS", help="Keys, separated by spaces; repeatable.")
    ] = None,
    tags: Annotated[str | None, typer.Option("--tags", metavar="TAG", help="Tag.")] = None,
    property_: Annotated[
        list[str] | None, typer.Option("--property", metavar="K=V", help="A further property; repeatable.")
    ] = None,
    delay_level: Annotated[
        int, typer.Option("--delay-level", metavar="N", min=0, help="Deliver later: level 1, 2, … of the broker.")
    ] = 0,
    file: Annotated[
        str | None, typer.Option("--file", metavar="F", help="Take the body from a file; - is standard input.")
    ] = None,
    flush: Annotated[
        Literal["sync", "async"],
        typer.Option("--flush", help="sync: on the disk when the command ends. async: the system writes it later."),
    ] = "sync",
    transaction: Annotated[
        Literal["half", "commit", "rollback"] | None,
        typer.Option("--transaction", help="half: store as a half message. commit, rollback: end one, with --of."),
    ] = None,
    of: Annotated[
        int | None, typer.Option("--of", metavar="PHY_OFFSET", min=0, help="The half message to commit or roll back.")
    ] = None,
    create_topic: Annotated[
        bool,
        typer.Option("--create-topic", help="Configure the topic if it is unknown, as autoCreateTopicEnable does."),
    ] = False,
    flag: Annotated[int, typer.Option("--flag", metavar="N", help="The message's own flag.")] = 0,
    born_host: Annotated[
        str, typer.Option("--born-host", metavar="HOST:PORT", help="The producer's address: a.b.c.d:port or [v6]:port.")
    ] = "127.0.0.1:0",
    store_host: Annotated[
        str | None,
        typer.Option(
            "--store-host",
            metavar="HOST:PORT",
            help="The broker's address; default: from -c, else from the newest record.",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            metavar="NAME",
            help="The broker's cluster; default: from -c, else from the newest records, else DefaultCluster.",
        ),
    ] = None,
) -> int:
    """Store one message in a store that no broker runs on, by a broker's rules: log, queue, index and checkpoint.

    The answer's status is the broker's word. What is not stored ends with 1: a topic that is not configured is
    MESSAGE_ILLEGAL unless --create-topic is given. The store must have been stopped cleanly; run `rmqctl recover` first
    where it was not.

    As a broker does, put adds the property CLUSTER (from release 4.6 on) and a UNIQ_KEY where there is none (from 5.0 on).
    The release is the newest that may have written the store; --broker-version names another.

    Example: rmqctl put orders 'hello' --tags created --keys 4711 -o json
    """
    from store_core.engine.live_store import WriteOptions, open_for_writing

    ctx.refuse_remote()
    settings = ctx.settings()
    ends = transaction in ("commit", "rollback")
    if ends != (of is not None):
        raise UsageError("--of names the half message for --transaction commit or rollback", to_do="give both, or none")
    if ends and (
        body is not None or file is not None or queue_id is not None or keys or tags or property_ or delay_level
    ):
        options = ", ".join(_MESSAGE_OPTIONS)
        raise UsageError(
            "a half message has its body and properties already", to_do=f"leave the body and {options} out"
        )
    message = None
    if not ends:
        limit = settings.max_message_size_bytes
        properties = _properties(property_ or [], keys or [], tags, delay_level)
        message = _message(topic, _body(body, file, limit), queue_id, properties, flag, born_host)
    options_of_broker = WriteOptions(flush=flush, store_host=store_host, cluster=_cluster(cluster))
    with open_for_writing(settings, options_of_broker, partial(report_finished, ctx)) as live:
        result = _carry_out(live, topic, message, of, transaction, create_topic)
    document = result.as_json()
    try:
        ctx.output.emit(document, rows=[document])
        sys.stdout.flush()
    except (OSError, FailedError):
        if result.stored is not None:
            say(f"note: the message is stored, at {result.stored.phy_offset}; putting it again stores it twice")
        raise
    if result.stored is None:
        say(f"error: not stored: {result.status} ({result.topic}): {result.reason}")
        return exit_codes.FAILED
    return exit_codes.OK


def _carry_out(
    live: LiveStore,
    topic: str,
    message: NewMessage | None,
    half_phy_offset: int | None,
    transaction: str | None,
    create_topic: bool,
) -> PutResult:
    from store_core.codec.properties import REAL_TOPIC
    from store_core.engine.put import put as put_message
    from store_core.engine.transactions import commit, open_half, rollback

    if message is not None:
        return put_message(live, message, create_topic=create_topic, half=transaction == "half")
    assert half_phy_offset is not None
    real_topic = open_half(live, half_phy_offset).properties[REAL_TOPIC]
    if real_topic != topic:
        raise UsageError(f"the half message belongs to {real_topic!r}", to_do="name that topic")
    return (commit if transaction == "commit" else rollback)(live, half_phy_offset)


def _message(
    topic: str, body: bytes, queue_id: int | None, properties: dict[str, str], flag: int, born_host: str
) -> NewMessage:
    from store_core.engine.message import NewMessage

    if not -(1 << 31) <= flag < 1 << 31:
        raise UsageError(f"--flag {flag} does not fit into 32 bits", to_do="give a smaller number")
    if queue_id is not None and queue_id >= 1 << 31:
        raise UsageError(f"--queue-id {queue_id} does not fit into 32 bits", to_do="give a smaller number")
    return NewMessage(topic, body, queue_id, properties, flag, born_host=born_host)


def _properties(pairs: list[str], keys: list[str], tags: str | None, delay_level: int) -> dict[str, str]:
    """All properties by name; the options of their own win. Raises UsageError for a word without ``=``."""
    from store_core.codec.properties import DELAY, KEY_SEPARATOR, KEYS, TAGS

    properties = {}
    for pair in map(_text, pairs):
        name, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(f"{pair!r} is no property", to_do="give --property NAME=VALUE")
        properties[name] = value
    options: dict[str, Any] = {KEYS: KEY_SEPARATOR.join(map(_text, keys)), TAGS: tags and _text(tags)}
    options[DELAY] = str(delay_level) if delay_level else None
    return properties | {name: value for name, value in options.items() if value}


def _cluster(word: str | None) -> str | None:
    """A cluster's name. Raises UsageError for one that is no property's value."""
    from store_core.layout.record import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR

    if word is None:
        return None
    name = _text(word)
    if not name or {chr(NAME_VALUE_SEPARATOR), chr(PROPERTY_SEPARATOR)} & set(name):
        raise UsageError(f"{name!r} is no cluster's name", to_do="give one without 0x01 and 0x02")
    return name


def _text(word: str) -> str:
    """A word of the command line; bytes that are no UTF-8 become U+FFFD."""
    return os.fsencode(word).decode(errors="replace")


def _body(word: str | None, file: str | None, limit: int | None) -> bytes:
    """The body's bytes, of a file hardly more than a broker may take. Raises UsageError, FailedError."""
    from store_core.layout.record import DEFAULT_MAX_MESSAGE_SIZE_BYTES

    if (word is None) == (file is None):
        raise UsageError("a message has one body", to_do="give BODY or --file")
    if word == _STANDARD_INPUT:
        word, file = None, word
    if word is not None:
        return os.fsencode(word)
    size = (limit or DEFAULT_MAX_MESSAGE_SIZE_BYTES) + 1  # one byte more is refused by the broker's own rule
    try:
        if file == _STANDARD_INPUT:
            return standard_input().read(size)
        with open(str(Path(str(file)).expanduser()), "rb") as opened:
            return opened.read(size)
    except OSError as error:
        raise FailedError(f"cannot read the body: {error.strerror}", path=file, to_do="name a readable file") from error
