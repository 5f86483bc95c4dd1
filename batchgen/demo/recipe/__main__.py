"""Train, export and evaluate the demo models, and write the example orders.

Run by scripts/demo-model.sh. Everything is fixed: the same machine gives the same weights, byte for
byte; another kind of CPU may round differently and end a little elsewhere.
"""

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import get_args

from batchgen.demo.orders import batch_line, held_out
from batchgen.demo.recipe.evaluate import (
    EVALUATED_ORDERS,
    HEADER,
    Prompts,
    evaluate_checkpoint,
    evaluate_ir,
)
from batchgen.demo.recipe.export import write_checkpoint, write_ir
from batchgen.demo.recipe.tokenizer import build
from batchgen.demo.recipe.train import PLANS, train

TABLE = "evaluation.md"
CHECKSUMS = "SHA256SUMS"


def main() -> None:
    """Parse the arguments and run the stages that were asked for."""
    parser = argparse.ArgumentParser(prog="python -m batchgen.demo.recipe", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/demo-models"))
    parser.add_argument("--model", choices=PLANS, action="append", help="one model (default: all)")
    parser.add_argument("--examples", type=Path, help="also write the example orders there")
    parser.add_argument("--evaluate-only", action="store_true", help="take models in --out as made")
    options = parser.parse_args()
    names = options.model or list(PLANS)
    if not options.evaluate_only:
        for name in names:
            _make(name, options.out)
    rows = [row for name in names for row in _evaluate(options.out, name)]
    table = "\n".join((HEADER, *rows)) + "\n"
    (options.out / TABLE).write_text(table)
    _write_checksums(options.out)
    if options.examples:
        write_examples(options.examples)
    _say(table)


def write_examples(directory: Path) -> None:
    """The held-out orders as an OpenAI batch file, and their answers beside it."""
    directory.mkdir(parents=True, exist_ok=True)
    lines, labels = [], []
    for number, example in enumerate(held_out(EVALUATED_ORDERS), start=1):
        custom_id = f"order-{number:03}"
        lines.append(batch_line(example, custom_id))
        labels.append({"custom_id": custom_id, "expected": example.order.to_dict()})
    for name, records in (("orders-500.jsonl", lines), ("orders-500.labels.jsonl", labels)):
        text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        (directory / name).write_text(text, encoding="utf-8")


def _make(name: str, out: Path) -> None:
    tokenizer = build()
    plan = PLANS[name]
    _say(f"training {name}: {plan}")
    model = train(plan, tokenizer, announce=_say)
    write_checkpoint(out / name, model.state_dict(), plan.shape, tokenizer)
    write_ir(out / name, out / f"{name}-ov")


def _evaluate(out: Path, name: str) -> list[str]:
    ir = out / f"{name}-ov"
    return [
        evaluate_checkpoint(out / name, "held-out").row(),
        *(evaluate_ir(ir, prompts).row() for prompts in get_args(Prompts)),
    ]


def _write_checksums(out: Path) -> None:
    """SHA-256 of every model file, in the form that `sha256sum --check` reads."""
    files = sorted(path for path in out.glob("*/*") if path.is_file())
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(out).as_posix()}\n"
        for path in files
    ]
    (out / CHECKSUMS).write_text("".join(lines))


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
