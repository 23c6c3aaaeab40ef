"""Describe the machine, the packages and the libraries of this process."""

from __future__ import annotations

import json
import os
import platform
import re
import sysconfig
from importlib import metadata
from pathlib import Path

from pybeam.platforms.system import lines_of_proc

DISTRIBUTION = "pybeam-search"
SECRET = re.compile("KEY|TOKEN|SECRET|PASSWORD")
# instruction sets that change what a kernel does
ISAS = (
    *("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16"),
    *("asimd", "asimddp", "i8mm", "bf16", "sve"),
)


def python() -> str:
    """Version and kind of Python, which may have no lock."""
    kind = platform.python_implementation()
    lock = ", without its lock" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
    return f"{platform.python_version()} ({kind}{lock})"


def cpu() -> str:
    """Cores, model and instruction sets, as Linux tells them."""
    # kernels for ARM64 tell no name
    kind = platform.processor() or platform.machine()
    names = _cpuinfo("model name") or [kind] * (os.cpu_count() or 1)
    flags = cpu_flags()
    isas = " ".join(isa for isa in ISAS if isa in flags)
    return f"{len(names)} x {names[0]}" + (f" ({isas})" if isas else "")


def memory() -> list[str]:
    """How much memory there is, and how much of it is free, as Linux tells them."""
    said = (line.split() for line in lines_of_proc("meminfo"))
    sizes = {name: int(kilobytes) * 1024 for name, kilobytes, *_ in said}
    told = {"MemTotal:": "in all", "MemAvailable:": "available"}
    found = [f"{gigabytes(sizes[name])} {what}" for name, what in told.items() if name in sizes]
    return [", ".join(found)] if found else []


def gigabytes(size: int) -> str:
    """A number of bytes as people write it."""
    return f"{size / 1e9:.1f} GB"


def cpu_flags() -> list[str]:
    """All that the first core can do; empty where /proc/cpuinfo does not tell."""
    lines = _cpuinfo("flags", "Features")
    return lines[0].split() if lines else []


def _cpuinfo(*names: str) -> list[str]:
    """The values behind these names, core by core."""
    lines = lines_of_proc("cpuinfo")
    return [line.split(":", 1)[1].strip() for line in lines if line.startswith(names)]


def openmp() -> list[str]:
    """Paths of the OpenMP libraries in this process, as Linux tells them. Two are one too many."""
    text = "\n".join(lines_of_proc("self/maps"))
    return sorted(set(re.findall(r"/\S*lib(?:g|i)?omp[-\w.]*\.so[.\d]*", text)))


def installed_from() -> str:
    """How pybeam was installed, and where its files are."""
    folder = Path(__file__).parents[1]
    try:
        distribution = metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return f"not installed; imported from {folder}"
    origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    if origin.get("dir_info", {}).get("editable"):
        return f"editable, {folder}"
    source = origin.get("url", "a package index")
    tags = re.findall(r"^Tag: (.+)$", distribution.read_text("WHEEL") or "", re.M)
    return f"wheel {', '.join(tags)} from {source}, {folder}"


def versions(names: tuple[str, ...]) -> list[str]:
    """Name and version of each of these distributions that is installed."""
    found = []
    for name in names:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return found


def settings(*prefixes: str) -> list[str]:
    """The environment variables whose names begin so. Keys of servers are not told."""
    found = {name: os.environ[name] for name in sorted(os.environ) if name.startswith(prefixes)}
    return [f"{name}={'(hidden)' if SECRET.search(name) else found[name]}" for name in found]


def without_home(text: str) -> str:
    """The text with `~` for the user's folder, whose name is the user's."""
    home = str(Path.home())
    return text if home == "/" else re.sub(rf"{re.escape(home)}(?=/|\b)", "~", text)
