"""Triton's cache on disk, filled where there is no GPU and used where there is one.

Triton names a compiled kernel by a hash of its own files, of the kernel's source and of what the launch made
constant. Among its own files is a library that differs from one version of Python to the next, though it is
built from the same code. So a kernel is packed with the other parts of its name, and gets its name where it
is unpacked. It is used there only if Triton has the same version and its Python files are the same. A kernel
whose source has changed is not found, and compiles as usual.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from unittest.mock import patch

from tests.support.aot import Launch, compile_for

CAPABILITY = 90
FILE, INDEX = "triton.tar.xz", "index.json"


class Stale(Exception):
    """The pack does not fit this machine; the message says why."""


def pack(launches: Iterable[Launch], folder: Path) -> int:
    """Compile these launches, and write what they run to a file in the folder. Returns how many there are."""
    import triton

    index = {"triton": triton.__version__, "python files": python_files(), "kernels": []}
    kernels: dict[str, dict] = {}
    with (
        tempfile.TemporaryDirectory() as cache,
        tarfile.open(folder / FILE, "w:xz", preset=6) as tar,
        triton.knobs.cache.scope(),
        triton.knobs.compilation.scope(),
        _noted_names() as names,
    ):
        triton.knobs.cache.dir = cache
        triton.knobs.compilation.store_binary_only = True
        for launch in launches:
            # a kernel that this process knows already would not be written
            launch.kernel.device_caches.clear()
            compile_for(launch, CAPABILITY)
            # what is kept in this process has machine code alone
            launch.kernel.device_caches.clear()
        for own in sorted(Path(cache).iterdir()):
            if own.name not in names:
                continue
            files = [path for path in sorted(own.iterdir()) if _is_run(path)]
            for path in files:
                tar.add(path, f"{len(kernels)}/{path.name}")
            kernels[own.name] = {"name": names[own.name], "files": [path.name for path in files]}
        index["kernels"] = list(kernels.values())
        text = json.dumps(index).encode()
        info = tarfile.TarInfo(INDEX)
        info.size = len(text)
        tar.addfile(info, BytesIO(text))
    return len(kernels)


def unpack(folder: Path, cache: Path) -> int:
    """Put the kernels of a pack into Triton's cache, a folder. Returns how many there are.

    Raises:
        Stale: the file is broken, or another Triton compiled them.
    """
    import triton
    from triton.runtime.cache import triton_key

    try:
        with tarfile.open(folder / FILE) as tar:
            files = {m.name: f.read() for m in tar if (f := tar.extractfile(m)) is not None}
        index = json.loads(files[INDEX])
    except (tarfile.TarError, lzma.LZMAError, EOFError, KeyError, ValueError) as error:
        raise Stale(f"{folder / FILE} is broken: {error!r}") from error
    if index["triton"] != triton.__version__:
        raise Stale(f"Triton is {triton.__version__}, and {index['triton']} compiled the kernels")
    if index["python files"] != python_files():
        raise Stale(
            f"the files of Triton {triton.__version__} are not those that compiled the kernels"
        )
    for i, kernel in enumerate(index["kernels"]):
        own = cache / _folder_of(f"{triton_key()}-{kernel['name']}")
        own.mkdir(parents=True, exist_ok=True)
        group = {name: str(own.resolve() / name) for name in kernel["files"]}
        for name in kernel["files"]:
            (own / name).write_bytes(files[f"{i}/{name}"])
            if name.endswith(".json"):
                (own / f"__grp__{name}").write_text(json.dumps({"child_paths": group}))
    return len(index["kernels"])


def python_files() -> str:
    """A hash of the files of Triton that decide how a kernel is compiled and how it is named."""
    import triton

    root = Path(triton.__file__).parent
    parts = ("compiler", "language", "backends/nvidia", "runtime/jit.py", "runtime/cache.py")
    paths = [
        p
        for part in parts
        for p in ([root / part] if part.endswith(".py") else _below(root / part))
    ]
    digest = hashlib.sha256()
    for path in paths:
        digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return digest.hexdigest()


def _below(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def _is_run(path: Path) -> bool:
    """Whether a file of the cache is machine code or says how to launch it."""
    return path.suffix in (".cubin", ".json") and not path.name.startswith("__grp__")


def _folder_of(key: str) -> str:
    from triton.runtime.cache import _base32

    return _base32(hashlib.sha256(key.encode()).hexdigest())


@contextmanager
def _noted_names() -> Iterator[dict[str, str]]:
    """Note the name of everything that is compiled, without Triton's own part, by folder of the cache."""
    from triton.compiler import compiler
    from triton.runtime.cache import triton_key

    names: dict[str, str] = {}
    get_cache_key = compiler.get_cache_key

    def noted(*arguments, **named):
        key = get_cache_key(*arguments, **named)
        names[_folder_of(key)] = key.removeprefix(f"{triton_key()}-")
        return key

    with patch.object(compiler, "get_cache_key", noted):
        yield names
