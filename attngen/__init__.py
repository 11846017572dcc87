"""attngen compiles attention variants into kernels and runs them over any KV cache.

Importing this module imports nothing else: each name is fetched when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from attngen.codegen.source import KernelConfig
    from attngen.errors import AttnError, EnvironmentFault
    from attngen.loading import load, parse
    from attngen.runtime.append import append_kv
    from attngen.runtime.attention import Attention, State, workspace_bytes
    from attngen.runtime.cache import use_bundle
    from attngen.runtime.kv import BlockSparse, Dense, Paged, Ragged
    from attngen.runtime.limits import Limits
    from attngen.runtime.merge import merge
    from attngen.runtime.plan import Level
    from attngen.runtime.prefix_tree import prefix_tree

__version__ = "0.1.0"

_HOME: Final = {
    "AttnError": "errors",
    "Attention": "runtime.attention",
    "BlockSparse": "runtime.kv",
    "Dense": "runtime.kv",
    "EnvironmentFault": "errors",
    "KernelConfig": "codegen.source",
    "Level": "runtime.plan",
    "Limits": "runtime.limits",
    "Paged": "runtime.kv",
    "Ragged": "runtime.kv",
    "State": "runtime.attention",
    "append_kv": "runtime.append",
    "load": "loading",
    "merge": "runtime.merge",
    "parse": "loading",
    "prefix_tree": "runtime.prefix_tree",
    "use_bundle": "runtime.cache",
    "workspace_bytes": "runtime.attention",
}

__all__ = [
    "Attention",
    "AttnError",
    "BlockSparse",
    "Dense",
    "EnvironmentFault",
    "KernelConfig",
    "Level",
    "Limits",
    "Paged",
    "Ragged",
    "State",
    "append_kv",
    "load",
    "merge",
    "parse",
    "prefix_tree",
    "use_bundle",
    "workspace_bytes",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module `attngen` has no attribute `{name}`")
    import importlib

    value = getattr(importlib.import_module(f"attngen.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
