"""Key lists on a GPU: the planner takes their address and never what lies there, which here is nothing."""

from __future__ import annotations

import ctypes
from typing import Any, Final

import pytest
import tvm_ffi

from attngen.runtime import host
from attngen.runtime import plan as plan_module
from attngen.runtime.limits import Limits
from attngen.runtime.plan import Level, Planner
from attngen.runtime.plan_records import Plan

from . import plans

ARENA: Final = 0x7F00_0000_0000
LISTS: Final = ARENA - 0x1_0000_0040  # below the arena, farther away than 32 bits reach
CUDA: Final = 2


class _Tensor(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


_alive: list[Any] = []


class OnDevice:
    """`size` integers at an address that no processor may touch."""

    def __init__(self, address: int, size: int, bits: int = 32, index: int = 0) -> None:
        shape = (ctypes.c_int64 * 1)(size)
        self.tensor = _Tensor(address, CUDA, index, 1, 0, bits, 1, shape, None, 0, None, None)
        _alive.extend((shape, self.tensor))

    def __dlpack__(self, **_: Any) -> Any:
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return make(ctypes.addressof(self.tensor), b"dltensor", None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (CUDA, self.tensor.device_id)


@pytest.fixture(autouse=True)
def _pass_them_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def host_ints(value: Any, name: str) -> Any:
        return tvm_ffi.from_dlpack(value) if isinstance(value, OnDevice) else plans_host_ints(value, name)

    plans_host_ints = plan_module.host_ints
    monkeypatch.setattr(plan_module, "host_ints", host_ints)


BATCH: Final = plans.paged_batch([2, 0, 1], [20, 9, 40], 8)


def planned(planner: Planner | None = None, **changes: Any) -> Plan:
    arguments = {**BATCH.paged(), "kv_indices": OnDevice(LISTS, len(BATCH.kv_indices)), **changes}
    planner = planner or make_planner()
    planner.plan(**arguments)
    return planner.read()


def make_planner(device_arena: tuple[int, int] | None = (ARENA, 0), **changes: Any) -> Planner:
    changes = {"has_mask": True, "key_bounds": plans.CAUSAL, **changes}
    return Planner(plans.make_config(BATCH, **changes), host.library().planner, device_arena=device_arena)


def test_lists_stay_where_they_are() -> None:
    plan = planned()
    assert plan.levels[0].indices == LISTS - ARENA and plan.levels[0].positions == 0
    assert {(item.request, item.list) for item in plan.items} == {(0, 0), (2, 5)}
    assert plan.header.num_slots == 0
    plain = make_planner()
    plain.plan(**BATCH.paged())
    ranges = [[(i.kv_begin, i.kv_end, i.full_from, i.full_to) for i in p.items] for p in (plan, plain.read())]
    assert ranges[0] == ranges[1]


def test_lists_on_the_device_need_no_room() -> None:
    limits = Limits(batch=3, q_tokens=3, kv_tokens=69, blocks=0)
    planned(make_planner(limits=limits))


def test_positions_on_the_device_are_unknown() -> None:
    plan = planned(kv_positions=OnDevice(LISTS + 1024, 10))
    assert plan.levels[0].positions == LISTS + 1024 - ARENA
    spans: dict[tuple[int, int], int] = {}
    for item in plan.items:
        assert item.full_from == item.full_to
        place = (item.packed_begin, item.kv_head)
        spans[place] = spans.get(place, 0) + item.kv_end - item.kv_begin
    assert spans == {(0, 0): 24, (0, 1): 24, (2, 0): 40, (2, 1): 40}


def test_one_list_on_the_device_and_one_on_the_host() -> None:
    positions = [8 * j for pages in BATCH.pages for j in range(len(pages))]
    plan = planned(kv_positions=positions)
    assert plan.levels[0].indices == LISTS - ARENA
    assert plan.ints(plan.levels[0].positions, 10) == tuple(positions)
    assert {(item.request, item.list) for item in plan.items} == {(0, 0), (2, 5)}
    assert max(item.kv_end for item in plan.items if item.request == 0) == 20
    swapped = planned(kv_indices=BATCH.kv_indices, kv_positions=OnDevice(LISTS, 10))
    assert swapped.ints(swapped.levels[0].indices, 10) == tuple(BATCH.kv_indices)
    assert swapped.header.num_slots == 8 * (max(BATCH.kv_indices) + 1)


def test_levels_on_the_device() -> None:
    limits = Limits(batch=3, q_tokens=3, kv_tokens=69, levels=2)
    views = [
        Level(qo_indptr=[0, 3], kv_indptr=[0, 1], kv_indices=OnDevice(LISTS, 1), block_size=8),  # type: ignore[arg-type]
        Level(
            qo_indptr=[0, 2, 3], kv_indptr=[0, 2, 6], kv_indices=OnDevice(LISTS + 64, 6),  # type: ignore[arg-type]
            kv_positions=[8, 16, 8, 16, 24, 32], block_size=8,
        ),
    ]  # fmt: skip
    plan = planned(make_planner(limits=limits), kv_indptr=None, kv_indices=None, levels=views)
    assert [level.indices for level in plan.levels] == [LISTS - ARENA, LISTS + 64 - ARENA, 0]
    assert {item.list for item in plan.items if item.level == 1} == {0, 2}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kv_indices": OnDevice(LISTS, 10, bits=64)}, "kv_indices on a device has type int64, need int32 there"),
        ({"kv_indices": OnDevice(LISTS, 9)}, r"kv_indices has 9 entries, need kv_indptr\[-1\] = 10"),
        (
            {"kv_indices": OnDevice(LISTS, 10, index=1)},
            "kv_indices is on another device, need it on cuda:0 or host integers",
        ),
        ({"kv_indptr": OnDevice(LISTS, 4)}, "kv_indptr is on a device, need host integers"),
        ({"qo_indptr": OnDevice(LISTS, 4)}, "qo_indptr is on a device, need host integers"),
        ({"kv_len": OnDevice(LISTS, 3)}, "kv_len is on a device, need host integers"),
        ({"kv_len": None, "last_page_len": OnDevice(LISTS, 3)}, "last_page_len is on a device, need host integers"),
    ],
)
def test_what_has_to_be_on_the_host(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        planned(**changes)


def test_a_cpu_reads_no_device() -> None:
    with pytest.raises(ValueError, match="kv_indices is on a device, need host integers"):
        planned(make_planner(device_arena=None))


def test_block_sparse_needs_positions() -> None:
    planner = make_planner(storage="block_sparse", block_rows=2)
    with pytest.raises(ValueError, match="kv_positions is missing: BlockSparse needs it where kv_indices is on a"):
        planned(planner, kv_indptr=[0, 3, 8])


def test_the_arena_of_a_plan_may_change() -> None:
    planner = make_planner()
    first = planner.arena
    other = first.clone()
    used = planner.plan(**BATCH.paged(), arena=other)
    assert planner.arena is other and planner.num_rows == 3 and planner.read().header.bytes == used
    with pytest.raises(ValueError, match="holds no plan"):
        plan_module.read_plan(first)
