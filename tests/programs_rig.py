"""The programs as processes, for programs_test.py: one run to its end, a server on a free port."""
import os
import pathlib
import re
import select
import signal
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TINY = ROOT / "tests/reference/goldens/tiny"
MODEL = TINY / "llama_gqa5_bf16.gguf"  # 4 layers
BIN = pathlib.Path(os.environ.get("LAYERCAKE_BIN", ROOT / "build/bin"))
LAYERCAKE = str(BIN / "layercake")
# Sanitized builds on a busy machine are slow; nothing here takes long when it works.
PATIENCE = 120


def environment(**more):
    kept = {k: v for k, v in os.environ.items() if not k.startswith("LAYERCAKE_")}
    return {**kept, **more}


def layercake(*arguments, stdin="", **more):
    return subprocess.run([LAYERCAKE, *map(str, arguments)], input=stdin, capture_output=True,
                          text=True, errors="surrogateescape", timeout=PATIENCE, env=environment(**more))


def children_of(pid, dead_too=False):
    """pid -> command line of every child that is alive; or also of those nobody has waited for."""
    found = {}
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
            command = (path.parent / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if int(fields[1]) == pid and (dead_too or fields[0] != "Z"):
            found[int(path.parent.name)] = [part.decode() for part in command if part]
    return found


def alive(pid):
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


class Server:
    """`layercake serve` on a free port, ready to answer."""

    def __init__(self, *arguments, model=MODEL, runtime=None):
        more = {"XDG_RUNTIME_DIR": runtime} if runtime else {}
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [LAYERCAKE, "serve", str(model), "--listen", "127.0.0.1:0", *map(str, arguments)],
            stdout=subprocess.PIPE, stderr=self.errors, env=environment(**more))
        self.address = self.wait_for_address()
        self.workers = children_of(self.process.pid)

    def wait_for_address(self):
        printed = b""
        deadline = time.monotonic() + PATIENCE
        while not (found := re.search(rb"gRPC on (\S+)\n", printed)):
            ready, _, _ = select.select([self.process.stdout], [], [],
                                        max(0, deadline - time.monotonic()))
            more = os.read(self.process.stdout.fileno(), 4096) if ready else b""
            if not more:
                self.process.kill()
                self.process.wait()
                raise AssertionError(f"serve did not start: {self.error_text()}")
            printed += more
        return found.group(1).decode()

    def worker_of_stage(self, stage):
        for pid, command in self.workers.items():
            if command[command.index("--stage") + 1] == str(stage):
                return pid
        raise AssertionError(f"no worker of stage {stage} among {self.workers}")

    def error_text(self):
        self.errors.seek(0)
        return self.errors.read()

    def end(self, number=signal.SIGINT):
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            self.process.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *ignored):
        self.end()
        self.errors.close()
