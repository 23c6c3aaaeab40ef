"""Run `pybeam` as if this were the system that PRETEND names, "win32" or "darwin".

    PRETEND=win32 python -m support.other_system translate ...

Other packages are imported first, since some need what is taken away. With `imports` in place of a command,
every module of pybeam is imported, a second time.
"""

from __future__ import annotations

import importlib
import mmap
import os
import pkgutil
import runpy
import select
import signal
import socket
import sys
import types
import warnings

BEFORE = """asyncio multiprocessing.connection multiprocessing.reduction subprocess concurrent.futures.thread
huggingface_hub.file_download torch numpy click tqdm safetensors.torch sentencepiece tokenizers yaml
uvicorn.protocols.http.httptools_impl uvicorn.protocols.websockets.websockets_sansio_impl uvicorn.loops.auto
fastapi.openapi.utils fastapi_offline prometheus_client pydantic sentencex py3langid uvloop""".split()
WITHOUT_PROC = {os: ["sched_getaffinity", "memfd_create"], mmap: ["MADV_HUGEPAGE"]}
LACKS = {
    "darwin": WITHOUT_PROC,
    "win32": {
        os: [
            *(
                "fork",
                "register_at_fork",
                "sched_getaffinity",
                "symlink",
                "killpg",
                "getuid",
                "getppid",
            ),
            *(
                "O_DIRECTORY",
                "O_CLOEXEC",
                "WNOHANG",
                "sendfile",
                "statvfs",
                "uname",
                "memfd_create",
            ),
        ],
        signal: ["SIGHUP", "SIGKILL", "SIGCHLD", "setitimer", "ITIMER_REAL"],
        mmap: ["MAP_PRIVATE", "MAP_ANONYMOUS", "MADV_HUGEPAGE"],
        select: ["poll", "epoll"],
        socket: ["send_fds", "recv_fds"],
    },
}
MODULES = {"darwin": [], "win32": ["fcntl", "resource", "pwd", "grp", "termios"]}


def _hide(event: str, arguments: tuple) -> None:
    if event in ("open", "os.listdir") and str(arguments[0]).startswith(("/proc", "/dev/fd")):
        raise FileNotFoundError(arguments[0])


def pretend(system: str) -> None:
    for name in BEFORE:
        importlib.import_module(name)
    for module, names in LACKS[system].items():
        for name in names:
            vars(module).pop(name, None)
    sys.modules.update(dict.fromkeys(MODULES[system]))
    if system == "win32":
        locking = types.SimpleNamespace(LK_NBLCK=2, locking=lambda fd, mode, num: None)
        sys.modules["msvcrt"] = locking
    from pybeam.platforms import system as asked

    # nothing else of pybeam asks, and other packages would take themselves for those of that system
    vars(asked)["sys"] = types.SimpleNamespace(platform=system, maxsize=sys.maxsize)
    sys.addaudithook(_hide)
    # the encoding of texts is another one on Windows
    warnings.filterwarnings("error", category=EncodingWarning, module=r"pybeam(\.|$)")


def import_all() -> None:
    import pybeam

    for found in pkgutil.walk_packages(pybeam.__path__, "pybeam."):
        room = found.name.split(".")[1]
        # Ray and Triton are for Linux
        if (
            room not in ("_C", "__main__", "ray", "triton_kernels")
            and found.name != "pybeam.cli.ray"
        ):
            importlib.import_module(found.name)


if __name__ == "__main__":
    if sys.argv[1:] == ["imports"]:
        import_all()
        for name in [name for name in sys.modules if name.startswith("pybeam")]:
            if name != "pybeam._C":
                del sys.modules[name]
        pretend(os.environ["PRETEND"])
        import_all()
    else:
        pretend(os.environ["PRETEND"])
        runpy.run_module("pybeam", run_name="__main__", alter_sys=True)
