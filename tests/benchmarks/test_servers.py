"""Servers for the peers: started, waited for, shown when they fail, stopped; and what a peer is asked."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from rich.console import Console

SCRIPTS = Path(__file__).resolve().parents[2] / "benchmarks"
FAKE = """
import json, subprocess, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer
print("child", subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]).pid, flush=True)
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.reply({"data": []})
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not body["prompt"]:
            self.send_error(400, "an empty prompt")
            return
        self.reply({"choices": [{"text": json.dumps(body)}], "usage": {"completion_tokens": len(body["prompt"])}})
    def reply(self, content):
        data = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
DEAD = "print('loading'); raise SystemExit('no such model')"
DEAF = "import time; print('still loading', flush=True); time.sleep(60)"


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(SCRIPTS)
    return importlib.import_module("servers")


def started(servers: ModuleType, tmp_path: Path, script: str) -> Any:
    port = servers.free_port()
    words = [sys.executable, "-c", script, str(port)]
    return servers.Server("fake", words, dict(os.environ), port, tmp_path / "logs" / "fake.log")


def state(number: int) -> str:
    """How this process is, as the system's letter; Z (ended, not collected yet) where there is none."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return "Z"


def reaches(number: int, letter: str) -> bool:
    end = time.monotonic() + 5
    while state(number) != letter and time.monotonic() < end:
        time.sleep(0.02)
    return state(number) == letter


def gone(number: int) -> bool:
    return reaches(number, "Z")


def test_a_server_starts_answers_and_stops_with_its_children(servers: ModuleType, tmp_path: Path) -> None:
    server = started(servers, tmp_path, FAKE)
    try:
        server.wait(20, Console(quiet=True))
        child = int(server.log.read_text().split()[1])
        assert state(child) != "Z"
    finally:
        server.stop()
    assert server.process.returncode is not None
    assert gone(child)
    server.stop()  # twice does no harm


def test_a_server_that_dies_shows_the_end_of_its_log(servers: ModuleType, tmp_path: Path) -> None:
    server = started(servers, tmp_path, DEAD)
    with pytest.raises(servers.PeerError, match=r"fake ended with 1 while it started(.|\n)*no such model"):
        server.wait(20, Console(quiet=True))
    server.stop()


def test_a_server_that_takes_too_long_shows_the_end_of_its_log(servers: ModuleType, tmp_path: Path) -> None:
    server = started(servers, tmp_path, DEAF)
    try:
        with pytest.raises(servers.PeerError, match=r"did not answer within 1 s(.|\n)*still loading"):
            server.wait(1, Console(quiet=True))
    finally:
        server.stop()
    assert gone(server.process.pid)


def recipes(servers: ModuleType, monkeypatch: pytest.MonkeyPatch, environments: Path) -> None:
    """A peer called fake in an environment that exists, and one called dead."""
    content = servers.Environment("own", "fake==1")
    (environments / "own").mkdir(parents=True)
    (environments / "own" / "complete.txt").write_text("fake==1 without nothing\n")
    for name, script in (("fake", FAKE), ("dead", DEAD)):
        recipe = servers.Recipe(
            content, lambda job, text=script: [sys.executable, "-c", text, str(job.port)], lambda job: {}
        )
        monkeypatch.setitem(servers.RECIPES, name, recipe)


@pytest.mark.parametrize("cause", [signal.SIGINT, signal.SIGTERM])
def test_running_stops_all_servers_when_it_is_told_to_end(
    servers: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: signal.Signals
) -> None:
    recipes(servers, monkeypatch, tmp_path)
    outside = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background is started with it ignored
    before, kept = signal.getsignal(cause), []
    with (
        pytest.raises((KeyboardInterrupt, SystemExit)),
        servers.running(["fake"], tmp_path, tmp_path / "merged", 64, Console(quiet=True)) as found,
    ):
        kept.append(found["fake"])
        signal.raise_signal(cause)
    assert gone(kept[0].process.pid)
    assert signal.getsignal(cause) == before
    signal.signal(signal.SIGINT, outside)


def test_running_stops_the_first_server_when_the_second_fails(
    servers: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipes(servers, monkeypatch, tmp_path)
    with (
        pytest.raises(servers.PeerError, match="dead ended with 1"),
        servers.running(["fake", "dead"], tmp_path, tmp_path / "merged", 64, Console(quiet=True)),
    ):
        pass
    child = int((tmp_path / "fake.log").read_text().split()[1])
    assert gone(child)


def test_a_server_sleeps_outside_its_turn(servers: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipes(servers, monkeypatch, tmp_path)
    ways = importlib.import_module("ways")
    with servers.running(["fake"], tmp_path, tmp_path / "merged", 64, Console(quiet=True)) as found:
        run = ways.in_turn(found["fake"], ways.server_way(found["fake"].url, "merged", [2], 12, ways.Sampling(0.0)))
        for _ in range(2):
            assert reaches(found["fake"].process.pid, "T")
            assert run([4, 4]).tokens == 2
    assert gone(found["fake"].process.pid)


def test_a_peer_is_asked_in_token_ids_and_counts_itself(servers: ModuleType, tmp_path: Path) -> None:
    ways = importlib.import_module("ways")
    server = started(servers, tmp_path, FAKE)
    try:
        server.wait(20, Console(quiet=True))
        run = ways.server_way(server.url, "merged", [2, 7], 12, ways.Sampling(1.0))
        answer = run([5, 6, 9])
        with pytest.raises(servers.PeerError, match=r"400(.|\n)*empty prompt"):
            run([])
    finally:
        server.stop()
    assert answer.tokens == 3
    for part in ('"prompt": [5, 6, 9]', '"max_tokens": 12', '"temperature": 1.0', '"stop_token_ids": [2, 7]'):
        assert part in answer.text


def test_a_half_made_environment_is_made_again(
    servers: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environments = importlib.import_module("environments")
    calls: list[list[str]] = []

    def call(name: str, words: list[str], variables: dict[str, str]) -> str:
        calls.append(words)
        (tmp_path / "own").mkdir(exist_ok=True)
        assert "PYTHONPATH" not in variables
        return '["torch==2.13.0+cpu", "regex"]'

    monkeypatch.setattr(environments, "call", call)
    monkeypatch.setenv("PYTHONPATH", "src")
    (tmp_path / "own" / "rest").mkdir(parents=True)
    wanted = environments.Environment("own", "fake==1", ("torchvision",))
    for _ in range(2):  # the second time it is there
        environments.prepare("fake", wanted, tmp_path, Console(quiet=True))
    assert not (tmp_path / "own" / "rest").exists()
    assert len(calls) == 4 and calls[2][-2:] == ["fake", "torchvision"]
    assert calls[3][-2:] == ["torch==2.13.0", "regex"]


def test_a_failed_installation_says_what_pip_said(servers: ModuleType, tmp_path: Path) -> None:
    environments = importlib.import_module("environments")
    with pytest.raises(servers.PeerError, match=r"leave fake out of --peers(.|\n)*no compiler"):
        environments.call("fake", [sys.executable, "-c", "raise SystemExit('no compiler')"], dict(os.environ))


def test_peers_are_started_with_their_own_options(servers: ModuleType, tmp_path: Path) -> None:
    """Not with ours: vLLM's --dtype is no --load.dtype."""
    job = servers.Job(tmp_path / "env", tmp_path / "merged", 8123, 512, (0, 1))
    words = servers.RECIPES["vllm"].command(job)
    assert words[words.index("--dtype") + 1] == "bfloat16" and not any("load." in word for word in words)
    files = {servers.RECIPES[name].command(job)[2] for name in ("llama.cpp", "llama.cpp-q8_0", "llama.cpp-q4_0")}
    assert files == {str(tmp_path / f"merged.{kind}.gguf") for kind in ("bf16", "q8_0", "q4_0")}
