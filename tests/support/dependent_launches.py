"""Compile kernels that begin early, and say in which order they wait and touch memory.

It runs in a process of its own, because kernels are marked when they are imported.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import torch

from .paths import ROOT

# waiting, letting others begin, and all that reads or writes the device's memory
PTX_EVENT = re.compile(
    r"^\s*(?:@\S+ )?(griddepcontrol\.\w+|(?:ld|st|atom|red)\.global|cp\.async\.c[ag])", re.M
)
SASS_EVENT = re.compile(r"\b(ACQBULK|PREEXIT|LDG|STG|LDGSTS|ATOMG|RED|REDG)\b")


def events_by_kernel(capability: int) -> dict[str, dict]:
    """By launch: its events in PTX and in machine code, and whether it is launched early."""
    call = f"from support.dependent_launches import _print; _print({capability})"
    done = subprocess.run(
        [sys.executable, "-c", call],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests"))),
        },
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def _print(capability: int) -> None:
    from . import aot

    found = {}
    for i, launch in enumerate(_launches()):
        compiled = aot.compile_for(launch, capability)
        sass = (text for _, text in aot.assemble(launch, capability).code)
        found[f"{launch.kernel.__name__}, launch {i}"] = {
            "ptx": PTX_EVENT.findall(compiled.asm["ptx"]),
            "sass": [match[1] for match in map(SASS_EVENT.search, sass) if match],
            "is_early": compiled.metadata.launch_pdl,
        }
    print(json.dumps(found))


def _launches() -> list:
    """Launch every kernel but those of catalogues."""
    from pybeam.backends.arrays import PlanRules
    from pybeam.backends.beam_program import BeamRules
    from pybeam.contracts import Finishing
    from pybeam.triton_kernels import embedding, heads, layers
    from pybeam.triton_kernels.product import product

    from . import triton_launches as launches
    from .aot import recorded
    from .beam_arrays import EOS
    from .select_code import select_launch

    x, table = torch.zeros(4, 64), torch.zeros(8, 16)
    own = recorded(
        lambda: (
            layers.rms_norm(x, x[0], 1e-6),
            layers.add_norm(x, x, x[0], x[0], x[0], 1e-5),
            embedding.embed_norm(
                launches.ints(4), launches.ints(4), x, x, 2.0, 1, [(x[0], x[0], 1e-5)] * 2
            ),
            heads.turn_heads(
                x.view(4, 2, 32), 1, [(x[0], None, 1e-6)] * 2, (launches.ints(4), table, table)
            ),
            layers.gated(x, 1),
            product(x, x, x[0], 0, None, (x[0], x[0], 1e-5)),
        )
    )
    commit = BeamRules((EOS,), int(Finishing.REFILL), False, 0, 0, True, True)
    return [
        launches.attention_launch(5, 64, torch.bfloat16, num_splits=4, has_new=True),
        select_launch(torch.bfloat16),
        *own,
        *launches.read_launches(5, True, PlanRules(True, 1, 99, 9)),
        *launches.draw_launches(3, 900, has_cuts=True),
        *launches.prompt_launches(),
        *launches.commit_launches(5, commit),
        *launches.draft_launches(8, False),
        *launches.tree_launches(5),
        *launches.tree_launches(40, has_paths=True),
        *launches.gather_launches([x], 3),
        launches.scatter_launch(torch.bfloat16),
        launches.backtrace_launch(),
    ]
