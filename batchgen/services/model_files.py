"""Model directories: only under the allowed roots, and nothing in them that runs as code."""

import os
from collections.abc import Iterator
from pathlib import Path

from batchgen.chat.tokenizer import read_json
from batchgen.domain.errors import InvalidRequest, LoadFailed
from batchgen.engines.openvino.model_dir import adapter_files, content_files
from batchgen.settings import Settings

# Not for data: what lies there is made up by the kernel.
_NEVER = (Path("/proc"), Path("/sys"), Path("/dev"))
_PICKLES = frozenset({".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib", ".dill"})
# How a pickle by torch.save begins: a zip archive, or the older form's magic number.
_PICKLE_MAGIC = (b"PK\x03\x04", b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.")
_MOST_FILES = 10_000
_SHOWN = 3


def model_directory(
    given: str, settings: Settings, *, holds: str, or_else: str | None = None, param: str = "path"
) -> Path:
    """The directory, resolved; it must have the file `holds`, or the other.

    Raises InvalidRequest with the reason and the mend.
    """
    try:
        return _checked_directory(given, settings, holds, or_else, param)
    except OSError as error:
        raise _unreadable(given, error, param) from error


def _checked_directory(
    given: str, settings: Settings, holds: str, or_else: str | None, param: str
) -> Path:
    path, roots = _allowed(given, settings, param)
    if not path.is_dir():
        raise InvalidRequest(f"model path '{given}' is no directory on the server", param=param)
    if not any((path / name).is_file() for name in (holds, or_else) if name is not None):
        raise InvalidRequest(
            f"model path '{given}' holds no {holds}: export the model first "
            "(optimum-cli export openvino …)",
            param=param,
        )
    for file in content_files(path):
        target = file.resolve()
        if (roots and not _is_under(target, roots)) or _is_under(target, _NEVER):
            raise InvalidRequest(
                f"{file.name} in '{given}' is a link out of the allowed roots", param=param
            )
        _refuse_unreadable(file, given, param)
    _refuse_pickles(path, given, param)
    return path


def adapter_file(given: str, settings: Settings, *, param: str) -> Path:
    """A LoRA adapter's file, resolved. Raises InvalidRequest with the reason and the mend."""
    try:
        return _checked_adapter(given, settings, param)
    except OSError as error:
        raise _unreadable(given, error, param) from error


def _checked_adapter(given: str, settings: Settings, param: str) -> Path:
    path, roots = _allowed(given, settings, param)
    if not path.is_file() or path.suffix.lower() != ".safetensors":
        raise InvalidRequest(
            f"LoRA adapter '{given}' is no .safetensors file on the server (in PEFT's directories: "
            "adapter_model.safetensors)",
            param=param,
        )
    for file in adapter_files(path):
        if roots and not _is_under(file.resolve(), roots):
            raise InvalidRequest(
                f"{file.name} beside '{given}' is a link out of the allowed roots", param=param
            )
        _refuse_unreadable(file, given, param)
    return path


def _refuse_unreadable(file: Path, given: str, param: str) -> None:
    """Said here, not by whoever reads it later."""
    if not file.is_file() or not os.access(file, os.R_OK):
        raise InvalidRequest(
            f"{file.name} of '{given}' cannot be read by the server, or is a link to nothing",
            param=param,
        )


def _unreadable(given: str, error: OSError, param: str) -> InvalidRequest:
    what = error.filename or given
    return InvalidRequest(
        f"model path '{given}': {what} cannot be read by the server: {error.strerror}", param=param
    )


def _allowed(given: str, settings: Settings, param: str) -> tuple[Path, list[Path]]:
    """The path, resolved, and the roots. Raises InvalidRequest where it is outside of them."""
    if "\0" in given:
        raise InvalidRequest("a path must not hold the character NUL", param=param)
    try:
        path = Path(given).expanduser()
    except RuntimeError as error:  # ~ of somebody whom the server does not know
        raise InvalidRequest(f"model path '{given}': {error}", param=param) from error
    if not path.is_absolute():
        raise InvalidRequest(f"model path '{given}' must be absolute", param=param)
    path = path.resolve()
    roots = [Path(root).resolve() for root in settings.model_roots.split(":") if root]
    if roots and not _is_under(path, roots):
        raise InvalidRequest(
            f"model path '{given}' is not under an allowed root ({', '.join(map(str, roots))}); "
            "BATCHGEN_MODEL_ROOTS of the server names them",
            param=param,
        )
    if _is_under(path, _NEVER):
        raise InvalidRequest(f"model path '{given}' is no directory on the server", param=param)
    return path, roots


def code_that_is_not_run(model_dir: Path) -> list[str]:
    """What in the directory asks for code of its own to be run, each with what becomes of it."""
    out = [
        f"{name} names code of the model's own (auto_map): it is never run"
        for name in ("config.json", "tokenizer_config.json")
        if _names_code(model_dir / name)
    ]
    if scripts := sorted(path.name for path in model_dir.glob("*.py")):
        out.append(f"{', '.join(scripts[:_SHOWN])} in the model's directory: it is never run")
    return out


def _names_code(config: Path) -> bool:
    try:
        return "auto_map" in read_json(config)
    except LoadFailed:
        return False  # not ours to judge: loading it says what is wrong


def _refuse_pickles(model_dir: Path, given: str, param: str) -> None:
    found = sorted(str(path.relative_to(model_dir)) for path in _pickles(model_dir))
    if found:
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise InvalidRequest(
            f"model path '{given}' holds pickles ({', '.join(found[:_SHOWN])}{more}): loading one "
            "can run any code, so that no engine here reads them; move them away, and keep "
            "OpenVINO's .xml with its .bin, or .safetensors",
            param=param,
        )


def _pickles(model_dir: Path) -> Iterator[Path]:
    seen = 0
    for above, _, names in os.walk(model_dir):
        for name in names:
            seen += 1
            if seen > _MOST_FILES:
                return
            path = Path(above, name)
            suffix = path.suffix.lower()
            if suffix in _PICKLES or (suffix == ".bin" and not _is_weights_of_ir(path)):
                yield path


def _is_weights_of_ir(path: Path) -> bool:
    if not path.with_suffix(".xml").is_file():
        return False
    try:
        with path.open("rb") as file:
            return not file.read(16).startswith(_PICKLE_MAGIC)
    except OSError:
        return True  # not ours to judge: loading it says what is wrong


def _is_under(path: Path, roots: tuple[Path, ...] | list[Path]) -> bool:
    return any(path.is_relative_to(root) for root in roots)
