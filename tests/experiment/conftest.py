"""Commands as processes of their own that a signal hits at a chosen moment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

# Starts each command as a process of its own (forked before anything was computed, so that torch is imported once),
# which sends itself a signal just before the n-th call of a function.
SERVER = """
import importlib, json, os, sys
import poise.cli
import poise.cli.running, poise.studies  # with torch

def watch(place, number, signum):
    module, *names, name = place.split(":")
    owner = importlib.import_module(module)
    for part in names:
        owner = getattr(owner, part)
    original, calls = getattr(owner, name), 0
    def watched(*args, **kwargs):
        nonlocal calls
        calls += 1
        if calls == number:
            if name == "append":
                args[0].path.open("ab").write(b'{"event": "epo')  # a torn line
            os.kill(os.getpid(), signum)
        return original(*args, **kwargs)
    setattr(owner, name, watched)

for line in sys.stdin:
    place, number, signum, words, log = json.loads(line)
    child = os.fork()
    if child == 0:
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT, 0o600), 2)
        os.dup2(2, 1)
        watch(place, number, signum)
        sys.argv = ["poise", *words]
        poise.cli.main()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
Driven = Callable[..., tuple[int, str]]


@pytest.fixture(scope="session")
def driven(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driven]:
    """Run a command in a process that a signal hits at that call; gives its exit code and what it printed."""
    log = tmp_path_factory.mktemp("driven") / "log"
    with subprocess.Popen(
        [sys.executable, "-c", SERVER],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        requests, answers = server.stdin, server.stdout

        def run(place: str, number: int, signum: int, *words: str) -> tuple[int, str]:
            log.unlink(missing_ok=True)
            requests.write(json.dumps([place, number, int(signum), words, str(log)]) + "\n")
            requests.flush()
            return int(answers.readline()), log.read_text()

        yield run
        requests.close()
