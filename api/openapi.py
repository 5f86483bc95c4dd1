"""`python -m api.openapi [--check]`: the interface described, as docs/reference/openapi.json."""

import argparse
import json
import sys
from pathlib import Path

from api.app import create_app
from batchgen.settings import Settings

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "openapi.json"


def described() -> str:
    """The description as the file holds it."""
    app = create_app(Settings(database_url=""))
    return json.dumps(app.openapi(), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def main() -> int:
    """Write the file; with `--check` only say by the exit code whether it is up to date."""
    parser = argparse.ArgumentParser(prog="python -m api.openapi", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    text = described()
    if parser.parse_args().check:
        if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text:
            return 0
        print(f"{PAGE} is out of date: run `make reference`", file=sys.stderr)  # noqa: T201
        return 1
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
