"""What every command shares: exit codes, options of a kernel, tables, and progress that stays out of pipes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from attngen.codegen.source import KernelConfig
from attngen.codegen.target import GPUS, TARGETS
from attngen.codegen.tiles import ROWS
from attngen.dtypes import OPERANDS, POOLS
from attngen.runtime.toolchain import resolve_target

if TYPE_CHECKING:
    from attngen.loading import LoadedVariant

FINE, BAD_VARIANT, BAD_CALL, BAD_ENVIRONMENT = range(4)
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


class CallError(Exception):
    """The command was called in a way that can't work; the message says what would."""


def add_variant(parser: argparse.ArgumentParser, *, many: bool = False) -> None:
    """The file and, where it holds several variants, which."""
    parser.add_argument("file", metavar="FILE", nargs="+" if many else None, help="an .attn file")
    if not many:
        parser.add_argument("--variant", metavar="NAME", help="which variant, where the file holds several")


def add_kernel_options(parser: argparse.ArgumentParser) -> None:
    """The options that decide a kernel besides its variant."""
    group = parser.add_argument_group("kernel")
    known = ", ".join((*TARGETS, *GPUS))
    group.add_argument("--target", default="cpu", help=f"cpu (the best here), cuda (the GPU here) or one of {known}")
    group.add_argument("--head-dim", type=_positive, default=128, help="of q and k (default 128)")
    group.add_argument("--head-dim-v", type=_positive, help="of v, where it differs")
    group.add_argument("--dtype", choices=OPERANDS, default="bf16", help="of q, k', v' and the weights (default bf16)")
    group.add_argument("--kv-dtype", choices=POOLS, help="of the pool, where it differs")
    group.add_argument("--keys", choices=("raw", "transformed"), default="raw", help="what the pool holds")
    group.add_argument("--fast-math", action="store_true", help="allow approximations of built-in functions")


def add_rows(parser: argparse.ArgumentParser) -> None:
    """The option that says which of a GPU's kernels are meant."""
    parser.add_argument(
        "--rows",
        type=_rows,
        help=f"packed query rows of a GPU's tile, among {', '.join(map(str, ROWS))}; several: 16,128",
    )


def kernel_configs(args: argparse.Namespace, default: Sequence[int]) -> list[KernelConfig]:
    """A configuration for each of `--rows`, which a CPU's kernels don't have."""
    config = kernel_config(args)
    if config.target not in GPUS:
        if args.rows:
            raise CallError(f"--rows is of GPU targets; {config.target} is none")
        return [config]
    return [replace(config, rows=rows) for rows in args.rows or default]


def kernel_config(args: argparse.Namespace) -> KernelConfig:
    """The configuration that the options describe, for a target that can be built here."""
    return KernelConfig(
        target=target(args.target),
        head_dim=args.head_dim,
        head_dim_v=args.head_dim_v or args.head_dim,
        dtype=args.dtype,
        kv_dtype=args.kv_dtype or args.dtype,
        keys=args.keys,
        fast_math=args.fast_math,
    )


def target(name: str) -> str:
    """A row of TARGETS or GPUS; `auto` and `cpu` are the best that this machine can run, `cuda` is its GPU's."""
    if name in ("auto", "cpu"):
        return resolve_target("cpu", [(row.name, row.isa) for row in TARGETS.values()])
    if name == "cuda":
        from attngen.runtime.device import find_gpu

        gpu = find_gpu("cuda")
        assert gpu is not None
        return gpu.target
    if name not in TARGETS and name not in GPUS:
        raise CallError(f"no target `{name}`; there are cpu, cuda, {', '.join((*TARGETS, *GPUS))}")
    return name


def load(path: str, name: str | None = None) -> LoadedVariant:
    """The variant that the arguments name; a file that can't be read or chosen from is a wrong call."""
    from attngen import loading

    existing(path)
    try:
        return loading.load(path, name)
    except loading.NoSuchVariant as error:
        raise CallError(str(error)) from None


def existing(path: str) -> Path:
    """The path, if it is a file that can be read."""
    try:
        with open(path, "rb"):
            return Path(path)
    except OSError as error:
        raise CallError(f"can't read {path}: {error.strerror}") from None


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Columns padded to their widest cell; numbers and words alike are left to the caller to format."""
    lines = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


@contextmanager
def progress(message: str) -> Iterator[None]:
    """Show what takes long on a terminal; a pipe or a file never sees it."""
    if not sys.stderr.isatty():
        yield
        return
    print(f"{message} …", end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _rows(text: str) -> tuple[int, ...]:
    found = tuple(int(part) if part.isdecimal() else 0 for part in text.split(","))
    if not set(found) <= set(ROWS):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of {', '.join(map(str, ROWS))}")
    return found


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)
