"""A real name server and broker on loopback, over a store of ours, and a real client to ask them."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from tests.broker import oracle
from tests.ports import free_port

_START_SECONDS: Final = 60
_STOP_SECONDS: Final = 60
_CLIENT_SECONDS: Final = 90


class RunningBroker:
    """Context manager: started on enter, killed on leaving if nobody stopped it, for an orderly stop takes a broker 10 s.

    ``commitlog`` is where the log lies, if not in the root. ``address`` is the broker's, ``name_server`` the name server's ``host:port``, ``ha_port`` the replication port.
    """

    def __init__(self, version: str, root: Path, properties: str, home: Path, commitlog: str | None = None) -> None:
        self.version, self.root, self.home = version, root, home
        self._name_server_port = free_port()
        self._port = free_port(-2, 1)  # favoured clients; here, replication
        self.ha_port = self._port + 1
        self.name_server, self.address = f"127.0.0.1:{self._name_server_port}", f"127.0.0.1:{self._port}"
        self._processes: list[subprocess.Popen[bytes]] = []
        home.mkdir(parents=True)
        (home / "namesrv.properties").write_text(f"listenPort={self._name_server_port}\n")
        ours = {
            "namesrvAddr": self.name_server,
            "listenPort": self._port,
            "haListenPort": self.ha_port,
            "storePathRootDir": root,
            "storePathCommitLog": commitlog or root / "commitlog",
            "fileReservedTime": 87600,  # nothing of an old store may expire under the test
        }
        text = oracle.for_every_release(properties) + "".join(f"{k}={v}\n" for k, v in ours.items())
        (home / "broker.properties").write_text(text)

    def __enter__(self) -> RunningBroker:
        try:
            self._start("org.apache.rocketmq.namesrv.NamesrvStartup", "namesrv", self._name_server_port)
            self._start("org.apache.rocketmq.broker.BrokerStartup", "broker", self._port)
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def pid(self) -> int | None:
        """The broker's process, as soon as there is one."""
        return self._processes[1].pid if len(self._processes) > 1 else None

    def stop(self) -> None:
        """Stop the broker as an operator does, so that it leaves a clean store."""
        broker = self._processes[-1]
        broker.send_signal(signal.SIGTERM)
        try:
            broker.wait(_STOP_SECONDS)
        finally:
            self.kill()

    def kill(self) -> None:
        """Kill both with SIGKILL: a crash."""
        for process in reversed(self._processes):
            process.kill()
            process.wait()
        self._processes.clear()

    def pull(self, *topics: str) -> dict[str, Any]:
        """``TOPIC-QUEUE_ID`` -> min, max, messages and odd statuses, all that a real consumer gets."""
        return self._client("pull", topics)

    def send(self, *topics: str) -> dict[str, Any]:
        """One message into every queue of the topics; ``TOPIC-QUEUE_ID`` -> status, queueOffset, offsetMsgId."""
        return self._client("send", topics)

    def _client(self, what: str, topics: tuple[str, ...]) -> dict[str, Any]:
        home = self.home / "client"
        answer = home / "answer.json"
        command = [*oracle.java_command(self.version, home), "Client", self.name_server, str(answer), what, *topics]
        with (home / "out").open("wb") as out:
            subprocess.run(
                command, env=oracle.java_environment(home), cwd=home, stdout=out, stderr=out, timeout=_CLIENT_SECONDS
            )
        said: dict[str, Any] = json.loads(answer.read_text())
        answer.unlink()
        assert "exception" not in said, said["exception"]
        found: dict[str, Any] = said["queues"]
        return found

    def _start(self, main: str, part: str, port: int) -> None:
        home = self.home / part
        command = [*oracle.java_command(self.version, home, heap="600m"), main, "-c", f"{self.home}/{part}.properties"]
        out = self.home / f"{part}.out"
        with out.open("wb") as file:
            process = subprocess.Popen(command, env=oracle.java_environment(home), cwd=home, stdout=file, stderr=file)
        self._processes.append(process)
        end = time.monotonic() + _START_SECONDS
        while not _answers(port):
            said = out.read_text(errors="replace")[-2000:]
            assert process.poll() is None, f"{part} of {self.version} ended with {process.returncode}: {said}"
            assert time.monotonic() < end, f"{part} of {self.version} does not listen after {_START_SECONDS} s: {said}"
            time.sleep(0.1)


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 0.3).close()
    except OSError:
        return False
    return True
