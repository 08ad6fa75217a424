"""Verbs about policies at work: export."""

import argparse
from pathlib import Path
from typing import Any

from ringfence.cli.options import add_verb


def add_export(verbs: Any) -> None:
    parser = add_verb(
        verbs,
        "export",
        export,
        "write a policy for another runtime: ONNX, or C without dependencies\n"
        "example:\n  ringfence export runs/my_run/policy.safetensors --to c --out controller.c",
    )
    parser.add_argument("policy", type=Path, metavar="POLICY", help="a policy file")
    parser.add_argument("--to", required=True, choices=("onnx", "c"), help="c writes a header and a source file")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the file to write (default: beside the policy)")
    parser.add_argument(
        "--limit", type=float, metavar="L", help="of a policy for a range of limits: the one it starts with"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace files that exist")


def export(options: argparse.Namespace) -> None:
    from ringfence.deploy.export import export

    for path in export(options.policy, options.to, options.out, limit=options.limit, overwrite=options.overwrite):
        print(f"wrote {path}")
