"""The options that say that something happens on a Ray cluster, and on which."""

from __future__ import annotations

import click

from pybeam.cli.options.sections import option


def cluster_options(what: str) -> list[click.Option]:
    """Return --ray, which does `what`, and --address."""
    needs = 'Needs `pip install "pybeam-search[ray]"`.'
    return [
        option("--ray", "on_ray", is_flag=True, help=f"{what} {needs}"),
        option(
            "--address",
            metavar="HOST:PORT",
            help="With --ray: the cluster; auto: the one that runs on this machine. By default one of this "
            "machine alone starts, and ends with the command.",
        ),
    ]
