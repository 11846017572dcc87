"""The command line: what it prints, and its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from attngen.cli import main
from tests.codegen.cxx import needs

EXAMPLES = Path(__file__).parents[1] / "examples"
GEMMA2 = str(EXAMPLES / "gemma2.attn")
SMALL = ("--head-dim", "16", "--dtype", "f32")
WRONG = "attention a:\n    mask: kv <= poss\n"


@pytest.fixture
def wrong(tmp_path: Path) -> str:
    path = tmp_path / "wrong.attn"
    path.write_text(WRONG)
    return str(path)


def test_check_is_silent_on_right_variants(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *(str(path) for path in sorted(EXAMPLES.glob("*.attn")))]) == 0
    assert capsys.readouterr() == ("", "")


def test_check_shows_mistakes(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", wrong]) == 1
    shown = capsys.readouterr().out
    assert "error[unknown-name]" in shown and "^^^^" in shown and "pos" in shown


def test_check_json(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--json", wrong, GEMMA2]) == 1
    (diagnostic,) = json.loads(capsys.readouterr().out)
    assert diagnostic["id"] == "unknown-name" and diagnostic["span"]["line"] == 2
    assert main(["check", "--json", GEMMA2]) == 0
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.parametrize("command", ["show", "build", "run", "bench"])
def test_a_wrong_variant_is_exit_1_everywhere(command: str, wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, wrong]) == 1
    assert "unknown-name" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["frobnicate"],
        ["check"],
        ["check", "no/such/file.attn"],
        ["show", GEMMA2, "--stage", "no-such-stage"],
        ["show", GEMMA2, "--variant", "no_such_variant"],
        ["show", GEMMA2, "--target", "vax"],
        ["show", GEMMA2, "--target", "sm90a"],
        ["show", GEMMA2, "--stage", "sass"],
        ["show", GEMMA2, "--target", "sm90", "--rows", "16,32"],
        ["build", GEMMA2, "--rows", "16"],
        ["build", GEMMA2, "--target", "sm90", "--rows", "48"],
        ["build", GEMMA2, "--target", "sm90", "--head-dim", "264"],
        ["build", GEMMA2, "--target", "sm90", "--dtype", "f32"],
        ["run", GEMMA2, "--heads", "7", "--kv-heads", "2"],
        ["run", GEMMA2, "--head-dim", "-3"],
        ["run", GEMMA2, "--head-dim", "12"],
        ["bench", "plan", GEMMA2, "more"],
        ["cache", "defragment"],
    ],
)
def test_wrong_calls_are_exit_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code: object = main(words)
    except SystemExit as stop:  # argparse's own way out
        code = stop.code
    assert code == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("words", [["build", GEMMA2, "--target", "cuda"], ["run", GEMMA2, "--target", "sm80"]])
def test_a_machine_without_a_gpu_is_exit_3(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert main(words) == 3
    assert "CUDA" in capsys.readouterr().err


def test_build_for_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    needs("nvcc")
    assert main(["build", GEMMA2, "--target", "sm90", "--rows", "16,64", "--head-dim", "64"]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split()[:6] == ["variant", "rows", "key", "seconds", "KiB", "registers"]
    assert [line.split()[1] for line in lines] == ["16", "64"]
    assert main(["show", GEMMA2, "--target", "sm90", "--head-dim", "64", "--stage", "ptx"]) == 0
    assert ".entry attngen_attention" in capsys.readouterr().out


def test_show_every_stage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", GEMMA2, "--stage", "list"]) == 0
    stages = capsys.readouterr().out.split()
    assert stages[:2] == ["ast", "ir"] and stages[-4:] == ["functor", "kernel", "ptx", "sass"]
    for stage in stages[:-2]:
        assert main(["show", GEMMA2, "--stage", stage, *SMALL]) == 0
        assert "gemma2" in capsys.readouterr().out.lower()


def test_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", GEMMA2, "--json", *SMALL, "--longest", "100"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["ok"] is True and result["variant"] == "gemma2" and result["target"] == "cpu"
    assert 0 <= result["error"] <= result["bound"] and result["compile_s"] >= 0 and result["run_ms"] > 0
    assert main(["run", GEMMA2, *SMALL, "--longest", "100", "--layout", "HND"]) == 0
    assert capsys.readouterr().out.startswith("ok: gemma2")


@pytest.mark.parametrize("what", [[], ["plan"]])
def test_bench(what: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--seconds", "0.01", "--batch", "2", "--kv-len", "64"]
    assert main(["bench", *what, GEMMA2, "--json", *SMALL, *small]) == 0
    assert json.loads(capsys.readouterr().out)["fastest_us"] > 0


def test_a_full_disk_is_exit_3() -> None:
    with open("/dev/full", "w") as full:
        words = [sys.executable, "-m", "attngen", "show", GEMMA2, *SMALL]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 3 and done.stderr.startswith("attngen: ") and "Traceback" not in done.stderr


def test_build_into_a_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", GEMMA2, *SMALL, "--out", str(tmp_path / "bundle")]) == 0
    assert "gemma2" in capsys.readouterr().out
    assert (tmp_path / "bundle" / "bundle.json").is_file()


def test_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("ATTNGEN_CACHE_DIR", str(tmp_path / "cache"))
    assert main(["cache", "path"]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "cache")
    assert main(["cache", "ls"]) == 0 and main(["cache", "clear"]) == 0


def test_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    assert "C++ compiler" in capsys.readouterr().out


def test_doctor_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("ATTNGEN_CXX", "no-such-compiler")
    assert main(["doctor"]) == 3
    assert "MISSING  C++ compiler" in capsys.readouterr().out


def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    line = f"{sys.executable} -m attngen show {GEMMA2} --stage ast | head -c 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stderr == ""
