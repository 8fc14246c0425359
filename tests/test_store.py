from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from poise import store
from poise.errors import Damaged, UserError

META = {"phase": 3, "names": ["cat", "dog"], "nothing": None, "share": 0.1}
WRITE = """
import sys, torch
from pathlib import Path
from poise import store
tensors = {name: torch.arange(6.0).view(2, 3) + i for i, name in enumerate("zyxab")}
store.write_tensors(Path(sys.argv[1]), tensors, {name: i for i, name in enumerate("qwertz")}, kind="checkpoint")
"""


def various() -> dict[str, Tensor]:
    return {
        "convolution": torch.randn(4, 3, 3, 3).to(memory_format=torch.channels_last),
        "transposed": torch.arange(6).view(2, 3).T,
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 64),
        "pixels": torch.arange(24, dtype=torch.uint8).view(1, 3, 2, 4),
        "taken": torch.tensor([True, False]),
        "half": torch.randn(3).bfloat16(),
        "trained": torch.nn.Parameter(torch.randn(2)),
        "stripes": torch.arange(10)[::2],
    }


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "some.safetensors"
    store.write_tensors(path, {"a": torch.arange(5.0), "b": torch.tensor([1, 2])}, META, kind="checkpoint")
    return path


class TestTensors:
    def test_every_kind_of_tensor_comes_back(self, tmp_path: Path) -> None:
        tensors, path = various(), tmp_path / os.fsdecode(b"caf\xe9")  # no UTF-8
        store.write_tensors(path, tensors, META, kind="checkpoint")
        found, meta = store.read_tensors(path, kind="checkpoint")
        assert meta == META
        assert found.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert found[name].dtype == tensor.dtype
            assert found[name].shape == tensor.shape
            assert torch.equal(found[name], tensor), name

    def test_the_memory_layout_does_not_change_the_bytes(self, tmp_path: Path) -> None:
        plain = torch.randn(4, 3, 5, 5)
        for name, tensor in (("a", plain), ("b", plain.to(memory_format=torch.channels_last))):
            store.write_tensors(tmp_path / name, {"x": tensor}, {}, kind="k")
        assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()

    def test_the_same_bytes_in_every_process(self, tmp_path: Path) -> None:
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", WRITE, str(tmp_path / str(number))],
                env={**os.environ, "PYTHONHASHSEED": str(number)},
            )
            for number in range(2)
        ]
        assert [writer.wait() for writer in writers] == [0, 0]
        sums = {hashlib.sha256((tmp_path / str(number)).read_bytes()).hexdigest() for number in range(2)}
        assert len(sums) == 1

    def test_damage_of_any_byte_is_detected(self, file: Path) -> None:
        whole = file.read_bytes()
        for position in range(0, len(whole), 3):
            hurt = bytearray(whole)
            hurt[position] ^= 0x20
            for data in (hurt, whole[:position]):
                file.write_bytes(data)
                with pytest.raises(Damaged):
                    store.read_tensors(file, kind="checkpoint")

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a file that an interrupt left open
    def test_ctrl_c_while_a_file_is_read_is_no_damage(self, file: Path) -> None:
        before = signal.signal(signal.SIGALRM, signal.default_int_handler)
        interrupts = 0
        try:
            for number in range(100):
                try:
                    signal.setitimer(signal.ITIMER_REAL, (1 + number) / 2e4)
                    for _ in range(50):
                        store.read_tensors(file, kind="checkpoint")
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except KeyboardInterrupt:
                    interrupts += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert interrupts > 50

    def test_another_kind_and_a_missing_file_are_named(self, file: Path) -> None:
        with pytest.raises(UserError, match="is a checkpoint file of poise, not a learner file"):
            store.read_tensors(file, kind="learner")
        with pytest.raises(UserError, match="does not exist"):
            store.read_tensors(file.with_name("nothing"), kind="learner")

    @pytest.mark.parametrize(("number", "advice"), [(store.FORMAT + 1, "install a newer poise"), (1, "make it again")])
    def test_another_format_is_refused_in_one_line(
        self, number: int, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as other:
            other.setattr(store, "FORMAT", number)
            store.write_tensors(tmp_path / "f", {"a": torch.ones(1)}, {}, kind="learner")
        with pytest.raises(UserError, match=rf"^[^\n]*has format {number}, this poise reads {store.FORMAT}; {advice}"):
            store.read_tensors(tmp_path / "f", kind="learner")

    def test_what_is_not_json_is_refused_before_anything_is_written(self, file: Path) -> None:
        before = file.read_bytes()
        with pytest.raises(ValueError, match="not JSON compliant"):
            store.write_tensors(file, {}, {"loss": float("nan")}, kind="checkpoint")
        assert file.read_bytes() == before


class TestJson:
    def test_a_document_comes_back_without_its_format(self, tmp_path: Path) -> None:
        store.write_json(tmp_path / "f", {"name": "größe", "values": [1, 2.5, None]})
        assert json.loads((tmp_path / "f").read_text())["format"] == store.PLAIN_FORMAT
        assert store.read_json(tmp_path / "f") == {"name": "größe", "values": [1, 2.5, None]}

    DEEP = '{"format": 1, "a": ' + "[" * 100_000 + "]" * 100_000 + "}"

    @pytest.mark.parametrize("text", ["", "{", "[1]", "7", "{}", '{"format": "1"}', "\x80", DEEP], ids=range(8))
    def test_what_was_not_written_so_is_damaged(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "f").write_bytes(text.encode("latin-1"))
        with pytest.raises(Damaged):
            store.read_json(tmp_path / "f")


class TestDigests:
    VALUE: ClassVar[dict[str, Any]] = {"name": "größe", "curve": [1, 2.5e-7, None], "seconds": {"train": 0.1}}

    def test_it_is_the_last_key_and_is_not_part_of_the_value(self, tmp_path: Path) -> None:
        store.write_json(tmp_path / "f", self.VALUE, digest=True)
        assert list(json.loads((tmp_path / "f").read_bytes())) == ["format", *self.VALUE, "digest"]
        assert store.read_verified(tmp_path / "f") == (self.VALUE, True)
        assert store.read_json(tmp_path / "f") == self.VALUE
        store.write_json(tmp_path / "f", self.VALUE)
        assert store.read_verified(tmp_path / "f") == (self.VALUE, False)
        assert store.digest_of({9: "a", 10: "b"}) == store.digest_of({"9": "a", "10": "b"})

    def test_no_flipped_bit_is_believed(self, tmp_path: Path) -> None:
        """It is named, or changed no value; or it hit the name of the digest, which is then missing."""
        store.write_json(tmp_path / "f", self.VALUE, digest=True)
        whole, believed = (tmp_path / "f").read_bytes(), 0
        for bit in range(8 * len(whole)):
            hurt = bytearray(whole)
            hurt[bit // 8] ^= 1 << bit % 8
            (tmp_path / "f").write_bytes(hurt)
            try:
                value, verified = store.read_verified(tmp_path / "f")
            except (Damaged, UserError):
                continue
            believed += verified
            assert value == self.VALUE if verified else len(value) == len(self.VALUE) + 1
        assert believed < 30  # in spaces, or `e` as `E`


class TestAtomic:
    def test_a_failed_write_leaves_the_old_file_and_nothing_else(self, tmp_path: Path, full_disk: None) -> None:
        (tmp_path / "f").write_bytes(b"old")
        with pytest.raises(OSError, match="No space left on device") as caught:
            store.write_bytes(tmp_path / "f", b"new")
        assert caught.value.filename == str(tmp_path / "f")
        assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]

    def test_a_killed_writer_leaves_the_old_file(self, tmp_path: Path) -> None:
        (tmp_path / "f").write_bytes(b"old")
        code = "import os, signal, sys; from pathlib import Path; from poise import store; "
        code += "os.fsync = lambda handle: os.kill(os.getpid(), signal.SIGKILL); "
        code += "store.write_bytes(Path(sys.argv[1]), b'new')"
        assert subprocess.run([sys.executable, "-c", code, str(tmp_path / "f")], check=False).returncode == -9
        assert (tmp_path / "f").read_bytes() == b"old"
        store.write_bytes(tmp_path / "f", b"newer")
        assert [path.name for path in tmp_path.iterdir()] == ["f"], "what it left is gone"

    def test_the_new_file_has_the_permissions_of_the_old_one(self, tmp_path: Path) -> None:
        (tmp_path / "f").write_bytes(b"old")
        (tmp_path / "f").chmod(0o640)
        store.write_bytes(tmp_path / "f", b"new")
        assert (tmp_path / "f").stat().st_mode & 0o777 == 0o640

    @pytest.fixture
    def full_disk(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(handle: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "fsync", fail)


def test_only_one_process_holds_a_lock_and_a_killed_one_gives_it_back(tmp_path: Path) -> None:
    code = "import sys, time; from pathlib import Path; from poise import store\n"
    code += "with store.locked(Path(sys.argv[1]), ''): print('held', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "lock")], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with (
            pytest.raises(UserError, match=r"^another process is at work; wait$"),
            store.locked(tmp_path / "lock", "is at work; wait"),
        ):
            pass
        holder.kill()
    with store.locked(tmp_path / "lock", "is at work; wait"):
        pass


@pytest.mark.parametrize("header", [None, "[]", '{"sum": 1}', "[" * 5000, '{"document": "{}"}', "{}"])
def test_safetensors_with_another_header_are_damage_in_one_line(tmp_path: Path, header: str | None) -> None:
    from safetensors.torch import save_file

    save_file({"a": torch.ones(2)}, tmp_path / "f", None if header is None else {"poise": header})
    with pytest.raises(Damaged, match=r"^[^\n]* is damaged[^\n]*$"):
        store.read_tensors(tmp_path / "f", kind="learner")
