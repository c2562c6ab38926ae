#!/usr/bin/env python3
"""The programs from outside, on tiny models: answers, exit codes, what happens when something dies.

Run by ctest, one entry for each class; by hand:
    LAYERCAKE_BIN=build/bin tests/programs_test.py [Class[.test]]"""
import ctypes
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

from programs_rig import (BIN, LAYERCAKE, MODEL, PATIENCE, ROOT, Server,
                          alive, children_of, environment, layercake)

# What is promised when a worker dies.
DEATH_SECONDS = 5


class Answers(unittest.TestCase):
    def run_model(self, *arguments, model=MODEL, stdin=""):
        result = layercake("run", model, *arguments, "--temperature", "0", stdin=stdin)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def test_any_number_of_stages_gives_the_same_text(self):
        texts = {stages: self.run_model("the rain in the", "--raw", "--max-tokens", "24",
                                        "--stages", stages).stdout for stages in (1, 2, 3)}
        self.assertGreater(len(texts[1].strip()), 0)
        self.assertEqual(texts[1], texts[2])
        self.assertEqual(texts[1], texts[3])

    def test_running_ahead_of_tokens_gives_the_same_text(self):
        arguments = ("the", "--raw", "--max-tokens", "48", "--stages", 3)
        ahead = self.run_model(*arguments, "--log-level", "info")
        behind = self.run_model(*arguments, "--run-ahead=false")
        self.assertEqual(ahead.stdout, behind.stdout)
        self.assertIn("[48 tokens", ahead.stderr)
        # Over three processes: one line for the way back from the last one.
        self.assertRegex(ahead.stderr, r"stage 2 -> stage 0 .* pinned_host \(for sampled tokens;")

    def test_any_transport_and_cut_gives_the_same_text(self):
        whole = self.run_model("the rain", "--raw", "--max-tokens", "12").stdout
        for arguments in (["--transport", "pinned_host"], ["--transport", "ucx"],
                          ["--layers", "0-0,1-3", "--kv-type", "f16"]):
            cut = self.run_model("the rain", "--raw", "--max-tokens", "12", "--stages", "2",
                                 *arguments).stdout
            self.assertEqual(whole, cut, arguments)

    def test_the_answer_alone_is_on_standard_output(self):
        result = self.run_model("the", "--max-tokens", "5", "--seed", "1")
        self.assertRegex(result.stderr, r"5 tokens.*tokens/s")
        self.assertNotIn("tokens/s", result.stdout)

    def test_a_conversation_from_a_pipe_keeps_its_history_until_clear(self):
        first = self.run_model("--max-tokens", "8", stdin="the\n").stdout
        both = self.run_model("--max-tokens", "8", stdin="the\nthe\n").stdout
        cleared = self.run_model("--max-tokens", "8", stdin="the\n/clear\nthe\n/bye\nthe\n").stdout
        self.assertTrue(both.startswith(first))
        self.assertEqual(cleared, first + first)
        self.assertNotEqual(both, cleared)


    def test_ctrl_c_stops_the_answer_and_not_the_conversation(self):
        client = subprocess.Popen(
            [LAYERCAKE, "run", str(MODEL), "--raw", "--max-tokens", "480", "--temperature", "0"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=environment())
        client.stdin.write(b"the rain\n")
        client.stdin.flush()
        self.assertNotEqual(client.stdout.read(1), b"")
        worker = min(children_of(client.pid))
        os.kill(worker, signal.SIGSTOP)  # the answer is not over before the signal comes
        client.send_signal(signal.SIGINT)
        printed = b""
        while b"[stopped]" not in printed:
            more = os.read(client.stderr.fileno(), 4096)
            self.assertNotEqual(more, b"", printed)
            printed += more
        os.kill(worker, signal.SIGCONT)
        client.stdin.write(b"the\n/bye\n")
        client.stdin.flush()
        _, errors = client.communicate(timeout=PATIENCE)
        self.assertEqual(client.returncode, 0, errors)
        self.assertIn(b"tokens/s", errors)  # the second answer


class ExitCodes(unittest.TestCase):
    def test_usage(self):
        for arguments in ([], ["bake"], ["serve"], ["serve", MODEL, "--stages", "0"],
                          ["serve", MODEL, "--stages", "2", "--transport", "local"],
                          ["serve", MODEL, "--stages", "2", "--layers", "0-3"],
                          ["serve", MODEL, "--stages", "3", "--devices", "cpu,cpu"], ["run"]):
            result = layercake(*arguments)
            self.assertEqual(result.returncode, 2, (arguments, result.stderr))
            self.assertNotEqual(result.stderr, "")

    def test_version_and_help(self):
        for arguments in (["--version"], ["--help"], ["serve", "--help"]):
            result = layercake(*arguments)
            self.assertEqual(result.returncode, 0)
            self.assertNotEqual(result.stdout, "")
        for binary in ("layercake-coordinator", "layercake-worker"):
            result = subprocess.run([BIN / binary, "--version"], capture_output=True, text=True,
                                    timeout=PATIENCE)
            self.assertEqual((result.returncode, result.stdout.split()[0]), (0, binary))

    def test_a_bad_file_gives_one_line_and_code_1(self):
        whole = MODEL.read_bytes()
        with tempfile.TemporaryDirectory() as folder:
            bad = pathlib.Path(folder) / "bad.gguf"
            for content in (b"", b"not a model at all", whole[:1000], whole[:-500]):
                bad.write_bytes(content)
                result = layercake("inspect", bad)
                self.assertEqual(result.returncode, 1, len(content))
                self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
                for command in ("serve", "run"):
                    arguments = ["--listen", "127.0.0.1:0"] if command == "serve" else ["hello"]
                    result = layercake(command, bad, *arguments)
                    self.assertEqual(result.returncode, 1, (command, len(content), result.stderr))
                    self.assertIn("bad.gguf", result.stderr)

    def test_more_stages_than_layers_fails_before_anything_loads(self):
        result = layercake("serve", MODEL, "--stages", "5", "--listen", "127.0.0.1:0")
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertNotIn("loaded", result.stderr)

    def test_an_absent_model_and_an_absent_server(self):
        result = layercake("run", "no/such", "hello")
        self.assertEqual(result.returncode, 1)
        self.assertIn("hf:no/such", result.stderr)
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = f"127.0.0.1:{free.getsockname()[1]}"
        result = layercake("status", "--server", address)
        self.assertEqual(result.returncode, 1)
        self.assertIn(address, result.stderr)


class Files(unittest.TestCase):
    def test_inspect_prints_text_and_json(self):
        text = layercake("inspect", MODEL)
        self.assertEqual(text.returncode, 0, text.stderr)
        self.assertIn("llama", text.stdout)
        found = layercake("inspect", MODEL, "--json")
        self.assertEqual(found.returncode, 0, found.stderr)
        self.assertIsInstance(json.loads(found.stdout), dict)

    def test_tokenize_reads_standard_input(self):
        ids = layercake("tokenize", MODEL, "--ids", "--no-bos", "-", stdin="the rain")
        self.assertEqual(ids.returncode, 0, ids.stderr)
        listed = layercake("tokenize", MODEL, "--no-bos", stdin="the rain")
        pieces = [line.split("\t") for line in listed.stdout.splitlines()]
        self.assertEqual([piece[0] for piece in pieces], ids.stdout.split())
        self.assertEqual("".join(json.loads(piece[1]) for piece in pieces), "the rain")
        plain = layercake("tokenize", MODEL, "--ids", "--no-bos", stdin="<|im_end|>").stdout.split()
        special = layercake("tokenize", MODEL, "--ids", "--no-bos", "--special",
                            stdin="<|im_end|>").stdout
        self.assertGreater(len(plain), 1)
        self.assertEqual(len(special.split()), 1)
        self.assertEqual(layercake("tokenize", MODEL, stdin=os.fsdecode(b"\xff")).returncode, 1)

    def test_the_only_model_of_a_folder_is_found(self):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "m.gguf").symlink_to(MODEL)
            self.assertEqual(layercake("tokenize", folder, "--ids", stdin="a").returncode, 0)


class Serving(unittest.TestCase):
    def test_answers_status_and_a_clean_end(self):
        with tempfile.TemporaryDirectory() as runtime:
            os.chmod(runtime, 0o700)
            server = Server("--stages", "3", runtime=runtime)
            self.assertEqual(len(server.workers), 3)
            answer = layercake("run", "--server", server.address, "--temperature", "0", "--raw",
                               "--max-tokens", "24", "the rain in the")
            alone = layercake("run", MODEL, "--temperature", "0", "--raw", "--max-tokens", "24",
                              "the rain in the")
            self.assertEqual(answer.stdout, alone.stdout)
            status = layercake("status", "--server", server.address)
            self.assertEqual(status.returncode, 0, status.stderr)
            self.assertIn("serving", status.stdout)
            self.assertEqual(len(re.findall(r"^ +\d  ", status.stdout, re.M)), 3, status.stdout)
            self.assertEqual(server.end(signal.SIGINT), 130, server.error_text())
            for pid in server.workers:
                self.assertFalse(alive(pid))
            self.assertEqual(list(pathlib.Path(runtime).rglob("*.sock")), [])
            server.errors.close()

    def test_sigterm_ends_with_code_0(self):
        server = Server("--stages", "2")
        self.assertEqual(server.end(signal.SIGTERM), 0, server.error_text())
        server.errors.close()

    def test_a_second_server_on_a_port_fails_before_it_loads(self):
        with Server() as server:
            second = layercake("serve", MODEL, "--listen", server.address)
            self.assertEqual(second.returncode, 1)
            self.assertIn(server.address.rpartition(":")[2], second.stderr)
            self.assertNotIn("loaded", second.stderr)

    def test_kubernetes_variables_do_no_harm(self):
        with tempfile.TemporaryDirectory() as folder:
            result = layercake("run", MODEL, "the", "--max-tokens", "2", LAYERCAKE_TEMPERATURE="0",
                               LAYERCAKE_PORT="tcp://10.0.0.1:9180", XDG_CACHE_HOME=folder,
                               LAYERCAKE_SERVICE_HOST="10.0.0.1", LAYERCAKE_SERVICE_PORT="9180")
            self.assertEqual(result.returncode, 0, result.stderr)


class Deaths(unittest.TestCase):
    def test_a_killed_worker_ends_requests_and_the_server(self):
        for stage in (0, 2):
            with self.subTest(stage=stage):
                self.kill_worker(stage)

    def answered_client(self, server):
        """One that is being answered, and goes on being answered: stage 1 is stopped."""
        client = subprocess.Popen(
            [LAYERCAKE, "run", "--server", server.address, "--raw", "--max-tokens", "480",
             "--temperature", "0", "the"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=environment())
        self.assertNotEqual(client.stdout.read(1), b"")  # it is being answered
        os.kill(server.worker_of_stage(1), signal.SIGSTOP)  # and goes on being answered
        return client

    def kill_worker(self, stage):
        server = Server("--stages", "3")
        client = self.answered_client(server)
        victim = server.worker_of_stage(stage)
        killed = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        _, client_errors = client.communicate(timeout=PATIENCE)
        client_seconds = time.monotonic() - killed
        code = server.process.wait(PATIENCE)
        seconds = time.monotonic() - killed
        errors = server.error_text()
        self.assertEqual(code, 1, errors)
        self.assertIn(f"stage {stage} (pid {victim}) ended: signal 9", errors)
        self.assertEqual(client.returncode, 1, client_errors)
        # Who was killed, and not the neighbour that missed it first.
        self.assertIn(f"the chain failed: stage {stage} (".encode(), client_errors)
        self.assertIn(b"is gone", client_errors)
        self.assertLess(client_seconds, DEATH_SECONDS)
        self.assertLess(seconds, DEATH_SECONDS)
        for pid in server.workers:
            self.assertFalse(alive(pid))
        server.end()
        server.errors.close()

    def test_requests_and_workers_end_with_a_killed_server(self):
        server = Server("--stages", "2")
        client = self.answered_client(server)
        server.process.kill()
        _, client_errors = client.communicate(timeout=PATIENCE)
        self.assertEqual(client.returncode, 1, client_errors)
        self.assertIn(f"no server answers at {server.address}".encode(), client_errors)
        deadline = time.monotonic() + PATIENCE
        while any(alive(pid) for pid in server.workers):
            self.assertLess(time.monotonic(), deadline, "workers outlive their server")
        server.end()
        server.errors.close()

    def test_ctrl_c_stops_an_answer(self):
        client = subprocess.Popen(
            [LAYERCAKE, "run", str(MODEL), "--raw", "--max-tokens", "480", "--temperature", "0",
             "the"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=environment())
        self.assertNotEqual(client.stdout.read(1), b"")
        workers = children_of(client.pid)
        self.assertEqual(len(workers), 1)
        os.kill(min(workers), signal.SIGSTOP)  # the answer is not over before the signal comes
        client.send_signal(signal.SIGINT)
        _, errors = client.communicate(timeout=PATIENCE)
        self.assertEqual(client.returncode, 130, errors)
        for pid in workers:
            self.assertFalse(alive(pid))


class LastOut(unittest.TestCase):
    """Who waits for `serve` may use its devices at once: no worker is left, not even its remains.
    Children that lose their parent come to this process and stay until it waits for them."""

    @classmethod
    def setUpClass(cls):
        set_child_subreaper = 36
        assert ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0) == 0

    def expect_nobody_left(self):
        left = children_of(os.getpid(), dead_too=True)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self.assertEqual(left, {})

    def test_a_child_that_nobody_waited_for_is_seen(self):
        parent = subprocess.Popen(["sh", "-c", "true & exec sh -c 'exit 0'"])
        parent.wait(PATIENCE)
        with self.assertRaises(AssertionError):
            self.expect_nobody_left()

    def test_after_signals(self):
        for signals in ([signal.SIGINT], [signal.SIGTERM], [signal.SIGHUP],
                        [signal.SIGINT, signal.SIGINT]):
            with self.subTest(signals=signals):
                server = Server("--stages", "3")
                for number in signals[:-1]:
                    server.process.send_signal(number)
                server.end(signals[-1])
                self.expect_nobody_left()
                server.errors.close()

    def test_after_a_worker_is_killed_or_hangs(self):
        for number, code in ((signal.SIGKILL, 1), (signal.SIGSTOP, 0)):
            with self.subTest(signal=number):
                server = Server("--stages", "3", "--shutdown-grace", "1s")
                os.kill(server.worker_of_stage(1), number)
                if number == signal.SIGKILL:
                    server.process.wait(PATIENCE)
                self.assertEqual(server.end(signal.SIGTERM), code, server.error_text())
                self.expect_nobody_left()
                server.errors.close()

    def test_after_a_start_that_fails(self):
        result = layercake("serve", MODEL, "--listen", "127.0.0.1:0", "--devices", "cpu,cuda:99")
        self.assertEqual(result.returncode, 1, result.stderr)
        self.expect_nobody_left()

    def test_after_a_run(self):
        self.assertEqual(layercake("run", MODEL, "the", "--max-tokens", "2").returncode, 0)
        self.expect_nobody_left()


class Bench(unittest.TestCase):
    def test_prints_a_line_for_each_number_of_streams(self):
        result = layercake("bench", MODEL, "--stages", "2", "--npp", "16", "--ntg", "8", "--npl",
                           "1,3", "--jsonl")
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = [json.loads(line) for line in result.stdout.splitlines()]
        self.assertEqual([line["streams"] for line in lines], [1, 3])
        for line in lines:
            self.assertGreater(line["prefill_tokens_per_second"], 0)
            self.assertGreater(line["decode_tokens_per_second"], 0)
            self.assertEqual(len(line["busy"]), 2)
        self.assertIn("decode/s", result.stderr)

    def test_says_why_streams_could_not_run_together(self):
        arguments = ("bench", MODEL, "--npp", "64", "--ntg", "64", "--npl", "64", "--context", "128")
        small = layercake(*arguments, "--kv-blocks", "8")
        self.assertEqual(small.returncode, 1, small.stderr)
        self.assertRegex(small.stderr, r"\d+ requests waited while \d+ ran.*--kv-memory")
        few = layercake(*arguments, "--max-sequences", "2")
        self.assertEqual(few.returncode, 1, few.stderr)
        self.assertRegex(few.stderr, r"\d+ requests waited while 2 ran.*--max-sequences")


SKIPPED = 77  # tests/CMakeLists.txt: SKIP_RETURN_CODE


def python_with_grpc():
    """The interpreter that has grpcio; without one the class is skipped aloud."""
    python = pathlib.Path(os.environ.get("LAYERCAKE_PYTHON_ENVIRONMENT", "")) / "bin/python"
    usable = python.is_file() and subprocess.run(
        [python, "-c", "import grpc, grpc_tools"], capture_output=True).returncode == 0
    if not usable:
        print(f"SKIPPED: no grpcio in {python} (tests/run.sh installs it from PyPI)")
        sys.stdout.flush()
        os._exit(SKIPPED)
    return python


class PythonClient(unittest.TestCase):
    def test_streams_an_answer(self):
        python = python_with_grpc()
        with Server("--stages", "2") as server:
            answer = subprocess.run(
                [python, ROOT / "clients/python/ask.py", "--server", server.address, "--raw",
                 "--temperature", "0", "--max-tokens", "12", "the rain"],
                capture_output=True, text=True, timeout=PATIENCE)
            self.assertEqual(answer.returncode, 0, answer.stderr)
            ours = layercake("run", "--server", server.address, "--raw", "--temperature", "0",
                             "--max-tokens", "12", "the rain")
            self.assertEqual(answer.stdout, ours.stdout)
            self.assertRegex(answer.stderr, r"12 tokens, length")


class Crowd(unittest.TestCase):
    """Three stages, each a process, and 128 clients of another process, over gRPC."""
    ROUND = 2000
    ROUNDS = 5

    def crowd(self, server, *arguments):
        done = subprocess.run(
            [self.python, ROOT / "tests/crowd_client.py", server.address, "--clients", "128",
             *map(str, arguments)], capture_output=True, text=True, timeout=3 * PATIENCE)
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(done.stdout)
        self.assertEqual(report["errors"], [])
        self.assertEqual(report["different"], [])
        return report

    @staticmethod
    def kilobytes(pid):
        """Memory that the process has for itself."""
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        return int(re.search(r"RssAnon:\s+(\d+) kB", status).group(1))

    def test_survivors_get_what_they_would_get_alone_and_memory_is_flat(self):
        self.python = python_with_grpc()
        # Room for six contexts: sequences give way to each other.
        with Server("--stages", "3", "--context", "256", "--kv-blocks", "100") as server:
            report = self.crowd(server, "--requests", 500)
            self.assertGreaterEqual(report["survivors"], 350)
            self.assertGreaterEqual(report["left"], 20)
            processes = [server.process.pid, *server.workers]
            self.assertEqual(len(processes), 4)
            growth = {pid: [] for pid in processes}
            for _ in range(self.ROUNDS):
                before = {pid: self.kilobytes(pid) for pid in processes}
                report = self.crowd(server, "--requests", self.ROUND, "--short")
                self.assertEqual(report["survivors"], self.ROUND)
                for pid in processes:
                    growth[pid].append(self.kilobytes(pid) - before[pid])
            print("memory growth, kB per round of each process:", list(growth.values()))
            # High-water marks rise by steps; what is lost with each request shows in every round.
            for pid in processes:
                self.assertLess(min(growth[pid]), 64, growth)  # 32 bytes a request
                self.assertLess(max(growth[pid]), 16 << 10, growth)
            self.assertEqual(server.end(signal.SIGTERM), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
