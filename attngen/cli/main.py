"""The parser of the command line, and the one place where exceptions become exit codes."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from attngen import __version__
from attngen.cli import bench, build, cache, check, doctor, run, show
from attngen.cli.report import BAD_CALL, BAD_ENVIRONMENT, BAD_VARIANT, CallError
from attngen.errors import AttnError, EnvironmentFault
from attngen.runtime.toolchain import CompileFault

COMMANDS = (check, show, build, run, bench, cache, doctor)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; gives its exit code: fine, variant wrong, call wrong, machine lacking (0 to 3)."""
    try:
        args = _parser().parse_args(argv)
        code = int(args.execute(args))
        sys.stdout.flush()
        return code
    except AttnError as error:
        print(error, file=sys.stderr)
        return BAD_VARIANT
    except (CallError, ValueError) as error:  # the runtime refuses arguments with a ValueError that names them
        print(f"attngen: {error}", file=sys.stderr)
        return BAD_CALL
    except (EnvironmentFault, CompileFault) as fault:
        print(f"attngen: {fault}", file=sys.stderr)
        return BAD_ENVIRONMENT
    except BrokenPipeError:
        _close_stdout()  # the reader has left
        return 0
    except OSError as error:  # a full disk, say
        print(f"attngen: {error}", file=sys.stderr)
        _close_stdout()
        return BAD_ENVIRONMENT
    except KeyboardInterrupt:
        print("attngen: interrupted", file=sys.stderr)
        return 130


def _close_stdout() -> None:
    """Send what is left to nowhere: Python would complain once more when it flushes stdout at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="attngen",
        description="Compile attention variants and run them over any KV-cache layout.",
        epilog="Exit status: 0 fine, 1 the variant is wrong, 2 the call is wrong, 3 the machine lacks something.",
    )
    parser.add_argument("--version", action="version", version=f"attngen {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add(commands)
    return parser
