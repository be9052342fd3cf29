"""The little of a Kubernetes that Spark asks for: an API server on loopback which starts each executor's pod as a process.

What a pod runs is what the entry point of Spark's image runs, with the variables of the pod's container; the image itself is
not there.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.export.clusters import SPARK
from tests.ports import free_port

HOST = "127.0.0.1"
Thing = dict[str, Any]


@dataclass
class Kubernetes:
    """``url`` is the master's address for Spark, ``posted`` what it was asked to make, in that order."""

    folder: Path
    java: str
    port: int
    posted: list[Thing] = field(default_factory=list)
    things: dict[str, Thing] = field(default_factory=dict)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"k8s://http://{HOST}:{self.port}"

    def make(self, folder: str, thing: Thing) -> Thing:
        """Take in a thing, and start it if it is an executor's pod."""
        with self.lock:
            self.posted.append(json.loads(json.dumps(thing)))
            self.posted[-1]["metadata"].setdefault("namespace", folder.rpartition("/")[0].rpartition("/")[2])
            told = thing["metadata"]
            told |= {"uid": f"uid-{len(self.posted)}", "resourceVersion": str(len(self.posted))}
            told["creationTimestamp"] = "2026-01-01T00:00:00Z"
            self.things[f"{folder}/{told['name']}"] = thing
            if thing["kind"] == "Pod":
                thing["status"] = {"phase": "Pending"}
                if told["labels"].get("spark-role") == "executor":
                    self.processes[f"{folder}/{told['name']}"] = self._start(thing)
        return thing

    def found(self, path: str) -> Thing | None:
        with self.lock:
            return self._as_it_is(path) if path in self.things else None

    def listed(self, folder: str) -> list[Thing]:
        with self.lock:
            return [self._as_it_is(path) for path in self.things if path.rpartition("/")[0] == folder]

    def remove(self, path: str) -> None:
        with self.lock:
            self.things.pop(path, None)
            process = self.processes.get(path)
        if process is not None:
            process.terminate()

    def said(self) -> str:
        return "\n".join(log.read_text(errors="replace")[-3000:] for log in sorted(self.folder.glob("*.log")))

    def _as_it_is(self, path: str) -> Thing:
        if path in self.processes:
            ended = self.processes[path].poll()
            phase = "Running" if ended is None else "Failed" if ended else "Succeeded"
            state = {"running": {}} if ended is None else {"terminated": {"exitCode": ended}}
            container = {"name": "spark-kubernetes-executor", "state": state, "ready": ended is None}
            self.things[path]["status"] = {"phase": phase, "podIP": HOST, "containerStatuses": [container]}
        return self.things[path]

    def _start(self, pod: Thing) -> subprocess.Popen[bytes]:
        [container] = pod["spec"]["containers"]
        told = {
            variable["name"]: variable.get("value", HOST) for variable in container["env"]
        }  # the others are its address
        told |= {"SPARK_EXECUTOR_POD_NAME": pod["metadata"]["name"], "SPARK_LOCAL_IP": HOST}
        folder = self.folder / told["SPARK_EXECUTOR_POD_NAME"]
        folder.mkdir()
        options = [value for name, value in told.items() if name.startswith("SPARK_JAVA_OPT_")]
        command = [self.java, *options, f"-Xmx{told['SPARK_EXECUTOR_MEMORY']}", "-cp", f"{SPARK}/jars/*"]
        command += ["org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"]
        command += ["--driver-url", told["SPARK_DRIVER_URL"], "--executor-id", told["SPARK_EXECUTOR_ID"]]
        command += ["--cores", told["SPARK_EXECUTOR_CORES"], "--app-id", told["SPARK_APPLICATION_ID"]]
        command += ["--hostname", HOST, "--resourceProfileId", told["SPARK_RESOURCE_PROFILE_ID"]]
        command += ["--podName", told["SPARK_EXECUTOR_POD_NAME"]]
        env = {"PATH": os.environ["PATH"], **told, "SPARK_LOCAL_DIRS": str(folder), "SPARK_HOME": str(SPARK)}
        with (self.folder / f"{folder.name}.log").open("wb") as log:
            return subprocess.Popen(command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


@contextmanager
def kubernetes(folder: Path, java: str) -> Iterator[Kubernetes]:
    """Listens on enter; on leaving, all pods are ended."""
    cluster = Kubernetes(folder, java, free_port())
    server = ThreadingHTTPServer((HOST, cluster.port), _answering(cluster))
    thread = threading.Thread(target=server.serve_forever, name="kubernetes", daemon=True)
    thread.start()
    try:
        yield cluster
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        for process in cluster.processes.values():
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()


def _answering(cluster: Kubernetes) -> type[BaseHTTPRequestHandler]:
    class Answer(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            thing = cluster.found(path)
            if thing is None and (query or path.endswith("s")):
                told = {"resourceVersion": str(len(cluster.posted))}
                self._say(200, {"kind": "PodList", "apiVersion": "v1", "metadata": told, "items": cluster.listed(path)})
            else:
                self._say(200 if thing else 404, thing or {"kind": "Status", "status": "Failure", "code": 404})

        def do_POST(self) -> None:
            self._say(201, cluster.make(self.path.partition("?")[0], self._body()))

        def do_PATCH(self) -> None:
            path, body = self.path.partition("?")[0], self._body()
            known = cluster.found(path)
            self._say(200, known or cluster.make(path.rpartition("/")[0], body))

        def do_DELETE(self) -> None:
            self._body()
            cluster.remove(self.path.partition("?")[0])
            self._say(200, {"kind": "Status", "status": "Success"})

        def log_message(self, *_: object) -> None:
            pass

        def _body(self) -> Any:
            return json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")

        def _say(self, code: int, thing: Thing) -> None:
            data = json.dumps(thing).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    return Answer
