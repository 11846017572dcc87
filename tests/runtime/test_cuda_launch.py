"""The launcher of GPU kernels against a driver that has no GPU (fake_cuda.cpp): what it calls, and in which order."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pytest
import torch

import attngen
from attngen.codegen.source import KernelConfig, Parameter, Tile
from attngen.codegen.target import GPUS
from attngen.errors import EnvironmentFault
from attngen.runtime import device as devices
from attngen.runtime import host, setup
from attngen.runtime.device import Gpu
from attngen.runtime.module import Kernel
from attngen.runtime.setup import tile_rows
from tests.runtime.fake_gpu import SMS, Fake
from tests.runtime.test_attention import HK, HQ, D, expected, params
from tests.runtime.tiny_kernel import PARAMETERS, TinyVariant

PLAN: Final[dict[str, Any]] = dict(qo_indptr=[0, 1, 3], kv_indptr=[0, 2, 3], kv_indices=[5, 1, 2], kv_len=[20, 16])
KERNEL: Final = "x 128 shared 5000"


@dataclass(frozen=True)
class GpuVariant(TinyVariant):
    """The tiny variant, "compiled" for a GPU: its cubin names the CPU kernel that the fake driver runs."""

    folder: str = ""
    target: str = "sm90"
    shared_bytes: int = 5000

    def compile(self, config: KernelConfig) -> Kernel:
        cpu = replace(config, target="cpu", rows=0)
        plain = TinyVariant(softmax=self.softmax, parameters=self.parameters).compile(cpu)
        folder = Path(self.folder) / f"{config.rows}"
        folder.mkdir(exist_ok=True)
        (folder / "kernel.cubin").write_bytes(str(plain.folder / "kernel.so").encode() + b"\0")
        manifest = replace(
            plain.manifest,
            config=replace(config, target=self.target),
            tiles=(Tile(config.rows, 64, 1.0, 1.0, 1.0),),
            warps=4,
            shared_bytes=self.shared_bytes,
            ctas_per_sm=2,
        )
        handle = host.library().open_cubin(str(folder / "kernel.cubin"), 32 * manifest.warps, manifest.shared_bytes)
        return Kernel(folder, manifest, handle)


@pytest.fixture
def fake(driver: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    fake = Fake(driver)

    monkeypatch.setattr(setup, "find_gpu", fake.find_gpu)
    monkeypatch.setattr(setup, "GPU_OPERANDS", ("f32",))
    gc.collect()
    fake.calls()
    yield fake
    gc.collect()


def attention(folder: Path, variant: dict[str, Any] | None = None, **options: Any) -> attngen.Attention:
    chosen: dict[str, Any] = dict(
        num_qo_heads=HQ,
        num_kv_heads=HK,
        head_dim=D,
        dtype=torch.float32,
        kv=attngen.Paged(16),
        limits=attngen.Limits(batch=4, q_tokens=8, kv_tokens=4096),
        device="cuda",
    )
    return attngen.Attention(GpuVariant(folder=str(folder), **(variant or {})), **{**chosen, **options})


def inputs(rows: int = 3) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    return torch.randn(rows, HQ, D), (torch.randn(6, 16, HK, D), torch.randn(6, 16, HK, D))


def test_a_plan_and_its_runs(fake: Fake, tmp_path: Path) -> None:
    attn = attention(tmp_path)
    loading = fake.calls()
    assert "find attngen_attention" in loading and "attribute 8 5000" in loading
    q, pool = inputs()
    attn.plan(**PLAN)
    out, _ = attn.run(q, pool, **params())
    torch.testing.assert_close(out, expected(q, pool[1]))
    assert fake.calls() == ["copy stream 7", "record 1 stream 7", f"launch 6 {KERNEL} first 0 stream 7"]
    attn.plan(**PLAN, n=5)
    torch.testing.assert_close(attn.run(q, pool, gain=3, **params())[0], expected(q, pool[1], 3.0, 5))
    assert attn.plan_stats()["workers"] == 2 * SMS


def test_another_kernel_is_loaded_once_a_device(fake: Fake, tmp_path: Path) -> None:
    variant = GpuVariant(folder=str(tmp_path))
    options: dict[str, Any] = dict(
        num_qo_heads=HQ, num_kv_heads=HK, head_dim=D, dtype=torch.float32, kv=attngen.Paged(16)
    )
    limits = attngen.Limits(batch=4, q_tokens=8, kv_tokens=4096)
    kernel = variant.compile(KernelConfig("sm90", D, D, "f32", "f32", rows=16))

    class Same(GpuVariant):
        def compile(self, config: KernelConfig) -> Kernel:
            return kernel

    for device, loads in (("cuda:0", 1), ("cuda:0", 0), ("cuda:1", 1), ("cuda:1", 0)):
        attngen.Attention(Same(), **options, limits=limits, device=device)
        assert fake.calls().count("load") == loads


def test_work_goes_to_its_own_device(fake: Fake, tmp_path: Path) -> None:
    attn = attention(tmp_path, device="cuda:1")
    fake.calls()
    q, pool = inputs()
    attn.plan(**PLAN)
    attn.run(q, pool, **params())
    calls = fake.calls()
    assert calls.count("push 1") == calls.count("pop") > 0
    launch = next(i for i, call in enumerate(calls) if call.startswith("launch"))
    assert calls[launch - 1] == "push 1" and calls[launch + 1] == "pop"


def test_two_queues_of_which_one_has_work(fake: Fake, tmp_path: Path) -> None:
    limits = attngen.Limits(batch=4, q_tokens=200, kv_tokens=4096)
    attn = attention(tmp_path, limits=limits)
    assert [kernel.manifest.config.rows for kernel in attn.kernels] == [16, 128]
    q, pool = inputs(100)
    fake.calls()
    attn.plan(**PLAN)
    attn.run(q, pool, **params())
    assert [call for call in fake.calls() if "launch" in call] == [f"launch 6 {KERNEL} first 0 stream 7"]
    attn.plan(**{**PLAN, "qo_indptr": [0, 1, 90]})
    attn.run(q, pool, **params())
    launches = [f"launch 6 {KERNEL} first 0 stream 7", f"launch 6 {KERNEL} first 6 stream 7"]
    assert [call for call in fake.calls() if "launch" in call] == launches
    attn.plan(**{**PLAN, "qo_indptr": [0, 0, 0]})
    attn.run(q, pool, **params())
    assert not [call for call in fake.calls() if "launch" in call]


def test_plans_in_a_row_wait_for_their_buffer(fake: Fake, tmp_path: Path) -> None:
    attn = attention(tmp_path)
    fake.calls()
    waits = []
    for _ in range(5):
        attn.plan(**PLAN)
        waits.append([call for call in fake.calls() if "wait" in call])
    assert [len(wait) for wait in waits] == [0, 0, 0, 1, 1] and waits[3] != waits[4]


def test_streams_are_ordered_where_they_change(fake: Fake, tmp_path: Path) -> None:
    attn = attention(tmp_path)
    q, pool = inputs()
    attn.plan(**PLAN)
    attn.run(q, pool, **params())
    fake.calls()
    fake.stream = 8
    attn.run(q, pool, **params())
    attn.run(q, pool, **params())
    first, second, *launches = fake.calls()
    event = first.split()[1]
    assert (first, second) == (f"record {event} stream 7", f"order {event} stream 8") and len(launches) == 2
    fake.stream = 7
    attn.plan(**PLAN)
    assert fake.calls()[:3] == [f"record {event} stream 8", f"order {event} stream 7", "copy stream 7"]


def test_capture_launches_every_kernel_and_orders_nothing(fake: Fake, tmp_path: Path) -> None:
    attn = attention(tmp_path, limits=attngen.Limits(batch=4, q_tokens=200, kv_tokens=4096))
    q, pool = inputs()
    out, lse = torch.empty(3, HQ, D), torch.empty(3, HQ)
    attn.plan(**PLAN)
    fake.calls()
    fake.stream = 9
    fake.capture(True)
    attn.run(q, pool, out=out, lse=lse, **params())
    assert fake.calls() == [f"launch 6 {KERNEL} first {first} stream 9" for first in (0, 6)]
    fresh, _ = attn.run(inputs(8)[0], pool, **params())
    assert not fresh.any()  # rows that a later plan doesn't cover are 0 too
    with pytest.raises(RuntimeError, match=r"plan\(\) was called while a CUDA graph is captured"):
        attn.plan(**PLAN)
    fake.capture(False)
    attn.run(q, pool, out=out, lse=lse, **params())  # the plan is still there
    torch.testing.assert_close(out, expected(q, pool[1]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"qo_indptr": [0, 1, 4]}, "has `q` with Rows = 3; this plan needs 4"),
        ({"kv_indices": [5, 1, 7]}, "has the pool with Slots = 96; this plan needs 128"),
        ({"kv_len": [20, 16], "kv_indptr": [0, 2, 3], "kv_indices": [5, 1, 2]}, ""),
        ({"kv_len": [21, 16]}, "has `table` with KV = 20; this plan needs 21"),
        (
            {"qo_indptr": [0, 1, 2, 3], "kv_indptr": [0, 1, 2, 3], "kv_len": [16, 16, 16]},
            "has `table` with B = 2; this plan needs 3",
        ),
    ],
)
def test_a_plan_that_a_graph_cannot_hold(fake: Fake, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    attn = attention(tmp_path)
    q, pool = inputs()
    attn.plan(**PLAN)
    fake.capture(True)
    attn.run(q, pool, **params())
    fake.capture(False)
    if not message:
        attn.plan(**{**PLAN, **changes})
        return
    fake.calls()
    with pytest.raises(ValueError, match=message):
        attn.plan(**{**PLAN, **changes})
    assert not [call for call in fake.calls() if "copy" in call]
    with pytest.raises(ValueError, match="there is no plan to run"):
        attn.run(q, pool, **params())
    attn.release_graphs()
    attn.plan(**{**PLAN, **changes})


def test_rows_that_need_16_byte_loads(fake: Fake, tmp_path: Path) -> None:
    attn = attention(tmp_path)
    q, (k, v) = inputs()
    attn.plan(**PLAN)
    odd = torch.empty(3 * HQ * D + 1)[1:].view(3, HQ, D)
    wide = torch.empty(6, 16, HK, D + 2)[..., :D]
    with pytest.raises(ValueError, match="argument `q` starts 4 bytes past a multiple of 16"):
        attn.run(odd, (k, v), **params())
    with pytest.raises(ValueError, match=r"the V pool is .* with stride 66 along dimension 2, which is 264 bytes"):
        attn.run(q, (k, wide), **params())
    with pytest.raises(ValueError, match="argument `out` starts 4 bytes past"):
        attn.run(q, (k, v), out=odd, **params())


def test_a_failing_launch_says_what_the_driver_said(fake: Fake, tmp_path: Path) -> None:
    attn = attention(tmp_path)
    q, pool = inputs()
    attn.plan(**PLAN)
    fake.library.fake_fail(719)
    message = r"CUDA_ERROR_LAUNCH_FAILED \(told by the driver\) while launching the attention kernel"
    with pytest.raises(RuntimeError, match=message):
        attn.run(q, pool, **params())
    attn.run(q, pool, **params())


def test_kernels_that_do_not_load(fake: Fake, tmp_path: Path) -> None:
    with pytest.raises(
        EnvironmentFault, match=r"don't load on cuda:0 \(Fake\): no CTA of 128 threads with 300000 bytes"
    ):
        attention(tmp_path, {"shared_bytes": 300000})
    with pytest.raises(EnvironmentFault, match=r"is for sm100, which needs compute capability 10\.0; cuda:0"):
        attention(tmp_path, {"target": "sm100"})
    with pytest.raises(EnvironmentFault, match=r"there is no device|unknown|UNKNOWN"):
        attention(tmp_path, device="cuda:2")


def test_wrong_plans_leave_none_behind(fake: Fake, tmp_path: Path) -> None:
    attn = attention(tmp_path)
    q, pool = inputs()
    attn.plan(**PLAN)
    for changes in ({"kv_len": [99, 16]}, {"n": 1.5}, {"n": torch.tensor(5, device="meta")}):
        with pytest.raises(ValueError, match=next(iter(changes))):
            attn.plan(**{**PLAN, **changes})
        with pytest.raises(ValueError, match="there is no plan to run"):
            attn.run(q, pool, **params())
    attn.plan(**PLAN)
    torch.testing.assert_close(attn.run(q, pool, **params())[0], expected(q, pool[1]))


def test_declared_ranges_on_request(fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNGEN_CHECK", "1")
    attn = attention(tmp_path)
    attn.plan(**PLAN)
    q, pool = inputs()
    attn.run(q, pool, **params())
    table = torch.full((2, 20), 2, dtype=torch.int32)
    with pytest.raises(ValueError, match=r"`table` holds 2 at flat index 0, outside its declared range 0\.\.2"):
        attn.run(q, pool, **{**params(), "table": table})


def test_an_attention_that_goes_waits_for_its_work(fake: Fake, tmp_path: Path) -> None:
    attn = attention(tmp_path)
    attn.plan(**PLAN)
    fake.calls()
    del attn
    gc.collect()
    calls = fake.calls()
    assert calls[0].startswith("record ") and calls[1].startswith("wait ")


def test_the_number_of_workers_is_a_kernels(fake: Fake, tmp_path: Path) -> None:
    limits = attngen.Limits(batch=4, q_tokens=200, kv_tokens=4096)
    attn = attention(tmp_path, limits=limits, num_workers=5)
    attn.plan(**PLAN)
    assert attn.plan_stats()["workers"] == 10


@pytest.mark.parametrize(
    ("q_len", "group", "rows"),
    [
        (1, 1, (16,)),
        (1, 16, (16,)),
        (1, 17, (32,)),
        (2, 16, (32,)),
        (8, 4, (32,)),
        (9, 4, (16, 64)),
        (16, 4, (16, 64)),
        (17, 4, (16, 128)),
        (1, 64, (64,)),
        (2, 64, (128,)),
        (3, 20, (32, 64)),
        (1000, 1, (16, 128)),
    ],
)
def test_kernels_by_the_limits(q_len: int, group: int, rows: tuple[int, ...]) -> None:
    assert tile_rows(attngen.Limits(batch=2, q_tokens=2000, q_len=q_len, kv_tokens=1), group, 128) == rows


def test_wide_values_have_one_decode_tile() -> None:
    limits = attngen.Limits(batch=2, q_tokens=2, q_len=1, kv_tokens=1)
    assert tile_rows(limits, 17, 192) == (32,)
    assert tile_rows(limits, 17, 256) == (64,)


def test_levels_count_as_rows_of_a_request() -> None:
    limits = attngen.Limits(batch=64, q_tokens=64, q_len=1, kv_tokens=1, levels=2, level_rows=64)
    assert tile_rows(limits, 4, 128) == (16, 128)


def test_targets_are_those_of_the_compiler() -> None:
    assert list(devices._RUNS_ON) == list(GPUS)
    for name, (major, minor, later) in devices._RUNS_ON.items():
        assert GPUS[name].arch == f"sm_{major}{minor}{'' if later else 'a'}"


@pytest.mark.parametrize(
    ("capability", "target"), [((8, 0), "sm80"), ((8, 6), "sm86"), ((8, 7), "sm86"), ((8, 9), "sm89"), ((9, 0), "sm90")]
)
def test_the_best_target_of_a_gpu(capability: tuple[int, int], target: str) -> None:
    assert Gpu(0, "Some", capability, 1).target == target


@pytest.mark.parametrize("capability", [(7, 5), (10, 3), (12, 1)])
def test_gpus_without_a_target(capability: tuple[int, int]) -> None:
    with pytest.raises(EnvironmentFault, match=r"cuda:0 \(Some\) has compute capability"):
        assert not Gpu(0, "Some", capability, 1).target


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu_is_a_clear_fault(tmp_path: Path) -> None:
    for device in ("cuda", "cuda:1", torch.device("cuda", 0)):
        with pytest.raises(EnvironmentFault, match=r"device is .*cuda.*, but (this torch|there is no CUDA driver)"):
            attention(tmp_path, device=device)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": torch.float64}, "dtype is torch.float64"),
        ({"head_dim": 264}, "head_dim is 264; it needs at most 256 on"),
        ({"head_dim_v": 512}, "head_dim_v is 512; it needs at most 256"),
        (
            {"kv_dtype": torch.bfloat16},
            "kv_dtype is torch.bfloat16; it needs one of torch.float32, torch.float8_e4m3fn",
        ),
        ({"target": "cpu-avx2"}, "target is 'cpu-avx2' and device is a GPU; it needs 'cuda' or one of sm80"),
    ],
)
def test_what_a_gpu_cannot_do(fake: Fake, tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        attention(tmp_path, **options)


def test_torch_compile(fake: Fake, tmp_path: Path) -> None:
    attn = attention(tmp_path)
    attn.plan(**PLAN)

    @torch.compile(fullgraph=True, backend="eager")  # type: ignore[untyped-decorator]
    def model(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, given: dict[str, Any]) -> torch.Tensor:
        return attn.run(2 * q, (k, v), **given)[0] + 1

    q, (k, v) = inputs()
    torch.testing.assert_close(model(q, k, v, params()), expected(2 * q, v) + 1)


def test_an_empty_tensor_reads_as_zero(fake: Fake, tmp_path: Path) -> None:
    attn = attention(tmp_path, {"parameters": (*PARAMETERS, Parameter("other", "f32", ("Docs2",), "run"))})
    attn.plan(**PLAN)
    q, pool = inputs()
    attn.run(q, pool, **params(), other=torch.empty(0))
