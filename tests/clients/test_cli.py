from __future__ import annotations

import importlib.metadata
import io
import json
import re
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pathline
import pytest
from pathline._decode import decode_npz
from pathline._plot import draw
from pathline._request import sample_request
from pathline.cli import main
from pathline.cli.arguments import conditions, parse

if TYPE_CHECKING:
    from tests.clients.conftest import FakeService

Capture = pytest.CaptureFixture[str]


@contextmanager
def cut(content: bytes, length: int) -> Iterator[str]:
    """Serve answers that promise `length` bytes and end after `content`."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("content-length", str(length))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in the base class
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def one_line(capsys: Capture) -> str:
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return err.rstrip("\n")


@pytest.mark.usefixtures("live")
class TestSample:
    def test_npz_holds_what_the_service_answers(self, tmp_path: Path, capsys: Capture) -> None:
        path = tmp_path / "out.npz"
        assert main(["sample", "moons", "-n", "10", "--batch", "4", "--seed", str(2**63 - 1), "-o", str(path)]) == 0
        assert f"written to {path}" in capsys.readouterr().out
        result = decode_npz(path.read_bytes(), sample_request("moons", 10, {"seed": 2**63 - 1}))
        np.testing.assert_array_equal(result.samples[:, 0], np.arange(10))
        np.testing.assert_array_equal(result.nfe_per_sample, 50 + np.arange(10) % 7)
        assert (result.nfe, result.status, result.seed) == (56, "success", 2**63 - 1)
        assert result.trace.sample.tolist() == [0, 0, 4, 4, 8, 8]
        assert result.latency.solve_s == pytest.approx(0.3)
        assert names(tmp_path) == ["out.npz"]

    def test_npy_and_csv_hold_the_same_bits(self, tmp_path: Path) -> None:
        for name in ("out.npy", "out.csv"):
            assert main(["sample", "moons", "-n", "7", "--batch", "3", "--seed", "3", "-o", str(tmp_path / name)]) == 0
        stored = np.load(tmp_path / "out.npy")
        assert stored.dtype == np.float32
        np.testing.assert_array_equal(stored[:, 0], np.arange(7))
        text = (tmp_path / "out.csv").read_text()
        assert text.startswith("x0,x1\n")
        np.testing.assert_array_equal(np.loadtxt(tmp_path / "out.csv", delimiter=",", skiprows=1), stored)

    def test_png_is_the_picture_of_all_pages(self, tmp_path: Path, service: FakeService) -> None:
        path = tmp_path / "out.png"
        assert main(["sample", "moons", "-n", "7", "--batch", "3", "--seed", "3", "-o", str(path)]) == 0
        whole = np.stack([np.arange(7), np.full(7, 3)], 1).astype(np.float32)
        assert path.read_bytes() == draw(whole, scale=3)

    def test_json_file_holds_samples_and_what_is_said(self, tmp_path: Path, service: FakeService) -> None:
        path = tmp_path / "out.json"
        service.change = lambda arrays, meta: arrays["samples"].__setitem__((0, 0), np.nan)
        assert main(["sample", "moons", "-n", "4", "--batch", "2", "--seed", "3", "-o", str(path)]) == 0
        found = json.loads(path.read_text())
        assert found["samples"] == [[None, 3.0], [1.0, 3.0], [None, 3.0], [3.0, 3.0]]
        assert (found["num_samples"], found["seed"], found["status"]) == (4, 3, "success")

    def test_what_cannot_be_drawn_is_said_and_nothing_is_left(
        self, tmp_path: Path, service: FakeService, capsys: Capture
    ) -> None:
        service.change = lambda arrays, meta: arrays.update(samples=np.zeros((2, 5)))
        assert main(["sample", "moons", "-n", "2", "-o", str(tmp_path / "o.png")]) == 2
        assert "samples of shape (5,) cannot be drawn" in one_line(capsys)
        assert names(tmp_path) == []

    def test_a_disk_that_fills_while_writing(self, tmp_path: Path) -> None:
        """The limit on file sizes makes the operating system refuse a write in the middle, as a full disk does."""
        command = [sys.executable, "-m", "pathline", "sample", "moons", "-n", "5000", "-o", str(tmp_path / "o.npy")]
        limit = (10_000, 10_000)
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit),
        )
        assert done.returncode == 5
        assert done.stderr.startswith(
            f"pathline: {tmp_path}/o.npy: not written (File too large), and the partial file was "
        )
        assert done.stderr.count("\n") == 1
        assert names(tmp_path) == []

    def test_standard_output_that_is_full(self) -> None:
        with Path("/dev/full").open("w") as full:
            command = [sys.executable, "-m", "pathline", "models"]
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
        assert (done.returncode, done.stderr) == (5, "pathline: standard output: No space left on device\n")

    def test_a_connection_cut_half_way(
        self, service: FakeService, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(pathline.RetryPolicy, "wait", lambda *_: 0.0)
        monkeypatch.setattr("pathline._retry.RetryPolicy.max_attempts", 2)
        _, _, content = service._stream({"model": "moons", "num_samples": 99, "seed": 0})
        with cut(content[: len(content) // 2], len(content)) as url:
            assert main(["sample", "moons", "-n", "99", "--url", url, "-o", str(tmp_path / "o.npz")]) == 3
        words = one_line(capsys)
        assert "was cut off half-way" in words
        assert words.endswith("; nothing was written, run the command again")
        assert names(tmp_path) == []

    def test_a_million_samples_in_bounded_memory(self, service: FakeService, tmp_path: Path) -> None:
        service.seen = type("Forgetful", (list,), {"append": lambda self, item: None})()
        path = tmp_path / "out.npy"
        code = f"""if True:
            from pathline.cli import main
            assert main(["sample", "moons", "-n", "1000000", "--seed", "1", "-o", {str(path)!r}]) == 0
            print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")))
        """
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
        [peak] = re.findall(r"VmHWM:\s+(\d+) kB", done.stdout)
        assert np.load(path, mmap_mode="r").shape == (1_000_000, 2)
        assert int(peak) * 1024 < 300e6

    def test_all_options_reach_the_service(self, service: FakeService, tmp_path: Path) -> None:
        command = "sample moons -n 2 --solver rk4 --grid uniform --max-nfe 99 --trace none --timeout 5"
        command += " --priority bulk --condition [1,0.5] --guidance 2 --first-step 0.01 --max-step 0.05"
        command += " --model-version 2 --first-index 7 --noise-scale 0.5 --no-decode --on-timeout partial"
        command += " --error-control sample --shape T=344 --shape W=16"
        assert main([*command.split(), "--seed", "0", "-o", str(tmp_path / "o.npy")]) == 0
        assert json.loads(service.seen[0]["body"]) == {
            "model": "moons",
            "num_samples": 2,
            "seed": 0,
            "solver": "rk4",
            "grid": "uniform",
            "shape": {"T": 344, "W": 16},
            "max_nfe": 99,
            "trace": "none",
            "timeout_s": 5.0,
            "version": 2,
            "first_index": 7,
            "noise_scale": 0.5,
            "decode": False,
            "on_timeout": "partial",
            "error_control": "sample",
            "priority": "bulk",
            "condition": [1, 0.5],
            "guidance": 2.0,
            "first_step": 0.01,
            "max_step": 0.05,
        }

    def test_objects_and_lists_are_json_and_other_text_is_sent_as_it_is(self, service: FakeService) -> None:
        diffusion = {"scale": 0.7, "schedule": "flow_grpo"}
        for sent, grid in ((diffusion, [0, 0.5, 1]), ("flow_grpo(0.7)", {"name": "shift", "value": 3})):
            texts = [sent if isinstance(sent, str) else json.dumps(sent), json.dumps(grid)]
            command = ["sample", "moons", "--solver", "euler-2", "--diffusion", texts[0], "--grid", texts[1]]
            assert main(command) == 0
            request = json.loads(service.seen[-1]["body"])
            assert (request["diffusion"], request["grid"]) == (sent, grid)

    def test_log_densities_of_steps_are_shown_and_written(
        self, service: FakeService, tmp_path: Path, capsys: Capture
    ) -> None:
        steps = [[-1.5, 0.25], [np.nan, np.nan]]
        service.change = lambda arrays, meta: arrays.__setitem__("log_prob", np.array(steps))
        command = ["sample", "moons", "-n", "2", "--seed", "1", "--log-prob"]
        assert main(command) == 0
        assert capsys.readouterr().out.endswith("log_prob\n[[-1.5   0.25]\n [  nan   nan]]\n")
        assert main([*command, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["log_prob"] == [[-1.5, 0.25], [None, None]]
        assert main([*command, "-o", str(tmp_path / "o.json")]) == 0
        assert json.loads((tmp_path / "o.json").read_text())["log_prob"] == [[-1.5, 0.25], [None, None]]

    def test_conditions_by_name_are_read_from_files(self, service: FakeService, tmp_path: Path) -> None:
        text = np.arange(6, dtype=np.float16).reshape(2, 3)
        np.save(tmp_path / "text.npy", text)
        command = ["sample", "moons", "-n", "2", "--seed", "0", "--condition", f"text={tmp_path / 'text.npy'}"]
        terms = '{"strength": 3, "interval": [0, 0.8]}'
        command += [
            "--condition",
            "label=3",
            "--negative",
            "label=1",
            "--guidance",
            terms,
            "-o",
            str(tmp_path / "o.npy"),
        ]
        assert main(command) == 0
        [seen] = service.seen
        assert seen["headers"]["Content-Type"] == "application/x-npz"
        with np.load(io.BytesIO(seen["body"])) as sent:
            request = json.loads(str(sent["request"]))
            np.testing.assert_array_equal(sent["conditions.text"], text)
            assert sent["conditions.text"].dtype == np.float16
        assert (request["conditions"], request["negative"]) == ({"label": 3}, {"label": 1})
        assert request["guidance"] == {"strength": 3, "interval": [0, 0.8]}
        assert main(["sample", "moons", "--condition", "text=nowhere.npy"]) == 2

    def test_without_a_file_a_summary_is_shown(self, capsys: Capture) -> None:
        assert main(["sample", "moons", "-n", "3", "--seed", "1"]) == 0
        assert "moons v3, dopri5@1e-5, seed 1" in capsys.readouterr().out

    def test_json_has_no_nan(self, service: FakeService, capsys: Capture) -> None:
        service.change = lambda arrays, meta: arrays["samples"].__setitem__((0, 0), np.nan)
        assert main(["sample", "moons", "-n", "2", "--seed", "1", "--json"]) == 0
        printed = json.loads(capsys.readouterr().out)
        assert printed["samples"] == [[None, 1.0], [1.0, 1.0]]
        assert printed["seed"] == 1

    @pytest.mark.parametrize(
        ("status", "advice"),
        [
            ("deadline", "a longer --timeout"),
            ("max_nfe", "a larger --max-nfe"),
            ("non_finite", "a looser tolerance, more steps"),
        ],
    )
    def test_failed_samples_come_with_what_may_help(
        self, service: FakeService, capsys: Capture, status: str, advice: str
    ) -> None:
        def change(arrays: dict[str, Any], meta: dict[str, Any]) -> None:
            arrays["status"] = np.array(["success", status])
            meta |= {"status": status, "failed": [{"index": 1, "status": status, "t": 0.5}]}

        service.change = change
        assert main(["sample", "moons", "-n", "2", "--seed", "1"]) == 1
        assert f"1 of 2 samples did not reach the end (sample 1: {status}); {advice}" in capsys.readouterr().err

    def test_failed_samples_are_told_and_counted_over_pages(
        self, service: FakeService, tmp_path: Path, capsys: Capture
    ) -> None:
        def change(arrays: dict[str, Any], meta: dict[str, Any]) -> None:
            arrays["status"] = np.array(["success", "max_nfe"])
            meta |= {"status": "max_nfe", "failed": [{"index": 1, "status": "max_nfe", "t": 0.5}]}

        service.change = change
        path = tmp_path / "out.npz"
        assert main(["sample", "moons", "-n", "4", "--batch", "2", "--seed", "1", "-o", str(path)]) == 1
        assert "2 of 4 samples did not reach the end (sample 1: max_nfe)" in capsys.readouterr().err
        result = decode_npz(path.read_bytes(), sample_request("moons", 4, {"seed": 1}))
        assert [failure.index for failure in result.failed] == [1, 3]
        assert result.status_per_sample.tolist() == ["success", "max_nfe", "success", "max_nfe"]

    @pytest.mark.parametrize("name", ["out.pt", "out", "out.npz.gz"])
    def test_an_unknown_extension_is_refused_before_any_request(
        self, service: FakeService, capsys: Capture, name: str
    ) -> None:
        assert main(["sample", "moons", "-o", name]) == 2
        assert one_line(capsys).endswith("use one of .npz, .npy, .png, .csv, .json; see pathline sample --help")
        assert service.seen == []

    def test_an_unwritable_place_is_refused_before_any_request(
        self, service: FakeService, tmp_path: Path, capsys: Capture
    ) -> None:
        (tmp_path / "folder.npz").mkdir()
        (tmp_path / "device.npz").symlink_to("/dev/full")
        for path in (tmp_path / "absent" / "out.npz", tmp_path / "folder.npz", tmp_path / "device.npz"):
            assert main(["sample", "moons", "-o", str(path)]) == 5
            assert one_line(capsys).startswith(f"pathline: {path}: ")
        assert service.seen == []

    def test_a_full_disk_leaves_nothing_behind(
        self, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(file: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("os.fsync", full)
        path = tmp_path / "out.npy"
        path.write_bytes(b"old")
        assert main(["sample", "moons", "-o", str(path)]) == 5
        assert one_line(capsys) == (
            f"pathline: {path}: not written (No space left on device), and the partial file was removed; make room, "
            "or choose another place"
        )
        assert (names(tmp_path), path.read_bytes()) == (["out.npy"], b"old")

    def test_an_error_on_the_second_page_leaves_nothing_behind(
        self, service: FakeService, tmp_path: Path, capsys: Capture
    ) -> None:
        def change(arrays: dict[str, Any], meta: dict[str, Any]) -> None:
            service.replies = [service.problem(504, "deadline-exceeded", "too slow")]

        service.change = change
        for extension in ("npz", "npy", "csv", "png", "json"):
            assert main(["sample", "moons", "-n", "4", "--batch", "2", "-o", str(tmp_path / f"o.{extension}")]) == 4
            words = one_line(capsys)
            assert words == (
                "pathline: too slow [504, request r-1]; 50 % of the work was done; the limit (--timeout) was 30 s "
                "by default"
            )
            service.replies = []
        assert names(tmp_path) == []


@pytest.mark.usefixtures("live")
class TestOthers:
    def test_version(self, capsys: Capture) -> None:
        assert main(["--version"]) == 0
        assert capsys.readouterr().out == f"pathline {pathline.__version__}\n"

    def test_tables(self, capsys: Capture) -> None:
        assert main(["models"]) == 0
        assert (
            capsys.readouterr().out == "model  version  state  sample  status\nmoons  3        2      2       served\n"
        )
        assert main(["solvers"]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == "dopri5  5      adaptive  1 + 6 attempts"

    def test_rows_are_a_table_of_their_columns(self, service: FakeService, capsys: Capture) -> None:
        columns = [
            {"name": "rooms", "kind": "whole"},
            {"name": "price", "kind": "number", "unit": "EUR", "decimals": 2},
        ]
        service.change = lambda arrays, meta: (
            arrays.update(samples=np.arange(24.0).reshape(12, 2) / 3), meta.update(columns=columns), None
        )[-1]  # fmt: skip
        assert main(["sample", "moons", "-n", "12", "--seed", "0"]) == 0
        lines = capsys.readouterr().out.splitlines()
        table = lines[next(k for k, line in enumerate(lines) if "rooms" in line) :]
        assert [table[0].split(), table[2].split()] == [["rooms", "price", "[EUR]"], ["0", "1.00"]]
        assert (len(table), table[-1]) == (12, "... and 2 more")

    def test_models_that_cannot_be_served_have_reasons(self, service: FakeService, capsys: Capture) -> None:
        listed = {"models": [{"name": "net", "version": None, "status": "unavailable", "fallback_from": None}]}
        described = {"name": "net", "unavailable": [{"version": 2, "reason": "is a program; set X=true to serve it"}]}
        service.replies = [
            (200, {"content-type": "application/json"}, json.dumps(body).encode()) for body in (listed, described)
        ]
        assert main(["models"]) == 0
        assert capsys.readouterr().err == "net v2 cannot be served: is a program; set X=true to serve it\n"

    @pytest.mark.parametrize("command", ["models", "solvers"])
    def test_json_lists_all_that_the_service_says(self, command: str, capsys: Capture) -> None:
        assert main([command, "--json"]) == 0
        assert "name" in json.loads(capsys.readouterr().out)[0]

    def test_options_of_all_commands_may_stand_before_the_command(
        self, live: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
    ) -> None:
        monkeypatch.delenv("PATHLINE_URL")
        assert main(["--url", live, "--json", "models"]) == 0
        assert json.loads(capsys.readouterr().out)[0]["name"] == "moons"
        assert main(["--url", "http://127.0.0.1:9", "models", "--url", live]) == 0
        assert capsys.readouterr().out.startswith("model ")

    def test_compare(self, service: FakeService, capsys: Capture) -> None:
        assert main(["compare", "moons", "-n", "100", "--seed", "2", "--within", "6"]) == 0
        out = capsys.readouterr().out.splitlines()
        assert out[-3:] == [
            "rk4-2: the cheapest", "no plans were tuned", "draw with it: pathline sample moons --solver rk4-2",
        ]  # fmt: skip
        assert json.loads(service.seen[0]["body"]) == {"num_samples": 100, "seed": 2, "budget": {"max_error": 0.06}}
        assert main(["compare", "moons", "--budget", "error=0.0001", "--solvers", "euler-4", "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["choice"] is None
        assert [row["solver"] for row in document["rows"]] == ["euler-4"]

    def test_commas_in_parentheses_belong_to_a_solver(self, service: FakeService) -> None:
        main(["compare", "moons", "--solvers", "euler-2/(0,0.5,1), rk4-9/shift(3)"])
        assert json.loads(service.seen[0]["body"])["solvers"] == ["euler-2/(0,0.5,1)", "rk4-9/shift(3)"]

    def test_the_text_of_a_solver_is_sent_as_typed(self, service: FakeService, capsys: Capture) -> None:
        for command in (["sample", "moons", "-n", "2"], ["bench", "moons", "--duration", "0.01"]):
            assert main([*command, "--solver", "RK4-20"]) == 0
        assert {json.loads(seen["body"])["solver"] for seen in service.seen} == {"RK4-20"}

    def test_compare_of_a_conditional_model(self, service: FakeService) -> None:
        assert main(["compare", "moons", "--solvers", "euler-9", "--condition", "3", "--guidance", "2"]) == 0
        [body] = [json.loads(seen["body"]) for seen in service.seen]
        assert (body["condition"], body["guidance"]) == (3, 2.0)

    def test_bench(self, service: FakeService, capsys: Capture) -> None:
        assert main(["bench", "moons", "-n", "4", "--duration", "0.2", "--concurrency", "2", "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["requests"] == len(service.seen) - 1 > 2
        assert report["errors"] == {}
        assert report["samples_per_s"] == pytest.approx(4 * report["requests_per_s"])
        assert 0 < report["latency_s"]["p50"] <= report["latency_s"]["p99"] <= report["latency_s"]["p100"]
        firsts = [json.loads(seen["body"])["first_index"] for seen in service.seen]
        assert sorted(firsts) == list(range(0, 4 * len(firsts), 4))

    def test_bench_counts_errors(self, service: FakeService, capsys: Capture) -> None:
        def change(arrays: dict[str, Any], meta: dict[str, Any]) -> None:
            service.replies = [service.problem(429, "overloaded")]

        service.change = change
        assert main(["bench", "moons", "--duration", "0.2", "--concurrency", "1"]) == 1
        assert "Unavailable" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("command", "message"),
        [
            ("sample", "the following arguments are required: MODEL"),
            ("sample moons -n 0", "0 is not allowed; use an integer from 1 to"),
            ("sample moons -n many", "many is not allowed"),
            ("sample moons --seed -1", "-1 is not allowed; use an integer from 0 to"),
            ("sample moons --rtol nan", "not finite"),
            ("sample moons --trace some", "invalid choice"),
            ("sample moons --sampler rk4", "pathline sample: unknown argument --sampler; did you mean --solver?"),
            ("sample moons --num-steps=4", "unknown argument --num-steps=4; did you mean --steps?"),
            ("sample moons --version 2", "unknown argument --version; did you mean --model-version?"),
            ("sample moons --tiemout 2", "unknown argument --tiemout; did you mean --timeout?"),
            ("sample moons more", "pathline sample: unknown argument more; see pathline sample --help"),
            ("bench moons --concurrency 1000", "from 1 to 100"),
            ("bench moons --duration nan", "seconds above 0, at most 600"),
            ("--url http://127.0.0.1:99999 models", "has the port 99999; use one from 1 to 65535"),
            ("models --url localhost:8000", "is not an http or https URL"),
        ],
    )
    def test_commands_that_are_not_understood(
        self, service: FakeService, capsys: Capture, command: str, message: str
    ) -> None:
        assert main(command.split()) == 2
        assert message in one_line(capsys)
        assert service.seen == []

    @pytest.mark.parametrize(
        ("reply", "status", "message"),
        [
            ((401, "unauthorized", "the key is not one"), 4, "; set PATHLINE_API_KEY or give --api-key"),
            ((404, "no-such-route", "nothing is here"), 3, "or is the service older than this command?"),
            ((422, "invalid-request", "steps = 7 is not allowed"), 4, "steps = 7 is not allowed [422, request r-1]"),
            (
                (422, "invalid-request", "timeout_s = 5 is short; raise max_nfe"),
                4,
                "--timeout = 5 is short; raise --max-nfe",
            ),
        ],
    )
    def test_advice(
        self, service: FakeService, capsys: Capture, reply: tuple[int, str, str], status: int, message: str
    ) -> None:
        service.replies = [service.problem(*reply)]
        assert main(["models"]) == status
        assert message in one_line(capsys)

    def test_something_else_answers(self, service: FakeService, capsys: Capture) -> None:
        service.replies = [(200, {"content-type": "text/html"}, b"<html>")]
        assert main(["models"]) == 3
        assert "is it a Pathline service, and not an older one?" in one_line(capsys)

    def test_the_key_is_sent(self, service: FakeService, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATHLINE_API_KEY", "from-environment")
        for command in (["models"], ["models", "--api-key", "given"], ["bench", "moons", "--duration", "0.01"]):
            main(command)
        keys = {seen["headers"].get("Authorization", seen["headers"].get("authorization")) for seen in service.seen}
        assert keys == {"Bearer from-environment", "Bearer given"}

    def test_errors_of_the_service_are_one_line(self, capsys: Capture) -> None:
        for command in ("sample", "compare", "bench"):
            assert main([command, "circles"]) == 4
            assert one_line(capsys) == "pathline: no model circles; there is: moons [404, request r-1]"

    def test_a_service_that_is_down(self, live: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
        monkeypatch.setattr(pathline.RetryPolicy, "wait", lambda *_: 0.0)
        assert main(["models", "--url", "http://127.0.0.1:9"]) == 3
        assert "cannot connect to http://127.0.0.1:9" in one_line(capsys)

    def test_what_the_system_refuses_is_not_put_down_to_the_output(
        self, monkeypatch: pytest.MonkeyPatch, capsys: Capture
    ) -> None:
        def refuse(*arguments: Any) -> None:
            raise OSError(24, "Too many open files")

        monkeypatch.setattr("asyncio.run", lambda coroutine: refuse(coroutine.close()))
        assert main(["bench", "moons"]) == 3
        assert one_line(capsys).startswith("pathline: Too many open files; ")

    def test_interrupting(self, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
        def interrupt(arguments: object) -> int:
            raise KeyboardInterrupt

        monkeypatch.setattr("pathline.cli.commands.models", interrupt)
        assert main(["models"]) == 130
        assert one_line(capsys) == "pathline: interrupted"

    def test_help(self, service: FakeService, capsys: Capture) -> None:
        assert main([]) == 0
        assert capsys.readouterr().out.startswith("usage: pathline ")
        assert main(["sample", "--help"]) == 0
        assert "--solver" in capsys.readouterr().out

    def test_as_a_process_with_a_reader_that_leaves(self) -> None:
        command = [sys.executable, "-m", "pathline", "sample", "moons", "-n", "20000", "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.read(1) == b"{"
            process.stdout.close()
            assert process.stderr.read() == b""
            assert process.wait(60) == 0


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (["--condition", "3"], {"condition": 3, "conditions": None, "negative": None}),
        (["--negative", "3"], {"condition": None, "conditions": None, "negative": {"condition": 3}}),
        (
            ["--condition", "text=[1,2]", "--negative", "text=[0,0]"],
            {"condition": None, "conditions": {"text": [1, 2]}, "negative": {"text": [0, 0]}},
        ),
    ],
)
def test_a_replay_takes_conditions_as_a_sample_does(given: list[str], found: dict[str, Any]) -> None:
    assert conditions(parse(["replay", "out.npz", *given])) == found


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--condition", "a=1", "--condition", "a=2"], "--condition a is given twice"),
        (["--negative", "1", "--negative", "a=2"], "--negative: give each of several conditions with its name"),
    ],
)
def test_conditions_that_exclude_each_other_are_refused(given: list[str], words: str) -> None:
    with pytest.raises(pathline.InvalidValue, match=words):
        conditions(parse(["sample", "moons", *given]))


def test_commands_of_the_server_run_where_it_is_installed(capsys: Capture, monkeypatch: pytest.MonkeyPatch):
    assert main(["train", "moons", "--steps", "0"]) == 2
    assert "training: --steps is 0" in capsys.readouterr().err
    assert main(["verify", "memory://empty"]) == 2
    assert "holds no job" in capsys.readouterr().err

    def absent(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.distribution", absent)
    for command in ("serve", "train", "tune", "import", "check", "bulk", "verify"):
        assert main([command, "x"]) == 2
        message = capsys.readouterr().err
        assert message.startswith(f"pathline {command}: the server is not installed beside this SDK; in a copy of the")
        assert message.count("\n") == 1
