"""Models by the command line: a flag for every setting, and the fleet as a file declares it."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from batchgen.cli.fleet_file import FleetFile, read_fleet
from batchgen.cli.settings_file import read_settings
from batchgen.cli.spec_flags import engine_flags
from batchgen.domain.errors import InvalidRequest, UnknownOption
from batchgen.engines.spec import OpenVinoEmbeddingSpec, OpenVinoSpec
from tests.cli.shell import Shell
from tests.house import MODELS

EXAMPLE = Path(__file__).parents[2] / "examples" / "models.yaml"
TARGET, DRAFT = MODELS / "orders-qwen3-2m-ov", MODELS / "orders-qwen3-1m-ov"
FLAGS_OF_OPENVINO_SERVERS = """
    --max-num-batched-tokens --max-num-seqs --num-kv-blocks --cache-size
    --num-linear-attention-blocks --cache-interval-multiplier --dynamic-split-fuse
    --no-dynamic-split-fuse --enable-prefix-caching --use-cache-eviction --use-sparse-attention
    --kv-cache-precision --runtime-config --draft-model-path --draft-device
    --num-assistant-tokens --assistant-confidence-threshold --prompt-lookup --eagle3 --no-cache
    --max-model-len --path --engine --device --pool
"""


def leaves(kind: type[msgspec.Struct], above: str = "") -> set[str]:
    """The dotted places of all settings."""
    out = set()
    for field in msgspec.structs.fields(kind):
        inner = [t for t in getattr(field.type, "__args__", (field.type,)) if isinstance(t, type)]
        structs = [t for t in inner if issubclass(t, msgspec.Struct)]
        for struct in structs:
            out |= leaves(struct, f"{above}{field.name}.")
        if not structs:
            out.add(above + field.name)
    return out


def test_every_engine_setting_has_a_flag() -> None:
    flags = {flag.setting for flag in engine_flags()}
    otherwise = {"path", "device", "prompt_lookup.num_assistant_tokens"}
    derived = {"cache_dir", "content_hash", "draft.content_hash", "lora.content_hash"}
    assert leaves(OpenVinoSpec) | leaves(OpenVinoEmbeddingSpec) == flags | otherwise | derived
    assert len({flag.option for flag in engine_flags()}) == len(flags)
    assert [flag.option for flag in engine_flags() if not flag.text] == []


def test_no_flag_is_cut_off_in_80_columns(shell: Shell) -> None:
    words = shell.with_(COLUMNS="80")("model", "add", "--help").out.split()
    assert set(FLAGS_OF_OPENVINO_SERVERS.split()) <= set(words)
    assert {flag.option for flag in engine_flags()} <= set(words)


def test_flags_reach_the_spec(stack: Shell) -> None:
    done = stack(
        *("model", "add", "flags", "--path", TARGET, "--json"),
        *("--num-kv-blocks", "64", "--max-num-seqs", "8", "--use-cache-eviction"),
        *("--cache-eviction-max-cache-size", "1024", "--no-enable-prefix-caching"),
        *("--cache-eviction-aggregation-mode", "SUM", "--kv-cache-precision", "f16"),
        *("--runtime-config", '{"NUM_STREAMS": 1}', "--no-cache", "--max-model-len", "512"),
    )
    assert done.code == 0, done.err
    spec = done.json()["spec"]
    scheduler = {k: v for k, v in spec["scheduler_config"].items() if v is not None}
    eviction = {k: v for k, v in scheduler.pop("cache_eviction").items() if v is not None}
    assert eviction == {"max_cache_size": 1024, "aggregation_mode": "SUM"}
    assert scheduler == {
        "num_kv_blocks": 64,
        "max_num_seqs": 8,
        "use_cache_eviction": True,
        "enable_prefix_caching": False,
    }
    assert spec["kv_cache_precision"] == "f16"
    assert spec["runtime_config"] == {"NUM_STREAMS": 1}
    assert (spec["cache"], spec["max_model_len"]) == (False, 512)


def test_either_way_of_speculation_has_its_number_of_tokens(stack: Shell) -> None:
    add = ("model", "add", "spec", "--path", TARGET, "--num-assistant-tokens", "3", "--json")
    drafted = stack(*add, "--draft-model-path", DRAFT, "--draft-device", "CPU").json()
    assert drafted["spec"]["draft"]["num_assistant_tokens"] == 3
    assert drafted["draft_content_hash"]
    looked_up = stack(*add, "--prompt-lookup", "--prompt-lookup-max-ngram-size", "2").json()
    assert looked_up["spec"]["prompt_lookup"] == {"num_assistant_tokens": 3, "max_ngram_size": 2}
    embedding = stack(
        *("model", "add", "embed", "--engine", "openvino-embeddings", "--path", TARGET),
        *("--pooling", "mean", "--no-normalize", "--json"),
    ).json()
    assert (embedding["spec"]["pooling"], embedding["spec"]["normalize"]) == ("mean", False)
    eagle = stack(*add, "--draft-model-path", DRAFT, "--eagle3").json()
    assert eagle["spec"]["draft"]["kind"] == "eagle3"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--cache-dir", "/tmp"], "BATCHGEN_CACHE_DIR"),
        (["--prompt-lookup"], "needs --num-assistant-tokens"),
        (["--eagle3"], "needs --draft-model-path"),
        (["--prompt-lookup", "--num-assistant-tokens", "2", "--draft-device", "CPU"], "without a"),
        (["--prompt-lookup-max-ngram-size", "2"], "goes with --prompt-lookup"),
        (["--runtime-config", "[]"], "must be a JSON object"),
        (["--runtime-config", "{"], "is not JSON"),
        (["--kv-cache-precision", "f8"], "--kv-cache-precision"),
        (["--device", "GPU0"], "did you mean GPU"),
        (["--set", "trust_remote_code=true"], "never run"),
        (["--set", "cache_dir=/tmp"], "derived by the server"),
        (["--num-kv-blocks", "9", "--cache-size", "1"], "num_kv_blocks and cache_size"),
    ],
)
def test_flags_that_cannot_be_are_refused(stack: Shell, arguments: list[str], reason: str) -> None:
    done = stack("model", "add", "never", "--path", str(TARGET), *arguments)
    assert (done.code, done.out) == (2, "")
    assert reason in done.err


def test_show_names_device_content_and_what_is_amiss(stack: Shell) -> None:
    made = stack("model", "add", "shown", "--path", TARGET, "--device", "HETERO:GPU.0,CPU")
    assert made.code == 0
    shown = stack("model", "show", "shown")
    fields = dict(line.split("\t") for line in shown.out.splitlines())
    assert (fields["served by"], fields["device"]) == ("GPU.0", "HETERO:GPU.0,CPU")
    assert len(fields["content"]) == 32
    assert "warning: no live worker of pool 'default' serves GPU.0" in shown.err
    assert "there are: CPU" in made.err


FLEET = f"""\
models:
  fleet-a:
    engine: simulated
    max_num_seqs: 4
  fleet.b:
    path: {TARGET}
    device: CPU
    scheduler_config:
      num_kv_blocks: 64
"""


def test_a_fleet_file_is_compared_applied_and_then_as_declared(
    stack: Shell, tmp_path: Path
) -> None:
    file = tmp_path / "models.yaml"
    file.write_text(FLEET)
    diff = stack("model", "diff", file)
    assert diff.code == 0, diff.err
    assert "+ fleet-a: add\n" in diff.out
    assert "    scheduler_config.num_kv_blocks: 64\n" in diff.out
    assert "nothing was changed; it would be: 2 added" in diff.out
    assert stack("model", "show", "fleet-a").code == 2
    assert "2 added, 0 changed, 0 kept, 0 retired" in stack("model", "apply", file).out
    assert "0 added, 0 changed, 2 kept, 0 retired" in stack("model", "apply", file).out
    file.write_text(FLEET.replace("64", "65"))
    dry = stack("model", "apply", file, "--dry-run")
    assert "~ fleet.b: change (revision 1)" in dry.out
    assert "    scheduler_config.num_kv_blocks: 64 -> 65\n" in dry.out
    assert stack("model", "apply", file, "--json").json()["applied"] is True
    assert stack("model", "show", "fleet.b", "--json").json()["revision"] == 2


def test_pruning_would_retire_what_the_file_leaves_out(stack: Shell, tmp_path: Path) -> None:
    file = tmp_path / "models.json"
    file.write_text(json.dumps({"models": {"only": {"engine": "simulated"}}}))
    plan = stack("model", "diff", file, "--prune", "--json").json()
    assert {s["model"]: s["deed"] for s in plan["data"]}["sim"] == "retire"


def test_every_fault_of_a_fleet_file_is_shown_with_its_line(stack: Shell, tmp_path: Path) -> None:
    file = tmp_path / "models.yaml"
    file.write_text(
        FLEET
        + "  bad.one:\n    engine: simulated\n    max_num_seq: 4\n"
        + f"  bad.two:\n    path: {TARGET}\n    scheduler_config:\n      max_num_seqs: many\n"
        + f"  bad.three:\n    path: {TARGET}\n    scheduler_config:\n      max_seqs: 1\n"
    )
    done = stack("model", "apply", file)
    assert (done.code, done.out) == (2, "")
    _, *faults = done.err.strip().splitlines()
    assert [fault.split(": ")[:2] for fault in faults] == [
        [f"{file}:12", "models.bad.one.max_num_seq"],
        [f"{file}:16", "models.bad.two.scheduler_config.max_num_seqs"],
        [f"{file}:20", "models.bad.three.max_seqs"],
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("models:\n  a: {}\n  a: {}\n", "line 3: 'a' is given twice"),
        ("models:\n  a: {pool: p, pool: q}\n", "line 2: 'pool' is given twice"),
        ("models:\n  a: 3\n", "models.yaml:2: models.a must be an object"),
        ("model:\n  a: {}\n", "did you mean 'models'"),
        ("models: [a]\n", "must hold an object `models`"),
        ("- a\n", "must hold one object"),
        ("", "must hold one object"),
        ("models:\n  a: {n: 2026-01-01}\n", "not JSON serializable"),
        ("models:\n  a: {n: .nan}\n", "JSON"),
        ("models:\n  a: !!python/name:os.system {}\n", "cannot be read"),
        ("models: {a: &x {b: *x}}\n", "nested deeper"),
    ],
)
def test_a_file_that_declares_no_fleet_is_refused_with_its_place(
    tmp_path: Path, text: str, reason: str
) -> None:
    file = tmp_path / "models.yaml"
    file.write_text(text)
    with pytest.raises((InvalidRequest, UnknownOption)) as refused:
        read_fleet(file)
    assert reason in refused.value.message


def test_a_json_file_that_says_a_thing_twice_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "spec.json"
    file.write_text('{"device": "CPU", "device": "GPU"}')
    with pytest.raises(InvalidRequest, match="'device' is given twice"):
        read_settings(file)


def test_paths_in_a_fleet_file_are_meant_from_where_it_lies(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    file = tmp_path / "models.yaml"
    file.write_text("models:\n  a: {path: here, draft: {path: ./here}}\n  b: {path: there}\n")
    models: dict[str, Any] = read_fleet(file).models
    here = str(tmp_path / "here")
    assert models == {"a": {"path": here, "draft": {"path": here}}, "b": {"path": "there"}}


def test_a_fault_goes_to_the_model_with_the_longest_name() -> None:
    lines = {("models", "m"): 2, ("models", "m.x"): 5, ("models", "m.x", "pool"): 6}
    file = FleetFile(Path("f.yaml"), {"m": {}, "m.x": {}}, lines)
    assert file.located("models.m.x.pool: wrong") == "f.yaml:6: models.m.x.pool: wrong"
    assert file.located("models.m.y: wrong\nand") == "f.yaml:2: models.m.y: wrong\nf.yaml: and"


def test_a_job_overrides_settings_and_is_told_what_cannot_work(
    stack: Shell, tmp_path: Path
) -> None:
    assert stack("model", "add", "over", "--path", TARGET, "--num-kv-blocks", "64").code == 0
    lines = tmp_path / "in.jsonl"
    lines.write_text('{"prompt": "Hi", "max_tokens": 2}\n')
    submit = ("submit", lines, "-m", "over", "--json")
    for setting, reason in (
        ("scheduler_config.cache_size=1", "num_kv_blocks and cache_size"),
        ("scheduler_config.max_num_seq=1", "did you mean 'max_num_seqs'"),
        ("draft.path=/etc", "a job cannot override 'draft.path'"),
    ):
        refused = stack(*submit, "--set", setting)
        assert (refused.code, refused.out) == (2, "")
        assert reason in refused.err
    job = stack(*submit, "--set", "scheduler_config.max_num_seqs=3").json()
    assert stack("watch", job["id"], timeout_s=120).code == 0
    manifest = stack("manifest", job["id"]).json()
    assert manifest["engine_requested"]["content_hash"]
    (session,) = manifest["sessions"]
    applied = session["applied"]["config"]["scheduler_config"]
    assert (applied["max_num_seqs"], applied["num_kv_blocks"]) == (3, 64)


def test_the_example_declares_models_that_are_there(stack: Shell) -> None:
    done = stack("model", "diff", EXAMPLE)
    assert done.code == 0, done.err
    assert "it would be: 3 added" in done.out
